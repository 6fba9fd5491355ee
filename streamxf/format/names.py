"""The names of a checkpoint's files: docs/format.md, "Files"."""

from __future__ import annotations

import re
from collections.abc import Collection

from streamxf.lazy import pattern

GLOBAL = ".metadata"
"""The metadata file of all ranks."""
SLIP = ".slip"  # what a conversion writes beside a data file that is finished, until all are, ends with this

_RANK = r"__(?P<rank>0|[1-9][0-9]{0,9})"
_OWN = _RANK + r"_(?P<number>[0-9]+)_(?P<writer>[0-9a-f]{32})\.distcp"
OWN_FILE = pattern(_OWN, re.ASCII)  # a data file of streamxf's writers
OWN_SLIP = pattern(_OWN + re.escape(SLIP), re.ASCII)
TORCH_FILE = pattern(_RANK + r"_[0-9]+\.distcp", re.ASCII)  # a data file of torch's writers, and attached ones
DRAFT = pattern(rf"(?:\.|{_RANK}\.)metadata\.[0-9a-f]{{8}}\.tmp", re.ASCII)
"""Metadata that is about to be published, of streamxf's writers."""
LOCK = ".streamxf.lock"
"""Held while something is published into a folder. No part of what lies there: listings leave it out."""
PIN = pattern(r"\.streamxf-pin-(?P<save>[0-9a-f]{32})-(?P<folder>.+)", re.ASCII | re.DOTALL)
"""A file in the folder of a save, of which the one with that id, in the folder of that name, needs some others."""
_RUN_FILE = pattern(
    r"\.streamxf-(?:commit|saving|removed|note-[0-9a-f]{8})(?:\.[0-9a-f]{8}\.tmp)?|" + re.escape(LOCK), re.ASCII
)
_RANK_METADATA = pattern(_RANK + r"\.metadata", re.ASCII)
_SLIP_DRAFT = pattern(_OWN + re.escape(SLIP) + r"\.[0-9a-f]{8}\.tmp", re.ASCII)
_TORCH_DRAFT = pattern(rf"(?:\.|{_RANK}\.)metadata\.tmp", re.ASCII)
_MADE = (OWN_FILE, OWN_SLIP, TORCH_FILE, _RANK_METADATA, DRAFT, _SLIP_DRAFT, _TORCH_DRAFT)


def data_name(rank: int, number: int, writer: bytes) -> str:
    return f"__{rank}_{number}_{writer.hex()}.distcp"


def metadata_name(rank: int | None) -> str:
    return GLOBAL if rank is None else f"__{rank}.metadata"


def is_metadata_name(name: str) -> bool:
    """Whether it is that of a metadata file: of all ranks, or of a single one."""
    return name == GLOBAL or _RANK_METADATA.fullmatch(name) is not None


def metadata_among(names: Collection[str]) -> list[str]:
    """The metadata files that describe the checkpoint: that of all ranks, or those of single ranks in their order."""
    return [GLOBAL] if GLOBAL in names else rank_metadata_among(names)


def rank_metadata_among(names: Collection[str]) -> list[str]:
    ranks = {name: int(found["rank"]) for name in names if (found := _RANK_METADATA.fullmatch(name))}
    return sorted(ranks, key=lambda name: ranks[name])


def made_by_saves(name: str) -> re.Match[str] | None:
    """A match of what may be a save's leftover, `.metadata` aside."""
    return next(filter(None, (pattern.fullmatch(name) for pattern in _MADE)), None)


def is_run_file(name: str) -> bool:
    """Whether it lies beside a save, and says something of it: no leftover of any."""
    return (_RUN_FILE.fullmatch(name) or PIN.fullmatch(name)) is not None


def pin_name(save_id: str, folder: str) -> str:
    return f".streamxf-pin-{save_id}-{folder}"


def rank_of(name: str) -> int | None:
    """Whose file it is, by its name; None for what belongs to no single rank."""
    found = made_by_saves(name)
    return int(found["rank"]) if found is not None and found["rank"] is not None else None
