"""How far two tensors are apart, counted slice by slice, in arithmetic that fits their dtypes.

Elements of the same dtype are the same if all their bits are; so a NaN is the same as itself, and 0.0 is another
element than -0.0, at a distance of 0. Elements of two dtypes are the same if they are the same number, or both NaN.

Integers are subtracted exactly, whatever their dtypes. Beside a floating-point number an integer counts as the float64
that is nearest to it. Two NaNs, and two infinities of the same sign, are at a distance of 0; a NaN or an infinity
beside anything else has no distance, and is counted by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# So few that torch does not wake its threads for them, which would take longer, and that a cache holds several slices.
SLICE = 2**15
_FEW = 8  # one element in so many: only where fewer differ does it pay to pick them out

_INTEGERS = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_PACKED = frozenset({"float4_e2m1fn_x2"})  # two numbers in a byte, which torch does not unpack


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two tensors of the same shape are apart.

    Attributes
    ----------
    elements : int
        Of each.
    differing : int
        How many of them are not the same.
    without : int
        How many have no distance: a NaN or an infinity beside something else, and numbers that are farther apart than
        float64 goes.
    largest : int or float or None
        The largest absolute difference; exact for integers. None if no element has one, or the dtypes are no numbers.
    mean : float or None
        The mean absolute difference over all elements that have one, those that are the same among them.
    """

    elements: int
    differing: int
    without: int
    largest: int | float | None
    mean: float | None


class Tally:
    """Adds up how far two tensors are apart.

    Parameters
    ----------
    first, second : torch.dtype
        Of the two. If they are not the same, both have to be numbers (`is_number`).
    """

    def __init__(self, first: torch.dtype, second: torch.dtype) -> None:
        self._alike = first == second
        self._exact = first in _INTEGERS and second in _INTEGERS
        self._numbers = is_number(first) and is_number(second)
        self._elements = self._differing = self._without = 0
        self._largest: int | float = 0
        self._sum: Any = 0 if self._exact else np.longdouble(0)

    def add(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Count the elements of two contiguous CPU tensors of the same shape."""
        self._elements += first.numel()
        if self._alike and same_bits(first, second):
            return
        one, other = first.reshape(-1), second.reshape(-1)
        for start in range(0, len(one), SLICE):
            self._add_slice(one[start : start + SLICE], other[start : start + SLICE])

    def result(self) -> Distance:
        """What was counted."""
        measured = self._elements - self._without
        if not self._numbers or not measured:
            return Distance(self._elements, self._differing, self._without, None, None)
        mean = float(self._sum / measured)
        return Distance(self._elements, self._differing, self._without, self._largest, mean)

    def _add_slice(self, first: torch.Tensor, second: torch.Tensor) -> None:
        if self._alike:
            differ = _other_bits(first, second)
            count = int(differ.count_nonzero())
            self._differing += count
            if not self._numbers or not count:
                return
            if count * _FEW < len(first):  # those that are the same are at a distance of 0 anyway
                first, second = _chosen(first, differ), _chosen(second, differ)
        if self._exact:
            self._add_integers(_integers(first), _integers(second))
        else:
            self._add_floats(_floats(first), _floats(second))

    def _add_integers(self, first: np.ndarray, second: np.ndarray) -> None:
        apart, over = _exact_distances(first, second)
        largest = int(apart.max())
        if over is None and largest < 2**63 // SLICE:  # the sum does not overflow
            self._sum += int(apart.sum())
        else:
            self._sum += int((apart & 0xFFFFFFFF).sum()) + (int((apart >> 32).sum()) << 32)
        differ = apart != 0
        if over is not None:
            differ |= over
            self._sum += int(np.count_nonzero(over)) << 64
            largest = int(apart[over].max()) + 2**64 if over.any() else largest
        if not self._alike:
            self._differing += int(np.count_nonzero(differ))
        self._largest = max(self._largest, largest)

    def _add_floats(self, first: np.ndarray, second: np.ndarray) -> None:
        if first.shape != second.shape:  # a complex number beside a real one
            first, second = _complex_of(first), _complex_of(second)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(first - second)
            lengths = apart if apart.ndim == 1 else np.hypot(apart[:, 0], apart[:, 1])
            total = lengths.sum()
        if self._alike and np.isfinite(total):  # nearly always
            self._largest = max(float(self._largest), float(lengths.max()))
            self._sum += total
            return
        with np.errstate(over="ignore"):
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            apart[same] = 0
            if apart.ndim == 2:
                apart, same = np.hypot(apart[:, 0], apart[:, 1]), same.all(axis=1)
        if not self._alike:
            self._differing += int(np.count_nonzero(~same))
        measured = apart[np.isfinite(apart)]
        self._without += len(apart) - len(measured)
        if len(measured):
            self._largest = max(float(self._largest), float(measured.max()))
            self._sum += measured.sum(dtype=np.longdouble)  # whose range the sum of the largest numbers does not leave


def is_number(dtype: torch.dtype) -> bool:
    """Whether elements of a dtype are numbers that torch can tell."""
    if dtype in _INTEGERS:
        return True
    return (dtype.is_floating_point or dtype.is_complex) and str(dtype).removeprefix("torch.") not in _PACKED


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two contiguous tensors of the same shape and dtype are the same bit for bit."""
    one, other = first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8)
    even = len(one) // 8 * 8
    if even < SLICE or one.storage_offset() % 8 or other.storage_offset() % 8:
        return torch.equal(one, other)
    words = one[:even].view(torch.int64), other[:even].view(torch.int64)  # several times as fast
    return torch.equal(*words) and torch.equal(one[even:], other[even:])


def _other_bits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Which elements differ in any bit."""
    word = _WORDS[first.element_size()]
    differ = first.view(word) != second.view(word)
    return differ if len(differ) == len(first) else differ.view(len(first), -1).any(dim=1)


def _chosen(tensor: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The elements that are chosen; as words, because torch cannot index some of the dtypes."""
    return tensor.view(_WORDS[tensor.element_size()]).view(len(tensor), -1)[chosen].view(-1).view(tensor.dtype)


def _integers(tensor: torch.Tensor) -> np.ndarray:
    """As int64, or as uint64 where they are."""
    return (tensor if tensor.dtype == torch.uint64 else tensor.to(torch.int64)).numpy()


def _exact_distances(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Distances without their 65th bits; and which of them have it set, as only int64 beside uint64 does."""
    above, below = first.view(np.uint64), second.view(np.uint64)
    if first.dtype == second.dtype:
        return np.where(first > second, above - below, below - above), None
    if first.dtype == np.uint64:
        first, above, below = second, below, above
    apart = np.where((first >= 0) & (above > below), above - below, below - above)
    return apart, (first < 0) & (apart < below)


def _floats(tensor: torch.Tensor) -> np.ndarray:
    """As float64; complex numbers as pairs of it."""
    if tensor.dtype.is_complex:
        parts = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
        return tensor.view(parts[tensor.dtype]).to(torch.float64).view(-1, 2).numpy()
    return tensor.to(torch.float64).numpy()


def _complex_of(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else np.stack([values, np.zeros_like(values)], axis=1)
