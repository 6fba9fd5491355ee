"""`Salvaged`: what a salvage recovered, and what it did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamxf.errors import escaped
from streamxf.tools.damage import Damage
from streamxf.wording import listed, many, some


def _line(alike: Sequence[Damage]) -> str:
    """What was lost for the same reason, of one file."""
    first = alike[0]
    if first.item is None:
        return str(first)
    place = ", ".join(filter(None, (first.file and f"file {first.file}", first.blocks)))
    return escaped(f"{some(one.part for one in alike)}: {first.error}: {first.message}{place and f' [{place}]'}")


@dataclass(frozen=True)
class Salvaged:
    """The result of `load_intact` and `salvage`.

    Attributes
    ----------
    state_dict : dict
        The given one, filled in as far as its items verified. Without one, a new one of whole tensors on the CPU and
        objects, nested as it was saved: lost items are missing from its dicts, and None in its lists. It is flat if the
        metadata, which records the nesting, was unusable.
    loaded : tuple of str
        The names of its items, in the flat form that DCP gives them (``optimizer.state.0.step``).
    damaged : tuple of Damage
        Everything that did not verify: a lost item has one entry for each lost chunk.
    partial : tuple of str
        Tensors of which only a part verified, with `partial`.
    missing : tuple of str
        Items that the given state dict has and the checkpoint does not.
    unchecked : tuple of str
        The skipped checks, in words; empty for a checkpoint of streamxf's writers whose metadata is intact.
    save_ids : dict of str to str
        The save that each metadata file belongs to, as ``writer.save_id`` gave it; none for other writers.
    """

    state_dict: dict[str, Any]
    loaded: tuple[str, ...]
    damaged: tuple[Damage, ...]
    partial: tuple[str, ...]
    missing: tuple[str, ...]
    unchecked: tuple[str, ...]
    save_ids: dict[str, str]

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of items that are lost, at least in part; each once."""
        return tuple(dict.fromkeys(entry.item for entry in self.damaged if entry.item is not None))

    def __str__(self) -> str:
        alike: dict[object, list[Damage]] = {}  # with a file that is gone, all of its items are
        for entry in self.damaged:
            alike.setdefault((entry.file, entry.message, entry.block, entry.item is None), []).append(entry)
        lines = [
            f"{many(len(self.loaded), 'item')} salvaged, {len(self.lost):,} damaged, {len(self.missing):,} missing",
            *listed("damaged", list(map(_line, alike.values()))),
            *listed("only in part", self.partial),
            *listed("missing", self.missing),
            *listed("not checked", self.unchecked),
        ]
        return "\n".join(lines)
