"""What ``torch.save`` writes, without torch: the archive around tensors' elements, the pickle of a tensor, and objects.

An archive is records one after the other and their directory. Where the elements of tensors belong it has gaps, so
that they need not be in memory. Their CRC-32 stands behind them and in the directory, at places that `torch_file`
names; the frame of a single tensor can do without any, as torch writes none when it is told to leave them out.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from streamxf.errors import UnsupportedError
from streamxf.format.items import ITEMSIZES, TensorItem, contiguous_strides, elements_size
from streamxf.format.limits import MAX_RAW_SIZE
from streamxf.torch_private import untyped_storage
from streamxf.torchsave.archive import STORAGES

PROTOCOL = 2  # of the pickles that torch writes
_ALIGNMENT = 64  # of a record's bytes in the file, which may be mapped into memory
_FRAMES_KEPT = 1024  # of 1 KiB; a model has far fewer geometries than tensors
_LARGE = 0xFFFFFFFF  # what does not fit below stands in an extra field
_FLAGS = 0x0808  # sizes and CRC-32 follow the record; its name is UTF-8
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4sQ2H2I4Q4sIQI4s4H2IH")  # in both forms, with the locator between them
TYPED = {dtype: name.removeprefix("torch.") for name, dtype in STORAGES.items() if "Untyped" not in name}
"""Classes of storages that torch names in pickles, by their dtypes."""


class _Archive:
    """Collects the bytes of an archive; `parts` are what stands between its gaps, and `crcs_at` says where in all of
    them each record has its CRC-32: behind it, and in the directory once that is finished.
    """

    def __init__(self) -> None:
        self.parts = [bytearray()]
        self.crcs_at: list[tuple[int, int]] = []
        self._at = self._gaps = 0
        self._directory = bytearray()

    def add(self, name: str, data: bytes, crc: int) -> None:
        self._begin(name, len(data))
        self._write(data)
        self._end(name, len(data), crc)

    def skip(self, name: str, size: int, crc: int) -> None:
        """Leave a gap of `size` bytes for a record; without any there is no gap."""
        self._begin(name, size)
        if size:
            self.parts.append(bytearray())
            self._at += size
            self._gaps += size
        self._end(name, size, crc)

    def finish(self) -> list[bytes]:
        start, size, count = self._at, len(self._directory), len(self.crcs_at)
        self.crcs_at = [(behind, start - self._gaps + listed) for behind, listed in self.crcs_at]
        few = min(count, 0xFFFF)
        self._write(self._directory)
        wide = b"PK\x06\x06", 44, 0, 45, 0, 0, count, count, size, start, b"PK\x06\x07", 0, start + size, 1
        self._write(_END.pack(*wide, b"PK\x05\x06", 0, 0, few, few, min(size, _LARGE), min(start, _LARGE), 0))
        return list(map(bytes, self.parts))

    def _begin(self, name: str, size: int) -> None:
        """Write a record's header, padded so that what follows is aligned."""
        self._offset, path = self._at, _path(name)
        extra = struct.pack("<2H2Q", 1, 16, 0, 0) if size >= _LARGE else b""
        room = -(self._at + _LOCAL.size + len(path) + len(extra) + 4) % _ALIGNMENT
        extra += struct.pack("<2sH", b"FB", room) + b"Z" * room
        shown = _LARGE if size >= _LARGE else 0
        fields = b"PK\x03\x04", 0, _FLAGS, 0, 0, 0, 0, shown, shown, len(path), len(extra)
        self._write(_LOCAL.pack(*fields) + path + extra)

    def _end(self, name: str, size: int, crc: int) -> None:
        path, large = _path(name), size >= _LARGE
        self.crcs_at.append((self._at - self._gaps + 4, len(self._directory) + 16))
        self._write(struct.pack("<4sI2Q" if large else "<4s3I", b"PK\x07\x08", crc, size, size))
        wide = [size, size] * large + [self._offset] * (self._offset >= _LARGE)
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        sizes = min(size, _LARGE), min(size, _LARGE), len(path), len(extra), 0, 0, 0, 0, min(self._offset, _LARGE)
        self._directory += _ENTRY.pack(b"PK\x01\x02", 0, 0, _FLAGS, 0, 0, 0, crc, *sizes) + path + extra

    def _write(self, data: bytes | bytearray) -> None:
        self.parts[-1] += data
        self._at += len(data)


def _path(name: str) -> bytes:
    return f"archive/{name}".encode("ascii")


def archive(pickled: bytes, sizes: Sequence[int] = (), crcs: Sequence[int] | None = ()) -> list[bytes]:
    """What stands around the elements of storages of `sizes` bytes in a file of ``torch.save`` with that pickle: one
    piece more than there are storages with elements. Without `crcs`, those of the storages, no record has a CRC-32.
    """
    return _archived(pickled, sizes, crcs).finish()


def _archived(pickled: bytes, storages: Sequence[int | bytes], crcs: Sequence[int] | None) -> _Archive:
    """The same, to be finished; what a storage holds can be given instead of its size."""
    size = sum(each if isinstance(each, int) else len(each) for each in storages)
    if size >= MAX_RAW_SIZE:
        raise UnsupportedError(f"torch.save file of {size:,} bytes not written: the limit is {MAX_RAW_SIZE:,}")
    made = _Archive()
    for name, data in ("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n"):
        if name == "version":
            for number, storage in enumerate(storages):
                crc = crcs[number] if crcs is not None else 0
                if isinstance(storage, int):
                    made.skip(f"data/{number}", storage, crc)
                else:
                    made.add(f"data/{number}", storage, crc)
        made.add(name, data, zlib.crc32(data) if crcs is not None else 0)
    return made


@lru_cache(_FRAMES_KEPT)
def frame_of(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What stands before and after the elements of a plain contiguous tensor, without any CRC-32. Raises
    UnsupportedError for a dtype whose elements have no size.
    """
    return _frame(dtype, shape, None)


@lru_cache(_FRAMES_KEPT)
def prefix_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What stands before elements whose CRC-32 will be known behind them; raises as `frame_of`."""
    return _frame(dtype, shape, [0])[0]


def suffix_of(dtype: str, shape: tuple[int, ...], crc: int) -> bytes:
    """What follows them then."""
    return _frame(dtype, shape, [crc])[1]


def _frame(dtype: str, shape: tuple[int, ...], crcs: Sequence[int] | None) -> tuple[bytes, bytes]:
    if dtype not in ITEMSIZES:
        raise UnsupportedError(f"elements of {dtype} cannot be copied one by one")
    before, *after = archive(b"\x80\x02" + _tensor(dtype, shape, 0) + b".", [elements_size(dtype, shape)], crcs)
    return before, b"".join(after)


def _tensor(dtype: str, shape: tuple[int, ...], record: int) -> bytes:
    """What puts a contiguous tensor on the stack, the elements of which are in the storage of that number."""
    typed = dtype in TYPED
    count = elements_size(dtype, shape) // (ITEMSIZES[dtype] if typed else 1)
    kind = named("torch", TYPED[dtype]) if typed else named("torch.storage", "UntypedStorage")
    storage = b"(" + plain("storage") + kind + plain(str(record)) + plain("cpu") + plain(count) + b"tQ"
    place = plain(0) + plain(shape) + plain(contiguous_strides(shape)) + plain(False)
    hooks = named("collections", "OrderedDict") + b")R"
    dtypes = b"" if typed else named("torch", dtype)
    call = named("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
    return call + b"(" + storage + place + hooks + dtypes + b"tR"


def torch_file(
    tree: Any, tensors: Mapping[str, TensorItem], objects: Mapping[str, Any]
) -> tuple[list[bytes | str], dict[str, tuple[int, int]]]:
    """A file of ``torch.save``, with tensors' names in the place of their elements; and by these names, the two places
    in its bytes without these elements where their CRC-32 goes, 4 bytes that are 0. `tree` is dicts and lists of names
    of tensors and objects, and None; torch's storages in objects become records. Raises what pickling raises.
    """
    records: list[Any] = []

    def opcodes(content: Any) -> bytes:
        if isinstance(content, str) and content in tensors:
            records.append(content)
            return _tensor(tensors[content].dtype, tensors[content].shape, len(records) - 1)
        if content is None:  # a place of a list that has nothing
            return b"N"
        if isinstance(content, str):
            sink = io.BytesIO()
            _Pickler(sink, records).dump(objects[content])
            return sink.getvalue()[2:-1]  # each has a memo of its own, and may reuse the numbers of those before
        if isinstance(content, list):
            return b"](" + b"".join(map(opcodes, content)) + b"e"
        return b"}(" + b"".join(plain(key) + opcodes(each) for key, each in content.items()) + b"u"

    pickled = b"\x80\x02" + opcodes(tree) + b"."
    storages = [tensors[each].size if isinstance(each, str) else bytes(each.cpu()) for each in records]
    made = _archived(pickled, storages, [0 if isinstance(each, int) else zlib.crc32(each) for each in storages])
    pieces = made.finish()
    parts: list[bytes | str] = [pieces[0]]
    names = [each for each, size in zip(records, storages, strict=True) if size and isinstance(each, str)]
    for name, piece in zip(names, pieces[1:], strict=True):
        parts += [name, piece]
    places = zip(records, made.crcs_at[2:], strict=False)  # of the pickle, byteorder, the storages, version
    return parts, {each: at for each, at in places if isinstance(each, str)}


def saved(value: Any) -> bytes:
    """What ``torch.save`` writes for an object; raises what pickling raises."""
    return b"".join(part for part in torch_file("", {}, {"": value})[0] if isinstance(part, bytes))


class Saved:
    """Stands for an object: `saved` is what ``torch.save`` wrote, or None; `alike` what `alike_pickle` gave, and
    `packed` what `pack_value` did.
    """

    saved: bytes | None = None
    packed: bytes | None = None
    alike = b""
    made: Any  # gives the object itself


def saved_plain(value: Any) -> bytes | None:
    """As `saved`, of an object without tensors, or one that was saved; None for any other."""
    if isinstance(value, Saved) and value.saved is not None:
        return value.saved
    sink, records = io.BytesIO(), list[Any]()
    _Pickler(sink, records).dump(value)
    return None if records else archive(sink.getvalue())[0]


def alike_pickle(value: Any) -> bytes:
    """What is alike for equal objects, whichever of their parts are one object; b"" for what has sets, whose order
    differs by process, or tensors. Raises ValueError for cycles, and whatever the object's own code raises.
    """
    if isinstance(value, Saved):
        return value.alike
    sink, records = io.BytesIO(), list[Any]()
    pickler = _Pickler(sink, records)
    pickler.fast = True  # without a memo
    pickler.dump(value)
    data = sink.getvalue()
    return b"" if records or b"set\n" in data else data


class _Pickler(pickle.Pickler):
    """Leaves storages out, as torch does, and adds them to `records`."""

    def __init__(self, sink: io.BytesIO, records: list[Any]) -> None:
        super().__init__(sink, PROTOCOL)
        self._records = records
        self._known: dict[int, str] = {}  # of storages with elements, by address

    def persistent_id(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.UntypedStorage | torch.TypedStorage):
            return None
        storage, kind, itemsize = value, torch.UntypedStorage, 1
        if isinstance(value, torch.TypedStorage):
            storage, name = untyped_storage(value), str(value.dtype).removeprefix("torch.")
            kind, itemsize = getattr(torch, TYPED[name]), value.dtype.itemsize
        number = self._known.get(storage.data_ptr()) if storage.nbytes() else None
        if number is None:
            number = self._known[storage.data_ptr()] = str(len(self._records))
            self._records.append(storage)
        return "storage", kind, number, torch.serialization.location_tag(storage), storage.nbytes() // itemsize


def named(module: str, name: str) -> bytes:
    """The opcode that asks for a class or a function."""
    return f"c{module}\n{name}\n".encode("ascii")


def plain(value: Any) -> bytes:
    """The opcodes, of protocol 3 at most, that put plain data on the stack. Nothing is memorized."""
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, 3)
    pickler.fast = True
    pickler.dump(value)
    return sink.getvalue()[2:-1]
