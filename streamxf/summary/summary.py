"""`Summary`: a checkpoint in figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, TypeVar

from streamxf.formats.contents import Contents, Entry, Format
from streamxf.registry import short_name
from streamxf.summary.tally import Tally
from streamxf.summary.values import Values
from streamxf.wording import many

_K = TypeVar("_K")

LARGEST = 10


@dataclass(frozen=True)
class Summary:
    """A checkpoint in figures.

    Attributes
    ----------
    contents : Contents
        What it holds, item by item.
    total : Tally
        Of all items.
    dtypes : dict of str to Tally
        Of the tensors, by dtype, the most stored bytes first.
    chains : dict of tuple of str to Tally
        Of all items, by the chain that their parts were stored through, the most stored bytes first. An item with
        parts of several chains counts in each of them.
    shards : int
        Parts of tensors.
    notes : tuple of str
        Those of the contents, and that some bytes were counted more than once.
    values : Values or None
        Statistics of the tensors, if they were read.
    """

    contents: Contents
    total: Tally
    dtypes: dict[str, Tally]
    chains: dict[tuple[str, ...], Tally]
    shards: int
    notes: tuple[str, ...]
    values: Values | None = None

    @classmethod
    def of(cls, contents: Contents, values: Values | None = None) -> Summary:
        """Add up what a checkpoint holds."""
        dtypes: dict[str, Tally] = {}
        chains: dict[tuple[str, ...], Tally] = {}
        total, shards = Tally(), 0
        for entry in contents.entries.values():
            total.add(entry, entry.parts)
            if entry.dtype is not None:
                dtypes.setdefault(entry.dtype, Tally()).add(entry, entry.parts)
                shards += len(entry.parts)
            used = dict.fromkeys(part.chain for part in entry.parts)
            for chain in used:
                parts = entry.parts if len(used) == 1 else [part for part in entry.parts if part.chain == chain]
                chains.setdefault(chain, Tally()).add(entry, parts)
        notes = (*contents.notes, *_shared(contents))
        return cls(contents, total, _by_size(dtypes), _by_size(chains), shards, notes, values)

    def largest(self, count: int = LARGEST) -> list[Entry]:
        """The tensors with the most stored bytes, the largest first."""
        return nlargest(count, self.contents.tensors, key=lambda entry: (entry.stored_bytes, entry.raw_bytes or 0))

    def as_dict(self, *, largest: int = LARGEST, items: bool = False) -> dict[str, Any]:
        """For JSON.

        Parameters
        ----------
        largest : int
            How many of the largest tensors.
        items : bool
            Whether to list every item.
        """
        contents = self.contents
        found: dict[str, Any] = {
            "path": contents.path,
            "format": str(contents.format),
            **self.total.as_dict(),
            "shards": self.shards,
            "files": len(contents.files),
            "file_bytes": sum(contents.files.values()),
            "by_dtype": [{"dtype": dtype, **tally.as_dict()} for dtype, tally in self.dtypes.items()],
            "by_chain": [
                {"chain": _names(chain), "descriptors": list(chain), **tally.as_dict()}
                for chain, tally in self.chains.items()
            ],
            "largest_tensors": [self.item(entry) for entry in self.largest(largest)],
            "packages": dict(contents.packages),
            "save_ids": list(contents.save_ids),
            "key_ids": list(contents.key_ids),
            "signers": list(contents.signers),
            "notes": list(self.notes),
            "extra": dict(contents.extra),
        }
        if self.values is not None:
            found["flagged"] = self.values.as_dict()
        if items:
            found["entries"] = [self.item(entry) for entry in contents.entries.values()]
        return found

    def item(self, entry: Entry) -> dict[str, Any]:
        """One item, for JSON."""
        if self.values is None:
            return item_facts(entry)
        found = self.values.statistics.get(entry.name)
        return {**item_facts(entry), "values": None if found is None else found.as_dict()}


def ratio_of(entry: Entry) -> float | None:
    """Stored over raw bytes; None for an object, and for a tensor without elements."""
    return entry.stored_bytes / entry.raw_bytes if entry.raw_bytes else None


def item_facts(entry: Entry) -> dict[str, Any]:
    """One item, for JSON, without its values."""
    return {
        "name": entry.name,
        "dtype": entry.dtype,
        "shape": list(entry.shape) if entry.is_tensor else None,
        "raw_bytes": entry.raw_bytes,
        "stored_bytes": entry.stored_bytes,
        "ratio": ratio_of(entry),
        "shards": len(entry.parts),
        "chains": list(dict.fromkeys(_names(part.chain) for part in entry.parts)),
    }


def ratio_text(ratio: float | None) -> str:
    """A ratio for people: ``0.668``, and a dash where there is none."""
    return "-" if ratio is None else f"{ratio:.3f}"


def chain_text(chain: tuple[str, ...]) -> str:
    """A chain for people: ``floatzip+checksum``, and ``none``."""
    return _names(chain) or "none"


def _names(chain: tuple[str, ...]) -> str:
    return "+".join(short_name(descriptor.split("/")[0]) for descriptor in chain)


def _shared(contents: Contents) -> Iterator[str]:
    """torch.save stores memory once that several tensors share, such as tied weights."""
    if contents.format is not Format.TORCH:
        return
    places = sorted((part.start, part.stored_bytes) for entry in contents.tensors for part in entry.parts)
    end, shared = 0, 0
    for start, size in places:
        shared += size > 0 and start < end
        end = max(end, start + size)
    if shared:
        verb = "shares" if shared == 1 else "share"
        yield f"{many(shared, 'tensor')} {verb} stored bytes with others; each counts in full."


def _by_size(tallies: dict[_K, Tally]) -> dict[_K, Tally]:
    def size(pair: tuple[_K, Tally]) -> int:
        return pair[1].stored_bytes + pair[1].object_bytes

    return dict(sorted(tallies.items(), key=size, reverse=True))
