"""Statistics of values, against the same in exact arithmetic."""

import math
import statistics
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamxf.tools.values.statistics import SHOWN, SLICE, Statistics, ValueCounter, has_numbers
from tests.tools.elements import dtype_name, elements_of

INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32]
INTEGERS += [torch.uint64, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOATS += [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
PACKED = torch.float4_e2m1fn_x2
PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def of_bits(dtype: torch.dtype, data: bytes) -> torch.Tensor:
    if dtype == torch.bool:
        data = bytes(each & 1 for each in data)
    return torch.tensor(list(data), dtype=torch.uint8).view(dtype)


def numbers(tensor: torch.Tensor) -> list[Any]:
    """As Python's own numbers."""
    flat = tensor.reshape(-1)
    if flat.dtype in PARTS:
        return [complex(*pair) for pair in flat.view(PARTS[flat.dtype]).double().view(-1, 2).tolist()]
    if flat.dtype == PACKED:
        nibbles = [nibble for byte in flat.view(torch.uint8).tolist() for nibble in (byte & 15, byte >> 4)]
        return [-E2M1[nibble & 7] if nibble & 8 else E2M1[nibble] for nibble in nibbles]
    return [int(each) for each in flat.tolist()] if flat.dtype in INTEGERS else flat.double().tolist()


def counted(*tensors: torch.Tensor) -> Statistics:
    return counter_of(*tensors).result()


def counter_of(*tensors: torch.Tensor) -> ValueCounter:
    counter = ValueCounter(tensors[0].dtype in INTEGERS)
    for tensor in tensors:
        counter.add(elements_of(tensor), dtype_name(tensor))
    return counter


def is_nan(number: Any) -> bool:
    if isinstance(number, complex):
        return math.isnan(number.real) or math.isnan(number.imag)
    return math.isnan(number)


def is_inf(number: Any) -> bool:
    parts = (number.real, number.imag) if isinstance(number, complex) else (number,)
    return not is_nan(number) and any(map(math.isinf, parts))


def length(number: Any) -> Any:
    if not isinstance(number, complex):
        return number
    with np.errstate(over="ignore"):
        return min(float(np.hypot(number.real, number.imag)), sys.float_info.max)


def check(found: Statistics, every: list[Any]) -> None:
    """Check statistics against what they are of."""
    finite = [length(number) for number in every if not is_nan(number) and not is_inf(number)]
    assert found.elements == len(every)
    assert found.nan == sum(map(is_nan, every))
    assert found.inf == sum(map(is_inf, every))
    assert found.zeros == sum(number == 0 for number in finite)
    assert found.all_zero is (0 < len(every) == found.zeros)
    if not finite:
        assert (found.min, found.max, found.mean, found.std, found.histogram) == (None,) * 5
        return
    assert found.min is not None
    assert found.max is not None
    assert found.mean is not None
    assert found.std is not None
    assert (found.min, found.max) == (min(finite), max(finite))
    assert type(found.min) is type(found.max) is type(finite[0])
    assert float(found.min) <= found.mean <= float(found.max)
    exact = [Fraction(number) for number in finite]
    largest = float(max(map(abs, exact)))
    assert found.mean == pytest.approx(float(sum(exact) / len(exact)), abs=1e-14 * largest, rel=1e-14)
    deviation = float(statistics.pstdev(exact))
    # squares are summed up of what numbers are off a rounded mean
    assert found.std == pytest.approx(deviation, rel=1e-10, abs=1e-15 * largest)
    check_histogram(found, [float(number) for number in finite])


def check_histogram(found: Statistics, finite: list[float]) -> None:
    shown = found.histogram
    assert shown is not None
    assert 1 <= len(shown.counts) <= SHOWN
    assert sum(shown.counts) + shown.below + shown.above == len(finite)
    assert math.frexp(shown.width)[0] == 0.5  # a power of two
    start = Fraction(shown.start)
    if start % Fraction(shown.width):  # bins begin at multiples of their width, and this one at -2**1024, no float
        assert shown.start == -sys.float_info.max
        start = -(Fraction(2) ** 1024)
    bins = [math.floor((Fraction(number) - start) / Fraction(shown.width)) for number in finite]
    assert shown.counts == tuple(bins.count(place) for place in range(len(shown.counts)))
    assert (shown.below, shown.above) == (
        sum(place < 0 for place in bins),
        sum(place >= len(shown.counts) for place in bins),
    )
    if found.std == 0:
        assert len(shown.counts) == 1


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *COMPLEX, PACKED], ids=str)
@settings(settings(), max_examples=settings().max_examples // 4)  # for each of many types
@given(data=st.binary(max_size=400), cut=st.integers(0, 50))
def test_any_bits_of_any_dtype(dtype: torch.dtype, data: bytes, cut: int):
    assert has_numbers(str(dtype).removeprefix("torch."))
    whole = of_bits(dtype, data[: len(data) // dtype.itemsize * dtype.itemsize])
    cut = min(cut, len(whole))
    if len(whole):
        check(counted(whole[:cut], whole[cut:]), numbers(whole))
    assert counted(whole[:0]) == Statistics(0, 0, 0, 0, None, None, None, None, None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@given(values=st.lists(st.floats(width=64) | st.floats(-1, 1), min_size=1, max_size=40), mean=st.floats(-1e9, 1e9))
@example([1.7976931348623157e308, -1.7976931348623157e308], 0)
@example([-1.7976931348623157e308], 0)
@example([5e-324, -5e-324, 0.0], 0)
@example([-1e-320, 1.7976931348623157e308], 0)
@example([1e-310, 3e-310], 0)
@example([0.1] * 3, 0)
@example([1e-9, 2e-9, 3e-9], 1e9)
def test_any_numbers(dtype: torch.dtype, values: list[float], mean: float):
    tensor = (torch.tensor(values, dtype=torch.float64) + mean).to(dtype)
    check(counted(tensor), numbers(tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.uint64], ids=str)
@given(seed=st.integers(0, 2**32), parts=st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_however_it_is_cut_and_put_together(dtype: torch.dtype, seed: int, parts: list[int]):
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randint(-20, 20, (len(parts),), generator=generator)
    tensors = [
        (torch.randn(size, generator=generator) * 2.0**scale).to(dtype)
        for size, scale in zip(parts, scales.tolist(), strict=True)
    ]
    first, *others = tensors
    merged, reversed_ = ValueCounter(first.dtype in INTEGERS), ValueCounter(first.dtype in INTEGERS)
    for target, order in ((merged, tensors), (reversed_, tensors[::-1])):
        for tensor in order:
            target.merge(counter_of(tensor))
    every = numbers(torch.cat(tensors))
    check(merged.result(), every)
    assert merged.result().histogram == counted(first, *others).histogram
    check(reversed_.result(), every)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2, torch.int8, torch.bool], ids=str)
def test_many_elements_are_counted_by_their_bits_with_the_same_result(dtype: torch.dtype):
    data = torch.randint(0, 256, (2 * SLICE * dtype.itemsize + 6,), dtype=torch.uint8)
    tensor = of_bits(dtype, bytes(data.tolist()))
    at_once = counted(tensor)
    few = counted(*tensor.split(1000))
    assert (at_once.elements, at_once.nan, at_once.inf, at_once.zeros) == (few.elements, few.nan, few.inf, few.zeros)
    assert (at_once.min, at_once.max, at_once.histogram) == (few.min, few.max, few.histogram)
    assert at_once.mean == pytest.approx(few.mean, rel=1e-9, abs=1e-12 * float(few.max or 0))
    assert at_once.std == pytest.approx(few.std, rel=1e-12)
    assert at_once.nan == sum(map(is_nan, numbers(tensor)))


@given(zeros=st.integers(0, 10**15), values=st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_zeros_that_are_only_counted(zeros: int, values: list[float]):
    counter = ValueCounter()
    counter.add(np.array(values, np.float64).view(np.uint64), "float64")
    counter.add_zeros(zeros)
    found = counter.result()
    assert found.elements == zeros + len(values)
    assert found.zeros == zeros + values.count(0)
    if found.elements:
        assert found.mean == pytest.approx(math.fsum(values) / found.elements, rel=1e-9, abs=1e-12)


def test_a_histogram_of_a_bell_is_one_and_outliers_do_not_hide_it():
    torch.manual_seed(0)
    tensor = torch.cat([torch.randn(100_000), torch.tensor([40.0, -30.0])])
    found = counted(tensor)
    shown = found.histogram
    assert (found.min, found.max) == (-30, 40)
    assert shown is not None
    assert len(shown.counts) >= SHOWN // 2
    assert shown.below >= 1
    assert shown.above >= 1
    middle = shown.counts.index(max(shown.counts))
    assert abs(shown.start + middle * shown.width) <= 2 * shown.width
    assert list(shown.counts[: middle - 1]) == sorted(shown.counts[: middle - 1])


@pytest.mark.parametrize("dtype", [torch.bits8, torch.quint8, torch.uint4], ids=str)
def test_what_has_no_numbers(dtype: torch.dtype):
    assert not has_numbers(str(dtype).removeprefix("torch."))
