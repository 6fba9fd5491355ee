"""Tensors that changed are stored as their differences from the base: what is read is what was saved, or an error."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, SigningKey
from streamxf.checkpoint.memory import SaveMemory
from streamxf.errors import ChecksumError, IdentityError, MetadataError, StreamxfError
from streamxf.format.limits import MAX_BENEATH, NO_PICKLE
from streamxf.report import SaveReport
from tests.dcp.helpers import KEY, raw_bytes
from tests.forge import take_container_apart
from tests.reference_decoder import load as reference_load
from tests.reference_keys import Reader, aes_key

BLOCK = 1 << 16
SIGNER = SigningKey.generate()
CHAINS: dict[str, dict[str, Any]] = {
    "plain": {"chain": [FloatZip()]},
    "encrypted": {"chain": [FloatZip(), Checksum(), Encrypt(KEY)]},
    "signed": {"chain": [FloatZip()], "signer": SIGNER},
    "encrypted and signed": {"chain": [FloatZip(), Encrypt(KEY, signer=SIGNER)]},
}
chains = pytest.mark.parametrize("kind", CHAINS)
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
ODD = {1: [0x80, 0x7F, 0xFF, 0x00], 2: [0x8000, 0x7FC1, 0xFFFF, 0x0000], 4: [0x80000000, 0x7FC00001, 0xFFFFFFFF, 0]}


def terms_of(kind: str) -> dict[str, Any]:
    """What a reader of such a save needs."""
    return ({"keys": KEY} if "encrypted" in kind else {}) | ({"trust": [SIGNER.verify_key]} if "signed" in kind else {})


def save(path: Path, state: dict[str, Any], memory: SaveMemory, base: Path | None, kind: str = "plain") -> SaveReport:
    how = {"block_size": BLOCK, **CHAINS[kind]}
    with streamxf.CheckpointWriter(path, memory=memory, base=base, **how) as writer:
        for name, value in state.items():
            writer[name] = value
    assert writer.report is not None
    return writer.report


def assert_holds(path: Path, state: dict[str, torch.Tensor], kind: str = "plain") -> None:
    """As a whole, in part, by DCP, and by `verify`."""
    with streamxf.Checkpoint(path, **terms_of(kind)) as checkpoint:
        for name, tensor in state.items():
            assert torch.equal(raw_bytes(checkpoint[name].read()), raw_bytes(tensor)), name
            half = len(tensor) // 2
            assert torch.equal(raw_bytes(checkpoint[name][half : half + 3]), raw_bytes(tensor[half : half + 3]))
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    terms = terms_of(kind)
    dcp.load(into, storage_reader=streamxf.FileSystemReader(path, **terms), no_dist=True)
    assert all(torch.equal(raw_bytes(into[name]), raw_bytes(tensor)) for name, tensor in state.items())
    report = streamxf.verify(path, **terms)
    assert report.ok, report


def stepped(tensor: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """The tensor with a share of its elements changed, some to zeros with a sign and to NaNs with payloads."""
    generator = torch.Generator().manual_seed(seed)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize]
    bits = tensor.view(kind).flatten().clone()
    changed = torch.rand(bits.shape, generator=generator) < share
    steps = torch.randint(-2, 3, bits.shape, generator=generator).to(kind)
    bits[changed] += steps[changed]
    if share:
        odd = torch.tensor(ODD[tensor.itemsize], dtype=torch.int64).to(kind)
        bits[torch.randint(0, len(bits), (4,), generator=generator)] = odd
    return bits.view(tensor.dtype).view(tensor.shape)


def weights(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 16).to(dtype)


@chains
@pytest.mark.parametrize("copies", [0, None, BLOCK])
def test_changed_weights_are_stored_as_differences_one_upon_the_other(
    tmp_path: Path, kind: str, copies: int | None
) -> None:
    memory = SaveMemory(copies=copies)
    state = {"w": weights(torch.bfloat16, 120, 1000), "b": weights(torch.float32, 3000), "frozen": torch.ones(9000)}
    full = save(tmp_path / "0", state, memory, None, kind)
    for step in range(1, 5):
        state |= {"w": stepped(state["w"], 0.02, step), "b": stepped(state["b"], 0.02, step)}
        report = save(tmp_path / f"{step}", state, memory, tmp_path / f"{step - 1}", kind)
        assert (report.differences, report.unchanged, report.whole) == (2, 1, {})
        assert report.differences_bytes == state["w"].nbytes + state["b"].nbytes
        assert report.differences_stored == report.stored_bytes < full.stored_bytes / 10
        shutil.rmtree(tmp_path / f"{step - 1}")
        assert_holds(tmp_path / f"{step}", state, kind)
        assert (tmp_path / f"{step}/.metadata").read_bytes().startswith(NO_PICKLE)


@settings(max_examples=max(12, settings.default.max_examples // 8))
@given(st.sampled_from(DTYPES), st.lists(st.sampled_from([0.0, 1e-4, 0.02, 0.5, 1.0]), max_size=4), st.data())
def test_any_change_of_any_dtype_is_read_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, shares: list[float], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("differences")
    memory = SaveMemory(increments=data.draw(st.booleans()), copies=data.draw(st.sampled_from([0, None])))
    rows = data.draw(st.integers(2, 90))
    state, base = {"x": weights(dtype, rows, 1100)}, folder / "full"
    save(base, state, memory, None)
    for step, share in enumerate(shares):
        state = {"x": stepped(state["x"], share, step)}
        report = save(folder / f"{step}", state, memory, base)
        assert report.differences + report.unchanged + sum(report.whole.values()) == 1
        assert_holds(folder / f"{step}", state)
        base = folder / f"{step}" if memory.increments else base
    shutil.rmtree(folder)


def test_more_links_than_the_format_has_are_stored_whole(tmp_path: Path) -> None:
    memory, state, last = SaveMemory(), {"x": weights(torch.bfloat16, 9000)}, None
    for step in range(MAX_BENEATH + 3):
        report = save(tmp_path / f"{step}", state, memory, last)
        assert report.differences == (step not in (0, MAX_BENEATH + 1)), report
        last = tmp_path / f"{step}"
        state = {"x": stepped(state["x"], 0.01, step)}
    with streamxf.Checkpoint(tmp_path / f"{MAX_BENEATH}") as checkpoint:
        assert len(checkpoint["x"].chunks[0].place.beneath) == MAX_BENEATH
    assert streamxf.verify(tmp_path / f"{MAX_BENEATH}").ok


def chained(folder: Path, steps: int = 3, kind: str = "plain", **how: Any) -> list[dict[str, torch.Tensor]]:
    """Saves of one state that changes, each upon the one before."""
    memory, states = SaveMemory(**how), [{"x": weights(torch.bfloat16, 4 * BLOCK // 4, 2)}]
    for step in range(steps):
        save(folder / f"{step}", states[-1], memory, folder / f"{step - 1}" if step else None, kind)
        states.append({"x": stepped(states[-1]["x"], 0.02, step)})
    return states


def place_of(path: Path, kind: str = "plain") -> Any:
    with streamxf.Checkpoint(path, **terms_of(kind)) as checkpoint:
        return checkpoint["x"].chunks[0].place


def put(file: Path, at: int, data: bytes) -> None:
    """Change a file where it is, under all its names."""
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


@chains
def test_a_damaged_block_beneath_costs_that_block(tmp_path: Path, kind: str) -> None:
    states, terms = chained(tmp_path, kind=kind), terms_of(kind)
    name, at, size = place_of(tmp_path / "2", kind).beneath[-1]
    file = tmp_path / "2" / name
    middle = file.read_bytes()[at + size // 2]
    put(file, at + size // 2, bytes([middle ^ 1]))
    wanted, found = states[2]["x"], torch.empty(0)
    with streamxf.Checkpoint(tmp_path / "2", **terms) as checkpoint:
        with pytest.raises(StreamxfError) as caught:
            checkpoint["x"].read()
        assert (caught.value.file, caught.value.item) == (str(file), "x")
        damaged = caught.value.block
        assert damaged in (1, 2)
        for block in {0, 1, 2, 3} - {damaged}:
            rows = slice(block * BLOCK // 4, (block + 1) * BLOCK // 4)
            assert torch.equal(raw_bytes(checkpoint["x"][rows]), raw_bytes(wanted[rows]))
    report = streamxf.verify(tmp_path / "2", **terms)
    assert [(each.item, each.block) for each in report.damaged if each.item] == [("x", damaged)]
    assert name in report.damaged[0].message
    found = streamxf.load_intact(tmp_path / "2", **terms).state_dict.get("x", found)
    assert not found.numel()
    with pytest.raises(CheckpointException, match=name):
        into = {"x": torch.zeros_like(wanted)}
        dcp.load(into, storage_reader=streamxf.FileSystemReader(tmp_path / "2", **terms), no_dist=True)


def test_the_container_beneath_is_that_from_which_the_difference_was_made(tmp_path: Path) -> None:
    """Another one of the same shape, with contents as near as may be, in its place in storage; or other contents."""
    chained(tmp_path / "a")
    chained(tmp_path / "b")
    (name, at, size), (other, *there) = (place_of(tmp_path / each / "2").beneath[-1] for each in "ab")
    assert there == [at, size]
    mine, others = ((tmp_path / path).read_bytes()[at : at + size] for path in (f"a/0/{name}", f"b/0/{other}"))
    assert len(mine) == len(others)
    put(tmp_path / "a/0" / name, at, others)
    with streamxf.Checkpoint(tmp_path / "a/2") as checkpoint, pytest.raises(IdentityError, match="swapped") as caught:
        checkpoint["x"].read()
    assert (caught.value.file or "").endswith(name)
    parts = take_container_apart(mine)
    blocks = [(last, payload[:99] + bytes([payload[99] ^ 1]) + payload[100:]) for last, payload in parts.blocks]
    put(tmp_path / "a/0" / name, at, parts.change(blocks=tuple(blocks)).container())
    with streamxf.Checkpoint(tmp_path / "a/2") as checkpoint, pytest.raises(ChecksumError, match="beneath"):
        checkpoint["x"].read()
    assert streamxf.verify(tmp_path / "a/2").damaged


@chains
def test_any_flipped_bit_of_what_lies_beneath_is_found(tmp_path: Path, kind: str) -> None:
    states = chained(tmp_path, kind=kind)
    choose = random.Random(kind)
    for name, at, size in (place := place_of(tmp_path / "2", kind)).beneath:
        file = tmp_path / "2" / name
        intact = file.read_bytes()
        for _ in range(12):
            byte = at + choose.choice([choose.randrange(size), choose.randrange(200), size - 1 - choose.randrange(40)])
            put(file, byte, bytes([intact[byte] ^ 1 << choose.randrange(8)]))
            try:
                with streamxf.Checkpoint(tmp_path / "2", **terms_of(kind)) as checkpoint:
                    assert torch.equal(raw_bytes(checkpoint["x"].read()), raw_bytes(states[2]["x"]))
            except StreamxfError as error:
                assert error.item == "x"  # noqa: PT017
            put(file, byte, intact[byte : byte + 1])
    assert len(place.beneath) == 2


@pytest.mark.parametrize("copies", [0, None])
def test_a_base_that_was_altered_or_is_gone_is_never_used(tmp_path: Path, copies: int | None) -> None:
    (tmp_path / "elsewhere").mkdir()
    memory, state = SaveMemory(copies=copies), {"x": weights(torch.bfloat16, BLOCK, 2)}
    save(tmp_path / "0", state, memory, None)
    state = {"x": stepped(state["x"], 0.02, 1)}
    save(tmp_path / "1", state, memory, tmp_path / "0")
    state = {"x": stepped(state["x"], 0.02, 2)}
    place = place_of(tmp_path / "1")
    for file, at, size in ((place.file, place.at, place.size), *place.beneath):
        stamp = (tmp_path / "1" / file).stat()
        parts = (tmp_path / "1" / file).read_bytes()[at : at + size]
        put(tmp_path / "1" / file, at + size // 2, bytes([parts[size // 2] ^ 1]))
        os.utime(tmp_path / "1" / file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # so that nothing shows
    report = save(tmp_path / "2", state, memory, tmp_path / "1")
    with streamxf.Checkpoint(tmp_path / "2") as checkpoint:
        assert (report.differences, report.whole) == (1, {})
        if copies == 0:  # a block that cannot be had is stored whole
            assert torch.equal(raw_bytes(checkpoint["x"].read()), raw_bytes(state["x"]))
        else:
            with pytest.raises(StreamxfError):
                checkpoint["x"].read()


def test_a_difference_without_what_is_beneath_it(tmp_path: Path) -> None:
    chained(tmp_path)
    place = place_of(tmp_path / "2")
    (tmp_path / "2" / place.beneath[-1][0]).unlink()
    with streamxf.Checkpoint(tmp_path / "2") as checkpoint, pytest.raises(MetadataError, match="missing") as caught:
        checkpoint["x"].read()
    assert (caught.value.file or "").endswith(place.beneath[-1][0])
    assert streamxf.verify(tmp_path / "2").damaged


def test_a_base_that_is_exchanged_between_two_reads(tmp_path: Path) -> None:
    chained(tmp_path / "a")
    chained(tmp_path / "b")
    (name, at, size), (other, *_) = (place_of(tmp_path / each / "2").beneath[-1] for each in "ab")
    rows = slice(0, 9)
    with streamxf.Checkpoint(tmp_path / "a/2") as checkpoint:
        handle = checkpoint["x"]
        handle[rows]
        put(tmp_path / "a/0" / name, at, (tmp_path / "b/0" / other).read_bytes()[at : at + size])
        with pytest.raises(StreamxfError):
            handle[BLOCK // 2 :]


@chains
def test_the_decoder_of_the_specification_reads_what_a_writer_makes(tmp_path: Path, kind: str) -> None:
    memory, state = SaveMemory(), {"x": weights(torch.bfloat16, 60, 50), "y": weights(torch.float32, 1200)}
    for step in range(3):
        report = save(tmp_path / f"{step}", state, memory, tmp_path / f"{step - 1}" if step else None, kind)
        wanted, state = state, {name: stepped(tensor, 0.02, step) for name, tensor in state.items()}
    assert report.differences == 2
    found = reference_load(tmp_path / "2", Reader([aes_key(KEY.reveal())] if "encrypted" in kind else []))
    for name, tensor in wanted.items():
        assert found[name].data == raw_bytes(tensor).numpy().tobytes()  # type: ignore[union-attr]
