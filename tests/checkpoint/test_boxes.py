"""Boxes and runs against what indexing a real array says."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.checkpoint.elements import Ranges, Selection, boxes_of_run, contiguous_strides

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def elements(shape: tuple[int, ...], box: Ranges) -> list[int]:
    strides = contiguous_strides(shape)
    places = itertools.product(*[range(begin, end) for begin, end in box])
    return [sum(at * stride for at, stride in zip(place, strides, strict=True)) for place in places]


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(shapes)
    start = draw(st.integers(0, math.prod(shape) - 1))
    return shape, start, draw(st.integers(start, math.prod(shape)))


@st.composite
def wanted(draw: st.DrawFn) -> Selection:
    shape = draw(shapes)
    offsets = [draw(st.integers(0, size - 1)) for size in shape]
    lengths = [draw(st.integers(1, size - at)) for size, at in zip(shape, offsets, strict=True)]
    made = Selection.of(shape, offsets, lengths)
    assert made is not None
    return made


@given(runs())
def test_a_run_is_split_into_boxes_in_order(run: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = run
    found: list[int] = []
    count = 0
    for first, box in boxes_of_run(shape, start, stop):
        assert first == start + len(found)
        found += elements(shape, box)
        count += 1
    assert found == list(range(start, stop))
    assert count <= max(1, 2 * len(shape) - 1)


@given(wanted(), st.data())
def test_the_parts_of_runs_are_what_is_wanted(box: Selection, data: st.DataObject) -> None:
    """However the run is cut, each wanted element comes once, and nothing else."""
    right = elements(box.shape, box.box)
    assert (box.start, box.stop) == (right[0], right[-1] + 1)
    assert box.is_run == (right == list(range(box.start, box.stop)))
    cuts = sorted(data.draw(st.lists(st.integers(box.start, box.stop), max_size=4)))
    found: list[int] = []
    for start, stop in itertools.pairwise([box.start, *cuts, box.stop]):
        for first, outer, inner in box.parts(start, stop):
            assert elements(box.shape, outer)[0] == first
            assert set(elements(box.shape, inner)) <= set(elements(box.shape, outer))
            found += elements(box.shape, inner)
    assert sorted(found) == right


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [((0, 0), (0, 5)), ((0, 0), (4, 6)), ((-1, 0), (2, 5)), ((3, 0), (2, 5)), ((0,), (4,)), ((0, 0, 0), (4, 5, 1))],
)
def test_a_box_that_is_empty_or_does_not_fit_is_none(offsets: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    assert Selection.of((4, 5), offsets, lengths) is None


@given(st.lists(st.integers(0, 4), max_size=5))
def test_strides_are_torchs(shape: list[int]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape).stride()
