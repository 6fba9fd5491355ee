"""`FloatZip`: lossless compression of floating-point numbers.

A trained weight is noise in its mantissa, while its exponent takes few values, and those unevenly. A block's elements
are split into planes of bytes; the exponents are coded near their entropy and the noise is stored as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from streamxf.buffers import borrowed
from streamxf.codec import BlockInfo, Codec, Role, WholeDecoder
from streamxf.codecs import zstd
from streamxf.codecs.checksum import Checksum
from streamxf.codecs.floatzip import differences, kernel, planes
from streamxf.codecs.floatzip.sampling import GENERAL, WHOLE, BlockPlan, PlanePlan, best_period, choose, is_repetitive
from streamxf.descriptor import Descriptor
from streamxf.errors import CodecError, ParameterError

_STORED = bytes([planes.STORED])
_LITTLE = 4096  # bytes
_SURELY_LESS = 16  # a difference of such a share of a block, or less, is taken without a look at the whole one


@dataclass(frozen=True)
class FloatZip(Codec):
    """Compress floating-point data near the entropy of its bytes; lossless for any bytes.

    Floats of 2, 4 and 8 bytes are split into exponents and the rest. For other and unknown dtypes a sample of each
    block decides. A block grows by at most one byte.

    Parameters
    ----------
    speed : int
        1, or 2 to code in half of the time and store more, 0.70 of bfloat16 instead of 0.66: where coding takes longer
        than storage. It concerns encoding alone, and nothing records it.

    Raises ParameterError if the speed is neither.
    """

    name: ClassVar[str] = "streamxf.floatzip"
    role: ClassVar[Role] = "compression"

    speed: int = field(default=1, compare=False, metadata={"encode_only": True})

    def __post_init__(self) -> None:
        if type(self.speed) is not int or not 1 <= self.speed <= 2:
            raise ParameterError(f"FloatZip(speed={self.speed!r}): the speed must be 1 or 2")

    def descriptor(self) -> Descriptor:
        described = super().descriptor()
        return replace(described, fragment=tuple(pair for pair in described.fragment if pair[0] != "speed"))

    @classmethod
    def implementation(cls) -> str:
        return kernel.implementation()

    def encode(self, block: memoryview, info: BlockInfo) -> memoryview:
        made = None if info.beneath is None else _difference(info.beneath(), block, info)
        if made is not None and len(made) * _SURELY_LESS <= len(block):
            return made
        whole = self._encode_whole(block, info)
        return whole if made is None or len(whole) <= len(made) else made

    def _encode_whole(self, block: memoryview, info: BlockInfo) -> memoryview:
        dtype = info.stream.dtype
        width = kernel.WIDTHS.get(dtype or "")
        if width is not None and (payload := _encode_compiled(block, info, width, self.speed)) is not None:
            return payload
        data = np.frombuffer(block, np.uint8)
        with borrowed(planes.Workspace) as work:
            plan = choose(data, dtype, self.speed)
            # packed integers are often declared as uint8 or int32; zstd leaves out gains of one percent, where there is
            # one plane of bytes in which no matches are worth looking for
            if width is None and (plan is None or (plan.layout.width == 1 and not plan.planes[0].general)):
                payload = _encode_compiled(block, info, 1, self.speed)
                if payload is not None:
                    return payload
            if plan is not None:
                out = info.scratch(zstd.bound(len(block)) + len(block) // 8 + 1024)
                size = _encode_planes(data, plan, info.stream.row, out, work)
                if width is not None and (len(data) <= _LITTLE or is_repetitive(data, width)):
                    whole = _encode_planes(data, WHOLE, None, out, work)
                    size = whole if whole < size else _encode_planes(data, plan, info.stream.row, out, work)
                if size <= len(block):
                    return out[:size]
        return _store(block, info)

    def decode(self, block: memoryview, info: BlockInfo) -> memoryview:
        if not len(block):
            raise CodecError("FloatZip block is empty")
        if block[0] == planes.STORED:
            if len(block) - 1 > info.limit:
                raise CodecError(f"FloatZip block holds {len(block) - 1} bytes, {info.limit} are allowed here")
            return block[1:]
        if block[0] & differences.DIFFERENCE:
            if info.beneath is None:
                raise CodecError("FloatZip block is a difference, and there is no block beneath it")
            base = info.beneath()
            out = info.scratch(len(base))
            differences.decode(base, block, out)
            return out
        if len(block) > _LITTLE or block[0] & 3:  # else, if elements have one byte, zstd's own decoder is as fast
            out = info.scratch(planes.raw_size(block, info.limit))
            if kernel.decode_into(block, out):
                return out
        if (frame := planes.lone_frame(block, info.limit)) is not None:
            return memoryview(planes.inflate(*frame))
        table = planes.parse_table(block, info.limit)
        out = info.scratch(table.raw_size)
        with borrowed(planes.Workspace) as work:
            _decode_planes(table, out, work)
        return out

    def whole_decoder(self, checksum: Codec | None) -> WholeDecoder | None:
        if type(self) is not FloatZip or checksum not in (None, Checksum()):  # a derived class may decode differently
            return None
        return partial(_decode_whole, checked=checksum is not None)


def _difference(base: memoryview, block: memoryview, info: BlockInfo) -> memoryview | None:
    row, width = info.stream.row or 0, kernel.WIDTHS.get(info.stream.dtype or "", 1)
    before = info.index * info.stream.block_size // width % row if row else 0
    return differences.encode(base, block, info.stream.dtype, row=row, before=before)


def _decode_whole(block: memoryview, out: memoryview, *, checked: bool) -> bool:
    if len(block) > _LITTLE:
        return kernel.decode_into(block, out, checked=checked)
    frame = None if checked else planes.lone_frame(block, len(out))
    if frame is None or frame[1] != len(out):
        return False
    try:
        out[:] = planes.inflate(*frame)
    except CodecError:  # which `decode` raises, too, and then with the block's place
        return False
    return True


def _encode_compiled(block: memoryview, info: BlockInfo, width: int, speed: int) -> memoryview | None:
    """Encode by the compiled kernel; None where there is none, and for blocks that it leaves to the reference."""
    needed = kernel.encode_bound(len(block))
    if needed is None:
        return None
    out = info.scratch(needed)
    size = kernel.encode_into(block, width, info.stream.row, out, speed)
    if size is None:
        return None
    return out[:size] if size != kernel.STORE else _store(block, info)


def _store(block: memoryview, info: BlockInfo) -> memoryview:
    out = info.scratch(len(block) + 1)
    out[:1] = _STORED
    out[1:] = block
    return out


def _encode_planes(
    data: planes.Array, plan: BlockPlan, row: int | None, out: memoryview, work: planes.Workspace
) -> int:
    layout = plan.layout
    count = layout.count(len(data))
    begin, end = layout.phase, layout.phase + count * layout.width
    position = planes.table_size(len(plan.planes))
    targets: list[planes.Array] = []
    if layout.width == 1:
        targets.append(data)
    else:
        for number, planned in enumerate(plan.planes):
            lane = planned.kind.lane
            if planned.kind.raw:
                targets.append(np.frombuffer(out, f"<u{lane}", count, position))
                position += count * lane
            else:
                targets.append(work.plane(number, count * lane))
        planes.split(data[begin:end].view(f"<u{layout.width}"), layout.rotated, targets, work)

    stored: list[tuple[planes.PlaneKind, int]] = []
    for planned, target in zip(plan.planes, targets, strict=True):
        if planned.kind.raw:
            stored.append((planned.kind, target.nbytes))
            continue
        stored.append(_encode_plane(planned, target, row, layout.width, out[position:], work))
        position += stored[-1][1]
    planes.pack_table(layout, len(data), stored, out)
    edges = data[:begin].tobytes() + data[end:].tobytes()
    out[position : position + len(edges)] = edges
    return position + len(edges)


def _encode_plane(
    planned: PlanePlan, values: planes.Array, row: int | None, width: int, out: memoryview, work: planes.Workspace
) -> tuple[planes.PlaneKind, int]:
    if (
        planned.levels
        and (period := best_period(values, row, width))
        and (size := planes.level_into(values, period, out, work))
    ):
        return planes.PlaneKind.LEVELLED, size
    if planned.fixed and (size := planes.fix_into(values, planned.fixed[1], planned.fixed[0], out, work)):
        return planes.PlaneKind.FIXED, size
    if planned.kind == planes.PlaneKind.PACKED and (size := planes.pack_into(values, planned.base, out, work)):
        return planes.PlaneKind.PACKED, size
    level = GENERAL if len(values) > _LITTLE else -1  # of little, tables of frequencies would cost more than they save
    with borrowed(zstd.compressor, level) if planned.general else borrowed(planes.huffman) as compressor:
        return planes.PlaneKind.ZSTD, zstd.compress_into(compressor, values.data, out)


def _decode_planes(table: planes.PlaneTable, out: memoryview, work: planes.Workspace) -> None:
    layout = table.layout
    count = layout.count(table.raw_size)
    decoded: list[planes.Array] = []
    for number, (kind, stored) in enumerate(table.planes):
        if kind.raw:
            decoded.append(np.frombuffer(stored, f"<u{kind.lane}"))
        elif kind == planes.PlaneKind.ZSTD:
            decoded.append(np.frombuffer(planes.inflate(stored, count), np.uint8))
        else:
            decoded.append(work.plane(number, count))
            planes.UNDO[kind](stored, decoded[-1], work)
    begin, end = layout.phase, layout.phase + count * layout.width
    planes.merge(decoded, layout.rotated, np.frombuffer(out, f"<u{layout.width}", count, begin), work)
    out[:begin] = table.edges[:begin]
    out[end:] = table.edges[begin:]
