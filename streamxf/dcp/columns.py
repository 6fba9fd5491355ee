"""What ranks send each other, made into objects where somebody looks at it."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from torch.distributed.checkpoint.planner import ReadItem

from streamxf.cached import cached_property
from streamxf.codecs import zstd

T = TypeVar("T")


def packed(data: bytes) -> bytes:
    return zstd.compressor(1).compress(data)


def _unpacked(data: bytes) -> bytes:
    return zstd.decompress(memoryview(data), zstd.declared_size(memoryview(data)))


class LazyItems(Sequence[T]):
    """Items that are made when one is asked for."""

    @abstractmethod
    def _made(self) -> list[T]:
        """Make them."""

    @cached_property
    def _items(self) -> list[T]:
        return self._made()

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]


class ReadItems(LazyItems[ReadItem]):
    """What a rank reads, which no other looks at: for others it stays as it was sent."""

    def __init__(self, items: Sequence[ReadItem] | bytes) -> None:
        self._sent = items if isinstance(items, bytes) else b""
        if not isinstance(items, bytes):
            self._items = [*items]

    def _made(self) -> list[ReadItem]:
        made: list[ReadItem] = pickle.loads(_unpacked(self._sent))
        return made

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> Any:
        changed = "_items" in vars(self)  # perhaps: whoever looked at them may have changed one
        return ReadItems, (packed(pickle.dumps(self._items)) if changed else self._sent,)
