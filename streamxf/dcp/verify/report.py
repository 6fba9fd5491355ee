"""`VerifyReport`: what a look at every byte of a checkpoint has found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

from streamxf.dcp.load.advice import resumable
from streamxf.descriptor import shorten
from streamxf.errors import StreamxfError, escaped
from streamxf.wording import listed, many, printable, size_text

MAX_DAMAGED = 1000  # recorded for each file: a file full of zeros may hold a hundred thousand items
_TEXT = 300  # characters of a message or a name, which may come from a damaged file


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was saved.

    Attributes
    ----------
    file : str
        The file's path, relative to the checkpoint.
    item : str or None
        The item's name in the state dict; None where it is about the file.
    offset : tuple of int or None
        Where the item's shard begins in its tensor.
    block : int or None
        The number of the block inside of the item's stream, from 0; None where it is about the whole item.
    last_block : int or None
        The last one of a run of blocks with the same error; `block` itself for a single one.
    error : str
        The class of `streamxf.errors` that a reader would raise, or of the operating system's error.
    message : str
    """

    file: str
    item: str | None
    offset: tuple[int, ...] | None
    block: int | None
    last_block: int | None
    error: str
    message: str

    def __str__(self) -> str:
        place = [self.file]
        if self.item is not None:
            place.append(f"item {shorten(self.item)}" + (f" at {list(self.offset)}" if self.offset else ""))
        if self.block is not None:
            run = self.last_block is not None and self.last_block > self.block
            place.append(f"blocks {self.block} to {self.last_block}" if run else f"block {self.block}")
        return escaped(f"{', '.join(place)}: {self.error}: {self.message}")


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` has found.

    Attributes
    ----------
    save_ids : tuple of str
        Which save this is, as ``writer.save_id`` gave it; where ranks have metadata of their own, one for each file.
        Nobody has vouched for it where `unchecked` says that the metadata's MAC was not checked, or that there is none.
    files, items, blocks : int
        Data files that were read, items and blocks that were looked at.
    bytes_read : int
        Of data files and metadata.
    seconds : float
    damaged : tuple of Damage
        At most 1000 for each file.
    unlisted : int
        How many more there were.
    unchecked : tuple of str
        What could not be checked, and why; empty for a checkpoint of streamxf's writers, if there are keys for what is
        encrypted.
    leftovers : tuple of str
        Files of other saves that lie beside this one. They do no harm, and `clean` removes them.
    """

    save_ids: tuple[str, ...]
    files: int
    items: int
    blocks: int
    bytes_read: int
    seconds: float
    damaged: tuple[Damage, ...]
    unlisted: int
    unchecked: tuple[str, ...]
    leftovers: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no damage was found."""
        return not self.damaged

    advice: ClassVar[str] = "put back what is damaged from another copy; or load the rest with streamxf.salvage"

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        skipped = "; ".join(printable(text) for text in self.unchecked)
        skipped = f"{many(len(self.unchecked), 'check')} skipped: {skipped}" if skipped else ""
        verdict = f"OK: no damage found ({skipped})" if skipped else "OK: no damage found"
        if not self.ok:
            verdict = f"DAMAGED in {many(len(self.damaged) + self.unlisted, 'place')}"
        lines = [
            verdict,
            f"{many(self.files, 'data file')}, {many(self.items, 'item')}, {many(self.blocks, 'block')}, "
            f"{size_text(self.bytes_read)} in {self.seconds:.2f} s",
            *listed("save", self.save_ids),
            *listed("damaged", self.damaged, self.unlisted),
            *([skipped] if skipped and not self.ok else []),
            *listed("left over", self.leftovers),
            *resumable(self.leftovers),
        ]
        if not self.ok:
            lines.append(f"next: {self.advice}")
        return "\n".join(lines)


class FileReport(VerifyReport):
    """The same of a file that is no checkpoint of DCP."""

    advice: ClassVar[str] = "put back what is damaged from another copy"


class Findings:
    """Collects what is found, in one thread.

    Attributes
    ----------
    save_ids : list of str
    files, items, blocks, bytes_read : int
    leftovers : list of str
    """

    def __init__(self) -> None:
        self.save_ids: list[str] = []
        self.files = self.items = self.blocks = self.bytes_read = 0
        self.leftovers: list[str] = []
        self._damaged: list[Damage] = []
        self._unlisted = 0
        self._in_file: Counter[str] = Counter()
        self._latest: dict[tuple[str, str | None, tuple[int, ...] | None], int] = {}
        self._unchecked: dict[str, None] = {}

    def damage(
        self,
        error: Exception,
        file: str,
        item: str | None = None,
        offset: tuple[int, ...] | None = None,
        block: int | None = None,
    ) -> None:
        """Record an error; one more block with the error of the block before it belongs to that one."""
        text = error.message if isinstance(error, StreamxfError) else str(error)
        made = Damage(file, item, offset, block, block, type(error).__name__, shorten(text, _TEXT))
        at = self._latest.get((file, item, offset))
        if at is not None and block is not None and self._damaged[at].last_block == block - 1:
            last = self._damaged[at]
            if last.error == made.error:
                self._damaged[at] = replace(last, last_block=block)
                return
        self._in_file[file] += 1
        if self._in_file[file] > MAX_DAMAGED:
            self._unlisted += 1
            return
        self._latest[file, item, offset] = len(self._damaged)
        self._damaged.append(made)

    @property
    def is_damaged(self) -> bool:
        """Whether any error was recorded."""
        return bool(self._damaged)

    def damages_in(self, file: str) -> int:
        """How many errors were recorded for a file."""
        return self._in_file[file]

    def add(self, other: Findings) -> None:
        """Take what was found in files that this one knows nothing of."""
        self.save_ids += other.save_ids
        self.files += other.files
        self.items += other.items
        self.blocks += other.blocks
        self.bytes_read += other.bytes_read
        self.leftovers += other.leftovers
        self._damaged += other._damaged
        self._unlisted += other._unlisted
        self._in_file += other._in_file
        self._unchecked |= other._unchecked

    def not_checked(self, what: str) -> None:
        """Say what cannot be checked; saying it twice is fine."""
        self._unchecked[what] = None

    def report(self, seconds: float, kind: type[VerifyReport] = VerifyReport) -> VerifyReport:
        """What was found."""
        return kind(
            tuple(self.save_ids),
            self.files,
            self.items,
            self.blocks,
            self.bytes_read,
            seconds,
            tuple(self._damaged),
            self._unlisted,
            tuple(self._unchecked),
            tuple(self.leftovers),
        )
