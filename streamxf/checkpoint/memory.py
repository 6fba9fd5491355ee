"""`SaveMemory`: what a process knows of its own saves, by which later ones find what has not changed since then.

Each block that is coded gets a tag, a GMAC under a key that this process has drawn and never stores or sends. Blocks
with one tag are the same bit for bit, but for one pair in 2^112, and nobody who does not know the key can look for a
pair. Copies of blocks have their tags, too, so one that is not what was saved is never taken for it.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamxf.checkpoint.datafile import FileRecord
from streamxf.errors import ParameterError
from streamxf.format.items import Chunk
from streamxf.lazy import aead

SMALL = 4096  # bytes; for less no file is linked, which would stay on the disk once the base is removed
TAG_BYTES = 16
_NONCE = bytes(12)  # one for all: tags are compared, and leave this process as little as the key does
_KEPT = 4  # saves besides the base of the last one, since several may be under way before one of them is published
Key = tuple[str, tuple[int, ...]]  # an item's name, and the offset of a shard


class Known(NamedTuple):
    """A shard that was saved: what it is, the tags of its blocks, its header's H, and where it is."""

    said: tuple[Any, ...]
    tags: bytes
    digest: bytes
    chunk: Chunk

    def __repr__(self) -> str:
        return f"Known({self.chunk!r})"  # tags, together with what they are of, would give their key away


@dataclass(frozen=True, eq=False)
class SavedPart:
    """A process's part in a save; another must have `about` alike; `records` and `marks` are those of all files."""

    save_id: str
    about: tuple[Any, ...]
    shards: Mapping[Key, Known]
    records: Mapping[str, FileRecord]
    marks: Mapping[str, Any]


class Copies:
    """Copies of blocks, by shard and number, with their tags; at most so many bytes."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._blocks: dict[tuple[Key, int], tuple[bytes, bytearray]] = {}
        self._size = 0
        self._changing = threading.Lock()

    def take(self, key: tuple[Key, int], tag: bytes) -> bytearray | None:
        """Take out the copy of a block, if it has this tag; whoever has it may change it."""
        with self._changing:
            if key not in self._blocks or not hmac.compare_digest(self._blocks[key][0], tag):
                return None
            _, block = self._blocks.pop(key)
            self._size -= len(block)
            return block

    def put(self, key: tuple[Key, int], tag: bytes, block: memoryview, beneath: memoryview) -> None:
        """Hold a copy in the place of another one, if there is room; in the memory of `beneath`, if that is a copy."""
        if self.most == 0:
            return
        into = beneath.obj
        if not isinstance(into, bytearray) or len(into) != len(block):
            into = bytearray(block)
        elif block.obj is not into:
            into[:] = block
        with self._changing:
            _, old = self._blocks.pop(key, (b"", b""))
            self._size -= len(old)
            if self.most is None or self._size + len(block) <= self.most:
                self._blocks[key] = tag, into
                self._size += len(block)

    def keep(self, shards: Mapping[Key, Any]) -> None:
        """Forget those of other shards."""
        with self._changing:
            for key in [key for key in self._blocks if key[0] not in shards]:
                self._size -= len(self._blocks.pop(key)[1])


class SaveMemory:
    """What a process knows of its own saves, by which later ones find what has not changed since.

    Whoever saves again and again holds one, and gives it to each writer: ``FileSystemWriter(path, base=last,
    memory=memory)``. For each MiB that is saved it takes some 50 bytes, for at most five saves. A pickle has nothing
    of that; in another process, such as one that saves in the background, all copies of one memory are one.

    Parameters
    ----------
    increments : bool
        Whether what has a base may be one, too. If not, only saves that store all are known, and any number of
        checkpoints on one base has the files of two saves at most.
    copies : int or None
        How many bytes of copies of tensors that change it may hold, so that a save need not read its base; None for as
        many as change. By default it holds none: a second copy of the weights may not fit.
    """

    def __init__(self, *, increments: bool = True, copies: int | None = 0) -> None:
        if type(increments) is not bool:
            raise ParameterError(f"increments={increments!r:.40}: it is True or False")
        if copies is not None and (type(copies) is not int or copies < 0):
            raise ParameterError(f"copies={copies!r:.40}: it is a number of bytes, or None for as many as change")
        self.increments = increments
        self.copies = Copies(copies)
        self._name = os.urandom(16)
        self._saves: dict[str, SavedPart] = {}  # the newest last
        self._changing = threading.Lock()
        self._cipher = aead.AESGCM(os.urandom(32))  # here, and not in the first of several workers

    def tag(self, block: memoryview) -> bytes:
        return self._cipher.encrypt(_NONCE, b"", block)

    @property
    def held(self) -> tuple[str, ...]:
        """The ids of the saves that it knows, the newest last."""
        return tuple(self._saves)

    def get(self, save_id: str) -> SavedPart | None:
        return self._saves.get(save_id)

    def add(self, part: SavedPart, base: str | None) -> None:
        """Take note of a save, which counts once it is published, and forget older ones, but not its base."""
        with self._changing:
            self._saves[part.save_id] = part
            for save_id in [save_id for save_id in self._saves if save_id != base][:-_KEPT]:
                del self._saves[save_id]
        self.copies.keep(part.shards)

    def __reduce__(self) -> Any:
        return _memory_here, (self._name, self.increments, self.copies.most)


_here: dict[bytes, SaveMemory] = {}  # those that came to this process from others


def _memory_here(name: bytes, increments: bool, copies: int | None) -> SaveMemory:
    memory = _here.setdefault(name, SaveMemory(increments=increments, copies=copies))
    memory._name = name
    return memory


def check_memory(memory: Any, base: Any) -> SaveMemory | None:
    """The argument `memory` of a writer; raises ParameterError."""
    if memory is None and base is not None:
        raise ParameterError(
            "base= goes with memory=, the SaveMemory that the writer of the base was given, too: without it nothing is "
            "known of what was saved there"
        )
    if not isinstance(memory, SaveMemory | None):
        raise ParameterError(f"memory= takes a streamxf.SaveMemory, not {type(memory).__name__}")
    return memory
