"""`Damage`: something of a checkpoint that is not as it was saved, or could not be read, and where."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from streamxf import errors
from streamxf.errors import StreamxfError, escaped, shorten
from streamxf.places import Storage

CALLERS = *errors.NOT_AT_HAND, errors.KeyMissingError, errors.KeyServiceError, errors.PolicyError, errors.WrongKeyError
"""Errors that have nothing to do with an item: the caller can mend them, and then all items can be read."""

UNKNOWN_RANKS = "how many ranks there were, each with its own metadata, and whether all are of one save"
"""The check that needs the ids of the saves, where each rank has its own metadata."""

_TEXT = 600  # characters of a message, which may quote a damaged file


def is_unread(error: BaseException) -> bool:
    """Whether a storage failed, or has a pointer alone, which says nothing of contents; a bad sector's are lost."""
    lost = errors.is_damage(error) or getattr(error, "errno", None) == errno.EIO
    return isinstance(error, OSError | errors.ForeignError | errors.NotFetchedError) and not lost


@dataclass(frozen=True)
class Damage:
    """One place that is damaged, was altered, or could not be read.

    - `file`: the file's path, which `verify` gives relative to the checkpoint; None for several files, or none.
    - `item`: the item's name in the state dict; None if it concerns the file.
    - `offset`, `size`: where the item's shard begins in its tensor, and the size of one that `salvage` lost.
    - `block`, `last_block`: the ends of a run of blocks with the same error, from 0; None if it concerns the item.
    - `error`: the class of `streamxf.errors` that a reader would raise, or of another error.
    - `message`: the error's message, without the place.
    - `unread`: whether the storage did not give it, which says nothing of what is stored: it is in a report's `unread`.
    """

    file: str | None
    item: str | None
    offset: tuple[int, ...] | None
    size: tuple[int, ...] | None
    block: int | None
    last_block: int | None
    error: str
    message: str
    unread: bool = False

    @classmethod
    def of(
        cls,
        error: BaseException,
        item: str | None = None,
        file: str | None = None,
        offset: tuple[int, ...] | None = None,
        size: tuple[int, ...] | None = None,
        block: int | None = None,
    ) -> Damage:
        """Record an error; its own place counts where none is given, and of a container beneath that one is named."""
        text = str(error)
        if isinstance(error, StreamxfError):
            beneath = file is not None and error.file not in (None, file)
            text = f"beneath, in {error.file}: {error.message}" if beneath else error.message
            file, item = file or error.file, error.item if item is None else item
            block = error.block if block is None else block
        kind, text = type(error).__name__, shorten(text, _TEXT)
        return cls(file, item, offset, size, block, block, kind, text, is_unread(error))

    @property
    def part(self) -> str:
        """The item, or its shard, for people."""
        at = f" at {list(self.offset)}" if self.offset else ""
        return f"{shorten(self.item or '', 200)}{at}" + (f" of size {list(self.size)}" if self.size else "")

    @property
    def blocks(self) -> str:
        """The blocks, for people; empty where there are none."""
        if self.block is None:
            return ""
        return f"block {self.block}" if self.block == self.last_block else f"blocks {self.block} to {self.last_block}"

    def __str__(self) -> str:
        place = filter(None, (self.file, "" if self.item is None else f"item {self.part}", self.blocks))
        return escaped(": ".join(filter(None, (", ".join(place), self.error, self.message))))


def doubt_of(storage: Storage, entries: Iterable[Damage]) -> Exception | None:
    """What is raised instead of telling of damage, where that may be what another host has replaced."""
    lost = [str(one) for one in entries if not one.unread]
    return storage.doubted(errors.ContainerError(lost[0], file=storage.label())) if lost and storage.is_late else None


def resumable(leftovers: Collection[str]) -> list[str]:
    """A line that says so if some leftovers are of an interrupted conversion. A published one leaves slips alone."""
    finished = len({*leftovers} & {f"{name}.slip" for name in leftovers})
    if not finished:
        return []
    return [
        f"interrupted: {finished:,} of the data files left over {'is' if finished == 1 else 'are'} finished by a "
        "transcode, pack or salvage that was interrupted, or is at work; repeat it to resume from there"
    ]
