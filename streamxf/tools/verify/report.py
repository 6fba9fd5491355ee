"""`VerifyReport`: what reading every byte of a checkpoint has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from streamxf.checkpoint.metadata import resumable
from streamxf.descriptor import shorten
from streamxf.errors import escaped
from streamxf.wording import listed, many, printable, size_text


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was saved.

    Attributes
    ----------
    file : str
        The file's path, relative to the checkpoint.
    item : str or None
        The item's name in the state dict; None if it concerns the file.
    offset : tuple of int or None
        Where the item's shard begins in its tensor.
    block : int or None
        The number of the block in the item's stream, from 0; None if it concerns the whole item.
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
        It is not authenticated where `unchecked` says that the vouchers were not checked.
    files, items, blocks : int
        Data files, items and blocks that were checked.
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
        Files of other saves in the folder. They do no harm, and `clean` removes them.
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

    advice: ClassVar[str] = "restore what is damaged from another copy, or save the rest with `streamxf salvage`"

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
    """The same of what is not a checkpoint of DCP."""

    advice: ClassVar[str] = "restore what is damaged from another copy"
