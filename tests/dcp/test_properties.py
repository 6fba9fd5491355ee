"""Any bytes and tensors, through any chain of up to four codecs, through torch's writer and reader and streamxf's."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

import streamxf
from streamxf import LZ4, Checksum, Encrypt, ZStandard

from .helpers import KEY, assert_same, blank, load_with

EDGE = 1 << 16

CODECS = st.one_of(
    st.integers(-7, 5).map(ZStandard), st.integers(-3, 6).map(LZ4), st.sampled_from(["crc32c", "sha256"]).map(Checksum)
)


@st.composite
def chains(draw: st.DrawFn) -> list[Any]:
    codecs = draw(st.lists(CODECS, max_size=4))
    if draw(st.booleans()):
        after = [Checksum()] * draw(st.integers(0, 1))
        codecs = [*codecs[: 3 - len(after)], Encrypt(KEY), *after]
    return codecs or [Checksum()]


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 4))):
        name = draw(st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=8)) + str(number)
        if draw(st.booleans()):
            state[name] = draw(st.one_of(st.binary(max_size=300), st.text(max_size=30), st.integers(), st.none()))
        else:
            size = draw(st.one_of(st.integers(0, 50), st.integers(EDGE - 900, EDGE + 5)))
            state[name] = torch.randint(0, draw(st.sampled_from([1, 3, 256])) + 1, (size,), dtype=torch.int16)
    return state


PAIRS = {
    "own, own": (True, True),
    "own, stock": (True, False),
    "stock, stock": (False, False),
    "stock, own": (False, True),
}


@pytest.mark.parametrize("pair", PAIRS)
@given(state=states(), chain=chains(), threads=st.sampled_from([1, 3]))
@settings(settings.get_profile("disk"))
def test_round_trips(
    tmp_path_factory: pytest.TempPathFactory, pair: str, state: dict[str, Any], chain: list[Any], threads: int
) -> None:
    own_writer, own_reader = PAIRS[pair]
    path = tmp_path_factory.mktemp("pair")
    keys = KEY if any(isinstance(codec, Encrypt) for codec in chain) else None
    dcp.save(state, storage_writer=writer_for(path, chain, threads, own_writer))
    reader: Any
    if own_reader:
        require = "encrypted" if keys and not own_writer else None
        reader = streamxf.FileSystemReader(path, keys=keys, require=require)
    else:
        reader = dcp.FileSystemReader(path, _extension_registry=streamxf.Registry(keys=keys))
    found = blank(state)
    assert_same(load_with(found, reader), state)


def writer_for(path: Path, chain: list[Any], threads: int, own: bool) -> Any:
    if own:
        return streamxf.FileSystemWriter(
            path, _extensions=chain, thread_count=threads, sync_files=False, block_size=EDGE
        )
    return dcp.FileSystemWriter(path, _extensions=chain, thread_count=threads, sync_files=False)
