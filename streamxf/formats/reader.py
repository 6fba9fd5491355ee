"""`FileReader`: a checkpoint of one or several files that store tensors uncompressed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from streamxf.budget import Budget
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import Elements, itemsize_of, strided_elements
from streamxf.checkpoint.reading import BoxReader
from streamxf.errors import ParameterError, located
from streamxf.format.items import Chunk, Item, ObjectItem, TensorItem
from streamxf.formats.contents import FOLDERS, Contents, OpenFile, Shard
from streamxf.storage.reading import OpenFiles
from streamxf.storage.storage import Storage
from streamxf.stream.reader import BareBlocks


class FileReader(BoxReader):
    """A checkpoint of files that need no decoding: safetensors, a Hugging Face folder, torch.save.

    `storage` is the folder, or the only file; `shards`, by a file's name in `Place`, are the contents of each file.
    `access` decides how objects are unpickled, and `open_file` opens a file that is not stored as it is.
    """

    def __init__(
        self,
        storage: Storage,
        contents: Contents,
        shards: Mapping[str, Shard],
        access: Access,
        open_file: OpenFile | None = None,
    ) -> None:
        self.storage = storage
        self.contents = contents
        self.shards = shards
        self.stored: Mapping[str, Item] = contents.items
        self._access = access
        self._files = OpenFiles(open_file or (lambda name: self._place(name).open()), near=storage.near)
        self._loaded: tuple[str, Any] | None = None
        self._named: dict[int, Mapping[str, Any]] = {}

    @cached_property
    def budget(self) -> Budget:
        return self._access.budget(
            sum(self._place(name).held("", self.contents.files.get(name)) for name in self.shards)
        )

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        place = chunk.place
        self.budget.spend_once(item.name, item.size, "the tensor", file=self.label(place.file), item=item.name)
        strides = self.shards[place.file].strides.get(item.name)
        source = self._files[place.file].slice(place.at, place.size)
        if strides is not None:
            return strided_elements(source, itemsize_of(item), item.shape, strides)
        return Elements(BareBlocks(source), 0, itemsize_of(item), item.shape)

    def label(self, file: str) -> str:
        return self._place(file).label()

    def load_object(self, name: str) -> Any:
        item = self.stored[name]
        if not isinstance(item, ObjectItem):
            raise ParameterError("this item is a tensor", item=name)
        file = item.place.file
        objects = self.shards[file].objects
        if name in objects:
            return objects[name]
        with located(file=self.label(file), item=name):
            if self._loaded is None or self._loaded[0] != file:
                opened = self._files[file]
                self._loaded, self._named = (file, self._access.objects.load(opened.read(), opened.size)), {}
            value = self._loaded[1]
            for step in item.path or ():
                if not isinstance(step, int) and step not in value:  # its key is no string
                    value = self._by_names(value)
                value = value[step]
            return value

    def _by_names(self, value: Mapping[Any, Any]) -> Mapping[str, Any]:
        """A dict of the file that was loaded, its keys as text."""
        if id(value) not in self._named:
            self._named[id(value)] = {str(key): each for key, each in value.items()}
        return self._named[id(value)]

    def close(self) -> None:
        self._loaded, self._named = None, {}
        self._files.close()

    def _place(self, file: str) -> Storage:
        return self.storage.child(file) if self.contents.format in FOLDERS else self.storage
