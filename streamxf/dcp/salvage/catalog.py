"""`Catalog`: what a checkpoint holds by one metadata file, or by those of several ranks, and who reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.limits import MAX_LIST
from streamxf.dcp.metadata.unpickle import list_lengths
from streamxf.dcp.places import held_by
from streamxf.dcp.salvage.result import Lost
from streamxf.dcp.salvage.session import Session
from streamxf.errors import MetadataError
from streamxf.proportion import MAX_EXPANSION, Budget

UNCHECKED_METADATA = (
    "the metadata {name} has no digest, since streamxf's writer did not make it: names, shapes and places of the items "
    "are taken as they stand there"
)

UNLIKELY_LISTS = (
    "the metadata of all ranks together speaks of longer lists than its items explain, so the state dict is flat"
)


@dataclass
class Catalog:
    """Everything that can be asked for.

    Attributes
    ----------
    items : dict
        What is known of each item, by its name; chunks of all ranks.
    paths : dict of str to tuple
        Where an item stood in the nested state dict.
    sessions : list of Session
        Who reads it; a chunk may be had from several.
    damaged : list of Lost
        What is known to be lost already.
    unsure : dict of str to Lost
        Tensors of which nobody knows how large they were, and why.
    unchecked : list of str
    save_ids : dict of str to str
    guessed : bool
        Whether the tensors' sizes are only those that their chunks reach to.
    budget : Budget
        What may be made of it.
    """

    items: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    damaged: list[Lost] = field(default_factory=list)
    unsure: dict[str, Lost] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    save_ids: dict[str, str] = field(default_factory=dict)
    guessed: bool = False
    budget: Budget = field(default_factory=lambda: Budget(MAX_EXPANSION, 0))

    @classmethod
    def of(cls, sessions: Sequence[Session], damaged: Sequence[Lost] = ()) -> Catalog:
        """Merge what the metadata of `sessions` says."""
        made = cls(sessions=list(sessions), damaged=list(damaged))
        refused: set[str] = set()
        for session in sessions:
            manifest = metadata_file.manifest_of(session.metadata)
            if manifest is not None:
                made.save_ids[session.name] = manifest.save_id
            elif session.name:
                made.unchecked.append(UNCHECKED_METADATA.format(name=session.name))
                refused.update(made._refuse_overlaps(session))
            for name, item in session.metadata.state_dict_metadata.items():
                made._add(name, item, refused)
            made.paths.update(_paths_of(session.metadata))
        for name in refused:
            made.items.pop(name, None)
        if len(sessions) > 1 and list_lengths(made.paths.values()) > MAX_LIST + 16 * len(made.paths):
            made.paths.clear()
            made.unchecked.append(UNLIKELY_LISTS)
        return made

    def bound_by(self, max_expansion: int, listed: Mapping[str, int | None]) -> None:
        """Bound what may be made of it by what its files hold, of which some sizes are known."""
        stored = 0
        for session in self.sessions:
            files = {place.relative_path for place in session.storage_data.values()}
            stored += held_by(session.fs, session.path, files, listed)
        self.budget = Budget(max_expansion, stored)

    def budgets(self) -> Budget:
        """One for who reads it once; another is for what foreign extensions make of items meanwhile."""
        for session in self.sessions:
            session.bound_by(self.budget.renewed())
        return self.budget.renewed()

    def readers_of(self, index: MetadataIndex) -> Iterator[Session]:
        """Who can read it."""
        return (session for session in self.sessions if session.place_of(index) is not None)

    def as_metadata(self) -> Metadata:
        """For DCP's planner."""
        return Metadata(state_dict_metadata=dict(self.items), planner_data=dict(self.paths))

    def _add(self, name: str, item: Any, refused: set[str]) -> None:
        known = self.items.get(name)
        if known is None:
            self.items[name] = _own(item)
            return
        if isinstance(item, BytesStorageMetadata) and isinstance(known, BytesStorageMetadata):
            return
        if (
            not isinstance(item, TensorStorageMetadata)
            or not isinstance(known, TensorStorageMetadata)
            or item.size != known.size
            or item.properties.dtype != known.properties.dtype
        ):
            if name not in refused:
                refused.add(name)
                message = "the metadata of two ranks contradict each other about it: pass rank= to choose one"
                self.damaged.append(Lost(name, None, None, None, MetadataError.__name__, message))
            return
        seen = {(chunk.offsets, chunk.sizes) for chunk in known.chunks}
        known.chunks.extend(chunk for chunk in item.chunks if (chunk.offsets, chunk.sizes) not in seen)

    def _refuse_overlaps(self, session: Session) -> Iterator[str]:
        """Items that share bytes of a file: of two places one is damaged, and where nothing vouches for the metadata
        nobody knows which.
        """
        by_file: dict[str, list[tuple[int, int, MetadataIndex]]] = {}
        for index, place in session.storage_data.items():
            by_file.setdefault(place.relative_path, []).append((place.offset, place.length, index))
        for path, places in by_file.items():
            places.sort(key=lambda place: place[:2])
            reach, last = 0, None
            for offset, length, index in places:
                if offset < reach:
                    for one in (index, last):
                        if one is not None:
                            message = "the metadata gives two items the same bytes of a file: it is damaged"
                            self.damaged.append(
                                Lost(one.fqn, session._full(path), None, None, MetadataError.__name__, message)
                            )
                            yield one.fqn
                if offset + length > reach:
                    reach, last = offset + length, index


def _paths_of(metadata: Metadata) -> dict[str, tuple[str | int, ...]]:
    """Where its items stood; what a planner of somebody else's keeps there can be anything."""
    data = metadata.planner_data
    if not isinstance(data, dict):
        return {}
    return {name: data[name] for name in metadata.state_dict_metadata if name in data}


def _own(item: Any) -> Any:
    """A copy whose list of chunks may grow."""
    if not isinstance(item, TensorStorageMetadata):
        return item
    return TensorStorageMetadata(item.properties, item.size, list(item.chunks))
