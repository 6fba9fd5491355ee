"""``.safetensors`` files: an eight-byte length, a header in JSON, and the tensors' bytes one after the other."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import IO, Any

from streamxf.descriptor import shorten
from streamxf.errors import ContainerError, UnsupportedError
from streamxf.formats.contents import Entry, Part
from streamxf.formats.dtypes import SAFETENSORS, TWO_IN_ONE
from streamxf.formats.location import Location
from streamxf.proportion import check_head

LENGTH_BYTES = 8
MAX_HEADER = 100_000_000
"""Bytes, as in the safetensors library."""

_METADATA = "__metadata__"
_MAX_INT = 2**63 - 1
_MAX_NDIM = 64
_BYTES_EACH = 12  # a tensor's entry has three lists and tables in more than forty; parsed, each takes sixty and more


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes
    ----------
    data : bytes
        The header's bytes, without its length.
    entries : dict of str to Entry
        In the order of the header.
    metadata : dict of str to str
    """

    data: bytes
    entries: dict[str, Entry]
    metadata: dict[str, str]


def looks_like_one(beginning: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that begins so can be one."""
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    return len(beginning) > LENGTH_BYTES and length <= size - LENGTH_BYTES and beginning[LENGTH_BYTES:][:1] == b"{"


def read_header(file: IO[bytes], size: int, name: str) -> Header:
    """Read and check a file's header.

    Parameters
    ----------
    file : binary file
        Read from its beginning.
    size : int
        Bytes of the file.
    name : str
        The file's name in `Part`.

    Raises
    ------
    ContainerError
        If it breaks a rule of the format; names the tensor where that is one's fault.
    UnsupportedError
        If a tensor has a dtype that torch does not know.
    """
    length = int.from_bytes(_read(file, LENGTH_BYTES), "little")
    if size < LENGTH_BYTES:
        raise ContainerError(f"the file has {size} bytes; a safetensors file has at least {LENGTH_BYTES}: it was cut")
    if length > MAX_HEADER:
        raise ContainerError(
            f"the header has {length} bytes, as the file says; the format allows {MAX_HEADER}: the file is damaged, or "
            "no safetensors file"
        )
    start = LENGTH_BYTES + length
    if start > size:
        raise ContainerError(f"the file has {size} bytes, and its header alone would take {start}: it was cut")
    check_head(file, size, length, ContainerError)
    data = _read(file, length)
    if len(data) < length:
        raise ContainerError("the file ends within its header: it was cut")
    content = parse(data)
    metadata = _checked_metadata(content.pop(_METADATA, None))
    entries: dict[str, Entry] = {}
    for tensor, facts in content.items():
        try:
            entries[tensor] = _entry(tensor, facts, name, start)
        except (ContainerError, UnsupportedError) as error:
            raise error.locate(item=shorten(tensor)) from None
    _check_cover(entries, start, size)
    return Header(data, entries, metadata)


def _read(file: IO[bytes], size: int) -> bytes:
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def parse(data: bytes) -> dict[str, Any]:
    """What stands in a header, by tensor, besides ``__metadata__``; none of it is checked.

    Raises
    ------
    ContainerError
        If it is no JSON, or takes more memory than a header's should.
    """
    if len(data) > MAX_HEADER:
        raise ContainerError(f"the header has {len(data)} bytes; the format allows {MAX_HEADER}")
    if not data.startswith(b"{"):
        raise ContainerError("the header does not begin with '{', as every safetensors file's does")
    if data.count(b"{") + data.count(b"[") > 16 + len(data) // _BYTES_EACH:
        raise ContainerError("the header has more lists and tables than tensors explain; it was not read")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ContainerError("the header is nested deeper than any safetensors file's") from None
    except ValueError as error:
        raise ContainerError(f"the header is not JSON: {error}") from None
    assert isinstance(content, dict)  # it begins with '{'
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ContainerError(f"{shorten(twice)!r} stands in the header twice")
    return made


def _checked_metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ContainerError(f"the header's {_METADATA!r} is no table of texts")
    return value


def _entry(tensor: str, facts: Any, file: str, start: int) -> Entry:
    if not isinstance(facts, dict) or not {"dtype", "shape", "data_offsets"} <= facts.keys():
        raise ContainerError("the header's entry has not the dtype, the shape and the data_offsets of a tensor")
    if not tensor.isascii() and tensor != tensor.encode("utf-8", "replace").decode("utf-8"):
        raise ContainerError("the tensor's name is no text")
    dtype, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
    if isinstance(shape, list) and len(shape) > _MAX_NDIM:
        raise UnsupportedError(f"the tensor has {len(shape):,} dimensions; torch has at most {_MAX_NDIM}")
    if not _are_sizes(shape):
        raise ContainerError(f"the shape {shorten(str(shape))} is no list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ContainerError(f"the data_offsets {shorten(str(offsets))} are not where a tensor begins and ends")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise UnsupportedError(f"the dtype {shorten(str(dtype))!r} is none that torch knows")
    name, itemsize = SAFETENSORS[dtype]
    if dtype == TWO_IN_ONE:
        if not shape or shape[-1] % 2:
            raise ContainerError(
                f"the shape {shape} has an odd last dimension, and {dtype} keeps two elements in a byte"
            )
        shape = [*shape[:-1], shape[-1] // 2]
    nbytes = math.prod(shape) * itemsize
    begin, end = offsets
    if nbytes != end - begin:
        raise ContainerError(f"the tensor has {end - begin} bytes in the file, its dtype and shape give {nbytes}")
    sizes = tuple(shape)
    part = Part((0,) * len(sizes), sizes, file, start + begin, nbytes)
    return Entry(tensor, name, sizes, nbytes, (part,))


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= _MAX_INT for size in value)


def _check_cover(entries: dict[str, Entry], start: int, size: int) -> None:
    """Check that the tensors' bytes are the rest of the file: without holes, where something could hide, and without
    overlaps.
    """
    at, last = start, "the header"
    parts = sorted((entry.parts[0].start, entry.parts[0].stored_bytes, name) for name, entry in entries.items())
    for begin, length, name in parts:
        if begin != at:
            what = "overlap" if begin < at else "leave a hole behind"
            raise ContainerError(f"the tensor's bytes {what} those of {last}", item=shorten(name))
        at, last = begin + length, shorten(repr(name))
    if at > size:
        raise ContainerError(f"the file has {size} bytes, its tensors end at {at}: it was cut")
    if at < size:
        raise ContainerError(
            f"{size - at} bytes follow the last tensor: the file was continued, or its header is wrong"
        )


def read(location: Location, name: str, *, alone: bool) -> Header:
    """Read a file's header.

    Parameters
    ----------
    location : Location
        Of the file, or of the folder that it is in.
    name : str
        The file's name.
    alone : bool
        Whether `location` is that of the file.

    Raises
    ------
    ContainerError, UnsupportedError
        As `read_header`.
    """
    inside = "" if alone else name
    size = location.size(inside)
    if size is None:
        raise ContainerError("this is no file")
    with location.open(inside) as file:
        return read_header(file, size, name)
