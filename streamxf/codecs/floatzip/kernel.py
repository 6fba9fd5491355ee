"""FloatZip's compiled kernel: a whole block in one call, without the interpreter's lock.

`_kernel.c` states its guarantees. It is used where it was built; the Python beside it is the reference, which reads and
writes the same format. `STREAMXF_KERNEL=numpy` in the environment disables the kernel, and
`STREAMXF_KERNEL=compiled` raises an error if there is none.
"""

from __future__ import annotations

import os
import warnings
from mmap import mmap

from streamxf.buffers import borrowed, mapped
from streamxf.codecs import zstd
from streamxf.codecs.floatzip.sampling import BYTE_FLOATS, FLOAT_WIDTHS
from streamxf.errors import ParameterError

VARIABLE = "STREAMXF_KERNEL"
STORE = 0  # result of `encode_into` for a block that is best stored unencoded
VERSION = 4  # of the compiled functions; raised with what they take or return, here and in `_kernel.c`
_OTHER = "FloatZip's kernel was compiled for another version of streamxf: build it with `pip install -e .` again"
_WANTED = os.environ.get(VARIABLE, "")
if _WANTED not in ("", "compiled", "numpy"):
    raise ParameterError(f"{VARIABLE}={_WANTED} in the environment must be compiled or numpy")
try:
    import streamxf.codecs.floatzip._kernel as compiled

    if getattr(compiled, "VERSION", 0) != VERSION:
        raise ImportError(_OTHER)
except ImportError as error:
    if _WANTED == "compiled":
        raise ParameterError(
            f"{VARIABLE}=compiled in the environment, but the kernel cannot be used: {error}"
        ) from None
    if error.msg == _OTHER and not _WANTED:
        warnings.warn(f"{_OTHER}; until then NumPy is used, which is slower", RuntimeWarning, stacklevel=2)
    compiled = None  # type: ignore[assignment]
if _WANTED == "numpy":
    compiled = None  # type: ignore[assignment]

WIDTHS = {**FLOAT_WIDTHS, **dict.fromkeys(BYTE_FLOATS, 1)}
"""Bytes of an element, by the dtypes whose blocks the kernel can judge alone."""


class _Work:
    """Memory of one thread for one block. Few blocks need all of it, so most pages are never touched."""

    def __init__(self) -> None:
        self._memory = mapped(4 << 20)  # enough for a block of 1 MiB

    def of(self, size: int) -> mmap:
        if len(self._memory) < size:
            self._memory = mapped(size)
        return self._memory


def implementation() -> str:
    """The implementation that runs in this process: ``"compiled"`` or ``"numpy"``."""
    return "numpy" if compiled is None else "compiled"


def encode_bound(size: int) -> int | None:
    """Bytes of memory that `encode_into` needs for a block; None if the reference has to encode it."""
    if compiled is None or size > zstd.MAX_WINDOW:
        return None
    return compiled.encode_bound(size)


def encode_into(block: memoryview, width: int, row: int | None, out: memoryview, speed: int) -> int | None:
    """Encode a block of elements of `width` bytes into `out`, which has `encode_bound` bytes. Returns the payload's
    size, or `STORE`; None for a block that the kernel leaves to the reference.
    """
    with borrowed(_Work) as work:
        size = compiled.encode(block, out, work.of(compiled.work_size(len(block))), width, row or 0, speed)
    return None if size < 0 else size


def decode_into(payload: memoryview, out: memoryview, *, checked: bool = False) -> bool:
    """Fill `out`, of exactly the size that the payload declares. If `checked`, the payload is followed by its CRC-32C,
    four bytes, which is compared in the same call. False if the reference must decide: there is no kernel, or the
    payload is damaged or unknown to it, or this processor has no instruction for a CRC.
    """
    if compiled is None or len(out) > zstd.MAX_WINDOW:
        return False
    with borrowed(_Work) as work:
        return compiled.decode(payload, out, work.of(compiled.work_size(len(out))), checked)


def encode_difference(
    base: memoryview, new: memoryview, width: int, most: int, *, banded: bool, row: int, before: int
) -> bytes | None:
    """`new` as its difference from `base`, with 0 as CRC where the kernel has none; None if `most` is not enough."""
    if compiled is None or len(new) > zstd.MAX_WINDOW:
        return None
    with borrowed(_Work) as work, borrowed(_Work) as payload:
        room = work.of(compiled.difference_work_size(len(new)))
        out = memoryview(payload.of(most + 8))[: most + 8]
        size = compiled.encode_difference(base, new, out, room, width, banded, row, before)
        return bytes(out[:size]) if size else None


def decode_difference(base: memoryview, payload: memoryview, out: memoryview) -> int:
    """Fill `out`, of the size of `base`. Returns 0 if the reference must decide, and 2 if the CRC is right."""
    if compiled is None or len(base) > zstd.MAX_WINDOW:
        return 0
    with borrowed(_Work) as work:
        return compiled.decode_difference(base, payload, out, work.of(compiled.difference_work_size(len(base))))


def crc32c(data: memoryview, crc: int) -> int | None:
    """The CRC-32C of what `crc` is that of, and of `data` behind it; None where the kernel would not be faster."""
    return None if compiled is None else compiled.crc32c(data, crc)
