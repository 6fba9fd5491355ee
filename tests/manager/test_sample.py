"""Which blocks `verify="sample"` reads: spread evenly, and no more than these."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

import streamxf
from streamxf import Encrypt, FloatZip, Key
from streamxf.chain import StreamCoder
from streamxf.errors import StreamxfError
from streamxf.manager.sample import BLOCKS, choose_places, read_sample
from tests.altered import flip

KEY = Key(bytes(range(32)))
MIB = 2**20


@given(sizes=st.lists(st.integers(0, 2**60), max_size=30))
def test_places_are_inside_of_their_stream(sizes: list[int]) -> None:
    chosen = choose_places(sizes)
    assert bool(chosen) == any(sizes)
    assert sum(map(len, chosen.values())) in (0, BLOCKS)
    assert all(0 <= at < sizes[number] for number, places in chosen.items() for at in places)
    assert chosen == choose_places(sizes)


def test_each_stream_is_met_in_proportion_to_its_bytes() -> None:
    chosen = choose_places([240 * MIB, 120 * MIB, 60 * MIB, 60 * MIB])
    assert [len(chosen[number]) for number in range(4)] == [12, 6, 3, 3]


def test_equal_layers_are_not_all_sampled_at_the_same_tensor() -> None:
    chosen = choose_places([2**21] * 6 * BLOCKS)
    met = [sum(len(places) for number, places in chosen.items() if number % 6 == tensor) for tensor in range(6)]
    assert min(met) > 0
    assert max(met) <= BLOCKS // 4


@pytest.mark.parametrize("shape", [(96, 2**19), (24 * MIB * 2,), (3, 2**23 * 2), (2, 2, 12 * MIB)], ids=str)
def test_only_the_blocks_of_the_sample_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    tensor = torch.zeros(shape, dtype=torch.bfloat16)  # 96 MiB
    dcp.save({"w": tensor}, storage_writer=streamxf.FileSystemWriter(tmp_path, _extensions=[FloatZip(), Encrypt(KEY)]))
    decoded: list[int] = []
    real = StreamCoder.decode

    def decode(coder: StreamCoder, *arguments: object, **options: object) -> memoryview:
        block = real(coder, *arguments, **options)  # type: ignore[arg-type]
        decoded.append(len(block))
        return block

    monkeypatch.setattr(StreamCoder, "decode", decode)
    with streamxf.Checkpoint(tmp_path, keys=KEY) as checkpoint:
        read_sample(checkpoint)
    assert sum(decoded) == BLOCKS * MIB
    assert max(decoded) <= MIB


def test_each_chunk_of_a_tensor_is_looked_into_and_damage_is_placed(tmp_path: Path) -> None:
    state = {f"w{number}": torch.randn(64) for number in range(4)} | {"text": "an object", "none": torch.zeros(0)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path))
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        read_sample(checkpoint)
        (place,) = checkpoint.stored["w2"].places
    flip(tmp_path / place.file, place.at + place.size - 20)
    with streamxf.Checkpoint(tmp_path) as checkpoint, pytest.raises(StreamxfError) as failure:
        read_sample(checkpoint)
    assert failure.value.item == "w2"
