"""Text of reports: numbers with their nouns, sizes, and lists of limited length."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from streamxf.errors import StreamxfError, escaped, notes_of, redacted, shorten, text_of

SHOWN = 20
WIDTH = 1000
MAKE_ROOM = "Make room (`streamxf forget` removes checkpoints by rules, `streamxf clean` leftovers of failed saves)"
RESTORE_METADATA = "next: restore this file from a copy; if there is none, see `streamxf salvage --without-metadata`"
OLD = "this mount may show old sizes or names of what another host replaced: wait, remount, or use the storage's URL"
ACCESS = "find out why some of it could not be read, and try again: nothing is known about that yet"
SALVAGE_DATA = "next: `streamxf verify` lists all damage, `streamxf salvage` saves the rest"
_ADVICE: dict[int | None, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"the disk is too full. {MAKE_ROOM}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check permissions of it and its folders, or run this as their owner"),
    errno.EROFS: "its file system is mounted read-only: have it mounted for writing",
}


def many(number: int, noun: str) -> str:
    """A number and what it counts: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def inside_text(parts: Collection[str]) -> str:
    """Of a folder that was named instead of one of the checkpoints in it."""
    found = f"{many(len(parts), 'checkpoint')} in it: {some(parts)}. Name one of them"
    return f"the folder is not a checkpoint, but has {found}; for a training run, `streamxf latest` prints the newest"


def size_text(number: int) -> str:
    """Bytes as people read them: in powers of 1024."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= scale:
            return f"{number / scale:,.1f} {unit}"
    return many(number, "byte")


def rate_text(rate: float) -> str:
    """Bytes per second as people read them: in powers of 1000, as storage is sold."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if rate >= factor:
            return f"{rate / factor:,.2f} {unit}"
    return f"{rate:,.3g} B/s"


def time_text(seconds: float) -> str:
    """A time as people read it, in its largest unit: ``2 d``, ``1.5 h``, ``40 s``."""
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 0.001}
    unit = next((unit for unit, scale in units.items() if abs(seconds) >= scale), "s")
    number = seconds / units[unit]
    text = f"{number:,.0f}" if abs(number) >= 10 else f"{number:.1f}".removesuffix(".0")
    return f"{text} {unit}"


def listed(title: str, entries: Collection[object], unlisted: int = 0, most: int = SHOWN) -> list[str]:
    """A line for each of the first `most` entries, and one that counts the others.

    Strings may come from a damaged checkpoint, or be arbitrary file names: what would end the line or steer
    a terminal is escaped, and what is long is cut.

    - `unlisted`: how many there are besides those in `entries`.
    """
    lines = [f"{title}: {printable(str(entry))}" for entry in islice(entries, most)]
    more = len(entries) + unlisted - len(lines)
    return [*lines, f"{title}: {more:,} more"] if more else lines


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """What failed, by name: each reason once, behind the names that have it."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [f"{some(those)}: {reason}" for reason, those in names.items()]


def reason_of(error: BaseException, place: object = None) -> str:
    """What an error says: the file, unless it is the `place` that the caller names, what went wrong, and what to do."""
    said = text_of(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        said = error.strerror if error.filename in (None, place) else f"{error.filename}: {error.strerror}"
    elif not isinstance(error, StreamxfError | OSError | MemoryError):
        said = f"{type(error).__name__}: {said}"
    advice = "" if isinstance(error, StreamxfError) else _ADVICE.get(getattr(error, "errno", None), "")
    notes = notes_of(error)
    if all(note.startswith("while ") for note in notes):  # they say where it was alone
        notes.append(advice)
    return "; ".join(filter(None, (part.strip() for part in (said, *notes))))


def some(names: Iterable[str], most: int = 5) -> str:
    """The first names in one line, as they may be shown, and how many there are besides."""
    found = list(names)
    shown = ", ".join(printable(name, 200) for name in found[:most])
    return f"{shown} and {len(found) - most:,} more" if len(found) > most else shown


def printable(text: str, width: int = WIDTH) -> str:
    """Text in one line, for a terminal: what would steer it is escaped, and what is longer than `width` is cut."""
    return shorten(escaped(redacted(text)[: width + 1]), width)
