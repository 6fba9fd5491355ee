"""Mutations of ``.metadata``: of the pickle by opcodes, of the manifest by its JSON, with a tag that is right again."""

from __future__ import annotations

import json
import pickle
import pickletools
import random
from typing import Any

from samples import KEY
from streamxf.container.limits import METADATA_MAGIC

from fuzz.target import Havoc
from streamxf.dcp.metadata import manifest as trailer
from streamxf.descriptor import Descriptor
from streamxf.errors import StreamxfError
from streamxf.keys import KeyRing
from streamxf.keys.datakey import DataKey

_END = 4 + trailer.TAG_BYTES + len(METADATA_MAGIC)
_VALUES = (None, True, 0, 1, -1, 2**31, 2**63, 1.5, "", "a", "../a", "a" * 300, [], {}, [[]], {"a": {}}, "0" * 32)
_OPCODES = tuple(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change pickle or manifest of a metadata file."""
    if not data.endswith(METADATA_MAGIC) or len(data) < _END or choose.random() < 0.05:
        return change_pickle(data, choose, havoc) if choose.random() < 0.8 else havoc(data)
    tail = len(data) - _END
    size = int.from_bytes(data[tail : tail + 4], "little")
    pickled, text = data[: max(0, tail - size)], data[max(0, tail - size) : tail]
    for _ in range(choose.choice((1, 1, 2, 3))):
        if choose.random() < 0.75:
            pickled = change_pickle(pickled, choose, havoc)
        else:
            text = _change_manifest(text, choose, havoc)
    return tagged(pickled, text)


def tagged(pickled: bytes, text: bytes) -> bytes:
    """The file with the right tag, as somebody makes it who has the key."""
    body = pickled + text + len(text).to_bytes(4, "little")
    return body + trailer._tag(memoryview(body), _data_key(text)) + METADATA_MAGIC


def _data_key(text: bytes) -> DataKey | None:
    try:
        described = json.loads(text)["key"]
        return KeyRing.of(KEY).unwrap(Descriptor.parse(described).fragment) if described else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StreamxfError):
        return None


def change_pickle(pickled: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change, move, double or drop opcodes, or what one of them carries."""
    try:
        starts = [place for _, _, place in pickletools.genops(pickled) if place is not None]
    except Exception:  # whatever pickletools raises for a pickle that is none
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


def _change_manifest(text: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change a value or a key somewhere in the JSON, or its text."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return havoc(text)
    if choose.random() < 0.4 or not isinstance(content, dict):
        return havoc(text)
    place: Any = content
    while isinstance(place, dict) and place:
        name = choose.choice(sorted(place))
        if not isinstance(place[name], dict) or choose.random() < 0.3:
            value = place.pop(name)
            if choose.random() < 0.5:
                place[name] = choose.choice(_VALUES)
            elif choose.random() < 0.7:
                place[havoc(name.encode()).decode("utf-8", "replace")] = value
            break
        place = place[name]
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
