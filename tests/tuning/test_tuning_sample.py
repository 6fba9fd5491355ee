"""Which blocks are sampled: inside of their part, spread evenly, weighted by what they represent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.tuning.sample import BLOCK_BYTES, BLOCKS, Part, Span, box_at, spans_in, take_sample

MIB = 2**20

shapes = st.lists(st.integers(1, 7), max_size=4).map(tuple)
parts = st.lists(
    st.builds(
        Part,
        st.just("item"),
        st.lists(st.integers(0, 3000), max_size=3).map(tuple),
        st.sampled_from([1, 2, 4, 8, 16]),
    ),
    max_size=30,
)


def elements_of(shape: tuple[int, ...], box: tuple[tuple[int, ...], tuple[int, ...]]) -> list[int]:
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    slices = tuple(slice(start, start + length) for start, length in zip(*box, strict=True))
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
def test_spans_are_inside_of_their_part_and_stand_for_all_bytes(parts: list[Part]) -> None:
    spans = spans_in(parts)
    total = sum(part.nbytes for part in parts)
    assert bool(spans) == bool(total)
    assert len(spans) <= BLOCKS
    assert len({(span.part, span.offset, span.lengths) for span in spans}) == len(spans)
    assert sum(span.weight for span in spans) == pytest.approx(total)
    for span in spans:
        part = parts[span.part]
        assert len(span.offset) == len(span.lengths) == len(part.shape)
        assert 0 < math.prod(span.lengths) * part.itemsize <= BLOCK_BYTES
        for start, length, size in zip(span.offset, span.lengths, part.shape, strict=True):
            assert 0 <= start < start + length <= size
    assert spans == spans_in(parts)


def test_each_part_weighs_as_much_as_it_has_bytes() -> None:
    sizes = [240 * MIB, 120 * MIB, 60 * MIB, 60 * MIB]
    spans = spans_in([Part(str(size), (size,), 1) for size in sizes])
    assert len(spans) == BLOCKS
    weights = Counter[int]()
    for span in spans:
        weights[span.part] += round(span.weight)
    assert [weights[number] for number in range(4)] == sizes


def test_equal_layers_are_not_all_sampled_at_the_same_tensor() -> None:
    layer = [Part(name, (2**20,), 2) for name in ("query", "key", "value", "output", "up", "down")]
    met = Counter(layer[span.part % len(layer)].name for span in spans_in(layer * BLOCKS))
    assert set(met) == {part.name for part in layer}
    assert max(met.values()) <= BLOCKS // 4


def test_a_small_source_is_sampled_whole() -> None:
    small = [Part("a", (1000,), 4), Part("b", (1200,), 4), Part("none", (0, 5), 4)]
    spans = spans_in(small)
    assert [span[:3] for span in spans] == [(0, (0,), (1000,)), (1, (0,), (1200,))]
    assert sum(span.weight for span in spans) == pytest.approx(8800)


def test_a_scalar_is_a_block() -> None:
    (span,) = spans_in([Part("step", (), 8)])
    assert span == Span(0, (), (), 8.0)


class Recording:
    """A source that remembers what was read of it."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.spans: list[Span] = []

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        self.spans += spans
        return [bytes(math.prod(span.lengths) * self.parts[span.part].itemsize) for span in spans]


def test_no_more_is_read_than_the_sample() -> None:
    source = Recording([Part("huge", (2**20, 2**20), 2)])
    blocks = take_sample(source)
    assert sum(len(block.data) for block in blocks) == BLOCKS * BLOCK_BYTES
    assert len(source.spans) == BLOCKS
    assert {block.part.name for block in blocks} == {"huge"}


def test_nothing_is_read_of_a_source_without_bytes() -> None:
    source = Recording([Part("empty", (0,), 4)])
    assert take_sample(source) == []
    assert source.spans == []
