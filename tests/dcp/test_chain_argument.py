"""``chain=`` of the writers takes what ``streamxf.open`` takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, FsspecReader, FsspecWriter, Key, ZStandard
from streamxf.chain import Chain
from streamxf.errors import ChainError, ParameterError, UnknownCodecError

KEY = Key(bytes(range(32)))
STATE = {"weight": torch.arange(1000.0), "step": 7}

CHAINS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("streamxf.floatzip/1",)),
    ({"chain": []}, ()),
    ({"chain": ""}, ()),
    ({"chain": ZStandard(3)}, ("streamxf.zstd/1",)),
    ({"chain": [ZStandard(), Checksum()]}, ("streamxf.zstd/1", "streamxf.checksum/1")),
    ({"chain": Chain([Checksum()])}, ("streamxf.checksum/1",)),
    ({"chain": "zstd:level=3+checksum"}, ("streamxf.zstd/1", "streamxf.checksum/1")),
    ({"chain": [FloatZip(), Encrypt(KEY)]}, ("streamxf.floatzip/1", "streamxf.encrypt/1")),
    ({"chain": "floatzip+encrypt", "keys": KEY}, ("streamxf.floatzip/1", "streamxf.encrypt/1")),
]


def stored_chains(path: object) -> set[tuple[str, ...]]:
    contents = streamxf.inspect(str(path)).contents
    return {place.chain for item in contents.items.values() for place in item.places}


@pytest.mark.parametrize(("arguments", "chain"), CHAINS, ids=lambda value: str(value)[:60])
def test_what_it_takes(tmp_path: Path, arguments: dict[str, Any], chain: tuple[str, ...]) -> None:
    dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(tmp_path / "a", **arguments))
    assert stored_chains(tmp_path / "a") == {chain}
    loaded = {"weight": torch.zeros(1000), "step": 0}
    keys = KEY if "streamxf.encrypt/1" in chain else None
    dcp.load(loaded, storage_reader=streamxf.FileSystemReader(tmp_path / "a", keys=keys))
    assert torch.equal(loaded["weight"], STATE["weight"])


def test_so_does_the_writer_for_urls() -> None:
    dcp.save(dict(STATE), storage_writer=FsspecWriter("memory://chain-argument", chain="zstd+encrypt", keys=KEY))
    assert stored_chains("memory://chain-argument") == {("streamxf.zstd/1", "streamxf.encrypt/1")}
    loaded = {"weight": torch.zeros(1000), "step": 0}
    dcp.load(loaded, storage_reader=FsspecReader("memory://chain-argument", keys=KEY))
    assert torch.equal(loaded["weight"], STATE["weight"])


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"chain": "zstd", "_extensions": [ZStandard()]}, ParameterError, "_extensions= is the whole chain"),
        ({"chain": [], "_extensions": []}, ParameterError, "_extensions= is the whole chain"),
        ({"keys": KEY, "_extensions": [Encrypt(KEY)]}, ParameterError, "keys= with that alone"),
        ({"keys": KEY}, ParameterError, "the chain does not encrypt"),
        ({"keys": KEY, "chain": "zstd"}, ParameterError, "the chain does not encrypt"),
        ({"chain": "zstd+encrypt"}, ChainError, "needs exactly one key"),
        ({"chain": "zst"}, ChainError, "no codec 'zst'"),
        ({"chain": "acme.nothing"}, UnknownCodecError, "acme.nothing"),
        ({"chain": [Encrypt(KEY), ZStandard()]}, ChainError, "before Encrypt"),
        ({"chain": [TorchZStandard()]}, ChainError, "made of streamxf codecs"),
    ],
)
def test_what_it_refuses(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        streamxf.FileSystemWriter(tmp_path, **arguments)
