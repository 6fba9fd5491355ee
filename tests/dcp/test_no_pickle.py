"""Checkpoints without the pickle that torch's own readers need: those fail loudly, and everything else works."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Encrypt, Key, PrivateKey, SigningKey, ZStandard
from streamxf.chain import Chain
from streamxf.checkpoint import saving
from streamxf.checkpoint.metadata import Metadata
from streamxf.errors import MetadataError, ParameterError, StreamxfError, UnsupportedError
from streamxf.format.limits import NO_PICKLE
from streamxf.keys import KeyRing
from streamxf.tools.rekey.rekey import stock
from tests.altered import bit_flips, flip, flipped
from tests.cli import preloaded
from tests.dcp.helpers import KEY, assert_same, blank, full_chain, load, load_into, save, sections_of
from tests.storage.stores import MemoryStorage

SIGNER = SigningKey(bytes(range(2, 34)))
READER = PrivateKey(bytes(range(3, 35)))
CHAINS: dict[str, Any] = {
    "zstd": [ZStandard()],
    "full": full_chain(),
    "raw": Chain.parse("raw"),
    "signed": [ZStandard(), Encrypt([READER.public], signer=SIGNER)],
}
KEYS: dict[str, dict[str, Any]] = {
    "zstd": {"keys": None},
    "full": {"keys": KEY},
    "raw": {"keys": None},
    "signed": {"keys": READER, "trust": SIGNER.verify_key},
}
chains = pytest.mark.parametrize("chain", CHAINS)


def pickled(path: Path | str, name: str = ".metadata") -> bool:
    head = (Path(path) / name).read_bytes()[:8]
    assert head == NO_PICKLE or head[:2] == b"\x80\x04"
    return head != NO_PICKLE


def stock_load(state: dict[str, Any], path: Path, keys: Any = None) -> dict[str, Any]:
    target = blank(state)
    reader = dcp.FileSystemReader(path, _extension_registry=streamxf.Registry(keys=keys))
    dcp.load(target, storage_reader=reader, no_dist=True)
    return target


# -- who reads what -----------------------------------------------------------------------------------------------


@chains
def test_torchs_own_reader_fails_and_says_why(checkpoint: Path, state: dict[str, Any], chain: str) -> None:
    save(state, checkpoint, CHAINS[chain], stock=False)
    assert not pickled(checkpoint)
    target = blank(state)
    with pytest.raises(CheckpointException, match=r"invalid load key, '\\xd3'"):
        dcp.load(target, storage_reader=dcp.FileSystemReader(checkpoint), no_dist=True)
    assert_same(target, blank(state))
    with pytest.raises(CheckpointException, match=r"invalid load key, '\\xd3'"):
        dcp.load({"w": torch.ones(1)}, checkpoint_id=checkpoint, no_dist=True)


@chains
def test_streamxf_reads_checks_and_copies_it(
    checkpoint: Path, tmp_path: Path, state: dict[str, Any], chain: str
) -> None:
    keys = KEYS[chain]
    save(state, checkpoint, CHAINS[chain], stock=False)
    assert_same(load(state, checkpoint, **keys), state)
    assert streamxf.verify(checkpoint, **keys).ok
    streamxf.transcode(checkpoint, tmp_path / "copy", "zstd", **keys)
    assert_same(load(state, tmp_path / "copy", keys=None), state)
    salvaged, _ = streamxf.salvage(checkpoint, tmp_path / "salvaged", "zstd", **keys)
    assert not salvaged.damaged
    assert_same(load(state, tmp_path / "salvaged", keys=None), state)
    assert streamxf.clean(checkpoint).removed == ()
    (note,) = [note for note in streamxf.inspect(checkpoint, **keys).notes if "pickle" in note]
    assert "streamxf stock" in note


def test_it_is_salvaged_from_a_damaged_metadata_file_too(
    checkpoint: Path, tmp_path: Path, state: dict[str, Any]
) -> None:
    save(state, checkpoint, CHAINS["zstd"], stock=False)
    metadata = checkpoint / ".metadata"
    flip(metadata)
    streamxf.salvage(checkpoint, tmp_path / "salvaged", "zstd", without_metadata=True)
    assert_same(load(state, tmp_path / "salvaged", keys=None), state)


def test_a_run_of_such_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with streamxf.CheckpointManager(run, "zstd", save=1, keep=2, writer={"stock": False}) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"w": torch.full((300,), float(step))})
    assert sorted(each.step or 0 for each in streamxf.list_checkpoints(run)) == [2, 3]
    assert streamxf.latest(run) == str(run / "step-3")
    assert not pickled(run / "step-3")
    state = {"w": torch.zeros(300)}
    with streamxf.CheckpointManager(run, "zstd") as manager:
        assert manager.resume(state) == 3
    assert torch.equal(state["w"], torch.full((300,), 3.0))


def test_a_truncated_one_is_damaged_and_not_of_another_writer(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, CHAINS["zstd"], stock=False)
    metadata = checkpoint / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-1])
    with pytest.raises(MetadataError, match="damaged"):
        streamxf.Checkpoint(checkpoint)


def test_a_flipped_bit_of_the_head_is_damage(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, CHAINS["zstd"], stock=False)
    metadata = checkpoint / ".metadata"
    whole = metadata.read_bytes()
    for head in bit_flips(whole[:8]):
        metadata.write_bytes(head + whole[8:])
        assert not streamxf.verify(checkpoint).ok


# -- where it is chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False, "auto"])
def test_every_writer_takes_it(tmp_path: Path, given: Any) -> None:
    state = {"w": torch.arange(300.0)}
    options = {"chain": "zstd", "stock": given}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "a", **options), no_dist=True)
    dcp.save(state, storage_writer=streamxf.FsspecWriter(f"file://{tmp_path}/b", **options), no_dist=True)
    with streamxf.CheckpointWriter(tmp_path / "c", **options) as writer:
        writer["w"] = state["w"]
    with streamxf.install("zstd", writer={"stock": given}):
        dcp.save(state, checkpoint_id=tmp_path / "d", no_dist=True)
    assert writer.report is not None
    assert writer.report.stock is (given is not False)
    assert [pickled(tmp_path / name) for name in "abcd"] == [given is not False] * 4


@pytest.mark.parametrize("given", [None, 1, "yes", "Auto"])
def test_other_values_are_refused_at_once(tmp_path: Path, given: Any) -> None:
    for make in (streamxf.FileSystemWriter, streamxf.FsspecWriter, streamxf.CheckpointWriter):
        with pytest.raises(ParameterError, match="stock="):
            make(tmp_path / "new", stock=given)
    with pytest.raises(ParameterError, match="stock="), streamxf.install("zstd", writer={"stock": given}):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("chunks", [2, 3])
def test_auto_goes_by_the_number_of_chunks_and_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, chunks: int
) -> None:
    monkeypatch.setattr(saving, "STOCK_CHUNKS", 2)
    state = {"w": torch.ones(300), "step": 1, "more": 2} if chunks == 3 else {"w": torch.ones(300), "step": 1}
    with caplog.at_level(logging.WARNING, "streamxf"):
        writer = streamxf.FileSystemWriter(tmp_path / "a", chain="zstd")
        dcp.save(state, storage_writer=writer, no_dist=True)
    assert pickled(tmp_path / "a") is (chunks == 2)
    assert writer.report is not None
    assert writer.report.stock is (chunks == 2)
    assert ("streamxf stock" in str(writer.report)) is (chunks == 3)
    assert [record for record in caplog.records if "3 chunks" in record.getMessage()][:1] == caplog.records
    assert len(caplog.records) == chunks - 2


def test_the_first_save_of_a_writer_decides_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "STOCK_CHUNKS", 2)
    small: dict[str, Any] = {"a": torch.ones(3), "b": torch.ones(3)}
    large = {**small, "c": torch.ones(3)}
    for first, second in ((small, large), (large, small)):
        writer = streamxf.FileSystemWriter(tmp_path / "first", chain="zstd")
        dcp.save(first, storage_writer=writer, no_dist=True)
        writer.reset(tmp_path / "second")
        dcp.save(second, storage_writer=writer, no_dist=True)
        assert pickled(tmp_path / "first") is pickled(tmp_path / "second") is (first is small)


def test_a_chain_that_torchs_reader_needs_no_codec_for_has_always_a_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]
) -> None:
    monkeypatch.setattr(saving, "STOCK_CHUNKS", 0)
    for given in (True, False, "auto"):
        path = tmp_path / str(given)
        writer = streamxf.FileSystemWriter(path, chain=[], stock=given)
        dcp.save(state, storage_writer=writer, no_dist=True)
        assert_same(load_into(blank(state), dcp.FileSystemReader(path), no_dist=True), state)
        assert writer.report is not None
        assert writer.report.stock is True


# -- streamxf stock -----------------------------------------------------------------------------------------------


@chains
def test_stock_adds_the_pickle_and_touches_nothing_else(checkpoint: Path, state: dict[str, Any], chain: str) -> None:
    keys = KEYS[chain]
    save(state, checkpoint, CHAINS[chain], stock=False)
    before = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    _, vouched = sections_of(checkpoint)
    assert stock(checkpoint) == (".metadata",)
    _, found = sections_of(checkpoint)
    assert (found.root, found.keys, found.format_bytes) == (vouched.root, vouched.keys, vouched.format_bytes)
    assert found.digest == vouched.digest
    after = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    assert {name for name in before if before[name] != after.pop(name)} == {".metadata"}
    assert not after
    assert_same(stock_load(state, checkpoint, keys["keys"] and KeyRing(keys["keys"], allow_unsigned=True)), state)
    assert_same(load(state, checkpoint, **keys), state)
    assert streamxf.verify(checkpoint, **keys).ok
    assert stock(checkpoint) == ()


def test_its_pickle_is_that_of_a_save(tmp_path: Path, state: dict[str, Any]) -> None:
    for name in "ab":
        save(state, tmp_path / name, CHAINS["zstd"], stock=name == "a")
    stock(tmp_path / "b")
    first, second = (dcp.FileSystemReader(tmp_path / name).read_metadata() for name in "ab")
    assert first.state_dict_metadata == second.state_dict_metadata
    assert first.planner_data == second.planner_data
    assert first.storage_data.keys() == second.storage_data.keys()
    assert {index: each.transform_descriptors for index, each in first.storage_data.items()} == {
        index: each.transform_descriptors for index, each in second.storage_data.items()
    }


def test_rekey_leaves_the_head_as_it_is(checkpoint: Path, state: dict[str, Any]) -> None:
    other = Key(bytes(range(4, 36)))
    save(state, checkpoint, CHAINS["full"], stock=False)
    streamxf.rekey(checkpoint, keys=KEY, recipients=other)
    assert not pickled(checkpoint)
    assert streamxf.verify(checkpoint, keys=other).ok
    stock(checkpoint)
    assert_same(stock_load(state, checkpoint, other), state)
    streamxf.rekey(checkpoint, keys=other, recipients=KEY)
    assert_same(stock_load(state, checkpoint, KEY), state)


def test_of_ranks_each_metadata_file_gets_one(checkpoint: Path) -> None:
    for rank in (0, 3):
        writer = streamxf.FileSystemWriter(checkpoint, chain="zstd", stock=False)
        writer.set_up_storage_writer(False, rank=rank, use_collectives=False)
        planner = dcp.DefaultSavePlanner()
        planner.set_up_planner({"w": torch.full((300,), float(rank))}, writer.storage_meta(), False)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        plans, metadata = planner.create_global_plan([plan])
        (plan,) = writer.prepare_global_plan(plans)
        writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])
    names = (".metadata", "__0.metadata", "__3.metadata")
    assert not any(pickled(checkpoint, name) for name in names[1:])
    assert stock(checkpoint) == names[1:]
    assert all(pickled(checkpoint, name) for name in names[1:])
    assert streamxf.verify(checkpoint).ok


def test_in_an_object_store(state: dict[str, Any]) -> None:
    store = MemoryStorage("bucket")
    with streamxf.CheckpointWriter(store.child("a"), "zstd", stock=False) as writer:
        writer["w"] = torch.ones(300)
    assert store.files["bucket/a/.metadata"][0][:8] == NO_PICKLE
    assert stock(store.child("a")) == (".metadata",)
    assert store.files["bucket/a/.metadata"][0][:2] == b"\x80\x04"
    assert streamxf.verify(store.child("a")).ok


def test_what_stock_refuses(checkpoint: Path, tmp_path: Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"), no_dist=True)
    with pytest.raises(UnsupportedError, match="another writer"):
        stock(tmp_path / "stock")
    save(state, checkpoint, CHAINS["full"], stock=False)
    metadata = checkpoint / ".metadata"
    whole = metadata.read_bytes()
    for place in range(8, len(whole), max(1, len(whole) // 50)):
        broken = flipped(whole, place, 4)
        metadata.write_bytes(broken)
        with pytest.raises(StreamxfError):
            stock(checkpoint)
        assert metadata.read_bytes() == broken
    metadata.unlink()
    with pytest.raises(MetadataError):
        stock(checkpoint)


def test_metadata_that_another_save_replaces_meanwhile_stays(
    checkpoint: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state, checkpoint, CHAINS["zstd"], stock=False)
    made = Metadata.stock_pickle

    def slow(*args: Any) -> bytes:
        save(state, checkpoint, CHAINS["zstd"], stock=False)
        return made(*args)

    monkeypatch.setattr(Metadata, "stock_pickle", slow)
    with pytest.raises(MetadataError, match="replaced meanwhile"):
        stock(checkpoint)
    assert not pickled(checkpoint)
    assert streamxf.verify(checkpoint).ok


def test_the_command(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, CHAINS["full"], stock=False)
    said = [preloaded.run(["stock", checkpoint]).stdout for _ in range(2)]
    assert said == ["rewritten: .metadata\n", "nothing changed: torch's own readers can read it\n"]
    assert_same(stock_load(state, checkpoint, KEY), state)


@pytest.mark.parametrize("chain", ["zstd", "full"])
def test_an_attached_reader_reads_it_once_it_has_a_pickle(checkpoint: Path, state: dict[str, Any], chain: str) -> None:
    """It sees what torch's own reader sees."""

    def loaded() -> dict[str, Any]:
        target = blank(state)
        reader = streamxf.attach(dcp.FileSystemReader(checkpoint), keys=KEYS[chain]["keys"])
        dcp.load(target, storage_reader=reader, no_dist=True)
        return target

    save(state, checkpoint, CHAINS[chain], stock=False)
    with pytest.raises(CheckpointException, match=r"invalid load key, '\\xd3'"):
        loaded()
    stock(checkpoint)
    assert_same(loaded(), state)
