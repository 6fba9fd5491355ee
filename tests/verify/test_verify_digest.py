"""The digest of a file, from pieces that come in any order; and that it is compared, whoever has read the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crc32c import crc32c
from dcp.helpers import data_files, manifest_of, retagged, save
from hypothesis import given
from hypothesis import strategies as st

import streamxf
from streamxf import Checksum
from streamxf.dcp.metadata.manifest import split
from streamxf.dcp.verify.digest import Digest


@given(data=st.data(), sizes=st.lists(st.integers(0, 50), max_size=12))
def test_pieces_in_any_order(data: st.DataObject, sizes: list[int]) -> None:
    whole = data.draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
    pieces = [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
    digest = Digest()
    for start, size in data.draw(st.permutations(pieces)):
        digest.add(start, size, crc32c(whole[start : start + size]))
    assert digest.gaps(len(whole)) == []
    assert digest.text(len(whole)) == f"crc32c:{crc32c(whole):08x}"


@given(ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=10), more=st.integers(0, 20))
def test_gaps_and_pieces_that_lie_over_one_another(ranges: list[tuple[int, int]], more: int) -> None:
    """Each byte counts once; what is missing is said, and is right once it was added."""
    size = max((start + length for start, length in ranges), default=0) + more
    whole = bytes(range(size))
    digest = Digest()
    for start, length in ranges:
        digest.add(start, length, crc32c(whole[start : start + length]))
    gaps = digest.gaps(size)
    assert all(start < stop for start, stop in gaps)
    covered = {byte for start, length in ranges for byte in range(start, start + length)}
    missing = {byte for start, stop in gaps for byte in range(start, stop)}
    assert missing >= set(range(size)) - covered
    if gaps:
        assert digest.text(size) is None
    for start, stop in gaps:
        digest.add(start, stop - start, crc32c(whole[start:stop]))
    assert digest.text(size) == f"crc32c:{crc32c(whole):08x}"


@pytest.mark.parametrize("elements", [100, 300_000])
@pytest.mark.parametrize("chain", [[], [Checksum()]], ids=["none", "checksum"])
def test_a_digest_that_is_not_the_manifests(tmp_path: Path, chain: list[Any], elements: int) -> None:
    """Although all that items say of themselves is right; in items that are read at once, and in those that are not."""
    save({"w": torch.randn(elements), "o": "text"}, tmp_path, chain, block_size=1 << 16)
    assert streamxf.verify(tmp_path).ok
    (file,) = data_files(tmp_path)
    manifest = manifest_of(tmp_path)
    digest = f"crc32c:{crc32c(file.read_bytes()):08x}"
    assert manifest.files[file.name].digest == digest
    metadata = tmp_path / ".metadata"
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    metadata.write_bytes(metadata.read_bytes().replace(digest.encode(), other.encode()))
    parts = split(metadata.read_bytes())
    assert parts.manifest is not None
    metadata.write_bytes(retagged(tmp_path, bytes(parts.pickled), parts.manifest))
    report = streamxf.verify(tmp_path)
    assert [(damage.file, damage.item) for damage in report.damaged] == [(file.name, None)]
    assert "digest of the whole file" in report.damaged[0].message
