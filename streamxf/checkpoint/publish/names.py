"""The names that writers give to files, and whose they are."""

from __future__ import annotations

import re

_RANK = r"__(?P<rank>0|[1-9][0-9]{0,9})"
OWN_FILE = re.compile(_RANK + r"_[0-9]+_(?P<writer>[0-9a-f]{32})\.distcp", re.ASCII)
"""Data files of streamxf's writers."""
SLIP = re.compile(OWN_FILE.pattern + r"\.slip", re.ASCII)
"""What `streamxf.tools.convert` notes of a data file that is finished, until all are."""
TORCH_FILE = re.compile(_RANK + r"_[0-9]+\.distcp", re.ASCII)
"""Data files of torch's writers, and attached ones."""
RANK_METADATA = re.compile(_RANK + r"\.metadata", re.ASCII)
DRAFT = re.compile(rf"(?:\.|{_RANK}\.)metadata\.[0-9a-f]{{8}}\.tmp", re.ASCII)
"""Metadata that is about to be published, of streamxf's writers."""
_SLIP_DRAFT = re.compile(SLIP.pattern + r"\.[0-9a-f]{8}\.tmp", re.ASCII)
_TORCH_DRAFT = re.compile(rf"(?:\.|{_RANK}\.)metadata\.tmp", re.ASCII)

_MADE = (OWN_FILE, SLIP, TORCH_FILE, RANK_METADATA, DRAFT, _SLIP_DRAFT, _TORCH_DRAFT)


def made_by_writers(name: str) -> bool:
    """Whether a name is one that writers give to files."""
    return any(pattern.fullmatch(name) for pattern in _MADE)


def rank_of(name: str) -> int | None:
    """Whose file it is, by its name; None for what belongs to no single rank."""
    for pattern in _MADE:
        if (found := pattern.fullmatch(name)) is not None:
            return int(found["rank"]) if found["rank"] is not None else None
    return None
