"""Mutations of metadata files: of the index by its JSON, of the keys by their lines; what vouches is right again."""

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import zstandard

from streamxf.errors import StreamxfError
from streamxf.keys import KeyRing
from tests.forge import MetadataParts, frame_of, pack_index, split_metadata
from tests.fuzz.target import Havoc
from tests.samples import KEY
from tests.sealing import SIGNER, Vouching, index_digest

MAX_JSON = 1 << 20  # bytes of an index that are worth changing

UNPARSED = (
    *(MemoryError, struct.error, AttributeError, LookupError, ValueError, OverflowError, TypeError, RecursionError),
    *(zstandard.ZstdError, StreamxfError),
)
_VALUES = (
    *(None, True, 0, 1, -1, 2**31, 2**63, 2**53, 1.5, "", "0.5", "1e5", "a\n", "a", "../a", "a" * 300, [], {}, [[]]),
    *({"a": {}}, "0" * 32),
)


def mutate(data: bytes, choose: random.Random, havoc: Havoc, digest: Callable[[bytes], bytes] = index_digest) -> bytes:
    """Change a metadata file, or a note, whose D has another `digest`."""
    if choose.random() < 0.05:
        return havoc(data)
    try:
        parts = split_metadata(data)
        for _ in range(choose.choice((1, 1, 1, 2, 3))):
            parts = _changed(parts, choose, havoc)
        return (vouched(parts, digest) if choose.random() < 0.9 else parts).pack()
    except UNPARSED:
        return havoc(data)


def vouched(parts: MetadataParts, digest: Callable[[bytes], bytes] = index_digest) -> MetadataParts:
    """With vouchers that are right, as a holder of the key makes them; signed if they were before."""
    lines = parts.keys.decode("ascii").split("\n")
    if len(lines) < 2:
        return parts
    try:
        key = KeyRing.of(KEY).unwrap(lines[0])
    except StreamxfError:
        return parts
    vouching = Vouching(lines[0], (KEY.reveal(),), SIGNER if "&sig=" in lines[1] else None, key.secret)
    lines[1] = vouching.vouchers(digest(parts.packed_index))
    return parts.change(keys="\n".join(lines).encode())


def _changed(parts: MetadataParts, choose: random.Random, havoc: Havoc) -> MetadataParts:
    match choose.randrange(10):
        case 0:
            return parts.change(keys=havoc(parts.keys))
        case 1:
            lines = parts.keys.split(b"\n")
            lines.insert(choose.randint(0, len(lines)), choose.choice(lines))
            if choose.random() < 0.5:
                del lines[choose.randrange(len(lines))]
            return parts.change(keys=b"\n".join(lines))
        case 2:
            root, stored = parts.stored()
            return parts.change(index=frame_of(havoc(_text_of(root))), parts=stored)
        case 3:
            root, stored = parts.stored()
            return parts.change(index=havoc(root), parts=stored)
        case 4:
            field = choose.choice(("head_size", "parts_size", "index_size", "keys_size"))
            return parts.change(**{field: choose.choice((0, 1, 2, 7, 255))})
        case 5 | 6:
            return _with_altered_part(parts, choose, havoc)
        case 7 if isinstance(parts.index, bytes) or choose.random() < 0.5:
            root, stored = parts.stored()
            content = json.loads(_text_of(root))
            _change_value(content, choose, havoc)
            return parts.change(index=frame_of(json.dumps(content).encode("ascii")), parts=stored)
        case _ if isinstance(parts.index, bytes):
            return _with_altered_part(parts, choose, havoc)
        case _:
            content = copy.deepcopy(parts.index)
            _change_value(content, choose, havoc)
            root, stored = pack_index(content)
            return parts.change(index=root, parts=stored)


def _text_of(root: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(root, max_output_size=MAX_JSON)


def _with_altered_part(parts: MetadataParts, choose: random.Random, havoc: Havoc) -> MetadataParts:
    """Bytes of a part change, and digests and sizes are right again."""
    raw = parts.raw_parts()
    chosen = choose.randrange(len(raw))
    return parts.with_part(chosen, havoc(raw[chosen]))


def _change_value(content: Any, choose: random.Random, havoc: Havoc) -> None:
    """Change, move, double or drop a value somewhere in the JSON."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, name))
            visit(value[name])

    visit(content)
    holder, name = choose.choice(places)
    value = holder[name]
    match choose.randrange(7):
        case 0:
            del holder[name]
        case 1:
            holder[name] = choose.choice(_VALUES)
        case 2 if isinstance(holder, dict):
            holder[havoc(name.encode()).decode("utf-8", "replace")] = holder.pop(name)
        case 3 if isinstance(holder, list):
            holder.insert(choose.randint(0, len(holder)), value)
        case 4:
            other, key = choose.choice(places)
            if key in other if isinstance(other, dict) else key < len(other):
                holder[name] = json.loads(json.dumps(other[key]))
        case _ if type(value) is int:
            holder[name] = choose.choice((value + choose.randint(-3, 3), value ^ 1 << choose.randrange(64)))
        case _ if isinstance(value, str):
            holder[name] = havoc(value.encode()).decode("utf-8", "replace")
        case _:
            holder[name] = choose.choice(_VALUES)
