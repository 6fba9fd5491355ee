"""Memory: bytes-like objects as flat views without a copy, reused buffers, and the garbage collector paused.

Blocks are a mebibyte each: to allocate one per step costs more in page faults than many codecs, with threads above all.
"""

from __future__ import annotations

import ctypes
import gc
import io
import mmap
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import Buffer

T = TypeVar("T")


class Writable(Protocol):
    """The part of a binary file that streamxf writes to."""

    def write(self, data: Buffer, /) -> int | None: ...


def flat_view(data: Buffer) -> memoryview:
    """View a C-contiguous bytes-like object as unsigned bytes, without a copy. Raises TypeError for anything else."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if view.nbytes == 0:
        return memoryview(b"")  # cast() refuses shapes with a zero in them
    if not view.c_contiguous:
        raise TypeError("streamxf needs C-contiguous data; copy the array first, e.g. with numpy.ascontiguousarray")
    return view.cast("B")


def write_all(file: Writable, data: Buffer) -> int:
    """Write all of `data`; returns its size. Raises OSError if `file` takes nothing (a full or non-blocking file)."""
    view = flat_view(data)
    written = 0
    while written < len(view):
        count = file.write(view[written:])
        if count is None and not isinstance(file, io.RawIOBase):  # paramiko's, say, which takes all and does not tell
            count = len(view) - written
        if not count:
            raise OSError(f"the file took {written} of {len(view)} bytes and then no more")
        written += count
    return written


def mapped(size: int, flags: int = 0) -> mmap.mmap:
    """Anonymous memory, returned once it is dropped: what malloc gave to many threads stays with them."""
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)


# Bytes that each scratch buffer has more than was asked for, so that a digest or two can be put behind a full one.
ROOM = 64


class Scratch:
    """Memory for one block on its way through a chain: one buffer for each step that asks for one.

    - `size`: bytes of all of them.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, mmap.mmap] = {}
        self.size = 0

    def take(self, step: int, size: int) -> memoryview:
        """Return `size` writable bytes of undefined contents for `step`, valid until the block has left the chain."""
        buffer = self._buffers.get(step)
        if buffer is None or len(buffer) < size:
            # at least that of a block of 1 MiB, or each longer one gets memory anew; what nobody touches takes none
            buffer = self._buffers[step] = mapped(max(size, 5 << 18) + ROOM)
            self.size = sum(map(len, self._buffers.values()))
        return memoryview(buffer)[:size]

    def extended(self, block: memoryview, size: int) -> memoryview | None:
        """`block` and `size` writable bytes after it, if it is at the start of a buffer that is large enough."""
        buffer = block.obj
        if not isinstance(buffer, mmap.mmap) or buffer not in self._buffers.values():
            return None
        if not len(block) or block.readonly or len(block) + size > len(buffer):
            return None
        whole = memoryview(buffer)
        start, own = (ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in (block, whole))
        return whole[: len(block) + size] if start == own else None


class ScratchPool:
    """Scratch memory of finished blocks for the next, the last first: that is in cache. At most `keep` bytes wait."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: list[Scratch] = []

    def take(self) -> Scratch:
        try:
            return self._free.pop()
        except IndexError:
            return Scratch()

    def give(self, scratch: Scratch) -> None:
        if scratch.size + sum([each.size for each in self._free]) <= self._keep:
            self._free.append(scratch)


scratches = ScratchPool(keep=64 * 2**20)  # of the whole process


_local = threading.local()


class borrowed(Generic[T]):
    """Lend an object of ``factory(*arguments)`` to this thread, for the length of the ``with`` block.

    For compression contexts and workspaces, which are costly to make and must not be shared. A returned object is lent
    again to the same thread. A thread is not enough as an owner: a signal's handler or a finalizer may run a codec in
    the middle of another block of the same thread, and is lent another object. An exception may leave an object in an
    unknown state, so it is not lent again.
    """

    __slots__ = ("_free", "_lent", "_wanted")

    def __init__(self, factory: Callable[..., T], *arguments: Hashable) -> None:
        pools: dict[Any, list[Any]] | None = getattr(_local, "pools", None)
        if pools is None:
            pools = _local.pools = {}
        self._wanted = wanted = factory, arguments
        self._free: list[T] = pools.get(wanted) or pools.setdefault(wanted, [])

    def __enter__(self) -> T:
        try:
            self._lent = self._free.pop()
        except IndexError:
            make, arguments = self._wanted
            self._lent = make(*arguments)
        return self._lent

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._free.append(self._lent)


@contextmanager
def collector_paused() -> Iterator[None]:
    """While a million objects are made, as for metadata: the collector takes half of the time, and finds no garbage."""
    enabled = gc.isenabled()
    try:
        gc.disable()  # here, or an interrupt could leave it off
        yield
    finally:
        if enabled:
            gc.enable()
