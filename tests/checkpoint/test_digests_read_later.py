"""The digests of a signed checkpoint are read when they are needed, from a metadata file that is open for as long."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.checkpoint import metadata as metadata_module
from streamxf.errors import BlockError, IdentityError, MetadataError, StreamxfError
from streamxf.format import index as index_module
from tests.dcp.helpers import assert_same, blank, error_of
from tests.forge import split_metadata
from tests.tools.verify.remote import url_of

SIGNER = streamxf.SigningKey.generate()
RING = streamxf.keys.KeyRing(None, trust=SIGNER.verify_key)
TRUST = {"trust": SIGNER.verify_key}
STATE = {"w": torch.arange(200_000), "small": torch.ones(3), "step": 7}


@pytest.fixture(params=["whole", "table"])
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A checkpoint of whose metadata hardly anything is read at once, as of one with many blocks."""
    path = tmp_path / "checkpoint"
    writer = streamxf.FileSystemWriter(path, chain={"*": "zstd", "small": "raw"}, signer=SIGNER, block_size=1 << 16)
    dcp.save(dict(STATE), storage_writer=writer, no_dist=True)
    monkeypatch.setattr(metadata_module, "_TAIL", 256)
    if request.param == "table":
        monkeypatch.setattr(index_module, "_SMALL", 0)
    return path


def loaded(path: Any) -> dict[str, Any]:
    found = blank(STATE)
    dcp.load(found, storage_reader=streamxf.FileSystemReader(path, keys=RING), no_dist=True)
    return found


def read(path: Any) -> dict[str, Any]:
    with streamxf.Checkpoint(path, **TRUST) as checkpoint:
        return {name: checkpoint[name].read() for name in STATE}


def copied(path: Path) -> dict[str, Any]:
    streamxf.transcode(path, path.with_name("copy"), "zstd", signer=SIGNER, **TRUST)
    return read(path.with_name("copy"))


def signed_again(path: Path) -> dict[str, Any]:
    streamxf.sign(path, signer=streamxf.SigningKey.generate(), **TRUST)
    return loaded(path)


def salvaged(path: Path) -> dict[str, Any]:
    return streamxf.load_intact(path, **TRUST).state_dict


READERS = [loaded, read, copied, signed_again, salvaged]


@pytest.mark.parametrize("reader", READERS)
def test_all_readers_find_them(path: Path, reader: Callable[[Any], dict[str, Any]]) -> None:
    assert_same(reader(path), STATE)


def test_verify_does_too_also_in_another_storage(path: Path) -> None:
    for place in (path, url_of(path)):
        assert streamxf.verify(place, **TRUST).ok
    assert_same(read(url_of(path)), STATE)


def test_nothing_stays_open(path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read(path)
        loaded(path)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("reader", [loaded, read])
def test_damaged_digests_are_damage_of_the_metadata(path: Path, reader: Callable[[Any], dict[str, Any]]) -> None:
    data = bytearray((path / ".metadata").read_bytes())
    parts = split_metadata(bytes(data))
    data[len(parts.pickled) + len(parts.parts) - 5] ^= 1  # those of digests are the last
    (path / ".metadata").write_bytes(data)
    error = error_of(lambda: reader(path))
    assert isinstance(error, StreamxfError)
    assert not isinstance(error, BlockError | IdentityError)
    assert isinstance(error, MetadataError)
