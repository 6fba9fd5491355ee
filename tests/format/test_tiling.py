"""Chunks that leave a part of a tensor out, hold one twice or reach beyond it are found, in any shape."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import MetadataError
from streamxf.format import tiling
from streamxf.format.tiling import MAX_CORNERS, MAX_GROUP, check_apart, check_tiles, work_for

Box = tuple[tuple[int, ...], tuple[int, ...]]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that tile `shape`, by cutting boxes in two again and again; some of the parts may be empty."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[axis]))
        lower, upper = list(sizes), list(sizes)
        lower[axis], upper[axis] = at, sizes[axis] - at
        moved = list(offsets)
        moved[axis] += at
        boxes += [(offsets, tuple(lower)), (tuple(moved), tuple(upper))]
    return draw(st.permutations(boxes))


@st.composite
def any_boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes anywhere in `shape` or a little beyond it, or a tiling with one box altered, dropped or doubled."""
    if draw(st.booleans()):
        boxes = draw(tilings(shape))
        change = draw(st.sampled_from(["none", "drop", "double", "alter"]))
        at = draw(st.integers(0, len(boxes) - 1))
        if change == "drop":
            del boxes[at]
        elif change == "double":
            boxes.append(boxes[at])
        elif change == "alter" and shape:
            axis = draw(st.integers(0, len(shape) - 1))
            lists = [list(part) for part in boxes[at]]
            which = draw(st.integers(0, 1))
            lists[which][axis] = draw(st.integers(0, 6))
            boxes[at] = (tuple(lists[0]), tuple(lists[1]))
        return boxes
    box = st.tuples(*(st.tuples(*(st.integers(0, size + 1) for size in shape)) for _ in range(2)))
    return draw(st.lists(box, max_size=6))


cases = shapes.flatmap(lambda shape: st.tuples(st.just(shape), any_boxes(shape)))


def counts(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray | None:
    """How often each element is there; None if a box reaches beyond the tensor."""
    found = np.zeros(shape, dtype=int)
    for offsets, sizes in boxes:
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        if any(end > size for end, size in zip(ends, shape, strict=True)):
            return None
        found[tuple(slice(offset, end) for offset, end in zip(offsets, ends, strict=True))] += 1
    return found


def passes(check: object, shape: tuple[int, ...], boxes: list[Box]) -> bool:
    try:
        check(shape, boxes)  # type: ignore[operator]
    except MetadataError:
        return False
    return True


@given(shapes.flatmap(lambda shape: st.tuples(st.just(shape), tilings(shape))))
def test_every_tiling_passes(case: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = case
    check_tiles(shape, boxes)
    check_apart(shape, boxes)


@given(cases)
def test_agrees_with_counting_every_element(case: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = case
    found = counts(shape, boxes)
    assert passes(check_tiles, shape, boxes) == (found is not None and bool((found == 1).all()))
    assert passes(check_apart, shape, boxes) == (found is not None and bool((found <= 1).all()))


def test_a_corner_that_only_the_sign_tells_apart() -> None:
    """Four boxes whose volumes add up, and which leave one quarter out for another that they hold twice."""
    quarters = [(a, b) for a in (0, 2) for b in (0, 2)]
    boxes = [(quarter, (2, 2)) for quarter in quarters]
    check_tiles((4, 4), boxes)
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles((4, 4), [*boxes[:3], boxes[0]])


def test_another_number_of_dimensions() -> None:
    for check in (check_tiles, check_apart):
        with pytest.raises(MetadataError, match="number of dimensions"):
            check((4, 4), [((0,), (16,))])


def test_a_tensor_without_chunks() -> None:
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles((), [])
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles((3,), [])
    check_tiles((0, 3), [])
    check_apart((3,), [])


def test_many_shards_in_three_dimensions() -> None:
    counts_in = (32, 20, 20)
    shape = (*(3 * count for count in counts_in), 1024)
    boxes = [
        ((3 * a, 3 * b, 3 * c, 0), (3, 3, 3, 1024)) for a, b, c in itertools.product(*(range(n) for n in counts_in))
    ]
    assert len(boxes) == math.prod(counts_in) > 10_000
    check_tiles(shape, boxes)
    boxes[5_000] = boxes[5_001]
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles(shape, boxes)


@pytest.mark.parametrize("ndim", [7, 12])
def test_a_grid_may_be_cut_along_any_number_of_dimensions(ndim: int) -> None:
    boxes: list[Box] = [(corner, (1,) * ndim) for corner in itertools.product((0, 1), repeat=ndim)]
    check_tiles((2,) * ndim, boxes)
    check_tiles((2,) * ndim, [*boxes, ((1,) * ndim, (0,) * ndim)])  # which is not the plain case any more
    with pytest.raises(MetadataError, match="leave out" if ndim == 7 else "takes too long"):
        check_tiles((2,) * ndim, [*boxes[1:], boxes[1]])


def wheels(count: int) -> list[Box]:
    """`count` wheels of five boxes in a row, which no cut parts as a whole: each has one box around a middle."""
    boxes: list[Box] = []
    for number in range(count):
        at = number * 3
        boxes += [
            ((0, at), (1, 2)),
            ((0, at + 2), (2, 1)),
            ((2, at + 1), (1, 2)),
            ((1, at), (2, 1)),
            ((1, at + 1), (1, 1)),
        ]
    return boxes


def spiral(rings: int) -> tuple[tuple[int, int], list[Box]]:
    """Wheels around wheels: boxes that no dimension parts at all."""
    boxes: list[Box] = [((rings, rings), (1, 1))]
    for ring in range(rings):
        side, low, high = 2 * (rings - ring), ring, 2 * rings - ring
        boxes += [
            ((low, low), (1, side)),
            ((low, high), (side, 1)),
            ((high, low + 1), (1, side)),
            ((low + 1, low), (side, 1)),
        ]
    return (2 * rings + 1, 2 * rings + 1), boxes


def test_boxes_that_no_dimension_parts() -> None:
    check_tiles((3, 90), wheels(30))
    shape, boxes = spiral((MAX_GROUP - 1) // 4)
    assert MAX_GROUP - 4 < len(boxes) <= MAX_GROUP
    check_apart(shape, boxes[1:])
    with pytest.raises(MetadataError, match="takes too long"):
        check_apart(*spiral(MAX_GROUP // 4 + 1))
    shape, boxes = spiral((MAX_CORNERS // 4 - 1) // 4)
    assert MAX_CORNERS // 4 - 4 < len(boxes) <= MAX_CORNERS // 4
    check_tiles(shape, boxes, work_for(MAX_CORNERS))
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles(shape, boxes[1:])
    offset, _ = boxes[-1]
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles(shape, [*boxes[1:], (offset, (1, 1))])
    shape, boxes = spiral((MAX_CORNERS // 4 - 1) // 4 + 1)
    with pytest.raises(MetadataError, match="takes too long"):
        check_tiles(shape, boxes, work_for(MAX_CORNERS))


def test_corners_in_many_dimensions() -> None:
    """A pinwheel in two of twelve dimensions, each of which is cut, and one element more or less."""
    wheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((1, 0), (2, 1)), ((2, 1), (1, 2)), ((1, 1), (1, 1))]
    boxes = [((*at, *(0,) * 10), (*size, *(2**4,) * 10)) for at, size in wheel]
    for axis in range(2, 12):
        at, size = boxes.pop(0)
        first, second = ([*size[:axis], half, *size[axis + 1 :]] for half in (7, 9))
        boxes += [(at, tuple(first)), ((*at[:axis], 7, *at[axis + 1 :]), tuple(second))]
    shape = (3, 3, *(2**4,) * 10)
    check_tiles(shape, boxes)
    for wrong in (boxes[1:], [*boxes, boxes[3]], [*boxes[1:], boxes[3]]):
        with pytest.raises(MetadataError, match="leave out"):
            check_tiles(shape, wrong)


def test_comparing_them_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget for all tensors of an index, in proportion to what was read."""
    monkeypatch.setattr(tiling, "_PAIRS_FREE", 0)
    shape, boxes = spiral(1000)
    work = work_for(100)
    for _ in range(3):
        check_tiles(shape, boxes, work)
    with pytest.raises(MetadataError, match="takes too long"):
        for _ in range(1000):
            check_tiles(shape, boxes, work)


def test_along_one_dimension_there_is_no_limit() -> None:
    count = 3 * MAX_GROUP
    rows = [((at,), (1,)) for at in range(count)]
    check_tiles((count,), rows)
    check_tiles((count,), [*rows, ((7,), (0,))])  # which is not the plain case any more
    with pytest.raises(MetadataError, match="leave out"):
        check_tiles((count,), [*rows[1:], ((7,), (0,))])


def test_chunks_without_elements_do_not_count_as_cuts() -> None:
    shape = (2,) * 8
    whole = ((0,) * 8, shape)
    check_tiles(shape, [whole, *(((0,) * axis + (1,) + (0,) * (7 - axis), (0,) * 8) for axis in range(8))])
    with pytest.raises(MetadataError, match="beyond its end"):
        check_tiles(shape, [whole, ((3, *[0] * 7), (0,) * 8)])


def test_tensors_that_are_too_large() -> None:
    for check in (check_tiles, check_apart):
        with pytest.raises(MetadataError, match="more elements"):
            check((2**32, 2**21), [])
        check((0, 2**32, 2**21), [])  # as others may have stored it
        with pytest.raises(MetadataError, match="beyond its end"):
            check((0, 2**32, 2**21), [((0, 2**32, 0), (0, 1, 1))])
    check_apart((2**32, 2**21 - 1), [])
    check_tiles((0, 2**52), [])


def test_a_ranks_own_chunks_are_compared_with_their_neighbours_only() -> None:
    layers = 200
    boxes = [((layer // 2, layer), (1000, 1)) for layer in range(layers)]
    check_apart((2000, layers), boxes)  # parted along the second dimension
    with pytest.raises(MetadataError, match="overlap"):
        check_apart((2000, layers), [*boxes, ((50, 7), (1000, 2))])
    with pytest.raises(MetadataError, match="overlap"):
        check_apart((3,), [((0,), (3,)), ((0,), (3,))])
