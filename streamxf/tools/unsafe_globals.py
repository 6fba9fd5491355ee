"""`unsafe_globals`: what a checkpoint's objects need before they load, all of it at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.places import Location, open_storage
from streamxf.reading import Access, AccessOptions, ObjectItem
from streamxf.torchsave.check import needs_of
from streamxf.wording import some


@dataclass(frozen=True)
class UnsafeGlobals:
    """What a checkpoint's objects need beyond what readers allow. False if they need nothing.

    - `names`: each class and function that ``safe_globals=`` has to hold, and the items that need it. They come from
      the checkpoint: name only what you know.
    - `refused`: each reason for which items do not load, whatever of `names` is allowed, and those items.
    """

    names: dict[str, tuple[str, ...]]
    refused: dict[str, tuple[str, ...]]

    def __bool__(self) -> bool:
        return bool(self.names or self.refused)

    def __str__(self) -> str:
        lines = [f"{some([name])}: {some(items)}" for name, items in self.names.items()]
        lines += [f"refused, {reason}: {some(items)}" for reason, items in self.refused.items()]
        return "\n".join(lines) or "nothing"


def unsafe_globals(
    path: Location, *, storage_options: Mapping[str, Any] | None = None, **options: Unpack[AccessOptions]
) -> UnsafeGlobals:
    """List what the objects of a checkpoint need before they load. Their pickles are checked, and no class is imported.

    Parameters
    ----------
    path, storage_options, keys, trust, allow_unsigned, require, expect_save_id, codecs
        As in `Checkpoint`.

    Returns names that neither torch, nor ``torch.serialization.add_safe_globals`` in this process, nor streamxf allows.
    """
    access = Access.of(**options)
    names: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    with Checkpoint.at(open_storage(path, storage_options), access) as checkpoint:
        for name, item in sorted(checkpoint.stored.items()):
            if isinstance(item, ObjectItem):
                needed, reason = needs_of(checkpoint.read_stored(item))
                for each in needed:
                    names.setdefault(each, []).append(name)
                if reason:
                    refused.setdefault(reason, []).append(name)
    return UnsafeGlobals(
        {name: tuple(items) for name, items in sorted(names.items())},
        {reason: tuple(items) for reason, items in sorted(refused.items())},
    )
