"""Mutations of pickles, by opcodes."""

import pickle
import pickletools
import random

from tests.fuzz.target import Havoc

MAX_MEMO = 1 << 16
"""Python's unpickler takes memory for the largest number of its memo, whatever is stored; docs/security.md."""

_OPCODES = tuple(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)


def change_pickle(pickled: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change, move, double or drop opcodes, or what one of them carries."""
    changed = _changed(pickled, choose, havoc)
    return changed if _modest(changed) else pickled


def _changed(pickled: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    try:
        starts = [place for _, _, place in pickletools.genops(pickled) if place is not None]
    except Exception:  # whatever pickletools raises for what is not a pickle
        return havoc(pickled)
    ends = [*starts[1:], len(pickled)]
    steps = [pickled[start:end] for start, end in zip(starts, ends, strict=True)]
    if choose.random() < 0.1:
        return havoc(pickled)
    at = choose.randrange(len(steps))
    match choose.randrange(7):
        case 0:
            del steps[at : at + choose.choice((1, 1, 2, 5))]
        case 1:
            steps.insert(at, choose.choice(steps))
        case 2:
            start = choose.randrange(len(steps))
            steps[at:at] = steps[start : start + choose.randint(1, 20)]
        case 3:
            other = choose.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        case 4:
            steps[at] = choose.choice(_OPCODES) + steps[at][1:]
        case 5:
            steps.insert(at, choose.choice(_OPCODES) + choose.randbytes(choose.choice((0, 1, 2, 4, 8))))
        case _:
            steps[at] = steps[at][:1] + havoc(steps[at][1:])
    return b"".join(_renumbered(steps) if choose.random() < 0.8 else steps)


def _modest(pickled: bytes) -> bool:
    """Whether all numbers of the memo are small, as far as an unpickler gets."""
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in ("PUT", "LONG_BINPUT") and argument > MAX_MEMO:
                return False
    except Exception:  # as above
        return True
    return True


def _renumbered(steps: list[bytes]) -> list[bytes]:
    """Memo numbers rise one by one again, as pickling makes them, and what is fetched is what it was."""
    numbers: dict[int, int] = {}
    made = []
    for step in steps:
        number = int.from_bytes(step[1:], "little")
        if step[:1] in (pickle.BINPUT, pickle.LONG_BINPUT):
            number = numbers[number] = len(numbers)
        elif step[:1] in (pickle.BINGET, pickle.LONG_BINGET):
            number = numbers.get(number, number)
        else:
            made.append(step)
            continue
        size = len(step) - 1
        made.append(step[:1] + (number % (1 << 8 * size)).to_bytes(size, "little"))
    return made
