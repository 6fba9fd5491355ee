"""Distances of tensors, against the same in exact arithmetic."""

import math
from fractions import Fraction
from statistics import pstdev
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from streamxf.tools.diff import difference as distance_module
from streamxf.tools.diff.difference import Distance, DistanceCounter, distance_text
from streamxf.tools.values.statistics import is_number
from tests.tools.elements import dtype_name, elements_of
from tests.tools.values.test_statistics import COMPLEX, FLOATS, INTEGERS, of_bits

BITS_ONLY = [torch.float4_e2m1fn_x2]


def bfloat16(*bits: int) -> torch.Tensor:
    return torch.tensor([each - 2**16 * (each >= 2**15) for each in bits], dtype=torch.int16).view(torch.bfloat16)


def distance(first: torch.Tensor, second: torch.Tensor) -> Distance:
    counter = DistanceCounter(dtype_name(first), dtype_name(second), statistics=True)
    counter.add(elements_of(first), elements_of(second))
    return counter.result()


def number(tensor: torch.Tensor) -> list[complex | int | float]:
    if tensor.dtype.is_complex:
        parts = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
        pairs = tensor.view(parts[tensor.dtype]).double().view(-1, 2).tolist()
        return [complex(*pair) for pair in pairs]
    return tensor.tolist() if tensor.dtype in INTEGERS else tensor.double().tolist()


def apart(one: complex | int | float, other: complex | int | float) -> Fraction | float | None:
    """The distance; None for none."""
    if isinstance(one, int) and isinstance(other, int):
        return Fraction(abs(one - other))
    if isinstance(one, complex) or isinstance(other, complex):
        one, other = complex(one), complex(other)
        parts = apart(one.real, other.real), apart(one.imag, other.imag)
        return None if None in parts else finite(math.hypot(*map(float, parts)))
    one, other = float(one), float(other)
    if one == other or (math.isnan(one) and math.isnan(other)):
        return Fraction(0)
    if not (math.isfinite(one) and math.isfinite(other)):
        return None
    return finite(abs(one - other))


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def same_number(one: complex | int | float, other: complex | int | float) -> bool:
    if isinstance(one, complex) or isinstance(other, complex):
        one, other = complex(one), complex(other)
        return same_number(one.real, other.real) and same_number(one.imag, other.imag)
    if not (isinstance(one, int) and isinstance(other, int)):
        one, other = float(one), float(other)
    return one == other or (one != one and other != other)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of any numbers, mostly close to each other, whatever their bits are."""
    first = draw(st.sampled_from(INTEGERS + FLOATS + COMPLEX))
    second = draw(st.one_of(st.just(first), st.sampled_from(INTEGERS + FLOATS + COMPLEX)))
    count = draw(st.integers(0, 12))
    raw = [
        draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize)) for dtype in (first, second)
    ]
    one, other = of_bits(first, raw[0]), of_bits(second, raw[1])
    if first == second and count:
        kept = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        bits = one.view(torch.uint8).view(count, -1).clone(), other.view(torch.uint8).view(count, -1)
        other = torch.where(kept[:, None], *bits).reshape(-1).view(first)
    return one, other


def is_nan(number: complex | int | float) -> bool:
    return number != number


def others(one: torch.Tensor, other: torch.Tensor) -> list[bool]:
    """Which elements are not the same."""
    if one.dtype == other.dtype:
        bits = [each.view(torch.uint8).view(len(one), -1).tolist() if len(one) else [] for each in (one, other)]
        return [a != b for a, b in zip(*bits, strict=True)]
    return [not same_number(*each) for each in zip(number(one), number(other), strict=True)]


def rounded(far: Any, one: torch.Tensor, other: torch.Tensor) -> Any:
    """A distance as it may be found: of complex numbers, C's hypot and Python's may differ in the last bit."""
    is_complex = one.dtype.is_complex or other.dtype.is_complex
    return pytest.approx(float(far), rel=4e-16) if is_complex else far


@given(pairs())
@example((bfloat16(0, 0x7FC1, 1), bfloat16(0x7FC0, 0x7FC0, 0x7FC0)))
def test_distances_are_those_of_exact_arithmetic(pair):
    one, other = pair
    found = distance(one, other)
    numbers = list(zip(number(one), number(other), strict=True))
    differ = others(one, other)
    nan = [(is_nan(a), is_nan(b)) if unlike else (False, False) for (a, b), unlike in zip(numbers, differ, strict=True)]
    distances = [
        None if any(which) else apart(*each) if unlike else Fraction(0)
        for each, which, unlike in zip(numbers, nan, differ, strict=True)
    ]
    measured = [each for each in distances if each is not None]
    assert (found.elements, found.differing) == (len(numbers), sum(differ))
    assert found.without == distances.count(None)
    assert (found.to_nan, found.from_nan, found.other_nan) == tuple(
        nan.count(which) for which in ((False, True), (True, False), (True, True))
    )
    if not measured or (any(differ) and found.without == found.differing):
        assert (found.largest, found.mean) == (None, None)
        return
    assert found.largest == rounded(max(measured), one, other)
    assert isinstance(found.largest, int) == (one.dtype in INTEGERS and other.dtype in INTEGERS) or not found.largest
    assert found.mean == pytest.approx(float(sum(map(Fraction, measured)) / len(measured)), rel=1e-12)


@given(pairs())
def test_differences_are_counted_as_values_are(pair):
    one, other = pair
    found = distance(one, other)
    counted = found.statistics
    assert (counted.elements, counted.nan + counted.inf) == (found.elements, found.without)
    signed: list[float] = []
    for a, b, unlike in zip(number(one), number(other), others(one, other), strict=True):
        far = apart(a, b) if unlike and not is_nan(a) and not is_nan(b) else None if unlike else 0
        if far is not None:
            less = not isinstance(a, complex) and not isinstance(b, complex) and b < a
            signed.append(-float(far) if less else float(far))
    assert counted.zeros == signed.count(0)
    ends = (rounded(min(signed), one, other), rounded(max(signed), one, other)) if signed else (None, None)
    assert (counted.min, counted.max) == ends
    if signed:
        exact = [Fraction(each) for each in signed]
        scale = max(map(abs, signed))
        assert counted.mean == pytest.approx(float(sum(exact) / len(exact)), rel=1e-12, abs=1e-14 * scale)
        assert counted.std == pytest.approx(float(pstdev(exact)), rel=1e-9, abs=1e-14 * scale)


def test_integers_are_exact_where_floats_are_not():
    one = torch.tensor([2**62, 2**62 + 1, -(2**63)])
    other = torch.tensor([2**62 + 1, 2**62 + 1, 2**63 - 1])
    found = distance(one, other)
    assert (found.differing, found.largest) == (2, 2**64 - 1)
    assert found.mean == pytest.approx(2**64 / 3)


def test_the_farthest_integers_of_two_dtypes():
    found = distance(torch.tensor([-(2**63), 0]), torch.tensor([2**64 - 1, 0], dtype=torch.uint64))
    assert (found.differing, found.largest, found.mean) == (1, 2**64 + 2**63 - 1, (2**64 + 2**63 - 1) / 2)


def test_not_a_number_is_the_same_as_itself_and_has_no_distance_from_a_number():
    nan, inf = float("nan"), float("inf")
    one = torch.tensor([nan, nan, inf, inf, inf, 1.0, 0.0])
    other = torch.tensor([nan, 1.0, inf, -inf, 5.0, 1.5, -0.0])
    found = distance(one, other)
    assert (found.elements, found.differing, found.without) == (7, 5, 3)
    assert (found.largest, found.mean) == (0.5, 0.125)


def test_numbers_too_far_apart_for_a_float():
    found = distance(torch.tensor([1e308, 1.0], dtype=torch.float64), torch.tensor([-1e308, 1.0], dtype=torch.float64))
    assert (found.differing, found.without, found.largest) == (1, 1, None)
    assert distance_text(found) == "1 of 2 elements differ, 1 infinitely far apart"


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ([0x7FC0], [0x7FC1], "1 of 1 element differ, 1 NaN with other bits"),
        ([0x3F80, 0x3F80], [0x3F80, 0x7FC0], "1 of 2 elements differ, 1 became NaN"),
        ([0x7FC0, 0x3F80], [0x3F80, 0x3F80], "1 of 2 elements differ, 1 no longer NaN"),
        (
            [0x7FC0, 0x3F80, 0x7F80],
            [0x3F80, 0x4000, 0],
            "3 of 3 elements differ, by 1 at most and 1 on average, 1 no longer NaN, 1 infinitely far apart",
        ),
        ([0, 0x3F80], [0x8000, 0x3F80], "1 of 2 elements differ, in the sign of zero alone"),
        ([0, 0x3F80], [0x8000, 0x7FC0], "2 of 2 elements differ, some in the sign of zero alone, 1 became NaN"),
    ],
)
def test_a_nan_is_named_and_no_distance_is_made_up_for_it(first, second, text):
    found = distance(bfloat16(*first), bfloat16(*second))
    assert distance_text(found) == text
    if found.without == found.differing:
        assert (found.largest, found.mean) == (None, None)


def test_a_mean_of_the_largest_numbers_is_finite():
    far = torch.full((1000,), 1.7e308, dtype=torch.float64)
    assert distance(far, torch.zeros_like(far)).mean == pytest.approx(1.7e308)


def test_every_slice_counts(monkeypatch):
    monkeypatch.setattr(distance_module, "SLICE", 7)
    one = torch.arange(1000.0).view(10, 100)
    other = one.clone()
    other.view(-1)[::7] += 2
    found = distance(one, other)
    assert (found.elements, found.differing, found.largest) == (1000, 143, 2.0)
    assert found.mean == pytest.approx(0.286)


@pytest.mark.parametrize("dtype", BITS_ONLY, ids=str)
def test_other_dtypes_are_compared_by_their_bits(dtype):
    assert not is_number(str(dtype).removeprefix("torch."))
    one, other = of_bits(dtype, bytes(range(16))), of_bits(dtype, bytes([*range(15), 99]))
    assert distance(one, one.clone()).differing == 0
    found = distance(one, other)
    assert (found.differing, found.largest, found.mean, found.without) == (1, None, None, 0)


@pytest.mark.parametrize("size", [0, 1, 8 * distance_module.SLICE + 5])
@pytest.mark.parametrize("at", [0, -1])
def test_a_single_bit_is_seen_at_both_ends(size, at):
    one = torch.zeros(size, dtype=torch.uint8)
    other = one.clone()
    assert distance(one, other).differing == 0
    if size:
        other[at] = 1
        assert distance(one, other).differing == 1
