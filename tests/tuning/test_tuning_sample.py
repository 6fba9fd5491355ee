"""Which blocks are sampled: inside of their part, spread evenly, weighed by what they stand for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.tuning.sample import BLOCK_BYTES, BLOCKS, Box, Part, Place, box_at, places_in, take_sample

MIB = 2**20

shapes = st.lists(st.integers(1, 7), max_size=4).map(tuple)
parts = st.lists(
    st.builds(
        Part,
        st.just("item"),
        st.just("float32"),
        st.lists(st.integers(0, 3000), max_size=3).map(tuple),
        st.sampled_from([1, 2, 4, 8, 16]),
    ),
    max_size=30,
)


def elements_of(shape: tuple[int, ...], box: Box) -> list[int]:
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    slices = tuple(slice(start, start + length) for start, length in zip(box.offsets, box.lengths, strict=True))
    return numbers[slices].reshape(-1).tolist()


@given(shape=shapes, limit=st.integers(1, 100))
def test_boxes_cut_a_tensor_without_gaps_and_overlaps(shape: tuple[int, ...], limit: int) -> None:
    element, boxes = 0, 0
    while element < math.prod(shape):
        box = box_at(shape, element, limit)
        found = elements_of(shape, box)
        assert found == list(range(element, element + len(found)))  # neighbours, from where the last box ended
        assert 1 <= len(found) <= limit
        assert all(box_at(shape, inside, limit) == box for inside in found)
        element += len(found)
        boxes += 1
    assert element == math.prod(shape)
    assert boxes == 1 or limit < math.prod(shape)


@given(parts=parts)
def test_places_are_inside_of_their_part_and_stand_for_all_bytes(parts: list[Part]) -> None:
    places = places_in(parts)
    total = sum(part.nbytes for part in parts)
    assert bool(places) == bool(total)
    assert len(places) <= BLOCKS
    assert len({(place.part, place.box) for place in places}) == len(places)
    assert sum(place.weight for place in places) == pytest.approx(total)
    for place in places:
        part = parts[place.part]
        assert len(place.box.offsets) == len(place.box.lengths) == len(part.shape)
        assert 0 < math.prod(place.box.lengths) * part.itemsize <= BLOCK_BYTES
        for start, length, size in zip(place.box.offsets, place.box.lengths, part.shape, strict=True):
            assert 0 <= start < start + length <= size
    assert places == places_in(parts)


def test_each_part_weighs_as_much_as_it_has_bytes() -> None:
    sizes = [240 * MIB, 120 * MIB, 60 * MIB, 60 * MIB]
    places = places_in([Part(str(size), None, (size,), 1) for size in sizes])
    assert len(places) == BLOCKS
    weights = Counter[int]()
    for place in places:
        weights[place.part] += round(place.weight)
    assert [weights[number] for number in range(4)] == sizes


def test_equal_layers_are_not_all_sampled_at_the_same_tensor() -> None:
    layer = [Part(name, "bfloat16", (2**20,), 2) for name in ("query", "key", "value", "output", "up", "down")]
    met = Counter(layer[place.part % len(layer)].name for place in places_in(layer * BLOCKS))
    assert set(met) == {part.name for part in layer}
    assert max(met.values()) <= BLOCKS // 4


def test_a_small_source_is_sampled_whole() -> None:
    small = [Part("a", "float32", (1000,), 4), Part("b", "float32", (1200,), 4), Part("none", "float32", (0, 5), 4)]
    places = places_in(small)
    assert [(place.part, place.box) for place in places] == [(0, Box((0,), (1000,))), (1, Box((0,), (1200,)))]
    assert sum(place.weight for place in places) == pytest.approx(8800)


def test_a_scalar_is_a_block() -> None:
    (place,) = places_in([Part("step", "int64", (), 8)])
    assert place == Place(0, Box((), ()), 8.0)


class Recording:
    """A source that remembers what was read of it."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.places: list[Place] = []

    def read(self, places: Sequence[Place]) -> list[bytes]:
        self.places += places
        return [bytes(math.prod(place.box.lengths) * self.parts[place.part].itemsize) for place in places]


def test_no_more_is_read_than_the_sample() -> None:
    source = Recording([Part("huge", "bfloat16", (2**20, 2**20), 2)])
    blocks = take_sample(source)
    assert sum(len(block.data) for block in blocks) == BLOCKS * BLOCK_BYTES
    assert len(source.places) == BLOCKS
    assert {(block.item, block.dtype) for block in blocks} == {("huge", "bfloat16")}


def test_nothing_is_read_of_a_source_without_bytes() -> None:
    source = Recording([Part("empty", "float32", (0,), 4)])
    assert take_sample(source) == []
    assert source.places == []
