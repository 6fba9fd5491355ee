"""`Job`: items that are to be written under one metadata file, and how they are shared out among data files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem

from streamxf.dcp.extensions import Extensions
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.version import __version__

FILE_SIZE = 256 * 2**20
"""Bytes of items, before the chain, that go into one data file: what a killed process has to do again."""

MAX_FILES = 128
_MAX_ORIGINS = 32  # files that are open at a time for one data file

Resolve = Callable[[WriteItem], Any]


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be written.

    Attributes
    ----------
    write : WriteItem
    size : int
        Its bytes before the chain, more or less.
    file : str
        Where it comes from.
    """

    write: WriteItem
    size: int
    file: str

    @classmethod
    def of_tensor(cls, write: WriteItem, file: str) -> Item:
        """A tensor or a shard."""
        return cls(write, planned_bytes(write), file)


@dataclass(frozen=True)
class Job:
    """Items and the metadata that will name them.

    Attributes
    ----------
    metadata : Metadata
        Without places.
    items : sequence of Item
        In the order in which they are best read.
    rank : int or None
        Whose metadata it is; None for that of all ranks.
    identity : str
        Of the source's bytes, as far as it can be told without reading them.
    opened : callable
        Gives a context in which the data of some items can be had, until it ends.
    before_publish : callable or None
        As in `Save`.
    """

    metadata: Metadata
    items: Sequence[Item]
    rank: int | None
    identity: str
    opened: Callable[[Sequence[Item]], AbstractContextManager[Resolve]]
    before_publish: Callable[[], None] | None = None

    def files(self, size: int) -> list[list[Item]]:
        """The items of each data file: about `size` bytes, and more where there would be too many files.

        Where nothing has changed, the same items come together again.
        """
        size = max(size, sum(item.size for item in self.items) // MAX_FILES)
        files: list[list[Item]] = []
        filled, origins = 0, set[str]()
        for item in self.items:
            full = filled + item.size > size and filled
            if not files or full or len(origins | {item.file}) > _MAX_ORIGINS:
                files.append([])
                filled, origins = 0, set()
            files[-1].append(item)
            filled += item.size
            origins.add(item.file)
        return files

    def id(self, extensions: Extensions, block_log2: int, file_size: int) -> str:
        """By which what is finished of the same job is known again, 32 hexadecimal digits."""
        facts = [
            __version__,
            self.identity,
            self.rank,
            str(extensions.chain),
            extensions.summary(),
            block_log2,
            file_size,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
