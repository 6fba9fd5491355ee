"""What ``torch.save`` wrote: a zip file whose directory is read, and checked, before anything is made of it.

Torch takes the sizes that the directory declares, and decompresses where it says so. So only what torch itself writes
is accepted: records stored as they are, each under its own name, whose directory stands where torch puts it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from streamxf.errors import ContainerError

PICKLE = "data.pkl"
_BYTEORDER = "byteorder"
MAX_RECORDS = 2**16
_STEP = 2**20
_AT_ONCE = 2**16  # bytes of a file that is read once
_DIRECTORY_EACH = 256  # bytes of the directory for each record that is allowed

_BEGIN = b"PK\x03\x04"  # by which torch.load tells it from the older format, wherever its directory stands
_END_BYTES = 22
_TAIL = struct.Struct("<4sQ4x2I4Q4sIQI22x")  # of the end for large files, its locator, and the usual end
_END64_REST = 44  # bytes of the first behind its size
_ENTRY = struct.Struct("<4s4x2H4x3I3HQI")
_LOCAL = struct.Struct("<4s22x2H")
_WIDE = 0xFFFFFFFF  # the value is in the extra field instead
_HARMLESS_FLAGS = 0x0808  # sizes follow the record; the name is UTF-8

_KINDS = (
    "Double:float64 Float:float32 Half:float16 BFloat16:bfloat16 Long:int64 Int:int32 Short:int16 Char:int8 Byte:uint8"
)
_KINDS += " Bool:bool ComplexDouble:complex128 ComplexFloat:complex64 Untyped:uint8"
STORAGES = {
    **{f"torch.{kind}Storage": dtype for kind, dtype in (each.split(":") for each in _KINDS.split())},
    "torch.storage.UntypedStorage": "uint8",
    **{f"torch.{kind}Storage": kind.lower() for kind in ("QInt8", "QUInt8", "QUInt4x2", "QUInt2x4", "QInt32")},
}
"""The dtype of each kind of storage."""


class NotSavedByTorch(ContainerError, ValueError):
    """The bytes are not what ``torch.save`` writes; says in which way."""


class Archive:
    """A file of ``torch.save`` whose directory was checked; it is read from as long as the archive is in use.

    - `pickled`: the record that is unpickled.
    - `sizes`: bytes of each record, by its name inside the archive.

    Raises NotSavedByTorch if torch did not write it; what `file` raises passes through.
    """

    def __init__(self, file: Any, size: int, max_records: int = MAX_RECORDS) -> None:
        self._file = file
        self._whole: bytes | None = None
        if size <= _AT_ONCE:
            self._whole = self._read_at(0, size)
        if self._read_at(0, min(size, len(_BEGIN))) != _BEGIN:
            raise NotSavedByTorch("it does not begin as a file of torch.save does since version 1.6")
        tail, stop = self._read_at(max(0, size - _TAIL.size), min(size, _TAIL.size)), size - _TAIL.size
        if len(tail) < _TAIL.size or tail[-_END_BYTES:][:4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
            raise NotSavedByTorch("it does not end as a file of torch.save does")
        *begin, other_count, count, length, start, sign, disk, end, disks = _TAIL.unpack(tail)
        ends = *begin, other_count, sign, disk, end, disks
        if ends != (b"PK\x06\x06", _END64_REST, 0, 0, count, b"PK\x06\x07", 0, stop, 1) or start + length != stop:
            raise NotSavedByTorch("its directory is not where torch.save puts it")
        if count > max_records or length > max_records * _DIRECTORY_EACH:
            raise NotSavedByTorch(f"its directory has {count} records and {length} bytes, which is too much")
        self._stop = start
        self.sizes: dict[str, int] = {}
        self._places: dict[str, tuple[int, int]] = {}  # where each record's header stands, and its CRC
        self._parse(self._read_at(start, length), count)
        if PICKLE not in self.sizes:
            raise NotSavedByTorch(f"it has no record {PICKLE!r}")
        if sum(self.sizes.values()) > start:
            raise NotSavedByTorch("its records overlap")
        self.pickled = self._read(PICKLE)

    def _parse(self, directory: bytes, count: int) -> None:
        folder = directory[_ENTRY.size : directory.find(b"/", _ENTRY.size) + 1]
        skipped, at = len(folder), 0
        try:
            for _ in range(count):
                entry = _ENTRY.unpack_from(directory, at)
                sign, flags, method, crc, packed, size, name_size, extra_size, note_size, place, offset = entry
                at += _ENTRY.size
                name = directory[at : at + name_size]
                at += name_size
                if extra_size:
                    size, packed, offset = _widen(directory[at : at + extra_size], size, packed, offset)
                at += extra_size + note_size
                if sign != b"PK\x01\x02" or method or flags & ~_HARMLESS_FLAGS or packed != size:
                    raise NotSavedByTorch("one of its records is compressed, which torch.save never does")
                if place:
                    raise NotSavedByTorch("one of its records is on another disk, or a folder")
                if offset + _LOCAL.size + name_size + size > self._stop:
                    raise NotSavedByTorch("one of its records reaches beyond its end")
                if not skipped or name[:skipped] != folder:
                    raise NotSavedByTorch("its records are in several folders")
                key = name[skipped:].decode("ascii")
                self.sizes[key] = size
                self._places[key] = offset, crc
        except (struct.error, UnicodeDecodeError):
            raise NotSavedByTorch("its directory is damaged") from None
        if at != len(directory):
            raise NotSavedByTorch("its directory has other records than it says")
        if len({name.lower() for name in self.sizes}) != count:  # torch looks them up without regard to case
            raise NotSavedByTorch("two of its records have one name")

    @property
    def little(self) -> bool:
        """Whether numbers in it are little-endian, as nearly always; raises as `find`."""
        order = self._read(_BYTEORDER) if _BYTEORDER in self.sizes else b"little"  # before torch 2.1 there was none
        if order not in (b"little", b"big"):
            raise NotSavedByTorch("its byte order is unknown")
        return order == b"little"

    def find(self, name: str) -> tuple[int, int]:
        """Where a record's bytes begin in the file, and their CRC-32; 0 where torch was told to write none.

        Raises NotSavedByTorch if the record is not where the directory says.
        """
        offset, crc = self._places[name]
        header = self._read_at(offset, _LOCAL.size)
        if len(header) < _LOCAL.size or header[:4] != _BEGIN:
            raise NotSavedByTorch("its directory names a record that is missing")
        _, name_size, extra_size = _LOCAL.unpack(header)
        begin: int = offset + _LOCAL.size + name_size + extra_size
        if begin + self.sizes[name] > self._stop:
            raise NotSavedByTorch("one of its records reaches beyond its end")
        return begin, crc

    def check_pickle(self) -> None:
        """Raise NotSavedByTorch if the pickle does not match its CRC-32, which tells damage from what is unusual."""
        if self.find(PICKLE)[1] not in (0, zlib.crc32(self.pickled)):
            raise NotSavedByTorch(f"its record {PICKLE!r} does not match its CRC-32")

    def check_crcs(self) -> bool:
        """Compare each record's CRC-32, which ``torch.load`` never does; whether there are any. Raises as `find`."""
        if not any(crc for _, crc in self._places.values()):
            return False
        for name, left in self.sizes.items():
            begin, expected = self.find(name)
            self._file.seek(begin)
            crc = 0
            while left and (part := self._file.read(min(left, _STEP))):
                left -= len(part)
                crc = zlib.crc32(part, crc)
            if left or crc != expected:
                raise NotSavedByTorch(f"its record {name!r:.80} does not match its CRC-32")
        return True

    def read_into(self, name: str, out: memoryview) -> None:
        """Fill `out` with a record, which has its size; raises as `find`."""
        self._file.seek(self.find(name)[0])
        done = 0
        while done < len(out):
            count = self._file.readinto(out[done:])
            if not count:
                raise NotSavedByTorch("it ends inside a record")
            done += count

    def _read(self, name: str) -> bytes:
        return self._read_at(self.find(name)[0], self.sizes[name])

    def _read_at(self, position: int, size: int) -> bytes:
        if self._whole is not None:
            return self._whole[position : position + size]
        self._file.seek(position)
        data: bytes = self._file.read(size)
        while data and len(data) < size and (part := self._file.read(size - len(data))):
            data += part
        return data


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
