"""`Summary`: a checkpoint in figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, TypeVar

from streamxf.format.items import Item, ObjectItem, TensorItem
from streamxf.formats.contents import Contents, Format
from streamxf.registry import short_name
from streamxf.tools.inspect.tally import Tally
from streamxf.tools.inspect.values import Values
from streamxf.wording import many

_K = TypeVar("_K")

LARGEST = 10


@dataclass(frozen=True)
class Summary:
    """A checkpoint in figures.

    - `contents`: what it holds, item by item.
    - `total`: of all items.
    - `dtypes`: of the tensors, by dtype, the most stored bytes first.
    - `chains`: of all items, by the chain that their parts were stored through, the most stored bytes first. An item
      with parts of several chains counts in each of them.
    - `shards`: parts of tensors.
    - `notes`: those of the contents, and that some bytes were counted more than once.
    - `values`: statistics of the tensors, if they were read.
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
        for item in contents.items.values():
            total.add(item)
            if isinstance(item, TensorItem):
                dtypes.setdefault(item.dtype, Tally()).add(item)
                shards += len(item.chunks)
            used = _chains_of(item)
            for chain in used:
                chains.setdefault(chain, Tally()).add(item, chain if len(used) > 1 else None)
        notes = (*contents.notes, *_shared(contents))
        return cls(contents, total, _by_size(dtypes), _by_size(chains), shards, notes, values)

    def largest(self, count: int = LARGEST) -> list[TensorItem]:
        """The tensors with the most stored bytes, the largest first."""
        return nlargest(count, self.contents.tensors.values(), key=lambda item: (item.stored_bytes, item.size))

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
            "largest_tensors": [self.item(item) for item in self.largest(largest)],
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
            found["entries"] = [self.item(item) for item in contents.items.values()]
        return found

    def item(self, item: Item) -> dict[str, Any]:
        """One item, for JSON."""
        tensor = item if isinstance(item, TensorItem) else None
        facts: dict[str, Any] = {
            "name": item.name,
            "dtype": tensor.dtype if tensor else None,
            "shape": list(tensor.shape) if tensor else None,
            "raw_bytes": tensor.size if tensor else None,
            "stored_bytes": item.stored_bytes,
            "ratio": ratio_of(item),
            "shards": len(item.places),
            "chains": list(dict.fromkeys(map(_names, _chains_of(item)))),
        }
        if self.values is not None:
            found = self.values.statistics.get(item.name)
            facts["values"] = None if found is None else found.as_dict()
        return facts


def ratio_of(item: Item) -> float | None:
    """Stored over raw bytes; None for an object, and for a tensor without elements."""
    return None if isinstance(item, ObjectItem) or not item.size else item.stored_bytes / item.size


def _chains_of(item: Item) -> dict[tuple[str, ...], None]:
    return dict.fromkeys(place.chain for place in item.places)


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
    places = sorted((place.at, place.size) for item in contents.tensors.values() for place in item.places)
    end, shared = 0, 0
    for start, size in places:
        shared += size > 0 and start < end
        end = max(end, start + size)
    if shared:
        yield f"Stored bytes of {many(shared, 'tensor')} are shared with others; each counts in full."


def _by_size(tallies: dict[_K, Tally]) -> dict[_K, Tally]:
    def size(pair: tuple[_K, Tally]) -> int:
        return pair[1].stored_bytes + pair[1].object_bytes

    return dict(sorted(tallies.items(), key=size, reverse=True))
