"""Which blocks `verify="sample"` reads: inside of their shard, spread evenly, and no more than these."""

import math
from collections import Counter
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
from streamxf.manager.sample import BLOCK_BYTES, BLOCKS, choose_regions, read_sample, region_at
from tests.altered import flip

KEY = Key(bytes(range(32)))
MIB = 2**20

shapes = st.lists(st.integers(1, 7), max_size=4).map(tuple)
shards = st.lists(
    st.tuples(st.lists(st.integers(0, 3000), max_size=3).map(tuple), st.sampled_from([1, 2, 4, 8, 16])), max_size=30
)


def elements_of(shape: tuple[int, ...], region: tuple[tuple[int, ...], tuple[int, ...]]) -> list[int]:
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    slices = tuple(slice(start, start + length) for start, length in zip(*region, strict=True))
    return numbers[slices].reshape(-1).tolist()


@given(shape=shapes, limit=st.integers(1, 100))
def test_regions_cut_a_tensor_without_gaps_and_overlaps(shape: tuple[int, ...], limit: int) -> None:
    element, regions = 0, 0
    while element < math.prod(shape):
        region = region_at(shape, element, limit)
        elements = elements_of(shape, region)
        assert elements == list(range(element, element + len(elements)))  # neighbours, from where the last one ended
        assert 1 <= len(elements) <= limit
        assert all(region_at(shape, inside, limit) == region for inside in elements)
        element += len(elements)
        regions += 1
    assert element == math.prod(shape)
    assert regions == 1 or limit < math.prod(shape)


@given(shards=shards)
def test_regions_are_inside_of_their_shard(shards: list[tuple[tuple[int, ...], int]]) -> None:
    regions = choose_regions(shards)
    assert bool(regions) == any(math.prod(shape) for shape, _ in shards)
    assert len(regions) == len(set(regions)) <= BLOCKS
    for number, (offset, lengths) in regions:
        shape, itemsize = shards[number]
        assert len(offset) == len(lengths) == len(shape)
        assert 0 < math.prod(lengths) * itemsize <= BLOCK_BYTES
        for start, length, size in zip(offset, lengths, shape, strict=True):
            assert 0 <= start < start + length <= size
    assert regions == choose_regions(shards)


def test_each_shard_is_met_in_proportion_to_its_bytes() -> None:
    sizes = [240 * MIB, 120 * MIB, 60 * MIB, 60 * MIB]
    met = Counter(number for number, _ in choose_regions([((size,), 1) for size in sizes]))
    assert [met[number] for number in range(4)] == [12, 6, 3, 3]


def test_equal_layers_are_not_all_sampled_at_the_same_tensor() -> None:
    met = Counter(number % 6 for number, _ in choose_regions([((2**20,), 2)] * 6 * BLOCKS))
    assert set(met) == set(range(6))
    assert max(met.values()) <= BLOCKS // 4


def test_a_small_source_is_sampled_whole() -> None:
    assert choose_regions([((1000,), 4), ((1200,), 4), ((0, 5), 4)]) == [(0, ((0,), (1000,))), (1, ((0,), (1200,)))]
    assert choose_regions([((), 8)]) == [(0, ((), ()))]
    assert choose_regions([((0,), 4)]) == choose_regions([]) == []


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
    state = {f"w{number}": torch.randn(64) for number in range(4)} | {"text": "an object"}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path))
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        read_sample(checkpoint)
        (place,) = checkpoint.stored["w2"].places
    flip(tmp_path / place.file, place.at + place.size - 20)
    with streamxf.Checkpoint(tmp_path) as checkpoint, pytest.raises(StreamxfError) as failure:
        read_sample(checkpoint)
    assert failure.value.item == "w2"
