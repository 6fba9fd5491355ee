"""`Gather`: what was written and is not a block yet."""

from __future__ import annotations

import numpy as np

from streamxf.buffers import Scratch
from streamxf.fileio.ring import Loan

# Bytes; below this, copying is cheaper than to remember one more piece.
SMALL = 16 * 1024

Pieces = list[memoryview | Loan]

# The place of a joined block in its scratch memory; the steps of a chain count from 0.
JOINED = -1


class Gather:
    """The beginning of a block: pieces of memory that stays as it is, copies of memory that does not, and loans.

    Attributes
    ----------
    size : int
        Bytes in all pieces.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview | bytearray | Loan] = []

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

    def borrow(self, loan: Loan) -> None:
        """Add memory that goes back when the block is encoded."""
        self.size += len(loan.memory)
        self._pieces.append(loan)

    def move_to(self, memory: memoryview) -> int:
        """Move everything to the start of `memory`, and return where it ends."""
        pieces = self.take()
        end = _copy(pieces, memory)
        give_back(pieces)
        return end

    def take(self) -> Pieces:
        """All that there is; nothing stays."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return [memoryview(piece) if isinstance(piece, bytearray) else piece for piece in pieces]

    def clear(self) -> None:
        """Forget everything."""
        self._pieces, self.size = [], 0


def join(pieces: Pieces, scratch: Scratch) -> memoryview:
    """The pieces as one run of bytes: the only piece itself, or a copy in `scratch`. Waits for loans."""
    if len(pieces) == 1:
        return _memory(pieces[0])
    out = scratch.take(JOINED, sum(len(piece.memory if isinstance(piece, Loan) else piece) for piece in pieces))
    _copy(pieces, out)
    return out


def keep(payload: memoryview, pieces: Pieces, scratch: Scratch) -> memoryview:
    """What was made of `pieces`: itself, or a copy in `scratch` if it lies in borrowed memory."""
    loans = [piece.memory for piece in pieces if isinstance(piece, Loan)]
    if not any(np.may_share_memory(np.frombuffer(payload, np.uint8), np.frombuffer(loan, np.uint8)) for loan in loans):
        return payload
    out = scratch.take(JOINED, len(payload))
    out[:] = payload
    return out


def give_back(pieces: Pieces) -> None:
    """Give back what is borrowed."""
    for piece in pieces:
        if isinstance(piece, Loan):
            piece.give_back()


def _copy(pieces: Pieces, out: memoryview) -> int:
    position = 0
    for piece in pieces:
        view = _memory(piece)
        out[position : position + len(view)] = view
        position += len(view)
    return position


def _memory(piece: memoryview | Loan) -> memoryview:
    if isinstance(piece, Loan):
        piece.wait()
        return piece.memory
    return piece
