"""JSON as an index and a note have it, in a Zstandard frame; and the checks of its values, each of which raises
`MetadataError`; docs/format.md, "Metadata".
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NoReturn

from streamxf.codecs import zstd
from streamxf.errors import CodecError, MetadataError
from streamxf.format import limits
from streamxf.lazy import pattern

_HEX = pattern(r"[0-9a-f]*", re.ASCII)
_SURROGATE = pattern(r"[\ud800-\udfff]")
_SIGNED = "[-", ":-", ",-", " -", "\t-", "\n-", "\r-"


def pack_json(content: Any, what: str, cure: str, most: int = limits.MAX_ROOT, marks: int = limits.MAX_ROOT) -> bytes:
    """`what` names the content in errors, and `cure` says what helps if readers would refuse its size. At most `most`
    bytes of JSON are allowed, with at most `marks` commas and opening brackets.
    """
    text = json.dumps(content, separators=(",", ":")).encode("ascii")
    most, count = min(most, limits.MAX_ROOT), count_marks(text)
    for_marks = limits.MARK_BYTES * count if count > limits.FREE_MARKS else 0
    if max(len(text), for_marks) > most or count > marks:
        allowed = f"{most} are allowed, with {marks} commas and brackets"
        raise MetadataError(f"{what} would have {len(text)} bytes, of which {allowed}; {cure}")
    text = text.ljust(for_marks)  # where it has fewer bytes itself
    least = -(-len(text) // limits.ROOT_EXPANSION) if len(text) > limits.FREE_ROOT else 0
    return zstd.compress_to(text, max(least, for_marks))


def parse_json(packed: memoryview, what: str, most: int = limits.MAX_ROOT, marks: int = limits.MAX_ROOT) -> Any:
    """Limits as in `pack_json`."""
    return loads(_unpacked(packed, what, most, marks), what)


def _unpacked(packed: memoryview, what: str, most: int, marks: int) -> bytes:
    try:
        size = zstd.declared_size(packed)
        most = min(most, limits.MAX_ROOT, max(limits.ROOT_EXPANSION * len(packed), limits.FREE_ROOT))
        if size > most:
            raise MetadataError(f"{what} says it has {size} bytes, {most} are allowed for one of {len(packed)} stored")
        text = zstd.decompress(packed, size)
    except CodecError as error:
        raise MetadataError(f"{what} is damaged: {error.message}") from None
    marks = min(marks, max(len(packed) // limits.MARK_BYTES, limits.FREE_MARKS))
    if len(text) > marks and count_marks(text) > marks:
        raise MetadataError(f"{what} has more than {marks} commas and brackets, for one of {len(packed)} bytes stored")
    return text


def loads(text: bytes, what: str) -> Any:
    """JSON that keeps the rules of an index; raises MetadataError."""
    try:
        decoded = text.decode("ascii")
        del text  # which may be all that holds it
        # json takes -0 for 0, and is several times as fast where it does not have to ask for each number
        decoder: Any = _DECODERS["-" in decoded and (decoded[0] == "-" or any(sign in decoded for sign in _SIGNED))]
        with suppress(StopIteration):  # there is no value, which `decode` says, too
            made, end = decoder.scan_once(decoded, 0)
            if not decoded[end:].strip(" \t\n\r"):
                return made
        return decoder.decode(decoded)  # which lets blanks stand before it
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{what} is not JSON: {error!s:.200}") from None


def count_marks(text: bytes) -> int:
    """Commas and opening brackets, also those in strings: JSON has no more values than that, but for one."""
    return sum(map(text.count, (b",", b"[", b"{")))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else bad("an object has two members of the same name")


def _natural(text: str) -> int:
    return int(text) if text.isdigit() else bad("a number is not an integer, or has a sign")


_DECODERS = [
    json.JSONDecoder(object_pairs_hook=_unique, parse_int=each, parse_float=_natural, parse_constant=_natural)
    for each in (None, _natural)
]


def bad(what: str) -> NoReturn:
    raise MetadataError(f"the metadata is malformed: {what}")


def integer(value: Any, what: str, limit: int = limits.MAX_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        bad(what)
    return value


def array(value: Any, what: str) -> list[Any]:
    return value if type(value) is list else bad(what)


def mapping(value: Any, what: str) -> dict[str, Any]:
    return value if type(value) is dict else bad(what)


def string(value: Any, what: str) -> str:
    if type(value) is not str or (not value.isascii() and _SURROGATE.search(value)):
        bad(what)
    return value


def digits(value: Any, count: int, what: str) -> str:
    return value if type(value) is str and len(value) == count and _HEX.fullmatch(value) else bad(what)


def exact(value: Any, required: set[str], optional: frozenset[str], what: str) -> dict[str, Any]:
    """An object with these members, and any that begin with ``_``, to which later versions give a meaning."""
    if type(value) is not dict or not required <= value.keys():
        bad(f"{what} has missing members")
    if not value.keys() <= required | optional:
        for name in value.keys() - required - optional:
            if not name.startswith("_"):
                bad(f"{what} has unknown members")
            check_plain([name, value[name]], what, limits.MAX_DEPTH + 1)
    return value


def check_plain(value: Any, what: str, depth: int = limits.MAX_DEPTH) -> None:
    """Any JSON that nests no deeper than `depth`."""
    if type(value) is str:
        string(value, what)
    elif type(value) is int:
        integer(value, what)
    elif type(value) in (dict, list):
        if not depth:
            bad(f"{what} is nested too deep")
        for inner in value if type(value) is list else (*value, *value.values()):
            check_plain(inner, what, depth - 1)
    elif value is not None and type(value) is not bool:
        bad(what)
