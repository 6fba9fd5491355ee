"""The compiled kernel, if it was built: a whole block in one call that does not hold the interpreter's lock.

`_kernel.c` says what it promises. Without it, and for blocks that it leaves alone, the Python beside it does the same.
"""

from __future__ import annotations

from types import ModuleType

from streamxf.buffers import borrowed

_kernel: ModuleType | None
try:
    from streamxf.codecs.floatzip import _kernel
except ImportError:  # built without a compiler, or on a machine for which it is not meant
    _kernel = None

STORE = 0
"""What `encode_into` returns for a block that is best stored as it is."""

_WIDTHS = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 2,
    "complex64": 4,
    "complex128": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}


class _Work:
    """Memory of one thread for one block."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def of(self, size: int) -> bytearray:
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return self._memory


def is_compiled() -> bool:
    """Whether the kernel was built and is in use."""
    return _kernel is not None


def bound(size: int, dtype: str | None) -> int | None:
    """Bytes of memory that `encode_into` needs for a block; None if the kernel is not for such blocks."""
    if _kernel is None or dtype not in _WIDTHS:
        return None
    needed: int = _kernel.encode_bound(size)
    return needed


def encode_into(block: memoryview, dtype: str, row: int | None, out: memoryview) -> int | None:
    """Encode a block into `out`, which has `bound` bytes.

    Returns
    -------
    int or None
        The payload's size, or `STORE`; None for a block that the kernel leaves to the reference.
    """
    assert _kernel is not None
    with borrowed(_Work) as work:
        size: int = _kernel.encode(block, out, work.of(_kernel.work_size(len(block))), _WIDTHS[dtype], row or 0)
    return None if size < 0 else size


def decode_into(payload: memoryview, out: memoryview) -> bool:
    """Fill `out`, of exactly the size that the payload declares.

    Returns
    -------
    bool
        False if the reference has to look: the kernel was not built, does not know all of it, or it is damaged.
    """
    if _kernel is None:
        return False
    with borrowed(_Work) as work:
        good: bool = _kernel.decode(payload, out, work.of(_kernel.work_size(len(out))))
    return good
