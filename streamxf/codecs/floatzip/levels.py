"""Scales that differ from place to place, taken off the exponents before they are packed.

In the moments of an optimizer every row and every column of a matrix has its own scale. A level states it once for a
whole group or column of numbers, so that their exponents need not repeat it.
"""

from __future__ import annotations

import struct

import numpy as np

from streamxf.buffers import borrowed
from streamxf.codecs import zstd
from streamxf.codecs.floatzip.planes import WINDOW, Array, Workspace, huffman, inflate, pack_into, unpack
from streamxf.codecs.floatzip.sampling import entropy_of
from streamxf.errors import CodecError

GROUP_LOG2 = 6
MAX_PERIOD = 1 << 16
_COLUMN_ROWS = 64  # enough rows to estimate a column's level
_SAMPLE_ROWS = 32
_LEVEL_BITS = 4.0  # cost of a level, about
_GAIN_BITS = {2: 0.3, 4: 0.07, 8: 0.07}  # per value, by the width of the elements; less is not worth the time

_HEAD = struct.Struct("<B3xII")


def level_into(values: Array, period: int, out: memoryview, work: Workspace) -> int:
    """Take levels off `values`, pack the rest, and store both in `out`; returns the bytes written, 0 if the rest cannot
    be packed. `period` is the length of a row, where columns have levels, else 1.
    """
    columns = column_levels(values, period)
    rest = work.plane(-4, len(values))
    _over_rows(np.subtract, values, columns, rest)
    groups = _group_levels(rest)
    _over_groups(np.subtract, rest, groups)
    levels = np.concatenate([groups, columns])
    start = _HEAD.size
    with borrowed(huffman) as compressor:
        size = zstd.compress_into(compressor, levels.data, out[start:])
    body = pack_into(rest, 0, out[start + size :], work)
    if not body:
        return 0
    out[:start] = _HEAD.pack(GROUP_LOG2, period, size)
    return start + size + body


def unlevel(stored: memoryview, out: Array, work: Workspace) -> None:
    """Fill `out`, of shape (n,), with the values that `level_into` stored. Raises CodecError if `stored` is damaged."""
    if len(stored) < _HEAD.size or any(stored[1:4]):
        raise CodecError("FloatZip levelled plane has a damaged head")
    group_log2, period, size = _HEAD.unpack_from(stored)
    if group_log2 != GROUP_LOG2 or not 1 <= period <= MAX_PERIOD or _HEAD.size + size > len(stored):
        raise CodecError("FloatZip levelled plane has groups, rows or levels of an impossible size")
    count = -(-len(out) // (1 << GROUP_LOG2))
    levels = np.frombuffer(inflate(stored[_HEAD.size : _HEAD.size + size], count + period), np.uint8)
    unpack(stored[_HEAD.size + size :], out, work)
    _over_groups(np.add, out, levels[:count])
    _over_rows(np.add, out, levels[count:], out)


def best_period(values: Array, row: int | None, width: int) -> int:
    """Which levels are worth their place, by a sample of the values, which are bytes of elements of `width` in a matrix
    of `row` columns: 0 for none, 1 for groups alone, or the length of a row for columns as well.
    """
    group = 1 << GROUP_LOG2
    if row is not None and group <= row <= MAX_PERIOD and len(values) >= _SAMPLE_ROWS * row:
        span = min(row, 2 * group) // group * group
        rows = values[: len(values) // row * row].reshape(-1, row)
        sample = rows[:: len(rows) // _SAMPLE_ROWS][:_SAMPLE_ROWS, :span]
        columns = sample - np.rint(sample.mean(axis=0)).astype(np.uint8)
        bits = {1: _grouped_bits(sample), row: _grouped_bits(columns) + _LEVEL_BITS * row / len(values)}
    elif len(values) >= _SAMPLE_ROWS * group:
        groups = values[: len(values) // group * group].reshape(-1, group)
        sample = groups[:: len(groups) // _SAMPLE_ROWS][:_SAMPLE_ROWS]
        bits = {1: _grouped_bits(sample)}
    else:
        return 0
    best = min(bits, key=lambda period: bits[period])
    return best if bits[best] < entropy_of(sample) - _GAIN_BITS[width] else 0


def _grouped_bits(sample: Array) -> float:
    """Bits of each value once its group's level has been taken off, that level's share included."""
    groups = np.ascontiguousarray(sample).reshape(-1, 1 << GROUP_LOG2)
    groups = groups - groups.flat[0]
    return entropy_of(groups - _greatest(groups)[:, None]) + _LEVEL_BITS / (1 << GROUP_LOG2)


def _greatest(groups: Array) -> Array:
    """The greatest value of each group; values are signed differences from something, modulo 256."""
    greatest: Array = groups.view(np.int8).max(axis=1).view(np.uint8)
    return greatest


def column_levels(values: Array, period: int) -> Array:
    """The mean of each column of rows of `period` values, of shape (period,), from some of the rows."""
    rows = values[: len(values) // period * period].reshape(-1, period)
    some = rows[:: max(1, len(rows) // _COLUMN_ROWS)] if period > 1 else rows[:: max(1, len(rows) // 4096)]
    means: Array = np.rint(some.mean(axis=0)).astype(np.uint8)
    return means


def _group_levels(rest: Array) -> Array:
    """The amount to take off each group, so that its greatest value becomes the greatest that can be packed."""
    whole = len(rest) >> GROUP_LOG2 << GROUP_LOG2
    greatest = _greatest(rest[:whole].reshape(-1, 1 << GROUP_LOG2))
    if whole < len(rest):
        greatest = np.append(greatest, _greatest(rest[None, whole:]))
    levels: Array = greatest - np.uint8(WINDOW - 1)
    return levels


def _over_groups(operation: np.ufunc, values: Array, levels: Array) -> None:
    """Apply `operation` to each group of `values` and its level, in place."""
    whole = len(values) >> GROUP_LOG2 << GROUP_LOG2
    groups = values[:whole].reshape(-1, 1 << GROUP_LOG2)
    operation(groups, levels[: len(groups), None], out=groups)
    if whole < len(values):
        operation(values[whole:], levels[-1], out=values[whole:])


def _over_rows(operation: np.ufunc, values: Array, levels: Array, out: Array) -> None:
    """Apply `operation` to each row of `values` and the columns' levels."""
    whole = len(values) // len(levels) * len(levels)
    operation(values[:whole].reshape(-1, len(levels)), levels, out=out[:whole].reshape(-1, len(levels)))
    operation(values[whole:], levels[: len(values) - whole], out=out[whole:])
