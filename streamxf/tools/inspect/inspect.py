"""`inspect`: a checkpoint of any format, in figures (`Summary`) and as a tree of modules; and a plain file
(`PlainSummary`); and `unsafe_globals`: what its objects need before they load, all of it at once.

Names are split at dots. What a user of large models looks at is one of many equal layers, so siblings whose names are
numbers, and which hold items of the same names, dtypes and shapes, become one module ``[0-31]`` with their sums; and a
module that holds nothing but one other is joined with it: ``model.layers.[0-31]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Unpack

from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.codec import CodecRegistry
from streamxf.errors import located
from streamxf.format.items import ObjectItem
from streamxf.formats.contents import Contents, Format
from streamxf.formats.opening import contents_of, open_source
from streamxf.keys import KeyRing
from streamxf.places import Location, Storage, open_storage
from streamxf.reading import Access, AccessOptions, Item, PlainParts, Progress, TensorItem
from streamxf.stream.plain import open as open_plain
from streamxf.tools.fleet import Fleet
from streamxf.wording import many, some

if TYPE_CHECKING:
    from streamxf.tools.values.statistics import Statistics

LARGEST = 10

# Deeper than any model; the rest of a longer name is one piece. Without, a name of dots would exhaust the stack.
MAX_DEPTH = 32
_FREE_NODES, _NODES_EACH = 2**16, 2  # modules besides an item; a model's layers share most of theirs
_MAX_RUNS = 5
_MAX_DIGITS = 9
_UNPROVED = "It is encrypted, and no key was given: what it says here is not authenticated."
_UNSIGNED = "The signature was not checked."


def memory_of(item: TensorItem, elements: int | None = None) -> int:
    """Bytes of a tensor in memory, or of some of its elements; 0 for a dtype that is not known."""
    return math.ceil((math.prod(item.shape) if elements is None else elements) * item.width)


@dataclass(slots=True)
class ItemTotals:
    """Sums over some items.

    - `elements`, `raw_bytes`, `stored_bytes`: of the tensors; the bytes as they are in memory and as they are stored.
    - `object_bytes`: of the objects, as they are stored; their size in memory is not known without decoding them.
    """

    tensors: int = 0
    objects: int = 0
    elements: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    object_bytes: int = 0

    @classmethod
    def of(cls, items: Iterable[Item]) -> ItemTotals:
        totals = cls()
        for item in items:
            totals.add(item)
        return totals

    @property
    def items(self) -> int:
        """Tensors and objects."""
        return self.tensors + self.objects

    @property
    def ratio(self) -> float | None:
        """Stored over raw bytes, of the tensors; None where there are no raw bytes."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else None

    def add(self, item: Item, chain: tuple[str, ...] | None = None) -> None:
        """Count an item, or only what is stored through one chain."""
        if isinstance(item, ObjectItem):
            self.objects += 1
            self.object_bytes += item.stored_bytes
            return
        chunks = item.chunks if chain is None else [each for each in item.chunks if each.chain == chain]
        elements = sum(math.prod(chunk.shape) for chunk in chunks)
        self.tensors += 1
        self.elements += elements
        self.raw_bytes += memory_of(item, elements)
        self.stored_bytes += sum(chunk.place.size for chunk in chunks)

    def merge(self, other: ItemTotals) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int | float | None]:
        """For JSON."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of the tensors of a checkpoint, by name; None where the elements are not numbers, or only torch can
    read them, and for what is in `unreadable` and `unread`, which have the reasons: damage, and what a storage failed
    with, which says nothing of what is stored.
    """

    statistics: Mapping[str, Statistics | None]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def nan(self) -> tuple[str, ...]:
        """Tensors that contain NaN."""
        return self._with(lambda found: found.nan > 0)

    @cached_property
    def inf(self) -> tuple[str, ...]:
        """Tensors that contain an infinity."""
        return self._with(lambda found: found.inf > 0)

    @cached_property
    def zeros(self) -> tuple[str, ...]:
        """Tensors of zeros only."""
        return self._with(lambda found: found.all_zero)

    @cached_property
    def flagged(self) -> tuple[str, ...]:
        """All of these, those with NaN or infinities first."""
        return tuple(dict.fromkeys((*self.nan, *self.inf, *self.zeros)))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Tensors whose elements are not numbers, or can be read by torch alone."""
        failed = {*self.unreadable, *self.unread}
        return tuple(name for name, found in self.statistics.items() if found is None and name not in failed)

    def _with(self, property: Callable[[Statistics], bool]) -> tuple[str, ...]:
        return tuple(name for name, found in self.statistics.items() if found is not None and property(found))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "with_nan": list(self.nan),
            "with_inf": list(self.inf),
            "all_zero": list(self.zeros),
            "not_numbers": list(self.unknown),
            "unreadable": dict(self.unreadable),
            "unread": dict(self.unread),
        }


@dataclass(frozen=True)
class Summary:
    """A checkpoint in figures.

    - `contents`: what it holds, item by item.
    - `dtypes`: of the tensors, by dtype, the most stored bytes first.
    - `chains`: of all items, by the chain that their parts were stored through, the most stored bytes first. An item
      with parts of several chains counts in each of them.
    - `shards`: how many parts the tensors have.
    - `notes`: those of the contents, that some bytes were counted more than once, and which tensors could not be read.
    - `values`: statistics of the tensors, if they were read.
    """

    contents: Contents
    total: ItemTotals
    dtypes: dict[str, ItemTotals]
    chains: dict[tuple[str, ...], ItemTotals]
    shards: int
    notes: tuple[str, ...]
    values: TensorStatistics | None = None

    @classmethod
    def of(cls, contents: Contents, values: TensorStatistics | None = None) -> Summary:
        dtypes: dict[str, ItemTotals] = {}
        chains: dict[tuple[str, ...], ItemTotals] = {}
        total, shards = ItemTotals(), 0
        for item in contents.items.values():
            total.add(item)
            if isinstance(item, TensorItem):
                dtypes.setdefault(item.dtype, ItemTotals()).add(item)
                shards += len(item.chunks)
            used = chains_of(item)
            for chain in used:
                chains.setdefault(chain, ItemTotals()).add(item, chain if len(used) > 1 else None)
        failed = {**values.unreadable, **values.unread}.items() if values is not None else ()
        notes = (*contents.notes, *_shared(contents), *(f"{name} could not be read: {why}" for name, why in failed))
        return cls(contents, total, _by_size(dtypes), _by_size(chains), shards, notes, values)

    def largest(self, count: int = LARGEST) -> list[TensorItem]:
        """The tensors with the most stored bytes, the largest first."""
        return nlargest(count, self.contents.tensors.values(), key=lambda item: (item.stored_bytes, memory_of(item)))

    def as_dict(self, *, largest: int = LARGEST, items: bool = False) -> dict[str, Any]:
        """For JSON: with this number of the `largest` tensors, and every item if `items`."""
        contents = self.contents
        found: dict[str, Any] = {
            "path": contents.path,
            "format": str(contents.format),
            **self.total.as_dict(),
            "shards": self.shards,
            "files": len(contents.files),
            "file_bytes": sum(contents.files.values()),
            "by_dtype": [{"dtype": dtype, **totals.as_dict()} for dtype, totals in self.dtypes.items()],
            "by_chain": [
                {"chain": names_of(chain), "descriptors": list(chain), **totals.as_dict()}
                for chain, totals in self.chains.items()
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
            "raw_bytes": memory_of(tensor) if tensor else None,
            "stored_bytes": item.stored_bytes,
            "ratio": ratio_of(item),
            "shards": len(item.places),
            "chains": list(dict.fromkeys(map(names_of, chains_of(item)))),
        }
        if self.values is not None:
            found = self.values.statistics.get(item.name)
            facts["values"] = None if found is None else asdict(found)
        return facts


def ratio_of(item: Item) -> float | None:
    """Stored over raw bytes; None for an object, and for a tensor without elements."""
    raw = 0 if isinstance(item, ObjectItem) else memory_of(item)
    return item.stored_bytes / raw if raw else None


def chains_of(item: Item) -> dict[tuple[str, ...], None]:
    return dict.fromkeys(part.chain for part in (item.chunks if isinstance(item, TensorItem) else item.places))


def ratio_text(ratio: float | None) -> str:
    """A ratio for people: ``0.668``, and a dash where there is none."""
    return "-" if ratio is None else f"{ratio:.3f}"


def chain_text(chain: tuple[str, ...]) -> str:
    """A chain for people: ``floatzip+checksum``, and ``none``."""
    return names_of(chain) or "none"


def names_of(chain: tuple[str, ...]) -> str:
    """A chain's short names, as in its text form."""
    return "+".join(CodecRegistry.short_name(descriptor.split("/")[0]) for descriptor in chain)


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


def _by_size(tallies: dict[Any, ItemTotals]) -> dict[Any, ItemTotals]:
    return dict(sorted(tallies.items(), key=lambda pair: pair[1].stored_bytes + pair[1].object_bytes, reverse=True))


@dataclass(slots=True)
class Module:
    """A module, several that are built alike, or an item."""

    name: str  # one or more parts of the items' names, as in ``layers.[0-31]``
    totals: ItemTotals
    item: Item | None  # that has just this name; the first of several
    children: list[Module]
    times: int = 1  # how many of them are shown as this one


@dataclass(slots=True)
class _Node:
    item: Item | None = None
    children: dict[str, _Node] = field(default_factory=dict)


@collector_paused()
def tree_of(items: Iterable[Item]) -> Module:
    """The tree; its root has no name."""
    items = list(items)
    depth = MAX_DEPTH
    while (root := _grown(items, depth)) is None:
        depth //= 2
    return _fold("", root, {})[0]


def _grown(items: list[Item], depth: int) -> _Node | None:
    """The tree, names split no deeper than `depth`; None if it has far more modules than items."""
    root, left = _Node(), _FREE_NODES + _NODES_EACH * len(items)
    for item in items:
        node = root
        for part in item.name.split(".", depth - 1):
            if part not in node.children:
                node.children[part] = _Node()
                left -= 1
            node = node.children[part]
        node.item = item
        if left < 0:
            return None
    return root


def walk(module: Module, depth: int | None = None) -> Iterator[tuple[int, Module]]:
    """Everything in a module, each before what it holds, with its level from 0; `depth` is how many levels."""
    for child in module.children:
        yield 0, child
        if depth is None or depth > 1:
            yield from ((level + 1, inner) for level, inner in walk(child, None if depth is None else depth - 1))


def _fold(name: str, node: _Node, numbers: dict[object, int]) -> tuple[Module, int]:
    """Bottom-up, with a number for each structure: two modules are alike if their numbers are equal."""
    inner: Iterable[str] = node.children
    if all(number_of(part) is not None for part in inner):
        inner = sorted(inner, key=int)  # some formats sort names as strings
    made = [_fold(part, node.children[part], numbers) for part in inner]
    children = _collapsed(made)
    for place, module in enumerate(children):
        if module.item is None and len(module.children) == 1:  # joined with the only one in it
            (child,) = module.children
            children[place] = replace(child, name=f"{module.name}.{child.name}")
    totals = ItemTotals.of(() if node.item is None else (node.item,))
    for child in children:
        totals.merge(child.totals)
    about = (node.item.dtype, node.item.shape) if isinstance(node.item, TensorItem) else node.item is None
    build = tuple((module.name, number) for module, number in made)
    return Module(name, totals, node.item, children), numbers.setdefault((about, build), len(numbers))


@lru_cache(1 << 16)  # names have few different parts
def number_of(part: str) -> int | None:
    """The number that a part of a name is, as layers have; else None."""
    if not part.isascii() or not part.isdigit() or len(part) > _MAX_DIGITS or (part[0] == "0" and part != "0"):
        return None
    return int(part)


def _collapsed(made: list[tuple[Module, int]]) -> list[Module]:
    """Modules that are numbered and built alike become one, where the first of them stands."""
    groups: dict[object, list[Module]] = {}
    for module, number in made:
        alike: object = module.name if number_of(module.name) is None else number
        groups.setdefault(alike, []).append(module)
    return [
        group[0] if len(group) == 1 else _merged(f"[{_ranges([int(module.name) for module in group])}]", group)
        for group in groups.values()
    ]


def _merged(name: str, alike: list[Module]) -> Module:
    totals = ItemTotals()
    for module in alike:
        totals.merge(module.totals)
    inner = zip(*(module.children for module in alike), strict=True)
    children = [_merged(group[0].name, list(group)) for group in inner]
    return Module(name, totals, alike[0].item, children, sum(module.times for module in alike))


def _ranges(numbers: list[int]) -> str:
    """``0-5,7``; where there would be many runs, the first ones and the last."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    parts = ["-".join(map(str, run)) for run in runs]
    return ",".join(parts if len(parts) <= _MAX_RUNS else [*parts[: _MAX_RUNS - 2], "...", parts[-1]])


def inspect(
    path: Location,
    *,
    values: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[AccessOptions],
) -> Summary:
    """Summarize a checkpoint: by dtype, by chain, item by item. Only metadata is read, unless `values` is set.

    Parameters
    ----------
    path : path, str or Storage
        A checkpoint of DCP, a ``.safetensors`` or ``torch.save`` file, a Hugging Face folder; or the URL of one.
    keys, trust, allow_unsigned, require, expect_save_id, codecs, max_expansion, storage_options
        As in `Checkpoint`. What is encrypted is shown without keys, too; with keys its metadata must be authentic.
        `max_expansion` counts for `values` only, as in `diff`.
    values : bool
        Whether to read all tensors as well, for `Summary.values`. That takes about as long as a load, and little
        memory; an encrypted checkpoint then needs keys.
    progress : Progress, optional
        Receives the size of the tensors as they are counted.
    executor : concurrent.futures.Executor, optional
        Its workers read the tensors, as in `verify`; for `values` only.

    Raises StreamxfError, OSError if the path is not a checkpoint that can be read, its metadata is damaged, or the keys
    do not fit; with `values` also if keys are missing. A tensor that cannot be read is in `TensorStatistics.unreadable`
    or `unread`.
    """
    access = Access.of(**options)
    storage = open_storage(path, storage_options)
    fleet = None if executor is None else Fleet(executor, [storage], access)
    with open_source(storage, access, listing=not values, beside=True) as source:
        contents = contents_of(source)
        if not values:
            return Summary.of(contents)
        from streamxf.tools.values.statistics import statistics_of

        found = Summary.of(contents, TensorStatistics(*statistics_of(source, progress, fleet)))
        return replace(found, notes=(*found.notes, *fleet.notes)) if fleet else found


@dataclass(frozen=True)
class PlainSummary:
    """A file that `streamxf.open` wrote, by its prefix, header and footer."""

    path: str
    chain: tuple[str, ...]  # descriptors in save order, without their fragments
    raw_bytes: int  # of what it decodes to
    file_bytes: int
    blocks: int
    block_size: int
    key_ids: tuple[str, ...]  # of the keys that open it, with their kinds, as in ``"aeskw:0123456789abcdef"``
    signers: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Bytes of the file over what it decodes to; None for an empty stream."""
        return self.file_bytes / self.raw_bytes if self.raw_bytes else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        more = {"chain": names_of(self.chain), "descriptors": self.chain}
        return asdict(self) | {"format": str(Format.PLAIN), "ratio": self.ratio} | more

    @classmethod
    def read(cls, storage: Storage, keys: KeyRing) -> PlainSummary:
        """Read what the file says; with keys it has to be true. Raises as `streamxf.open`."""
        with storage.open(random=True) as file, located(file=storage.label()):
            parts = PlainParts.of(file.slice(0, file.size))
            (stream := parts.stream.examine(None)).check()
            if len(keys):
                file.raw.seek(0)
                open_plain(file.raw, keys=keys).close()  # checks all that there is, except for most blocks
        blocks: Any = stream.blocks  # there are some where no error is
        stored = parts.keys
        signers = stored.signers if stored is not None else ()
        notes = [_UNPROVED] if stored is not None and not len(keys) else []
        if signers and {*signers}.isdisjoint(key.id for key in keys.trust):
            notes.append(_UNSIGNED)
        sizes = blocks.size, file.size, blocks.count, blocks.block_size
        readers = tuple(map(":".join, stored.readers[0])) if stored is not None else ()
        return cls(storage.label(), parts.header.chain, *sizes, readers, signers, tuple(notes))


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
            if isinstance(item, ObjectItem) and item.place.span is None:  # a value needs nothing
                needed, reason = access.objects.needs(checkpoint.read_stored(item))
                for each in needed:
                    names.setdefault(each, []).append(name)
                if reason:
                    refused.setdefault(reason, []).append(name)
    return UnsafeGlobals(
        {name: tuple(items) for name, items in sorted(names.items())},
        {reason: tuple(items) for reason, items in sorted(refused.items())},
    )
