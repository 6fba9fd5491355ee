"""How to store a block, decided from a sample of it. A wrong choice costs size, never correctness.

Entropies of samples are of order 0, in bits. Shannon's has the Miller-Madow correction for the sample's size, without
which a sample of noise would look compressible (G. Miller, "Note on the bias of information estimates", 1955).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streamxf.buffers import borrowed
from streamxf.codecs import zstd
from streamxf.codecs.floatzip.planes import (
    GROUP_LOG2,
    MAX_PERIOD,
    MOST_EXCEPTIONS,
    WINDOW,
    Array,
    Layout,
    PlaneKind,
    greatest_of,
    huffman,
)

FLOAT_WIDTHS = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 2,
    "complex64": 4,
    "complex128": 8,
}
BYTE_FLOATS = (
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)

SMALL_FLOATS, SMALL_BYTES = 32 * 1024, 4 * 1024  # up to here, trying to compress is cheaper than sampling first
RUNS = 16  # places in the block that the sample comes from
RUN_ELEMENTS = 30  # 480 in all: up to 500, numpy keeps the interpreter's lock, and workers need not wait for it
MET = 1024  # elements that are compared to find those that repeat
RUN_BYTES = 512  # where the width of the elements is not known yet
TRIAL_BYTES = 16 * 1024
GENERAL = 3  # zstd's level for everything but floats
NOISE_BITS = 7.87  # bytes that cannot be brought below that are stored as they are, as zstd would do
CODE_BITS = 0.03  # cost of Huffman codes beyond the entropy
NOISE_COLLISION_BITS = 7.7  # a plane with that much collision entropy is stored as it is
CONSTANT_COLLISION_BITS = 0.25  # below, runs decide, and packing would only be in their way
# Levels are looked for above that, by width; exponents of one scale have 2.24 bits. A block has twice as many elements
# of two bytes as of four, so levels must bring more there to be worth their time.
LEVEL_COLLISION_BITS = {2: 2.55, 4: 2.36, 8: 2.36}
MAX_COLLISION_BITS = 5.5  # bytes with more are no exponents
NARROW = 1 / 1024  # bytes of which no more are outside of sixteen values are packed: MXFP4's scales, for example
MATCHES_GAIN = 0.8  # wider elements are given up only for that much less: entropies of order 0 do not see their runs
SAMPLE_ROWS = 32  # that show which levels are worth their place
LEVEL_BITS = 4.0  # cost of a level, about
FIXED_ELEMENTS = 4096  # that a plane needs to be fixed
FIXED_BITS = 6  # of a code, at most
FIXED_LOSS_BITS = 1.0  # per value; what fixed planes may take beyond the entropy
INSIDE = 23 / 24  # of a sample; the others are exceptions
LEVELS_GAIN_BITS = {2: 0.3, 4: 0.07, 8: 0.07}  # per value, by the width of the elements; less is not worth the time
GAIN_BITS = 0.05  # a wider element, or a rotation, must bring so much per byte

_COLUMNS = np.arange(0, 8 * 256, 256)
_JITTER = np.arange(RUNS) * (math.sqrt(5) - 1) / 2 % 1


class PlanePlan(NamedTuple):
    """How one plane is to be stored.

    - `base`: first of the sixteen values around which a packed plane is packed.
    - `fixed`: bits of a code, and the first value that has one, if it is to be fixed.
    - `general`: whether matches are worth looking for.
    - `levels`: whether to look for scales that differ from place to place.
    """

    kind: PlaneKind
    base: int = 0
    fixed: tuple[int, int] | None = None
    general: bool = False
    levels: bool = False


_RAW = PlanePlan(PlaneKind.RAW)


class BlockPlan(NamedTuple):
    """How a block is to be stored."""

    layout: Layout
    planes: list[PlanePlan]


_BYTES = Layout(1, False, 0)
WHOLE = BlockPlan(_BYTES, [PlanePlan(PlaneKind.ZSTD, general=True)])
"""For what has matches."""
_SMALL = {
    width: BlockPlan(Layout(width, True, 0), [PlanePlan(PlaneKind.ZSTD)] * width)
    for width in set(FLOAT_WIDTHS.values())
}


def choose(block: Array, dtype: str | None, speed: int = 1) -> BlockPlan | None:
    """Decide how to store a block; None where it is best stored as it is.

    - `dtype`: the name of the torch dtype of its elements, if known; a float's elements then begin with the block.
    - `speed`: 2 for planes that are fixed where that costs little.
    """
    width = FLOAT_WIDTHS.get(dtype or "")
    if width is not None and len(block) >= width:
        return _SMALL[width] if len(block) <= SMALL_FLOATS else _plan(block, Layout(width, True, 0), speed)
    if len(block) <= SMALL_BYTES:
        return WHOLE if len(block) else None
    if dtype in BYTE_FLOATS:
        return _plan_bytes(block, NOISE_BITS)
    layout, bits = _detect(block)
    plain = _plan_bytes(block, MATCHES_GAIN * bits if layout.width > 1 else NOISE_BITS)
    return plain if plain is not None or layout.width == 1 else _plan(block, layout, speed)


def is_repetitive(block: Array, width: int) -> bool:
    """Whether many elements stand in other places once more, but for their signs, as in tables of sines. Of matrices,
    the same columns of all rows are compared.
    """
    step = max(8, width)
    while len(block) // step > MET:
        step *= 2
    met = block[: len(block) // step * step].view("<u8")[:: step // 8] & np.uint64(0x7FFFFFFF7FFFFFFF)
    return bool(np.count_nonzero(met) - np.count_nonzero(np.unique(met)) > len(met) // 8 + 3)


def _plan(block: Array, layout: Layout, speed: int) -> BlockPlan | None:
    elements, fixed = _elements(block, layout), speed > 1 and layout.count(len(block)) >= FIXED_ELEMENTS
    plans: list[PlanePlan] = []
    raw = 0
    for histogram in _plane_histograms(elements, layout.rotated):
        plan = _plan_plane(histogram, len(elements), layout.width, fixed)
        if plan.kind.raw:
            raw += 1
            continue
        plans += [*_raw_planes(raw), plan]
        raw = 0
    if not plans:
        return None
    return BlockPlan(layout, plans + _raw_planes(raw))


def _plan_plane(histogram: Array, total: int, width: int, fixed: bool) -> PlanePlan:
    bits = collision_bits(histogram, total)
    if bits > NOISE_COLLISION_BITS:
        return _RAW
    levels = LEVEL_COLLISION_BITS[width] < bits < MAX_COLLISION_BITS
    if fixed and bits > CONSTANT_COLLISION_BITS and (code := _fixed_code(histogram, total)):
        return PlanePlan(PlaneKind.ZSTD, fixed=code, levels=levels and code[0] > 3)
    if bits > CONSTANT_COLLISION_BITS:
        base, inside = _best_window(histogram)
        if inside >= (1 - MOST_EXCEPTIONS / 2) * total:
            return PlanePlan(PlaneKind.PACKED, base, levels=levels)
    return PlanePlan(PlaneKind.ZSTD, levels=levels)


def _fixed_code(histogram: Array, total: int) -> tuple[int, int] | None:
    """Bits of a code, and the first value that has one, where such codes take hardly more than the entropy."""
    windows = [(bits, *_best_window(histogram, 1 << bits)) for bits in range(1, FIXED_BITS + 1)]
    costs = [(bits + 16 * (1 - found / total), bits, base) for bits, base, found in windows if found > INSIDE * total]
    cost, bits, base = min(costs, default=(math.inf, 0, 0))
    return (bits, base) if cost < entropies(histogram[None])[0] + FIXED_LOSS_BITS else None


def _plan_bytes(block: Array, bits: float) -> BlockPlan | None:
    """The plan for plain bytes: whatever does better on parts of them, if it takes less than `bits` for each."""
    step = max(1, (len(block) - TRIAL_BYTES // 2) // 2)
    parts = [block[start : start + TRIAL_BYTES // 2] for start in (0, step, 2 * step)][: 1 + 2 * (step > 1)]
    sample = np.concatenate(parts)
    histogram = np.bincount(sample, minlength=256)
    base, inside = _best_window(histogram)
    with borrowed(huffman) as plainly, borrowed(zstd.compressor, GENERAL) as by_matches:
        plain = sum(len(plainly.compress(part.data)) for part in parts)
        matched = sum(len(by_matches.compress(part.data)) for part in parts)
        if inside >= (1 - NARROW) * len(sample) and collision_bits(histogram, len(sample)) > CONSTANT_COLLISION_BITS:
            pairs = (sample[:-1:2] - np.uint8(base)) * np.uint8(WINDOW) | (sample[1::2] - np.uint8(base))
            if len(plainly.compress(pairs.data)) < min(plain, matched):
                return BlockPlan(_BYTES, [PlanePlan(PlaneKind.PACKED, base)])
    # a part's own table of codes would hide what the block's codes gain
    if min(8 * min(plain, matched) / len(sample), entropies(histogram[None])[0] + CODE_BITS) > bits:
        return None
    return BlockPlan(_BYTES, [PlanePlan(PlaneKind.ZSTD, general=matched < plain)])


def _raw_planes(count: int) -> list[PlanePlan]:
    """So many neighbouring bytes that are noise, in as few planes as possible."""
    planes = []
    while count:
        planes.append(PlanePlan(PlaneKind(min(2, count.bit_length() - 1) << 2)))
        count -= planes[-1].kind.lane
    return planes


def best_period(values: Array, row: int | None, width: int) -> int:
    """Which levels are worth their place, by a sample of the values, which are bytes of elements of `width` in a matrix
    of `row` columns: 0 for none, 1 for groups alone, or the length of a row for columns as well.
    """
    group = 1 << GROUP_LOG2
    if row is not None and group <= row <= MAX_PERIOD and len(values) >= SAMPLE_ROWS * row:
        span = min(row, 2 * group) // group * group
        rows = values[: len(values) // row * row].reshape(-1, row)
        sample = rows[:: len(rows) // SAMPLE_ROWS][:SAMPLE_ROWS, :span]
        columns = sample - np.rint(sample.mean(axis=0)).astype(np.uint8)
        bits = {1: _grouped_bits(sample), row: _grouped_bits(columns) + LEVEL_BITS * row / len(values)}
    elif len(values) >= SAMPLE_ROWS * group:
        groups = values[: len(values) // group * group].reshape(-1, group)
        sample = groups[:: len(groups) // SAMPLE_ROWS][:SAMPLE_ROWS]
        bits = {1: _grouped_bits(sample)}
    else:
        return 0
    best = min(bits, key=lambda period: bits[period])
    return best if bits[best] < entropy_of(sample) - LEVELS_GAIN_BITS[width] else 0


def _grouped_bits(sample: Array) -> float:
    """Bits of each value once its group's level has been taken off, that level's share included."""
    groups = np.ascontiguousarray(sample).reshape(-1, 1 << GROUP_LOG2)
    groups = groups - groups.flat[0]
    return entropy_of(groups - greatest_of(groups)[:, None]) + LEVEL_BITS / (1 << GROUP_LOG2)


def _detect(block: Array) -> tuple[Layout, float]:
    """A block's width, phase and rotation, and the bits of a byte, by entropies of every 2nd, 4th and 8th byte."""
    sample = _runs(block[: len(block) // 8 * 8].reshape(-1, 8), RUN_BYTES // 8)
    by_residue = _byte_histograms(sample)
    best, least = _BYTES, entropies(by_residue.sum(axis=0)[None])[0]
    for width in (2, 4, 8):
        folded = by_residue.reshape(8 // width, width, 256).sum(axis=0)
        bits = entropies(folded)
        if sum(bits) / width > least - GAIN_BITS:
            continue
        # a float's first byte varies least of all; bytes that do not vary at all are the end of one that was widened
        phase = (min(range(width), key=lambda place: bits[place] or math.inf) + 1) % width
        best, least = Layout(width, False, phase), sum(bits) / width
        turned = sum(entropies(_plane_histograms(_elements(block, best), True))) / width
        if turned < least - GAIN_BITS / width:
            best, least = Layout(width, True, phase), turned
    return best, least


def _elements(block: Array, layout: Layout) -> Array:
    """A sample of the block's elements."""
    count = layout.count(len(block))
    elements = block[layout.phase : layout.phase + count * layout.width].view(f"<u{layout.width}")
    return _runs(elements, RUN_ELEMENTS)


def _runs(rows: Array, length: int) -> Array:
    """Runs of `length` rows from `RUNS` places all over `rows`; all of them if there are no more."""
    step = len(rows) // RUNS
    if step <= length:
        return np.ascontiguousarray(rows[: RUNS * length])
    return np.take(rows, _places(len(rows), length), axis=0)


@lru_cache(maxsize=64)
def _places(count: int, length: int) -> Array:
    """Where the rows of a sample of `count` rows are; nearly all blocks are of the same size."""
    step = count // RUNS
    # places at equal distances would always meet the same rows of a matrix whose rows are a power of two long
    starts = (np.arange(RUNS) * step + _JITTER * (step - length)).astype(np.intp)
    places: Array = (starts[:, None] + np.arange(length)).ravel()
    places.flags.writeable = False
    return places


def _plane_histograms(elements: Array, rotated: bool) -> Array:
    """How often each byte occurs at each place of an element, the lowest first, of shape (width, 256)."""
    if rotated:
        elements = elements + elements | elements >> (8 * elements.itemsize - 1)
    return _byte_histograms(elements.view(np.uint8).reshape(-1, elements.itemsize))


def _byte_histograms(rows: Array) -> Array:
    """How often each byte occurs in each column, of shape (columns, 256)."""
    columns = rows.shape[1]
    return np.bincount((rows + _COLUMNS[:columns]).ravel(), minlength=256 * columns).reshape(columns, 256)


def _best_window(histogram: Array, span: int = WINDOW) -> tuple[int, int]:
    """The first of the `span` neighbouring values that occur most often together, and how often.

    Of several it is the one that leaves room for a single value above those that were met: exponents become ever rarer
    downwards, but not upwards.
    """
    sums = np.cumsum(histogram)
    inside = sums[span - 1 :].copy()
    inside[1:] -= sums[:-span]
    base = int(inside.argmax())
    roomy = min(max(int(sums.searchsorted(sums[-1])) + 2 - span, 0), len(inside) - 1)
    if inside[roomy] == inside[base]:
        base = roomy
    return base, int(inside[base])


MAX_SAMPLE = 24 * 1024

_COUNTS = np.arange(1, MAX_SAMPLE + 1)
_LOGS = np.concatenate([[0.0], _COUNTS * np.log2(_COUNTS)])  # n log2 n


def collision_bits(histogram: Array, total: int) -> float:
    """The collision entropy (Renyi's, of order 2) of counted values, without bias.

    It is never more than Shannon's entropy, the same for noise, and a single operation of numpy: where samples are
    taken, workers wait for each other.
    """
    pairs = int(np.dot(histogram, histogram)) - total
    return math.log2(total * (total - 1) / pairs) if pairs else math.inf


def entropies(histograms: Array) -> list[float]:
    """Bits of each of at most `MAX_SAMPLE` values that were counted.

    - `histograms`: how often each kind was met; as many values in each sample.
    """
    total = int(histograms[0].sum())
    kinds = (histograms > 0).sum(axis=1)
    bits = math.log2(total) - _LOGS[histograms].sum(axis=1) / total + (kinds - 1) * (0.5 / math.log(2) / total)
    bits[kinds == 1] = 0.0  # exactly
    found: list[float] = bits.tolist()
    return found


def entropy_of(values: Array) -> float:
    """Bits of each of at most `MAX_SAMPLE` bytes."""
    return entropies(np.bincount(values.ravel(), minlength=1)[None])[0]
