"""Round trips that hold for every file system that fsspec knows."""

from typing import Any

import fsspec
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.storage.opening import open_storage

from .helpers import KEY, assert_same, full_chain, load_into, load_with


def save_to(url: str, state: dict[str, Any], storage: dict[str, Any] | None = None, **options: Any) -> None:
    writer = streamxf.FsspecWriter(url, _extensions=full_chain(), **options, **(storage or {}))
    dcp.save(state, storage_writer=writer)


def load_from(
    url: str, state: dict[str, Any], storage: dict[str, Any] | None = None, keys: Any = KEY
) -> dict[str, Any]:
    return load_with(state, streamxf.FsspecReader(url, keys=keys, **(storage or {})))


def check_round_trips(url: str, state: dict[str, Any], storage: dict[str, Any] | None = None, **options: Any) -> None:
    """Save, overwrite, and turn to another checkpoint with the same writer and reader."""
    state = {**state, "blocks": torch.randint(0, 9, (300_000,))}
    writer = streamxf.FsspecWriter(url, _extensions=full_chain(), block_size=1 << 16, **options, **(storage or {}))
    for step in range(2):
        state["step"] = step
        dcp.save(state, storage_writer=writer)
        assert_same(load_from(url, state, storage), state)
        assert_only_the_save_remains(url, storage)
    before = fsspec_files(url, storage)
    other = url + "-other"
    state["step"] = 2
    dcp.save(state, checkpoint_id=other, storage_writer=writer)
    assert_only_the_save_remains(other, storage)
    assert fsspec_files(url, storage) == before
    reader = streamxf.FsspecReader(url, keys=KEY, **(storage or {}))
    found = load_into({"step": None}, reader)
    assert found == {"step": 1}
    dcp.load(found, checkpoint_id=other, storage_reader=reader)
    assert found == {"step": 2}
    assert_same(load_from(other, state, storage), state)


def fsspec_files(url: str, storage: dict[str, Any] | None = None) -> dict[str, int]:
    filesystem, path = fsspec.core.url_to_fs(url, **(storage or {}))
    filesystem.invalidate_cache()
    found = filesystem.find(path, detail=True)
    return {name.rpartition("/")[2]: int(facts["size"]) for name, facts in found.items()}


def assert_only_the_save_remains(url: str, storage: dict[str, Any] | None = None) -> None:
    """The files that the metadata names are there, as long as it says, and no others."""
    files = read_metadata(open_storage(url, storage), ".metadata", Access(), listing=True).files
    sizes = fsspec_files(url, storage)
    sizes.pop(".metadata")
    assert sizes == {name: file.size for name, file in files.items()}
