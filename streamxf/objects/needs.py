"""What an object needs before a reader loads it: names of classes and functions that its caller has to allow."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from streamxf.descriptor import shorten
from streamxf.objects.allowed import chosen
from streamxf.objects.check import Check, is_known, mapped
from streamxf.objects.stand_ins import TooMuch
from streamxf.torchsave.archive import Archive, NotSavedByTorch

MAX_LOOKED_AT = 2**20  # bytes of a pickle; the opcodes of a larger one would take a save noticeably longer
# The end of a global's module before its name, or the opcode of a long integer; may also be found where none is.
_SUSPECT = re.compile(rb"\n(?=([A-Za-z_][\w.]*)\n)|\x8b")
# Searched by itself: one pattern for both would go through a long string again from each `c` in it.
_MODULE = re.compile(rb"c([A-Za-z_][\w.]*)\Z")
_LONGEST = 256


def needs_of(data: Any) -> tuple[tuple[str, ...], str]:
    """What the bytes of an object need: names to allow, and why it does not load then either, or ""."""
    try:
        archive = Archive(io.BytesIO(data), len(data))
    except NotSavedByTorch as error:
        return (), str(error)
    check = Check(archive.pickled, archive.sizes, len(data), chosen)
    try:
        check.load()
    except TooMuch as error:
        return tuple(sorted(check.unknown)), check.never or str(error)
    return tuple(sorted(check.unknown)), check.never


def quick_needs(data: memoryview) -> tuple[tuple[str, ...], str]:
    """As `needs_of`, for a save: only what it can find out at no cost that anyone would notice."""
    pickled: Any = _first_record(data)
    if pickled is None:
        pickled = Archive(io.BytesIO(data), len(data)).pickled
    if len(pickled) > MAX_LOOKED_AT:
        return (), ""
    for match in _SUSPECT.finditer(pickled):
        name = ""
        if match[1] is not None:
            module = _MODULE.search(pickled[max(0, match.start() - _LONGEST) : match.start()])
            if module is None:
                continue
            name = mapped(module[1].decode(), match[1].decode())
        if not is_known(name):
            return needs_of(data)
    return (), ""


def _first_record(data: memoryview) -> memoryview | None:
    """The pickle of what torch has just saved, found without reading the directory; None if that takes more."""
    head = bytes(data[: 2**16])
    stop = head.find(b"PK\x07\x08")  # the record's end, followed by its checksum and its size
    if len(head) < 30 or stop < 0:
        return None
    start = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return data[start:stop] if int.from_bytes(head[stop + 8 : stop + 12], "little") == stop - start else None


def shown(names: Sequence[str], most: int = 5) -> str:
    """Names from a stranger, for people."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(ascii(name)[1:-1]) for name in names[:most]) + more
