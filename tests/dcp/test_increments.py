"""Incremental saves: what is bit for bit as in the base is not stored again, and every load has the right elements."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, SigningKey, ZStandard
from streamxf.checkpoint.memory import SaveMemory
from streamxf.errors import ParameterError
from streamxf.report import SaveReport
from streamxf.storage.abilities import Volume
from streamxf.storage.local import LocalStorage
from tests.altered import flip
from tests.dcp.helpers import KEY, OTHER_KEY, blank, data_files, load, load_into, raw_bytes
from tests.reference_decoder import load as reference_load
from tests.reference_keys import Reader, aes_key

BLOCK = 1 << 16
SIGNER = SigningKey.generate()
CHAINS: dict[str, dict[str, Any]] = {
    "plain": {"chain": [FloatZip()]},
    "encrypted": {"chain": [FloatZip(), Checksum(), Encrypt(KEY)]},
    "signed": {"chain": [ZStandard()], "signer": SIGNER},
    "encrypted and signed": {"chain": [ZStandard(), Encrypt(KEY, signer=SIGNER)]},
}
chains = pytest.mark.parametrize("how", CHAINS.values(), ids=CHAINS)


def weights() -> dict[str, Any]:
    """Tensors of several blocks and of one, of elements that comparisons of numbers would mix up, and a value."""
    generator = torch.Generator().manual_seed(3)
    large = torch.randn(3 * BLOCK // 2 + 5, generator=generator)
    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf")]).repeat(1000)
    strided = torch.randn(60, 80, generator=generator).T
    return {"large": large.bfloat16(), "odd": odd, "strided": strided, "tiny": torch.ones(3), "step": 1}


def save(
    state: dict[str, Any], path: Path, memory: SaveMemory | None, base: Path | None = None, **how: Any
) -> SaveReport:
    how = {"chain": [FloatZip()], "block_size": BLOCK, "sync_files": False} | how
    writer = streamxf.FileSystemWriter(path, base=base, memory=memory, **how)
    dcp.save(state, storage_writer=writer)
    assert writer.report is not None
    return writer.report


def assert_holds(path: Path, state: dict[str, Any], **terms: Any) -> None:
    """Bit for bit, by a load and by `verify`."""
    found = load(state, path, **{"keys": None, **terms})
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(raw_bytes(found[name]), raw_bytes(value)), name
        else:
            assert found[name] == value
    report = streamxf.verify(path, **terms)
    assert report.ok, report


def terms_of(how: dict[str, Any]) -> dict[str, Any]:
    """What a reader of such a save needs."""
    keyed = [codec for codec in how["chain"] if isinstance(codec, Encrypt)]
    signed = "signer" in how or any(codec.signer for codec in keyed)
    return ({"keys": KEY} if keyed else {}) | ({"trust": [SIGNER.verify_key]} if signed else {})


@chains
def test_what_did_not_change_is_linked_and_all_is_as_it_was_saved(tmp_path: Path, how: dict[str, Any]) -> None:
    memory, state = SaveMemory(), weights()
    first = save(state, tmp_path / "1", memory, **how)
    assert (first.unchanged, first.whole) == (0, {})
    state["strided"].data[7, 7] += 1  # which no version counter sees
    state["step"] = 2
    second = save(state, tmp_path / "2", memory, tmp_path / "1", **how)
    assert (second.unchanged, second.unchanged_bytes) == (
        3,
        sum(state[name].nbytes for name in ("large", "odd", "tiny")),
    )
    assert second.whole == ({} if isinstance(how["chain"][0], FloatZip) else {"changed": 1})
    assert second.differences == 1 - len(second.whole)
    (new,) = set(data_files(tmp_path / "2")) - {tmp_path / "2" / file.name for file in data_files(tmp_path / "1")}
    assert new.stat().st_size < state["strided"].nbytes + 2000
    assert {file.name for file in data_files(tmp_path / "1")} < {file.name for file in data_files(tmp_path / "2")}
    shutil.rmtree(tmp_path / "1")
    assert_holds(tmp_path / "2", state, **terms_of(how))


@chains
def test_an_increment_is_a_base_too_and_each_folder_stands_alone(tmp_path: Path, how: dict[str, Any]) -> None:
    memory, state, saved = SaveMemory(), weights(), {}
    for step in range(5):
        state = {**state, "odd": state["odd"].clone(), "step": step}
        state["odd"].view(torch.int32)[step] ^= 1
        report = save(state, tmp_path / f"{step}", memory, tmp_path / f"{step - 1}" if step else None, **how)
        assert report.unchanged == (3 if step else 0)
        saved[step] = state
        shutil.rmtree(tmp_path / f"{step - 2}", ignore_errors=True)
    for step in (3, 4):
        assert_holds(tmp_path / f"{step}", saved[step], **terms_of(how))
    with streamxf.Checkpoint(tmp_path / "4", **terms_of(how)) as checkpoint:
        (metadata,) = checkpoint.metadata
        assert metadata.index is not None
        lower = [*checkpoint["odd"].chunks[0].place.files][1:]  # where differences pay
        assert {folder for _, folder in metadata.index.bases or ()} == {*"0123"[: len(lower) or 1]}


CHANGES = {
    "a sign of zero": lambda tensor: tensor.view(torch.int32)[0:1].bitwise_xor_(-(2**31)),
    "a NaN's payload": lambda tensor: tensor.view(torch.int32)[2:3].bitwise_xor_(1),
    "through data": lambda tensor: tensor.data[3:4].fill_(1.0),
    "through NumPy": lambda tensor: tensor.numpy().__setitem__(-1, 5.0),
    "the lowest bit of the last one": lambda tensor: tensor.view(torch.uint8)[-4:-3].bitwise_xor_(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_bit_that_changes_is_saved(tmp_path: Path, change: Any) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)
    with torch.no_grad():
        change(state["odd"])
    assert save(state, tmp_path / "2", memory, tmp_path / "1").whole == {"changed": 1}
    assert_holds(tmp_path / "2", state)


def test_each_block_is_compared(tmp_path: Path) -> None:
    memory, state = SaveMemory(), {"x": torch.zeros(5 * BLOCK // 2)}
    save(state, tmp_path / "0", memory)
    for at in range(0, state["x"].numel(), BLOCK // 4):
        state = {"x": torch.zeros(5 * BLOCK // 2)}
        state["x"][at] = -0.0
        assert save(state, tmp_path / f"{at}-x", memory, tmp_path / "0").unchanged == 0
        assert_holds(tmp_path / f"{at}-x", state)


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "recipients": ({"chain": [ZStandard(), Encrypt([KEY, OTHER_KEY])]}, {"chain": [ZStandard(), Encrypt(KEY)]}),
    "encryption": ({"chain": [ZStandard()]}, {"chain": [ZStandard(), Encrypt(KEY)]}),
    "signer": ({"chain": [ZStandard()]}, {"chain": [ZStandard()], "signer": SIGNER}),
    "no signer": ({"chain": [ZStandard()], "signer": SIGNER}, {"chain": [ZStandard()]}),
    "chain": ({"chain": [ZStandard()]}, {"chain": [FloatZip()]}),
    "level": ({"chain": [ZStandard(level=1)]}, {"chain": [ZStandard(level=2)]}),
    "block size": ({"block_size": BLOCK}, {"block_size": 2 * BLOCK}),
    "syncs": ({"sync_files": False}, {"sync_files": True}),
}


@pytest.mark.parametrize(("before", "now"), OTHERS.values(), ids=OTHERS)
def test_a_base_that_was_saved_otherwise_is_not_used(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any]
) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory, **before)
    report = save(state, tmp_path / "2", memory, tmp_path / "1", **now)
    assert (report.unchanged, sum(report.whole.values())) == (0, 4)
    assert all(file.stat().st_nlink == 1 for file in data_files(tmp_path / "2"))
    assert_holds(tmp_path / "2", state, **terms_of({"chain": [], **now}))


RESHAPED = {
    "another shape": lambda tensor: tensor.reshape(2, -1),
    "another dtype of the same bytes": lambda tensor: tensor.view(torch.int32),
    "more elements": lambda tensor: torch.cat([tensor, tensor]),
    "fewer": lambda tensor: tensor[:-1].clone(),
}


@pytest.mark.parametrize("reshape", RESHAPED.values(), ids=RESHAPED)
def test_a_tensor_of_another_shape_or_dtype_is_saved(tmp_path: Path, reshape: Any) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)
    state["odd"] = reshape(state["odd"])
    report = save(state, tmp_path / "2", memory, tmp_path / "1")
    assert (report.unchanged, sum(report.whole.values())) == (3, 1)
    assert_holds(tmp_path / "2", state)


def test_without_a_known_base_all_is_saved(tmp_path: Path) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)
    for path, other in ((tmp_path / "1", SaveMemory()), (tmp_path / "nothing", memory)):
        report = save(state, tmp_path / f"from {path.name}", other, path)
        assert (report.unchanged, sum(report.whole.values())) == (0, 4)
        assert_holds(tmp_path / f"from {path.name}", state)


def test_a_save_over_its_base_is_whole_and_leaves_it_until_then(tmp_path: Path) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)
    with pytest.warns(UserWarning, match="existing checkpoint"):
        report = save(state, tmp_path / "1", memory, tmp_path / "1")
    assert report.unchanged == 0
    assert_holds(tmp_path / "1", state)


def write_to(file: Path) -> None:
    flip(file)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))  # which the system's clock may be too coarse for


LOST = {
    "removed": lambda file: file.unlink(),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "a link": lambda file: (file.rename(file.with_name("moved")), file.symlink_to("moved")),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "written to": write_to,
    "replaced": lambda file: os.replace(shutil.copy2(file, file.with_name("copy")), file),
}


@pytest.mark.parametrize("lose", LOST.values(), ids=LOST)
def test_a_file_of_the_base_that_is_not_as_it_was_written_is_not_used(tmp_path: Path, lose: Any) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)
    (file,) = data_files(tmp_path / "1")
    lose(file)
    report = save(state, tmp_path / "2", memory, tmp_path / "1")
    assert (report.unchanged, sum(report.whole.values())) == (0, 4)
    assert len(data_files(tmp_path / "2")) == 1
    assert_holds(tmp_path / "2", state)


@chains
def test_a_base_that_was_altered_in_storage_is_found_by_readers(tmp_path: Path, how: dict[str, Any]) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory, **how)
    (file,) = data_files(tmp_path / "1")
    save(state, tmp_path / "2", memory, tmp_path / "1", **how)
    flip(file)
    assert not streamxf.verify(tmp_path / "2", **terms_of(how)).ok
    with pytest.raises(CheckpointException, match=r"damaged|altered|does not match"):
        load(state, tmp_path / "2", **{"keys": None, **terms_of(how)})


def test_files_of_two_bases_that_were_swapped_are_found(tmp_path: Path) -> None:
    memory = SaveMemory()
    for name, fill in (("1", 1.0), ("2", 2.0)):
        save({"x": torch.full((9000,), fill)}, tmp_path / name, memory, chain=[ZStandard()])
    save({"x": torch.full((9000,), 2.0)}, tmp_path / "3", memory, tmp_path / "2", chain=[ZStandard()])
    (one,), (two,) = data_files(tmp_path / "1"), data_files(tmp_path / "2")
    (tmp_path / "3" / two.name).unlink()
    shutil.copy(one, tmp_path / "3" / two.name)
    with pytest.raises(CheckpointException, match="swapped"):
        load({"x": torch.zeros(9000)}, tmp_path / "3", keys=None)


def test_copies_and_rotation_by_others_harm_nothing(tmp_path: Path) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)
    state["step"] = 2
    save(state, tmp_path / "2", memory, tmp_path / "1")
    shutil.copytree(tmp_path / "2", tmp_path / "copy")
    os.rename(tmp_path / "1", tmp_path / "old")
    save({**state, "step": 3}, tmp_path / "1", None)
    shutil.rmtree(tmp_path / "old")
    for name in ("2", "copy"):
        assert_holds(tmp_path / name, state)
    shutil.rmtree(tmp_path / "2")
    assert_holds(tmp_path / "copy", state)


def test_a_failed_save_leaves_what_is_known_as_it_was(tmp_path: Path) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory)

    class Unpicklable:
        def __reduce__(self) -> Any:
            raise OSError("no")

    for _ in range(4):
        with pytest.raises(CheckpointException, match="OSError: no"):
            save({**state, "object": Unpicklable()}, tmp_path / "2", memory, tmp_path / "1")
        assert not [*(tmp_path / "2").glob("*.distcp")]
        assert_holds(tmp_path / "1", state)
    assert save(state, tmp_path / "2", memory, tmp_path / "1").unchanged == 4
    assert_holds(tmp_path / "2", state)


def test_what_is_known_does_not_leave_the_process(tmp_path: Path) -> None:
    import pickle

    memory = SaveMemory()
    save(weights(), tmp_path / "1", memory)
    sent = pickle.loads(pickle.dumps(memory))
    assert memory.held
    assert not sent.held
    assert sent is pickle.loads(pickle.dumps(memory)), "the copies of one memory are one"
    assert sent.tag(memoryview(b"x")) != memory.tag(memoryview(b"x"))


def test_a_tensor_that_changes_while_it_is_saved_is_tagged_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a later save would take what is stored for what was tagged."""
    memory, state = SaveMemory(), {"x": torch.zeros(9000, dtype=torch.int32)}
    tag = memory.tag

    def and_change(block: memoryview) -> bytes:
        found = tag(block)
        state["x"] += 1
        return found

    monkeypatch.setattr(memory, "tag", and_change)
    save(state, tmp_path / "1", memory, chain=[ZStandard()])
    monkeypatch.undo()
    stored = load_into(blank(state), streamxf.FileSystemReader(tmp_path / "1"))
    assert save(stored, tmp_path / "2", memory, tmp_path / "1", chain=[ZStandard()]).unchanged == 1
    assert_holds(tmp_path / "2", stored)


@chains
def test_the_decoder_of_the_specification_reads_increments(tmp_path: Path, how: dict[str, Any]) -> None:
    memory, state = SaveMemory(), weights()
    save(state, tmp_path / "1", memory, **how)
    state["strided"] = state["strided"] + 1
    save(state, tmp_path / "2", memory, tmp_path / "1", **how)
    shutil.rmtree(tmp_path / "1")
    found = reference_load(tmp_path / "2", Reader([aes_key(KEY.reveal())] if "keys" in terms_of(how) else []))
    for name in ("large", "odd", "strided", "tiny"):
        assert found[name].data == raw_bytes(state[name]).numpy().tobytes(), name  # type: ignore[union-attr]


def test_a_disk_too_full_for_all_takes_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, state, how = SaveMemory(), weights(), {"chain": [Checksum()]}
    save(state, tmp_path / "1", memory, **how)
    little = Volume(("disk",), state["strided"].nbytes + 10_000, plain=True)
    monkeypatch.setattr(LocalStorage, "volume", lambda _: little)
    with pytest.raises(CheckpointException, match="NoSpaceError"):
        save(state, tmp_path / "2", None, **how)
    assert save(state, tmp_path / "2", memory, tmp_path / "1", **how).unchanged == 4
    assert_holds(tmp_path / "2", state)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    memory, state, last = SaveMemory(), weights(), None
    for name in ("50%#1?", "a:b", "c\\d", "e"):
        report = save(state, tmp_path / name, memory, last)
        assert report.unchanged == (4 if last else 0)
        assert_holds(tmp_path / name, state)
        last = tmp_path / name


def test_a_base_that_nothing_is_known_of_is_refused(tmp_path: Path) -> None:
    for make in (streamxf.FileSystemWriter, streamxf.CheckpointWriter):
        with pytest.raises(ParameterError, match=r"base= goes with memory="):
            make(tmp_path / "new", base=tmp_path / "base")
        with pytest.raises(ParameterError, match=r"memory= takes a streamxf.SaveMemory, not int"):
            make(tmp_path / "new", memory=5)
        with pytest.raises(ParameterError, match="3 is no path"):
            make(tmp_path / "new", base=3, memory=SaveMemory())
    assert not list(tmp_path.iterdir())


def test_a_base_that_is_not_there_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = SaveMemory()
    save(weights(), tmp_path / "1", memory, None)
    assert not [text for text in caplog.messages if "no checkpoint of streamxf" in text]
    assert save(weights(), tmp_path / "2", memory, tmp_path / "typo").whole
    assert [text for text in caplog.messages if "typo: no checkpoint of streamxf can be read there" in text]
    with streamxf.CheckpointWriter(tmp_path / "3", base=tmp_path / "other", memory=memory) as writer:
        writer["a"] = torch.ones(3)
    assert "other: no checkpoint of streamxf can be read there" in caplog.messages[-1]
