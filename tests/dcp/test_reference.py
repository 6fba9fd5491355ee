"""The decoder that was written from docs/format.md alone reads whatever the writers make."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import LZ4, Checksum, Encrypt, ZStandard

from .helpers import KEY, assert_same, data_files, full_chain, reference_decoder, save

CHAINS: dict[str, list[Any]] = {
    "full chain": full_chain(),
    "default": [ZStandard()],
    "lz4+sha256": [LZ4(level=9), Checksum(algorithm="sha256")],
    "encrypt+checksum": [Encrypt(KEY), Checksum()],
    "none left out": [ZStandard(level=-7), LZ4(), Checksum(), Encrypt(KEY), Checksum(algorithm="sha256")],
}


def big_state() -> dict[str, Any]:
    return {
        "many blocks": torch.arange(100_000, dtype=torch.int64).view(100, 1000).t(),
        "größe": torch.randn(3, 3).to(torch.float8_e4m3fn),
        "empty": torch.empty(0),
        "scalar": torch.tensor(1.5),
        "nested": {"list": [torch.ones(2), "text"], "bytes": b"\0" * 200_000},
    }


def decode_all(path: Path, metadata: Any) -> dict[str, Any]:
    """Decode every item by the reference decoder, and only then let torch look at it."""
    decoder = reference_decoder()
    found: dict[str, Any] = {}
    for index, info in metadata.storage_data.items():
        data = (path / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        item = decoder.decode_container(data, key=KEY.reveal(), descriptors=info.transform_descriptors)
        if item.identity is not None:
            assert item.identity.name == index.fqn
            assert item.identity.offsets == tuple(index.offset or ())
        found[index.fqn] = torch.load(io.BytesIO(item.payload), weights_only=False)
    return found


def assert_all_there(found: dict[str, Any], state: dict[str, Any]) -> None:
    assert_same(found.pop("nested.list.0"), state["nested"]["list"][0])
    assert_same(found.pop("nested.list.1"), state["nested"]["list"][1])
    assert_same(found.pop("nested.bytes"), state["nested"]["bytes"])
    assert_same(
        {name: found[name] for name in state if name != "nested"}, {k: v for k, v in state.items() if k != "nested"}
    )


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("block_size", [1 << 16, 1 << 20])
def test_every_item_and_the_trailer(checkpoint: Path, chain: str, block_size: int) -> None:
    state = big_state()
    save(state, checkpoint, CHAINS[chain], block_size=block_size, thread_count=2)
    decoder = reference_decoder()
    pickled, manifest = decoder.split_metadata((checkpoint / ".metadata").read_bytes(), key=KEY.reveal())
    found = decode_all(checkpoint, pickle.loads(pickled))
    assert_all_there(found, state)
    assert set(manifest["files"]) == {file.name for file in data_files(checkpoint)}
    for name, facts in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        assert facts["size"] == len(data)
        assert facts["digest"] == f"crc32c:{decoder.crc32c(data):08x}"
    assert set(manifest["packages"]) >= {"streamxf", "torch"}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("attached", [True, False], ids=["attached", "stock"])
def test_every_item_of_torchs_writer(checkpoint: Path, chain: str, attached: bool) -> None:
    state = big_state()
    if attached:
        writer = streamxf.attach(dcp.FileSystemWriter(checkpoint), CHAINS[chain])
    else:
        writer = dcp.FileSystemWriter(checkpoint, _extensions=CHAINS[chain])
    dcp.save(state, storage_writer=writer)
    assert_all_there(decode_all(checkpoint, dcp.FileSystemReader(checkpoint).read_metadata()), state)
