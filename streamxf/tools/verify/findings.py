"""`Findings`: what is found while a checkpoint is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from streamxf.descriptor import shorten
from streamxf.errors import StreamxfError
from streamxf.tools.verify.report import Damage, VerifyReport
from streamxf.wording import many

MAX_DAMAGED = 1000  # recorded for each file: a file full of zeros may hold a hundred thousand items
_TEXT = 300  # characters of a message, which may quote a damaged file


class Skipped(NamedTuple):
    """A check that could not be made, of some number of things."""

    noun: str
    text: str


KEYED = Skipped("encrypted item", "seals, tags and content of {}, which need a key")
UNBOUND = Skipped("item", "whether {} not bound to their places were exchanged")
WITHOUT_CRC = Skipped("item", "the bytes of {} saved without any checksum")
TRANSFORMED = Skipped("item", "the bytes of {} that passed a stream transform, except that they decode")


class Findings:
    """Collects what is found, in one thread.

    `skipped` counts the things that each check was skipped for. `missing` and `refused` are the errors of items whose
    codec is not installed, and of those that no key opens; `opened` counts encrypted items that a key opened.
    """

    def __init__(self) -> None:
        self.save_ids: list[str] = []
        self.leftovers: list[str] = []
        self.files = self.items = self.blocks = self.bytes_read = self.opened = 0
        self.skipped: Counter[Skipped] = Counter()
        self.missing: list[StreamxfError] = []
        self.refused: list[StreamxfError] = []
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

    def not_checked(self, what: str) -> None:
        """Say what cannot be checked; saying it twice is fine."""
        self._unchecked[what] = None

    def add(self, other: Findings) -> None:
        """Take what was found in files that this one knows nothing of."""
        for name, value in vars(other).items():
            if isinstance(value, dict) and not isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def report(self, seconds: float, kind: type[VerifyReport] = VerifyReport) -> VerifyReport:
        """What was found."""
        for skipped, count in self.skipped.items():
            if count:
                self.not_checked(skipped.text.format(many(count, skipped.noun)))
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


@dataclass
class Notes:
    """Where everything about one stream is noted, by one thread; `offset` is that of a tensor's shard."""

    findings: Findings
    file: str
    item: str | None = None
    offset: tuple[int, ...] | None = None
    damaged: bool = False

    def error(self, error: Exception, block: int | None = None) -> None:
        """Note what is wrong with it, or with one of its blocks."""
        self.damaged = True
        self.findings.damage(error, self.file, self.item, self.offset, block)
