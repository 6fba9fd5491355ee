"""Plain objects: numbers, texts, None, and lists, tuples and dicts of these, whose pickles name no class at all.

A state dict may have thousands of them, and torch builds an unpickler for each, after everything was followed once by
`vet`. Here a small one is read by the machine that reads metadata, which cannot make anything else and takes no more
memory than the pickle explains. What counts as plain is decided by its bytes: they must be exactly those that Python
writes for the value that was read. So there is one way to read them, and no opcode, place in the memo or size that
pickling would not use gets any further. All else is no error here: it goes the long way, which has the last word.
"""

from __future__ import annotations

import pickle
import re
import struct
import sys
import zlib
from typing import NoReturn

from streamxf.dcp.metadata.machine import Machine
from streamxf.dcp.objects.vet_values import MAX_DEPTH
from streamxf.errors import MetadataError

MAX_PLAIN = 2**14  # bytes of a pickle; for a larger one it matters little which way it goes
_PROTOCOL = 2

# What ends a tuple, and the place in the memo that follows. Texts and numbers may look like it, and are then counted.
_TUPLES = re.compile(rb"[\x85-\x87t][qr]")

_FOLDER = b"archive/"
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")


def renew_plain(pickled: bytes) -> bytes | None:
    """A file as ``torch.save`` writes it, with a new pickle of what `pickled` holds; None if that is not plain."""
    if len(pickled) > MAX_PLAIN or len(_TUPLES.findall(pickled)) >= MAX_DEPTH:
        return None
    try:
        value, end = Machine(pickled, _no_class, {}, {}).run()
        renewed = pickle.dumps(value, _PROTOCOL)
    except (MetadataError, RecursionError):
        return None
    return _zipped(renewed) if renewed == pickled and end == len(pickled) else None


def _no_class(module: str, name: str) -> NoReturn:
    raise MetadataError(f"{module}.{name} is a class or a function")


def _zipped(pickled: bytes) -> bytes:
    """The records that ``torch.load`` looks for, and no others."""
    local, entry = _record(b"data.pkl", pickled, len(_FIRST))
    start = len(_FIRST) + len(local) + len(pickled)
    directory = _FIRST_ENTRIES + entry
    end = _END.pack(b"PK\x05\x06", 0, 0, _FIRST_COUNT + 1, _FIRST_COUNT + 1, len(directory), start, 0)
    return b"".join((_FIRST, local, pickled, directory, end))


def _record(name: bytes, data: bytes, offset: int) -> tuple[bytes, bytes]:
    """A stored record's header, which stands at `offset`, and its entry in the directory."""
    name = _FOLDER + name
    facts = (0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0)
    local = _LOCAL.pack(b"PK\x03\x04", 0, *facts) + name
    return local, _ENTRY.pack(b"PK\x01\x02", 0, 0, *facts, 0, 0, 0, 0, offset) + name


def _first_records() -> tuple[bytes, bytes, int]:
    """What stands before the pickle, always alike, its entries, and how many these are."""
    records = {b"version": b"3\n", b"byteorder": sys.byteorder.encode("ascii")}
    first, entries = b"", b""
    for name, data in records.items():
        local, entry = _record(name, data, len(first))
        first += local + data
        entries += entry
    return first, entries, len(records)


_FIRST, _FIRST_ENTRIES, _FIRST_COUNT = _first_records()
