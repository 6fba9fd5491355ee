"""The decoder that was written from docs/format.md alone reads whatever the writers make."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from tests.reference_decoder import Value, load, read_container
from tests.reference_keys import Reader, aes_key, parse_wrapped, unwrap

from .helpers import KEY, assert_same, full_chain, raw_bytes, save

CHAINS: dict[str, list[Any]] = {
    "no chain": [],
    "full chain": full_chain(),
    "default": [FloatZip()],
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
        "bytes": b"\0" * 200_000,
        "text": "text",
    }


def unpickled(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("block_size", [1 << 16, 1 << 20])
def test_a_whole_checkpoint(checkpoint: Path, chain: str, block_size: int) -> None:
    state = big_state()
    save(state, checkpoint, CHAINS[chain], block_size=block_size, thread_count=2)
    keyed = any(isinstance(codec, Encrypt) for codec in CHAINS[chain])
    found = load(checkpoint, Reader([aes_key(KEY.reveal())] if keyed else []))
    assert found.keys() == state.keys()
    for name, wanted in state.items():
        item = found[name]
        if isinstance(item, Value):
            assert_same(item.value, wanted)
        elif isinstance(item, bytes):
            assert_same(unpickled(item), wanted)
        elif item.data is None:
            assert chain == "no chain"
            assert_same(unpickled(item.chunks[0][1]), wanted)
        else:
            assert isinstance(wanted, torch.Tensor)
            assert (item.dtype, item.shape) == (str(wanted.dtype).removeprefix("torch."), tuple(wanted.shape))
            assert item.data == bytes(raw_bytes(wanted).numpy())


@pytest.mark.parametrize("chain", [chain for chain in CHAINS if CHAINS[chain]])
@pytest.mark.parametrize("attached", [True, False], ids=["attached", "stock"])
def test_every_item_of_torchs_writer(checkpoint: Path, chain: str, attached: bool) -> None:
    state = big_state()
    if attached:
        writer = streamxf.attach(dcp.FileSystemWriter(checkpoint), CHAINS[chain])
    else:
        writer = dcp.FileSystemWriter(checkpoint, _extensions=CHAINS[chain])
    dcp.save(state, storage_writer=writer)
    found = {}
    for index, place in dcp.FileSystemReader(checkpoint).read_metadata().storage_data.items():
        data = (checkpoint / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
        header, stream = read_container(data, data_key_in(place.transform_descriptors))
        assert header.chain == [text.partition("#")[0] for text in reversed(place.transform_descriptors)]
        if attached:
            assert header.identity is not None
            assert (header.identity.name, header.identity.offset) == (index.fqn, tuple(index.offset or ()))
        else:
            assert header.identity is None
        found[index.fqn] = unpickled(stream)
    assert_same({name: found[name] for name in state}, state)


def data_key_in(descriptors: list[str]) -> bytes | None:
    for text in descriptors:
        name, _, fragment = text.partition("#")
        if name == "streamxf.encrypt/1":
            return unwrap(parse_wrapped(fragment), [aes_key(KEY.reveal())])[0]
    return None
