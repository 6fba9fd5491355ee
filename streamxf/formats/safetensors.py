"""``.safetensors`` files: an eight-byte length, a header in JSON, and the tensors' bytes one after the other."""

from __future__ import annotations

from typing import Any

from streamxf.budget import check_head
from streamxf.buffers import collector_paused
from streamxf.checkpoint.bare import LENGTH_BYTES, MAX_HEADER, METADATA, SLICES, parse_header
from streamxf.errors import ContainerError, UnsupportedError, shorten
from streamxf.format.items import elements_size
from streamxf.format.limits import MAX_INT
from streamxf.formats.contents import Shard, whole_tensor
from streamxf.reading import StoredFile, TensorItem

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F4": "float4_e2m1fn_x2", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Torch's name for each dtype of a safetensors file."""

TWO_IN_ONE = "F4"  # the dtype of which an element of torch's has two


def looks_like_one(beginning: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that begins so can be a safetensors file."""
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    return length <= size - LENGTH_BYTES and beginning[LENGTH_BYTES:][:1] == b"{"


@collector_paused()
def read(file: StoredFile, name: str) -> Shard:
    """Read and check a file's header; `name` is the file's in `Place`.

    Raises ContainerError if it breaks a rule of the format, and UnsupportedError for a dtype that torch does not know.
    """
    if file.size < LENGTH_BYTES:
        raise ContainerError(
            f"the file has {file.size} bytes; a safetensors file has at least {LENGTH_BYTES}: it was cut"
        )
    length = int.from_bytes(file.read(0, LENGTH_BYTES), "little")
    if length > MAX_HEADER:
        raise ContainerError(
            f"the header has {length} bytes, as the file says; the format allows {MAX_HEADER}: the file is damaged, or "
            "not a safetensors file"
        )
    start = LENGTH_BYTES + length
    if start > file.size:
        raise ContainerError(f"the file has {file.size} bytes, and its header alone would take {start}: it was cut")
    check_head(file.raw, file.size, length, ContainerError)
    content = parse_header(file.read(LENGTH_BYTES, length))
    metadata = content.pop(METADATA, None)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ContainerError(f"the header's {METADATA!r} is not an object of strings")
    tensors: dict[str, TensorItem] = {}
    for tensor, facts in content.items():
        try:
            tensors[tensor] = _tensor(tensor, facts, name, start)
        except (ContainerError, UnsupportedError) as error:
            raise error.locate(item=shorten(tensor)) from None
    _check_cover(tensors, start, file.size)
    return Shard({**tensors}, metadata=metadata, offsets=_offsets(metadata, tensors))


def _tensor(name: str, facts: Any, file: str, start: int) -> TensorItem:
    if not isinstance(facts, dict) or not {"dtype", "shape", "data_offsets"} <= facts.keys():
        raise ContainerError("the header's entry does not have the dtype, the shape and the data_offsets of a tensor")
    if not is_text(name):
        raise ContainerError("the tensor's name is not valid Unicode")
    dtype, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
    if not _are_sizes(shape):
        raise ContainerError(f"the shape {shorten(str(shape))} is not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ContainerError(f"the data_offsets {shorten(str(offsets))} are not where a tensor begins and ends")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsupportedError(f"torch has no dtype {shorten(str(dtype))!r}")
    if dtype == TWO_IN_ONE:
        if not shape or shape[-1] % 2:
            raise ContainerError(
                f"the shape {shape} has an odd last dimension, and {dtype} keeps two elements in a byte"
            )
        shape = [*shape[:-1], shape[-1] // 2]
    size = elements_size(DTYPES[dtype], shape)
    begin, end = offsets
    if size != end - begin:
        raise ContainerError(f"the tensor has {end - begin} bytes in the file, its dtype and shape give {size}")
    return whole_tensor(name, DTYPES[dtype], tuple(shape), file, start + begin, size, (name,))


def _offsets(metadata: dict[str, str], tensors: dict[str, TensorItem]) -> dict[str, tuple[int, ...]]:
    """Where the slices of tensors belong, by what DCP notes of them; empty if it wrote none."""
    if SLICES not in metadata:
        return {}
    noted = parse_header(metadata.pop(SLICES).encode("utf-8"))
    offsets: dict[str, tuple[int, ...]] = {}
    for name, item in tensors.items():
        facts = noted.get(name)
        offset: Any = facts.get("saved_offsets") if isinstance(facts, dict) else None
        if not _are_sizes(offset) or len(offset) != len(item.shape):
            raise ContainerError(f"the header's {SLICES!r} does not say where the slice belongs", item=shorten(name))
        offsets[name] = tuple(offset)
    return offsets


def is_text(name: str) -> bool:
    """Whether a name is valid Unicode."""
    return name.isascii() or name == name.encode("utf-8", "replace").decode("utf-8")


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= MAX_INT for size in value)


def _check_cover(tensors: dict[str, TensorItem], start: int, size: int) -> None:
    """Check that tensors fill the rest of the file, without overlaps, or holes where something could hide."""
    at, last = start, "the header"
    places = sorted((item.chunks[0].place.at, item.chunks[0].place.size, name) for name, item in tensors.items())
    for begin, length, name in places:
        if begin != at:
            what = "overlap" if begin < at else "leave a hole behind"
            raise ContainerError(f"the tensor's bytes {what} those of {last}", item=shorten(name))
        at, last = begin + length, shorten(repr(name))
    if at > size:
        raise ContainerError(f"the file has {size} bytes, its tensors end at {at}: it was cut")
    if at < size:
        raise ContainerError(
            f"{size - at} bytes follow the last tensor: data was appended to the file, or its header is wrong"
        )
