"""Files of ``torch.save`` that mean one thing to a reader that begins at the front, and another to one that begins at
the end, where a zip file has its directory.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Entry = tuple[bytes, int, int, int]  # a record's name, where its local header stands, its CRC-32 and its bytes


def saved(value: Any) -> bytes:
    """As ``torch.save`` writes it."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def old_form(value: Any) -> bytes:
    """As ``torch.save`` wrote it before version 1.6: five pickles and the storages, with no zip file around them."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def behind(front: bytes, data: bytes) -> bytes:
    """A file of ``torch.save`` with something in front of it; places in its directory are right again."""
    body, entries = take_apart(data)
    return join(front + body, [(name, at + len(front), *rest) for name, at, *rest in entries])


def redirected(data: bytes, other: Mapping[str, bytes]) -> bytes:
    """The same file up to the last of its records. For some of these its directory names others, which come behind."""
    body, entries = take_apart(data)
    for number, (name, *_) in enumerate(entries):
        content = other.get(name.partition(b"/")[2].decode())
        if content is not None:
            entries[number] = (name, len(body), zlib.crc32(content), len(content))
            body += _local(name, content)
    return join(body, entries)


def one_over_another(data: bytes, names: Sequence[str]) -> bytes:
    """The same file, whose directory has all records `names`, of one size, in the place of the first of them."""
    _, entries = take_apart(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        contents = {name: archive.read(name.decode()) for name, *_ in entries}
    places: dict[bytes, Entry] = {}
    body = b""
    for name, _, crc, size in entries:
        key = names[0].encode() if name.partition(b"/")[2].decode() in names else name
        if key not in places:
            places[key] = (name, len(body), crc, size)
            body += _local(name, contents[name])
        places[name] = (name, *places[key][1:])
    return join(body, [places[name] for name, *_ in entries])


def take_apart(data: bytes) -> tuple[bytes, list[Entry]]:
    """What stands before a zip file's directory, and what that says."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found = [(each.filename.encode(), each.header_offset, each.CRC, each.file_size) for each in archive.infolist()]
        return data[: archive.start_dir], found


def _local(name: bytes, content: bytes) -> bytes:
    size = len(content)
    facts = (0, 0, 0, 0, 0, zlib.crc32(content), size, size, len(name), 0)
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *facts) + name + content


def join(body: bytes, entries: Sequence[Entry]) -> bytes:
    """The zip file with such a directory."""
    directory = b""
    for name, at, crc, size in entries:
        facts = (0, 0, 0, 0, 0, 0, crc, size, size, len(name), 0, 0, 0, 0, 0, at)
        directory += struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *facts) + name
    start, length, count = len(body), len(directory), len(entries)
    return b"".join(
        (
            body,
            directory,
            struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 0, 0, 0, count, count, length, start),
            struct.pack("<4sIQI", b"PK\x06\x07", 0, start + length, 1),
            struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, length, start, 0),
        )
    )
