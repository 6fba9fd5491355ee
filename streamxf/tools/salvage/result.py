"""`Salvaged`: what a salvage recovered, and what it did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamxf.descriptor import shorten
from streamxf.errors import StreamxfError, escaped
from streamxf.wording import listed, many, some


@dataclass(frozen=True)
class Lost:
    """Something that did not verify.

    Attributes
    ----------
    item : str or None
        Its name; None for a metadata file, or a piece of a data file.
    file : str or None
        The file that holds it, or held it; None where it is in several, or in none.
    offset, size : tuple of int or None
        Where in its tensor a lost chunk begins, and its size; None for what concerns all of a tensor or object.
    error : str
        The name of the error's class.
    message : str
        What is wrong, without its place.
    """

    item: str | None
    file: str | None
    offset: tuple[int, ...] | None
    size: tuple[int, ...] | None
    error: str
    message: str

    @classmethod
    def of(
        cls,
        error: BaseException,
        item: str | None = None,
        file: str | None = None,
        offset: tuple[int, ...] | None = None,
        size: tuple[int, ...] | None = None,
    ) -> Lost:
        """Record an error; its own place counts where none is given."""
        kind = type(error).__name__
        if not isinstance(error, StreamxfError):
            return cls(item, file, offset, size, kind, shorten(f"{kind}: {error}", 600))
        message = shorten(error.message, 600) + (f" (block {error.block})" if error.block is not None else "")
        return cls(item if item is not None else error.item, file or error.file, offset, size, kind, message)

    @property
    def what(self) -> str:
        """The item, or its part, for people."""
        at = "" if self.offset is None else f" at {list(self.offset)}"
        size = "" if self.size is None else f" of size {list(self.size)}"
        return f"{shorten(self.item or '', 200)}{at}{size}"

    def __str__(self) -> str:
        return _line([self])


def _line(alike: Sequence[Lost]) -> str:
    """What was lost for the same reason, of one file."""
    first = alike[0]
    if first.item is None:
        return escaped(f"{first.file or 'the checkpoint'}: {first.message}")
    where = f" [file {first.file}]" if first.file else ""
    return escaped(f"{some(entry.what for entry in alike)}: {first.message}{where}")


@dataclass(frozen=True)
class Salvaged:
    """What `salvage` recovered.

    Attributes
    ----------
    state_dict : dict
        The one that was given, filled in as far as its items verified. Without one, a new one of whole tensors on the
        CPU and objects, nested as it was saved: what is lost is not in its dicts, and None in its lists. It is flat if
        the metadata could not be used, which says how it was nested.
    loaded : tuple of str
        The names of the items that are in it, in the flat form that DCP gives them (``optimizer.state.0.step``).
    damaged : tuple of Lost
        Everything that did not verify: a lost item has one entry for each of its chunks that is lost.
    partial : tuple of str
        Tensors of which only a part verified, with `partial`.
    missing : tuple of str
        What the given state dict asks for and the checkpoint does not have.
    unchecked : tuple of str
        What could not be checked, in words; empty for a checkpoint of streamxf's writers whose metadata is intact.
    save_ids : dict of str to str
        The save that each metadata file belongs to, as ``writer.save_id`` gave it; none for other writers'.
    """

    state_dict: dict[str, Any]
    loaded: tuple[str, ...]
    damaged: tuple[Lost, ...]
    partial: tuple[str, ...]
    missing: tuple[str, ...]
    unchecked: tuple[str, ...]
    save_ids: dict[str, str]

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of items that are lost, at least in part; each once."""
        return tuple(dict.fromkeys(entry.item for entry in self.damaged if entry.item is not None))

    def __str__(self) -> str:
        alike: dict[object, list[Lost]] = {}  # with a file that is gone, all of its items are
        for entry in self.damaged:
            alike.setdefault((entry.file, entry.message, entry.item is None), []).append(entry)
        lines = [
            f"{many(len(self.loaded), 'item')} salvaged, {len(self.lost):,} damaged, {len(self.missing):,} missing",
            *listed("damaged", list(map(_line, alike.values()))),
            *listed("only in part", self.partial),
            *listed("missing", self.missing),
            *listed("not checked", self.unchecked),
        ]
        return "\n".join(lines)
