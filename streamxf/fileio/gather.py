"""`Gather`: what was written and is not a block yet."""

from __future__ import annotations

from streamxf.buffers import Scratch

# Below this, copying is cheaper than to remember one more piece.
SMALL = 16 * 1024

Pieces = list[memoryview]

# The place of a joined block in its scratch memory; the steps of a chain count from 0.
JOINED = -1


class Gather:
    """The beginning of a block: pieces of memory that stays as it is, and copies of memory that does not.

    Attributes
    ----------
    size : int
        Bytes in all pieces.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview | bytearray] = []

    def add(self, data: memoryview, owned: bool) -> None:
        """Add `data`: a copy, unless its memory is `owned`, so that it stays as it is."""
        self.size += len(data)
        pieces = self._pieces
        if owned and (len(data) >= SMALL or not pieces):
            pieces.append(data)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))

    def take(self) -> Pieces:
        """All that there is; nothing stays."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return [memoryview(piece) for piece in pieces]

    def clear(self) -> None:
        """Forget everything."""
        self._pieces, self.size = [], 0


def join(pieces: Pieces, scratch: Scratch) -> memoryview:
    """The pieces as one run of bytes: the only piece itself, or a copy in `scratch`."""
    if len(pieces) == 1:
        return pieces[0]
    out = scratch.take(JOINED, sum(map(len, pieces)))
    position = 0
    for piece in pieces:
        out[position : position + len(piece)] = piece
        position += len(piece)
    return out
