"""`TorchFile`; and what ``torch.save`` wrote before version 1.6: pickles in a row, and behind them tensors' storages.

There is no directory, and no length before a pickle. So each is followed to its end, and what it says of storages has
to fill the rest of the file, to the last byte, before any of them is read.
"""

from __future__ import annotations

from typing import Any

from streamxf.storage.reading import StoredFile
from streamxf.torchsave.archive import PICKLE, Archive, NotSavedByTorch
from streamxf.torchsave.calls import StorageRef, StoredTensor, find_storage, itemsize_in
from streamxf.torchsave.check import Outline, read_outline
from streamxf.torchsave.unpickler import Foreign, Name

MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # a pickle of a number, by which torch.load knows such files
_VERSION = b"\x80\x02M\xe9\x03."
_HEAD = 2**20  # bytes in which the pickles are looked for first
_COUNT = 8  # bytes before each storage: the number of its elements


class _Declared(Outline):
    """A pickle that alone says which storages there are: their sizes are added to `sizes`."""

    def persistent_load(self, reference: Any) -> StorageRef | Name:
        fields = reference if type(reference) is tuple else ()
        if len(fields) == 4 and fields[0] == "module" and type(fields[1]) is Name:
            return fields[1]  # a class, with the text of its source
        return find_storage(self.sizes, self.kinds, reference, declared=True)


class Legacy(Archive):
    """A file of ``torch.save`` in its form before version 1.6, with what an `Archive` has; no record has a CRC-32.

    - `root`: as `read_outline` gives it.

    Raises NotSavedByTorch if torch did not write it, or it was truncated, and ContainerError if it is hardly stored.
    """

    def __init__(self, file: StoredFile) -> None:
        self._file, self._whole = file.raw, None
        length, size = 0, file.size
        while True:
            length = min(size, max(_HEAD, 4 * length))
            file.check_whole(length)
            self._head, self._at = self._read_at(0, length), len(MAGIC + _VERSION)
            try:
                kinds, keys = self._follow()
                break
            except NotSavedByTorch:
                if length == size or self._at < length:  # it does not go on behind what was read
                    raise
        self._head = b""
        self._place(keys, kinds, size)

    def _follow(self) -> tuple[dict[str, str], Any]:
        """The kinds of all storages, and their keys in the order in which they stand behind the pickles."""
        if not self._head.startswith(MAGIC + _VERSION):
            raise NotSavedByTorch("it begins with another version than torch.save ever wrote")
        self._next(Outline(self._head, {}, len(self._head)))  # about the machine, which changes nothing
        begin, declared = self._at, _Declared(self._head, {}, len(self._head))
        self.root, self.sizes = self._next(declared), declared.sizes
        self.pickled, self._places = self._head[begin : self._at], {PICKLE: (begin, 0)}
        return declared.kinds, self._next(Outline(self._head, {}, len(self._head)))

    def _next(self, unpickler: Outline) -> Any:
        try:
            return unpickler.load(self._at)
        finally:
            self._at = unpickler.position

    def _place(self, keys: Any, kinds: dict[str, str], size: int) -> None:
        keys = keys if type(keys) is list and all(type(key) is str for key in keys) else []
        if sorted(keys) != sorted(kinds):
            raise NotSavedByTorch("its list of storages is not that of its pickle")
        at = self._at
        self._counts: dict[str, int] = {}
        for key in keys:
            name = f"data/{key}"
            self._places[name] = at + _COUNT, 0
            self._counts[name] = self.sizes[name] // itemsize_in(kinds[key])
            at += _COUNT + self.sizes[name]
        if at != size:
            what = "it was truncated" if at > size else "something was appended to it, or a storage is damaged"
            raise NotSavedByTorch(f"its pickle says that it has {at} bytes, and it has {size}: {what}")

    @property
    def little(self) -> bool:
        return True  # whatever the machine

    def find(self, name: str) -> tuple[int, int]:
        begin, crc = self._places[name]
        count = self._counts.get(name)  # the pickle has none
        if count is not None and self._read_at(begin - _COUNT, _COUNT) != count.to_bytes(_COUNT, "little"):
            raise NotSavedByTorch("the number of a storage's elements before them is not that in its pickle")
        return begin, crc


class TorchFile:
    """A file of ``torch.save``, in either of its forms. Any call raises ContainerError if torch did not write it so.

    - `sizes`: bytes of each record in it, by name; `pickled`: the record that is unpickled.
    - `little`: whether its numbers are little-endian.
    """

    def __init__(self, file: StoredFile) -> None:
        is_old = file.read(0, min(file.size, len(MAGIC))) == MAGIC
        self.archive = Legacy(file) if is_old else Archive(file.raw, file.size, 2**20)  # storages, and a few more
        self.sizes, self.pickled, self.little = self.archive.sizes, self.archive.pickled, self.archive.little

    def find(self, record: str) -> tuple[int, int]:
        """Where a record's bytes begin in the file, and their CRC-32; 0 where torch was told to write none."""
        return self.archive.find(record)

    def outline(self) -> Any:
        """What is pickled: lists, tuples, dicts, plain values, and what `tensor`, `record` and `foreign` tell apart."""
        return self.archive.root if isinstance(self.archive, Legacy) else read_outline(self.pickled, self.sizes)

    @staticmethod
    def tensor(value: object) -> StoredTensor | None:
        """A plain tensor: its `dtype`, `shape`, `strides`, and its `extent`, from `start` in its record on."""
        return value if isinstance(value, StoredTensor) else None

    @staticmethod
    def record(value: object) -> str:
        """The record in which a tensor or a storage lies; "" for anything else."""
        return value.record if isinstance(value, StoredTensor | StorageRef) else ""

    @staticmethod
    def foreign(value: object) -> tuple[str, list[object]] | None:
        """What only its class can make: the name of that class, or of a function, and the parts that go into it."""
        return (value.name, value.parts) if isinstance(value, Foreign) else None
