"""What somebody puts into a checkpoint takes `streamxf.salvage` neither memory nor time that it does not explain."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from streamxf import Checksum, salvage
from streamxf.container.header import Header, Identity, Kind
from streamxf.container.limits import BLOCK_HEAD_BYTES
from streamxf.dcp.salvage import rebuild, scan
from streamxf.errors import MetadataError
from streamxf.fileio.source import FileSlice, access_to

from .helpers import KEY, assert_same, data_files, full_chain, refused, rewrite_metadata, save
from .test_salvage import flip

MIB = 2**20


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks' heads were looked at."""
    seen: list[int] = []
    parse_head = scan.parse_head

    def counting(data: bytes, index: int, limit: int) -> Any:
        seen.append(index)
        return parse_head(data, index, limit)

    monkeypatch.setattr(scan, "parse_head", counting)
    monkeypatch.setattr(scan, "_FREE_STEPS", 16)
    return seen


def test_headers_that_share_a_run_of_blocks(checkpoint: Path, steps: list[int]) -> None:
    """Each has a first block that leads to the same run of small ones, which has no end."""
    save({"w": torch.ones(3)}, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    writer = bytes.fromhex(file.name.split("_")[-1].removesuffix(".distcp"))
    headers = [
        Header(16, ("streamxf.checksum/1",), os.urandom(32), Identity(writer, Kind.BYTES, (), f"{at:04}"), True).pack()
        for at in range(300)
    ]
    size = len(headers[0]) + BLOCK_HEAD_BYTES
    jumps = [struct.pack("<II", size * (len(headers) - 1 - at), 0) for at in range(len(headers))]
    run = struct.pack("<IIB", 1, 0, 7) * 2000
    whole = file.read_bytes()
    file.write_bytes(whole + b"".join(head + jump for head, jump in zip(headers, jumps, strict=True)) + run)
    (checkpoint / ".metadata").unlink()
    found = salvage(checkpoint, without_metadata=True)
    assert found.loaded == ()  # of what the end of the file held, nothing says how large `w` was
    assert len(found.lost) == 301
    assert len(steps) <= file.stat().st_size // (BLOCK_HEAD_BYTES + 1) + 16


def test_zeros_that_a_crash_left(checkpoint: Path, steps: list[int]) -> None:
    """They are no blocks of no bytes, of which each would be looked at."""
    state = {f"{at:02}": torch.full((3,), float(at)) for at in range(20)}
    save(state, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    tenth = _scanned(file)[10]
    steps.clear()
    os.truncate(file, tenth.offset + tenth.header.size)
    os.truncate(file, tenth.offset + MIB)
    (checkpoint / ".metadata").unlink()
    found = salvage(checkpoint, without_metadata=True, partial=True)
    assert len(found.partial) == 10
    for name in found.partial:
        assert_same(found.state_dict[name], state[name])
    assert len(steps) < 50


def test_a_block_of_no_bytes_hides_no_item(checkpoint: Path, steps: list[int]) -> None:
    """Where a container ends is seen by the next one."""
    save({"a": torch.ones(3), "b": torch.ones(4)}, checkpoint, [Checksum()])
    (file,) = data_files(checkpoint)
    data = bytearray(file.read_bytes())
    at = next(found.offset + found.header.size for found in _scanned(file) if found.identity.name == "a")
    data[at : at + 4] = bytes(4)
    file.write_bytes(data)
    (checkpoint / ".metadata").unlink()
    found = salvage(checkpoint, {"a": torch.zeros(3), "b": torch.zeros(4)}, without_metadata=True)
    assert found.loaded == ("b",)
    assert found.lost == ("a",)


def _scanned(file: Path) -> list[scan.Found]:
    writer = bytes.fromhex(file.name.split("_")[-1].removesuffix(".distcp"))
    with file.open("rb") as raw:
        found = list(scan.scan(FileSlice(access_to(raw), 0, file.stat().st_size), writer))
    return [one for one in found if isinstance(one, scan.Found)]


def test_files_that_may_be_left_of_metadata_are_read_one_by_one(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can put more of them there than there is memory; a file of holes takes nothing to make."""
    save({"w": torch.ones(3)}, checkpoint, full_chain())
    metadata = checkpoint / ".metadata"
    flip(metadata, metadata.stat().st_size - 20)
    copy = metadata.read_bytes()
    monkeypatch.setattr(rebuild, "_MAX_REMAINS", 100_000)
    read: list[str] = []
    real = rebuild._read

    def note(session: Any, name: str) -> list[bytes]:
        read.append(name)
        return real(session, name)

    monkeypatch.setattr(rebuild, "_read", note)
    metadata.write_bytes(b"")
    for at in range(9):
        (checkpoint / f"metadata{at}").touch()
        os.truncate(checkpoint / f"metadata{at}", 40_000)
    with refused(MetadataError, "nothing is left of it"):
        salvage(checkpoint, keys=KEY, without_metadata=True)
    assert read == [".metadata", ".metadata", "metadata0", "metadata1", "metadata2"]
    (checkpoint / ".metadata.copy").write_bytes(copy)
    assert_same(salvage(checkpoint, keys=KEY, without_metadata=True).state_dict, {"w": torch.ones(3)})


@contextmanager
def little_memory(limit: int = 64 * MIB) -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < limit


def test_lost_parts_of_tensors_that_are_said_to_be_huge(checkpoint: Path) -> None:
    """1 GiB in each of two chunks, of which the file has a dozen bytes."""
    rows = 2**28
    save({"w": torch.ones(3), "v": torch.ones(3)}, checkpoint, [Checksum()])

    def enlarge(content: Any) -> None:
        one = content.state_dict_metadata["w"]
        places = content.storage_data
        chunks = [ChunkStorageMetadata(torch.Size([at * rows]), torch.Size([rows])) for at in range(2)]
        content.state_dict_metadata["w"] = TensorStorageMetadata(one.properties, torch.Size([2 * rows]), chunks)
        (index,) = [index for index in places if index.fqn == "w"]
        place = places.pop(index)
        for number, chunk in enumerate(chunks):
            places[MetadataIndex("w", chunk.offsets, number)] = replace(place)

    rewrite_metadata(checkpoint, enlarge)
    for partial in (False, True):
        with little_memory():
            found = salvage(checkpoint, partial=partial)
        assert found.loaded == ("v",)
        assert found.partial == ()
        assert found.lost == ("w",)
