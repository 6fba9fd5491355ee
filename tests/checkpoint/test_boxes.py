"""Boxes and runs against what indexing a real array says."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.checkpoint.elements import Selection
from streamxf.format.items import Ranges, boxes_of_run, contiguous_strides

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def elements(shape: tuple[int, ...], box: Ranges, steps: tuple[int, ...] = ()) -> list[int]:
    strides = contiguous_strides(shape)
    rows = zip(box, steps or (1,) * len(shape), strict=True)
    places = itertools.product(*[range(begin, end, step) for (begin, end), step in rows])
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
    steps = draw(st.one_of(st.just(()), st.tuples(*[st.integers(1, 4)] * len(shape))))
    rows = [range(at, size, step) for at, size, step in zip(offsets, shape, steps or (1,) * len(shape), strict=True)]
    lengths = [draw(st.integers(1, len(row))) for row in rows]
    made = Selection.of(shape, offsets, lengths, steps)
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
    right = elements(box.shape, box.box, box.steps)
    assert (box.start, box.stop) == (right[0], right[-1] + 1)
    assert box.is_run == (right == list(range(box.start, box.stop)))
    assert box.count(0, math.prod(box.shape)) == len(right)
    cuts = sorted(data.draw(st.lists(st.integers(box.start, box.stop), max_size=4)))
    found: list[int] = []
    for start, stop in itertools.pairwise([box.start, *cuts, box.stop]):
        for first, outer, inner in box.parts(start, stop):
            assert elements(box.shape, outer)[0] == first
            assert set(elements(box.shape, inner)) <= set(elements(box.shape, outer))
            found += elements(box.shape, inner, box.steps)

    assert sorted(found) == right


@given(wanted(), st.data())
def test_moves_fill_an_array_of_the_box(box: Selection, data: st.DataObject) -> None:
    """In row-major order, as indexing would."""
    whole = np.arange(math.prod(box.shape))
    index = tuple(slice(*span, step) for span, step in zip(box.box, box.steps or (1,) * len(box.box), strict=True))
    right = whole.reshape(box.shape)[index]
    filled, flat = np.full_like(right, -1), list[int]()
    cuts = sorted(data.draw(st.lists(st.integers(box.start, box.stop), max_size=4)))
    for start, stop in itertools.pairwise([box.start, *cuts, box.stop]):
        for part, shape, source, target in box.moves(start, stop):
            filled[target] = whole[start:stop][part].reshape(shape)[source]
            flat += whole[start:stop][part].reshape(shape)[source].reshape(-1).tolist()
    assert np.array_equal(filled, right)
    assert flat == right.reshape(-1).tolist()


@given(wanted(), st.integers(0, 30))
def test_near_elements_are_in_one_run(box: Selection, gap: int) -> None:
    right = elements(box.shape, box.box, box.steps)
    runs = [[right[0]]]
    for before, after in itertools.pairwise(right):
        if after - before > gap:
            runs.append([])
        runs[-1].append(after)
    found = [*box.near(gap)]
    assert [place for start, stop in found for place in right if start <= place < stop] == right
    assert all(start in right and stop - 1 in right for start, stop in found)
    # runs may be cut where it is not needed, and never hold a wide gap
    for start, stop in found:
        assert any(run[0] <= start and stop - 1 <= run[-1] for run in runs)


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [((0, 0), (0, 5)), ((0, 0), (4, 6)), ((-1, 0), (2, 5)), ((3, 0), (2, 5)), ((0,), (4,)), ((0, 0, 0), (4, 5, 1))],
)
def test_a_box_that_is_empty_or_does_not_fit_is_none(offsets: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    assert Selection.of((4, 5), offsets, lengths) is None


@given(st.lists(st.integers(0, 4), max_size=5))
def test_strides_are_torchs(shape: list[int]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape).stride()
