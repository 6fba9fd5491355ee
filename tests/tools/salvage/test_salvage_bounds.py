"""What somebody puts into a checkpoint takes `streamxf.salvage` neither memory nor time that it does not explain."""

import hashlib
import io
import os
import re
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Checksum, load_intact
from streamxf.errors import MetadataError
from streamxf.format import container
from streamxf.format.limits import BLOCK_HEAD_BYTES
from streamxf.format.table import ItemTable
from streamxf.reading import Box, TensorItem
from streamxf.storage.reading import FileSlice
from streamxf.stream import scan as scanning
from streamxf.tools.salvage import damaged as finding
from streamxf.tools.salvage.fill import memory_for
from tests.dcp.helpers import KEY, assert_same, data_files, full_chain, refused, rewrite_index, save, sections_of
from tests.forge import BOUND, PUBLISHED, Parts, crc_of, identity_of, with_crc

from .test_salvage import flip

MIB = 2**20
BLOCK = 2**16


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which blocks' heads were read on the way through containers."""
    seen: list[int] = []
    parse_head = container.parse_head

    def counting(data: bytes, index: int, limit: int) -> Any:
        seen.append(index)
        return parse_head(data, index, limit)

    monkeypatch.setattr(container, "parse_head", counting)
    return seen


def writer_of(file: Path) -> bytes:
    return bytes.fromhex(file.name.split("_")[-1].removesuffix(".distcp"))


def header(writer: bytes, name: str) -> bytes:
    parts = Parts(
        flags=BOUND | PUBLISHED,
        chain=b"streamxf.checksum/1",
        identity=identity_of(name, writer=writer),
        salt=os.urandom(32),
    )
    return with_crc(parts.body)


def test_headers_that_share_a_run_of_blocks(checkpoint: Path, steps: list[int]) -> None:
    """Each has a first block that leads to the same run of small ones, which has no end."""
    save({"w": torch.ones(3)}, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    headers = [header(writer_of(file), f"{at:04}") for at in range(300)]
    size = len(headers[0]) + BLOCK_HEAD_BYTES
    jumps = [struct.pack("<II", size * (len(headers) - 1 - at), 0) for at in range(len(headers))]
    run = struct.pack("<IIB", 1, 0, 7) * 2000
    whole = file.read_bytes()
    file.write_bytes(whole + b"".join(head + jump for head, jump in zip(headers, jumps, strict=True)) + run)
    (checkpoint / ".metadata").unlink()
    found = load_intact(checkpoint, without_metadata=True)
    assert found.loaded == ("w",)
    assert len(found.lost) == 300
    assert len(steps) <= 11 * 301


def test_headers_whose_blocks_are_right_and_lead_nowhere(
    checkpoint: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block holds all the headers that follow: what is read grows with their square, up to a limit."""
    save({"w": torch.ones(3)}, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    monkeypatch.setattr(scanning, "_IN_VAIN_FREE", 0)
    read = 0
    read_at = FileSlice.read_at

    def counted(source: FileSlice, position: int, length: int) -> bytes:
        nonlocal read
        read += length
        return read_at(source, position, length)

    monkeypatch.setattr(FileSlice, "read_at", counted)
    made = b""
    for number in range(400):
        head = header(writer_of(file), f"{number:04}")
        bind, word = hashlib.sha256(head[:-4]).digest()[:16], struct.pack("<I", len(made))
        made = head + word + crc_of(bind + bytes(4) + word + made) + made
        made = made[: BLOCK // 2]
    data = file.read_bytes() + made
    assert len(list(scanning.Scan(FileSlice(io.BytesIO(data)), writer_of(file)))) > 100
    assert read <= (scanning._IN_VAIN + 8) * len(data) + 2**20


def test_zeros_that_a_crash_left(checkpoint: Path, steps: list[int]) -> None:
    """They are no blocks of no bytes, of which each would be followed."""
    state = {f"{at:02}": torch.full((3,), float(at)) for at in range(20)}
    save(state, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    tenth = _scanned(file)[10]
    steps.clear()
    os.truncate(file, tenth.at + tenth.header.size)
    os.truncate(file, tenth.at + MIB)
    (checkpoint / ".metadata").unlink()
    found = load_intact(checkpoint, without_metadata=True)
    assert len(found.loaded) == 10
    for name in found.loaded:
        assert_same(found.state_dict[name], state[name])
    assert len(steps) < 50


def test_a_block_of_no_bytes_hides_no_item(checkpoint: Path, steps: list[int]) -> None:
    """Where a container ends is seen by the next one."""
    save({"a": torch.ones(3), "b": torch.ones(4)}, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    data = bytearray(file.read_bytes())
    names = {found.header.identity and found.header.identity.name: found for found in _scanned(file)}
    at = names["a"].at + names["a"].header.size
    data[at : at + 4] = bytes(4)
    file.write_bytes(data)
    (checkpoint / ".metadata").unlink()
    found = load_intact(checkpoint, {"a": torch.zeros(3), "b": torch.zeros(4)}, without_metadata=True)
    assert found.loaded == ("b",)
    assert found.lost == ("a",)


def _scanned(file: Path) -> list[scanning.Found]:
    with file.open("rb") as raw:
        return [one for one in scanning.Scan(FileSlice(raw), writer_of(file)) if one.header is not None]


def test_files_that_may_be_left_of_metadata_are_read_one_by_one(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can put more of them there than there is memory; a file of holes takes nothing to make."""
    save({"w": torch.ones(3)}, checkpoint, full_chain())
    metadata = checkpoint / ".metadata"
    flip(metadata, metadata.stat().st_size - 20)
    copy = metadata.read_bytes()
    monkeypatch.setattr(finding, "_MAX_REMAINS", 100_000)
    read: list[str] = []
    real = finding._windows

    def note(storage: Any, name: str) -> Iterator[bytes]:
        read.append(name)
        return real(storage, name)

    monkeypatch.setattr(finding, "_windows", note)
    metadata.write_bytes(b"")
    for at in range(9):
        (checkpoint / f"metadata{at}").touch()
        os.truncate(checkpoint / f"metadata{at}", 40_000)
    with refused(MetadataError, "nothing is left of it"):
        load_intact(checkpoint, keys=KEY, without_metadata=True)
    assert read == [".metadata", "metadata0", "metadata1", "metadata2"]
    (checkpoint / ".metadata.copy").write_bytes(copy)
    monkeypatch.setattr(finding, "_MAX_REMAINS", len(copy))  # this comes first, and fits
    assert_same(load_intact(checkpoint, keys=KEY, without_metadata=True).state_dict, {"w": torch.ones(3)})
    monkeypatch.setattr(finding, "_MAX_REMAINS", len(copy) - 1)
    with refused(MetadataError, "nothing is left of it"):
        load_intact(checkpoint, keys=KEY, without_metadata=True)


def test_a_wrapped_key_that_stands_where_two_windows_meet(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"w": torch.ones(3)}, checkpoint, full_chain())
    keys = sections_of(checkpoint)[1].keys
    monkeypatch.setattr(finding, "_WINDOW", 1000)
    monkeypatch.setattr(finding, "_LONGEST", 600)
    for before in (0, 900, 1000, 1999):
        (checkpoint / ".metadata").write_bytes(b"x" * before + bytes(keys))
        assert load_intact(checkpoint, keys=KEY, without_metadata=True).loaded == ("w",)


@contextmanager
def little_memory(limit: int = 64 * MIB) -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < limit


def test_lost_parts_of_tensors_that_are_said_to_be_huge(checkpoint: Path) -> None:
    """1 GiB in each of two chunks, of which the file has a dozen bytes."""
    rows = 2**28
    save({"w": torch.ones(3), "v": torch.ones(3)}, checkpoint, [Checksum()])

    def enlarge(index: Any) -> None:
        item = index["items"]["w"]
        (chunk,) = item["chunks"]
        item["shape"] = [2 * rows]
        item["chunks"] = [chunk | {"number": 9 + at, "offset": [at * rows], "shape": [rows]} for at in range(2)]

    rewrite_index(checkpoint, enlarge)
    for partial in (False, True):
        with little_memory():
            found = load_intact(checkpoint, partial=partial, max_expansion=2**40)
        assert found.loaded == ("v",)
        assert found.partial == ()
        assert found.lost == ("w",)
        assert load_intact(checkpoint, partial=partial).lost == ("w",)


@pytest.mark.parametrize("shape", [(2**40, 2**22), (-1,)])
def test_a_tensor_for_which_there_is_no_room_says_its_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(MetadataError, match=re.escape(f"float32 and shape {shape}")):
        memory_for(Box(TensorItem("w", "float32", shape, ()), (0,), shape))


def test_items_of_a_large_index_are_made_in_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    state = {f"weight.{number}": torch.arange(10.0) + number for number in range(20)}
    save(state, tmp_path / "whole", [Checksum()])

    def refuse(table: ItemTable, name: str) -> Any:
        raise AssertionError(f"{name} was made by itself, which takes four times as long")

    monkeypatch.setattr(ItemTable, "__getitem__", refuse)
    report, _ = streamxf.salvage(tmp_path / "whole", tmp_path / "new", "checksum")
    assert (len(report.loaded), report.damaged) == (len(state), ())
