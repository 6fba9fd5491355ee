"""`Version`: what metadata of published weights says of their place in a run; and the hint that names the newest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import MetadataError, ReplacedMeanwhile, UnsupportedError, shorten
from streamxf.places import Storage, locked, read_small
from streamxf.reading import TensorItem

MEMBER = "published"  # of the metadata's `extra`
HINT = ".streamxf/newest"
_MOST_BYTES = 4096  # of a hint
_DIGITS = re.compile("[0-9a-f]{32}")
_NAME = re.compile(r"(?!\.\.?$)[^/\\%?#:\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}")  # also in a URL


@dataclass(frozen=True)
class Version:
    """Published weights of a run.

    Attributes
    ----------
    run : str
        The run's id.
    number : int
        Counts the versions of a run; of two, the greater one was published later, whatever their steps are.
    step : int
    save_id : str
    folder : str
        Its name in the run's folder.
    """

    run: str
    number: int
    step: int
    save_id: str
    folder: str

    def __str__(self) -> str:
        return f"version {self.number:,}, of step {self.step:,}"

    @property
    def member(self) -> dict[str, dict[str, Any]]:
        """What the metadata says of it."""
        return {MEMBER: {"run": self.run, "number": self.number, "step": self.step}}

    def put_hint(self, storage: Storage, check: Callable[[], None]) -> None:
        """Say that this is the newest, in one step, unless `check` raises: before it, or once somebody else did."""
        with locked(storage):
            stamp = storage.stamp(HINT)
            check()
            try:
                storage.put(HINT, json.dumps(asdict(self)).encode(), sync=False, over=stamp, make=True)
            except ReplacedMeanwhile:
                if self.hinted(storage) != self:  # else the answer of an earlier request was lost
                    check()
                    raise

    @classmethod
    def hinted(cls, storage: Storage) -> Self | None:
        """What the hint beside a run says, which nobody vouches for; None if there is none. Raises MetadataError."""
        data = read_small(storage, HINT, _MOST_BYTES)
        if data is None:
            return None
        try:
            content = json.loads(data)
            made = cls(**content)
        except (ValueError, TypeError, RecursionError) as error:
            text = f"the hint of the newest version cannot be read: {error!s:.200}. The next publish writes it anew"
            raise MetadataError(text, file=storage.label(HINT)) from None
        is_name = isinstance(made.folder, str) and _NAME.fullmatch(made.folder)
        if not (is_name and _is_id(made.run) and _is_id(made.save_id) and _counts(made.number, made.step)):
            text = "the hint of the newest version is malformed. The next publish writes it anew"
            raise MetadataError(text, file=storage.label(HINT))
        return made

    @classmethod
    def of(cls, checkpoint: Checkpoint, folder: str) -> Self:
        """What the metadata of a checkpoint says; raises MetadataError if that is none of a published version."""
        said: Any = checkpoint.extra.get(MEMBER)
        ids = checkpoint.save_ids
        whole = isinstance(said, dict) and said.keys() == {"run", "number", "step"} and len(ids) == 1
        if whole and _is_id(said["run"]) and _counts(said["number"], said["step"]):
            return cls(said["run"], said["number"], said["step"], ids[0], folder)
        text = "its metadata does not say that it is a published version of weights: it was not saved by a Publisher"
        raise MetadataError(text, file=checkpoint.storage.label())


def items_of(checkpoint: Checkpoint) -> dict[str, TensorItem]:
    """All of a version; raises UnsupportedError for what is no tensor of plain elements."""
    found = dict[str, TensorItem]()
    for name, item in checkpoint.stored.items():
        if not isinstance(item, TensorItem) or not item.fits_numpy or any(chunk.framed for chunk in item.chunks):
            raise UnsupportedError("versions of weights have tensors alone", item=shorten(name))
        found[name] = item
    return found


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _DIGITS.fullmatch(value) is not None


def _counts(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < 2**53 for value in values)
