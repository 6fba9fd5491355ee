"""A metadata file as sections: head, parts, root, keys and trailer; JSON as an index and a note have it, in a Zstandard
frame; and the checks of its values, each of which raises `MetadataError`; docs/format.md, "Metadata".
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from streamxf.codecs import zstd
from streamxf.errors import CodecError, MetadataError, UnsupportedError
from streamxf.format import limits
from streamxf.format.header import format_fault
from streamxf.lazy import pattern

_LENGTHS = struct.Struct("<QQII4s4x")
_TRAILER = struct.Struct("<QQII4sI32s32s8x")
INCREMENT = 1  # a critical flag: the index names files of other saves
INCREMENTAL = bytes([limits.VERSION, limits.SUITE, INCREMENT, 0])  # format bytes of such metadata
INDEX_LABEL, NOTE_LABEL = b"streamxf/1 index", b"streamxf/1 note"
_NO_PICKLE_DIGEST = hashlib.sha256(limits.NO_PICKLE).digest()
_SIGNED_BYTES = _LENGTHS.size + limits.DIGEST_BYTES  # of the trailer, covered by its second digest

Read = Callable[[int, int], bytes]


def slices(data: bytes) -> Read:
    """What gives bytes of `data`."""
    return lambda at, size: data[at : at + size]


_NOTHING = slices(b"")


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 104 bytes of a metadata file: sizes of what is before it, format bytes, and digests."""

    head_size: int
    parts_size: int
    root_size: int
    keys_size: int
    format_bytes: bytes
    head_digest: bytes
    digest: bytes

    @property
    def size(self) -> int:
        """Bytes of root, keys and trailer."""
        return self.root_size + self.keys_size + limits.TRAILER_BYTES

    @classmethod
    def parse(cls, end: bytes, file_size: int) -> Trailer | None:
        """Read the trailer from the last 104 bytes of a file, or all of it if it is smaller; None if it does not end in
        one. Raises MetadataError if it ends in one that cannot be. That of another version is split before it is
        refused: only the digest shows whether it is one.
        """
        if end[-len(limits.METADATA_MAGIC) :] != limits.METADATA_MAGIC:
            return None
        if len(end) < limits.TRAILER_BYTES:
            raise MetadataError("the metadata is truncated: only a part of its trailer is there")
        *sizes, format_bytes, zeros, head_digest, digest = _TRAILER.unpack(end[-limits.TRAILER_BYTES :])
        head_size, parts_size, root_size, keys_size = sizes
        if zeros and not format_fault(format_bytes, INCREMENT):
            raise MetadataError("the metadata's trailer has a byte that is not zero where version 1 has zeros")
        trailer = cls(head_size, parts_size, root_size, keys_size, format_bytes, head_digest, digest)
        fits = 1 <= root_size <= limits.MAX_ROOT and keys_size <= limits.KEYS_BYTES
        if not fits or sum(sizes) + limits.TRAILER_BYTES != file_size:
            raise MetadataError("the metadata's trailer has impossible sizes: the file is damaged")
        return trailer

    def split(self, tail: bytes, label: bytes = INDEX_LABEL, read: Read = _NOTHING, intact: bool = True) -> Sections:
        """Root (or other contents vouched for under `label`) and keys out of the file's last `size` bytes; `read` as in
        `Sections`. Raises MetadataError if they have to be `intact` and their digest does not match, UnsupportedError
        if they are of another version of the format, which begins and ends all the same with what is looked at here.
        """
        view = memoryview(tail)
        signed = view[: self.root_size + self.keys_size + _SIGNED_BYTES]
        if intact and not hmac.compare_digest(hashlib.sha256(signed).digest(), self.digest):
            raise MetadataError("the digest of the metadata does not match: the file is damaged")
        if fault := format_fault(self.format_bytes, INCREMENT if label == INDEX_LABEL else 0):
            raise UnsupportedError(f"the metadata {fault}")
        keys = view[self.root_size : self.root_size + self.keys_size]
        about = self.head_digest != _NO_PICKLE_DIGEST, self.head_size, self.parts_size, self.head_digest
        return Sections(view[: self.root_size], keys, label, self.format_bytes, *about, read)


@dataclass(frozen=True, slots=True)
class Sections:
    """Root (a Zstandard frame) and keys (lines of ASCII, empty if neither encrypted nor signed) of a metadata file, as
    they are stored, and its format bytes; `label` separates kinds of vouched contents.

    - `pickled`: whether the file begins with a pickle for torch's own readers.
    - `read`: gives bytes of the file, from a position, so many; its head comes first, then its parts.
    """

    root: memoryview
    keys: memoryview
    label: bytes = INDEX_LABEL
    format_bytes: bytes = limits.FORMAT
    pickled: bool = False
    head_size: int = 0
    parts_size: int = 0
    head_digest: bytes = field(default=b"", compare=False)
    read: Read = field(default=_NOTHING, compare=False)

    @property
    def increment(self) -> bool:
        return bool(self.format_bytes[2] & INCREMENT)

    def parts(self, at: int, size: int) -> bytes:
        """Bytes of the parts."""
        if at + size > self.parts_size:
            raise MetadataError("the metadata is malformed: a part reaches beyond the parts")
        return self.read(self.head_size + at, size)

    def head(self) -> bytes:
        return self.read(0, self.head_size) if self.head_size else b""

    def with_index(self, root: bytes, parts: bytes) -> Sections:
        """The same with another index, and without a head."""
        return replace(self, root=memoryview(root), head_size=0, parts_size=len(parts), read=slices(parts))

    def packed(self, keys: tuple[str, str] | None, head: bytes = limits.NO_PICKLE) -> bytes:
        """The file with these `key_lines` and this head; raises as `pack`."""
        lines, parts = pack_keys(*keys) if keys else b"", self.parts(0, self.parts_size)
        return pack(head, parts, bytes(self.root), lines, self.format_bytes)

    @property
    def digest(self) -> bytes:
        """D of the format: the digest that vouchers cover."""
        made = hashlib.sha256(self.label + self.format_bytes)
        made.update(self.root)
        return made.digest()

    def key_lines(self) -> tuple[str, str] | None:
        """The publisher's wrapped data key, empty if it is signed alone, and vouchers; None without keys. Raises
        MetadataError for other bytes.
        """
        if not self.keys:
            return None
        try:
            lines = bytes(self.keys).decode("ascii").split("\n")
        except UnicodeDecodeError:
            raise MetadataError("the metadata's keys are not ASCII") from None
        if len(lines) != 2 or not lines[1] or max(map(len, lines)) > limits.MAX_KEY_LINE:
            raise MetadataError("the metadata's keys are malformed")
        return lines[0], lines[1]


def pack(head: bytes, parts: bytes, root: bytes, keys: bytes, format_bytes: bytes = limits.FORMAT) -> bytes:
    """A metadata file; raises MetadataError if it would be too large to be read."""
    if len(root) > limits.MAX_ROOT:
        raise MetadataError(
            f"the metadata would be too large: its root has {len(root)} bytes, {limits.MAX_ROOT} are allowed; save "
            "fewer items, or put less into DCP's metadata"
        )
    lengths = _LENGTHS.pack(len(head), len(parts), len(root), len(keys), format_bytes)
    signed = root + keys + lengths + hashlib.sha256(head).digest()
    return b"".join((head, parts, signed, hashlib.sha256(signed).digest(), limits.METADATA_MAGIC))


def pack_keys(wrapped: str, vouchers: str) -> bytes:
    return f"{wrapped}\n{vouchers}".encode("ascii")


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
