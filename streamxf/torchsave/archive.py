"""What ``torch.save`` wrote: a zip file whose directory is read, and checked, before torch opens it.

Torch takes the sizes that the directory declares, and decompresses where it says so. So only what torch itself writes
is accepted: records stored as they are, each under its own name, whose directory stands where torch puts it.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

PICKLE = "data.pkl"
_BYTEORDER = "byteorder"
MAX_RECORDS = 2**16
_STEP = 2**20
_DIRECTORY_EACH = 256  # bytes of the directory for each record that is allowed

_BEGIN = b"PK\x03\x04"  # by which torch.load tells it from the older format, wherever its directory stands
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_TAIL = _END64.size + _LOCATOR.size + _END.size
_WIDE = 0xFFFFFFFF  # the value is in the extra field instead
_HARMLESS_FLAGS = 0x0808  # sizes follow the record; the name is UTF-8

_Place = tuple[int, int, int]
"""Where a record's header stands, its bytes and its CRC."""


class NotSavedByTorch(ValueError):
    """The bytes are not what ``torch.save`` writes; says in which way."""


@dataclass(frozen=True)
class Archive:
    """What a reader needs to know before torch may open the file.

    Attributes
    ----------
    pickled : bytes
        The record that is unpickled.
    sizes : dict of str to int
        Bytes of each record, by its name inside of the archive.
    little : bool
        Whether numbers in it are little-endian, as nearly always.
    """

    pickled: bytes
    sizes: dict[str, int]
    little: bool
    _places: dict[str, _Place]
    _stop: int

    @classmethod
    def read(cls, file: Any, size: int, max_records: int = MAX_RECORDS) -> Archive:
        """Look at `file`, a seekable stream of `size` bytes, which may be anything.

        Raises
        ------
        NotSavedByTorch
            If torch did not write it. What `file` raises passes through.
        """
        if _read_at(file, 0, min(size, len(_BEGIN))) != _BEGIN:
            raise NotSavedByTorch("it does not begin as a file of torch.save does since version 1.6")
        tail = _read_at(file, max(0, size - _TAIL), min(size, _TAIL))
        if len(tail) < _TAIL or tail[-_END.size :][:4] != b"PK\x05\x06" or _END.unpack(tail[-_END.size :])[-1]:
            raise NotSavedByTorch("it does not end as a file of torch.save does")
        locator = _LOCATOR.unpack(tail[_END64.size : -_END.size])
        end = _END64.unpack(tail[: _END64.size])
        count, length, start = end[7:]
        if (
            locator[0] != b"PK\x06\x07"
            or end[0] != b"PK\x06\x06"
            or locator[2] != size - _TAIL
            or start + length != size - _TAIL
            or end[6] != count
        ):
            raise NotSavedByTorch("its directory is not where torch.save puts it")
        if count > max_records or length > max_records * _DIRECTORY_EACH:
            raise NotSavedByTorch(f"its directory has {count} records and {length} bytes, which is too much")
        places = _parse(_read_at(file, start, length), count, start)
        if PICKLE not in places:
            raise NotSavedByTorch(f"it has no record {PICKLE!r}")
        sizes = {name: size for name, (_, size, _) in places.items()}
        if sum(sizes.values()) > start:
            raise NotSavedByTorch("its records overlap")
        little = _order_in(file, places, start) == b"little"
        return cls(_read_record(file, places[PICKLE], start), sizes, little, places, start)

    def find(self, file: Any, name: str) -> tuple[int, int]:
        """Where a record's bytes begin in `file`, and their CRC-32; 0 where torch was told to write none.

        Raises
        ------
        NotSavedByTorch
            If the record is not where the directory says.
        """
        place = self._places[name]
        return _begin_of(file, place, self._stop), place[2]

    def check_crcs(self, file: Any) -> bool:
        """Compare each record with its CRC-32, which ``torch.load`` never does; whether there are any.

        Raises
        ------
        NotSavedByTorch
            If one does not match, or is not where the directory says. What `file` raises passes through.
        """
        if not any(crc for _, _, crc in self._places.values()):
            return False
        for name, place in self._places.items():
            file.seek(_begin_of(file, place, self._stop), io.SEEK_SET)
            left, crc = place[1], 0
            while left and (part := file.read(min(left, _STEP))):
                left -= len(part)
                crc = zlib.crc32(part, crc)
            if left or crc != place[2]:
                raise NotSavedByTorch(f"its record {name!r:.80} does not match its CRC-32")
        return True

    def read_into(self, file: Any, name: str, out: memoryview) -> None:
        """Fill `out` with a record, which has its size; raises as `find`."""
        file.seek(self.find(file, name)[0], io.SEEK_SET)
        done = 0
        while done < len(out):
            count = file.readinto(out[done:])
            if not count:
                raise NotSavedByTorch("it ends inside a record")
            done += count


def archive_of(pickled: bytes) -> bytes:
    """What ``torch.save`` writes of something without tensors: the records that ``torch.load`` looks for."""
    first, entries = _first_records(sys.byteorder)
    header, entry = _record(b"data.pkl", pickled, len(first))
    at, size = len(first) + len(header) + len(pickled), len(entries) + len(entry)
    return b"".join((first, header, pickled, entries, entry, _END.pack(b"PK\x05\x06", 0, 0, 3, 3, size, at, 0)))


@cache
def _first_records(order: str) -> tuple[bytes, bytes]:
    """What stands before the pickle, always alike, and its part of the directory."""
    first, entries = b"", b""
    for name, data in ((b"version", b"3\n"), (b"byteorder", order.encode())):
        header, entry = _record(name, data, len(first))
        first += header + data
        entries += entry
    return first, entries


def _record(name: bytes, data: bytes, at: int) -> tuple[bytes, bytes]:
    """The header of a record that stands at `at`, and its entry in the directory."""
    name = b"archive/" + name
    facts = (0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0)
    return _LOCAL.pack(_BEGIN, 0, *facts) + name, _ENTRY.pack(b"PK\x01\x02", 0, 0, *facts, 0, 0, 0, 0, at) + name


def _parse(directory: bytes, count: int, stop: int) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    seen: set[bytes] = set()
    folder = directory[_ENTRY.size : directory.find(b"/", _ENTRY.size) + 1]
    at = 0
    for _ in range(count):
        if len(directory) - at < _ENTRY.size:
            raise NotSavedByTorch("its directory is cut")
        sign, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, note_size, *_, offset = (
            _ENTRY.unpack_from(directory, at)
        )
        extra_at = at + _ENTRY.size + name_size
        name = directory[at + _ENTRY.size : extra_at]
        at = extra_at + extra_size + note_size
        if _WIDE in (size, packed, offset):
            size, packed, offset = _widen(directory[extra_at : extra_at + extra_size], size, packed, offset)
        if sign != b"PK\x01\x02" or method or flags & ~_HARMLESS_FLAGS or packed != size:
            raise NotSavedByTorch("a record of it is compressed, which torch.save never does")
        if offset + _LOCAL.size + name_size + size > stop:
            raise NotSavedByTorch("a record of it reaches beyond its end")
        key = name.lower()  # torch looks them up without regard to case
        if not folder or not name.startswith(folder) or key in seen or not name.isascii():
            raise NotSavedByTorch("two records of it have one name, or they stand in several folders")
        seen.add(key)
        places[name[len(folder) :].decode("ascii")] = offset, size, crc
    if at != len(directory):
        raise NotSavedByTorch("its directory has other records than it says")
    return places


def _widen(extra: bytes, *values: int) -> tuple[int, ...]:
    """The values, those that do not fit into 32 bits taken from the extra field."""
    at = 0
    while len(extra) - at >= 4:
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{min(size, len(extra) - at - 4) // 8}Q", extra, at + 4))
            return tuple(next(wide, value) if value == _WIDE else value for value in values)
        at += 4 + size
    return values


def _order_in(file: Any, places: dict[str, _Place], stop: int) -> bytes:
    """The order of bytes; versions of torch that did not write it ran on little-endian machines."""
    if _BYTEORDER not in places:
        return b"little"
    order = _read_record(file, places[_BYTEORDER], stop)
    if order not in (b"little", b"big"):
        raise NotSavedByTorch("its byte order is unknown")
    return order


def _read_record(file: Any, place: _Place, stop: int) -> bytes:
    return _read_at(file, _begin_of(file, place, stop), place[1])


def _begin_of(file: Any, place: _Place, stop: int) -> int:
    offset, size, _ = place
    header = _read_at(file, offset, _LOCAL.size)
    if len(header) < _LOCAL.size or header[:4] != _BEGIN:
        raise NotSavedByTorch("its directory names a record that is missing")
    *_, name_size, extra_size = _LOCAL.unpack(header)
    begin: int = offset + _LOCAL.size + name_size + extra_size
    if begin + size > stop:
        raise NotSavedByTorch("a record of it reaches beyond its end")
    return begin


def _read_at(file: Any, position: int, size: int) -> bytes:
    file.seek(position)
    data: bytes = file.read(size)
    while data and len(data) < size and (part := file.read(size - len(data))):
        data += part
    return data
