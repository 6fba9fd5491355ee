"""`Shard`: the contents of one file of a format that stores tensors uncompressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamxf.format.items import Chunk, Item, Path, Place, TensorItem


@dataclass(frozen=True)
class Shard:
    """The contents of a file.

    Attributes
    ----------
    items : dict of str to Item
        In the file's own order. A tensor has one chunk. The place of an object names its file and no more.
    strides : dict of str to tuple of int
        Of the tensors that are not stored row-major, in elements.
    objects : dict of str to Any
        The values of objects that are plain data; only torch can load the others.
    metadata : dict of str to str
        The file's own, as safetensors' ``__metadata__``.
    """

    items: dict[str, Item]
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


def whole_tensor(
    name: str, dtype: str, shape: tuple[int, ...], file: str, at: int, size: int, path: Path
) -> TensorItem:
    """A tensor that is stored in one piece: `size` bytes at `at`."""
    chunk = Chunk((0,) * len(shape), shape, Place(file, at, size, ()), framed=False)
    return TensorItem(name, dtype, shape, (chunk,), path)
