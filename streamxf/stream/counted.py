"""`Counted`: an access whose reads are reported."""

from __future__ import annotations

from collections.abc import Callable

from streamxf.stream.source import PositionalFile

_STEP = 16 * 2**20  # bytes of a long read after which it is reported


class Counted:
    """An access that tells how many bytes were read, also while a long read goes on.

    - `add`: is told of bytes, in the thread that reads.
    """

    def __init__(self, access: PositionalFile, add: Callable[[int], None]) -> None:
        self._access = access
        self._add = add
        self.parallel = access.parallel

    def read_into(self, position: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            piece = out[done : done + _STEP]
            count = self._access.read_into(position + done, piece)
            done += count
            self._add(count)
            if count < len(piece):  # the file ends here
                break
        return done
