"""From a checkpoint into memory: an item arrives whole and verified, or not at all; `Salvaged` says what did."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from streamxf import errors
from streamxf.format.items import Chunk, ObjectItem
from streamxf.lazy import torch
from streamxf.pipeline import run_jobs
from streamxf.reading import Box, Item, ItemPart, Kind, Progress, StreamReader, TensorItem
from streamxf.tools.damage import Damage, doubt_of
from streamxf.tools.diff.difference import same_bits
from streamxf.tools.nesting import nested
from streamxf.tools.salvage.damaged import Copy, DamagedCheckpoint
from streamxf.wording import ACCESS, listed, many, some

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamxf.dcp.planner import LoadPlanner


T = TypeVar("T")
Ints = tuple[int, ...]
Cuts = tuple[Any, ...]
Frames = dict[Ints, bytes]  # what torch.save wrote of each shard of a tensor, by the shard's offset

_INCOMPLETE = "a part of it is not in any metadata or file that could be read, or is there twice"
_DIFFERING = (
    "several ranks have it, each with another value: it is each rank's own, or they are of different saves; "
    "choose one (rank)"
)
_REFUSED = (errors.NotAllowedError, errors.ObjectError, errors.UnsupportedError)


def _line(alike: Sequence[Damage]) -> str:
    """What was lost for the same reason, of one file."""
    first = alike[0]
    if first.item is None:
        return str(first)
    place = ", ".join(filter(None, (first.file and f"file {first.file}", first.blocks)))
    return errors.escaped(f"{some(one.part for one in alike)}: {first.error}: {first.message}{place and f' [{place}]'}")


def _names(*entries: Sequence[Damage]) -> dict[str, None]:
    return {each.item: None for each in chain(*entries) if each.item is not None}


def _lines(entries: Sequence[Damage]) -> list[str]:
    alike: dict[object, list[Damage]] = {}  # with a file that is gone, all of its items are
    for entry in entries:
        alike.setdefault((entry.file, entry.message, entry.block, entry.item is None), []).append(entry)
    return list(map(_line, alike.values()))


@dataclass(frozen=True)
class Salvaged:
    """The result of `load_intact` and `salvage`.

    - `state_dict`: the given one, filled in as far as its items verified. Without one, a new one of whole tensors on
      the CPU and objects, nested as it was saved, but for keys that are not strings and empty dicts of stock DCP, which
      does not record them: lost items are missing from its dicts, and None in its lists. It is flat if the metadata,
      which records the nesting, was unusable.
    - `loaded`: the names of its items, in the flat form that DCP gives them (``optimizer.state.0.step``).
    - `damaged`: everything that did not verify: a lost item has one entry for each lost chunk.
    - `unread`: what the storage did not give, for want of permission, say: nothing is known of it.
    - `partial`: tensors of which only a part verified, with `partial`.
    - `missing`: items that the given state dict has and the checkpoint does not.
    - `refused`: items that are not damaged and were not loaded all the same, each with the reason: a class that is not
      allowed here, an object's own code, a target of another kind.
    - `unchecked`: the skipped checks, in words; empty for a checkpoint of streamxf's writers whose metadata is intact.
    - `save_ids`: the save that each metadata file belongs to, as ``writer.save_id`` gave it; none for other writers.
    """

    state_dict: dict[str, Any]
    loaded: tuple[str, ...]
    damaged: tuple[Damage, ...]
    partial: tuple[str, ...]
    missing: tuple[str, ...]
    unchecked: tuple[str, ...]
    save_ids: dict[str, str]
    refused: tuple[Damage, ...] = ()
    unread: tuple[Damage, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of items that are damaged, refused or not read, at least in part; each once."""
        return tuple(_names(self.damaged, self.refused, self.unread))

    def __str__(self) -> str:
        refused = f", {len(self.refused):,} intact but not loaded" if self.refused else ""
        unread = f", {len(_names(self.unread)):,} NOT READ" if self.unread else ""
        counts = f"{len(_names(self.damaged)):,} damaged, {len(self.missing):,} missing{unread}"
        lines = [
            f"{many(len(self.loaded), 'item')} salvaged, {counts}{refused}",
            *listed("damaged", _lines(self.damaged)),
            *listed("not read", _lines(self.unread)),
            *listed("not loaded", _lines(self.refused)),
            *listed("only in part", self.partial),
            *listed("missing", self.missing),
            *listed("not checked", self.unchecked),
            *([f"next: {ACCESS}"] if self.unread else []),
        ]
        return "\n".join(lines)


class Opaque(Exception):
    """A tensor that only torch, or a class of somebody's, can make; and only whole."""


class Noted(Exception):
    """An item did not verify, for reasons that are noted already."""


class Filler:
    """Reads what a checkpoint has; with `partial` also tensors of which a part verified. `damaged` is what did not;
    `opaque` names tensors that only torch can make. Raises what stops all items alike, such as too many open files.
    """

    def __init__(self, checkpoint: DamagedCheckpoint, partial: bool, progress: Progress | None = None) -> None:
        self._checkpoint = checkpoint
        self._partial = partial
        self._progress = progress
        self._budget = checkpoint.budget.renewed()
        self.damaged = list(checkpoint.damaged)
        self.opaque: set[str] = set()
        self._refused: list[Damage] = []
        self._in_part: list[str] = []

    def whole(self) -> Salvaged:
        """Everything, as whole tensors on the CPU, and objects."""

        def load(item: Item) -> Any:
            if not isinstance(item, TensorItem):
                return self._loaded(item)
            stored = self._tensor(item)
            return self._made(item, stored) if isinstance(stored, dict) else Box(item, (), ()).as_torch(stored)

        loaded = self._each(self._checkpoint.stored, load)
        record = self._checkpoint.first.nesting
        loaded = {name: loaded[name] for name in record.in_saved_order(self._checkpoint.stored) if name in loaded}
        return self._result(nested(loaded, self._checkpoint.paths, record), loaded)

    def into(self, state_dict: dict[str, Any]) -> Salvaged:
        """What `state_dict` asks for, in place, as ``dcp.load`` does it; the rest keeps its values."""
        from torch.distributed.checkpoint.metadata import Metadata
        from torch.distributed.checkpoint.stateful import Stateful

        from streamxf.dcp.planner import LoadPlanner

        plain = {name: item.state_dict() if isinstance(item, Stateful) else item for name, item in state_dict.items()}
        planner = LoadPlanner(allow_partial_load=True)
        planner.set_up_planner(plain, Metadata({}), True)
        items = self._checkpoint.stored
        missing = planner.state_dict.keys() - items.keys() - {entry.item for entry in self.damaged}

        def load(item: Item) -> None:
            if isinstance(item, TensorItem):
                self._load_into(item, planner)
            else:
                planner.state_dict[item.name] = self._loaded(item)
                planner.put(item.name, planner.state_dict[item.name])

        loaded = self._each([name for name in planner.state_dict if name in items], load)
        for name, value in list(state_dict.items()):
            if isinstance(value, Stateful):
                value.load_state_dict(plain[name])
            else:
                state_dict[name] = plain[name]
        return self._result(state_dict, loaded, filter(missing.__contains__, planner.state_dict))

    def check(self) -> Salvaged:
        """Everything is read and nothing kept: the result has an empty state dict."""

        def read(item: Item) -> None:
            if isinstance(item, TensorItem):
                item.check_limits()
            _ = self._tensor(item) if isinstance(item, TensorItem) else self._object(item)

        return self._result({}, self._each(self._checkpoint.stored, read))

    def read(self, wanted: ItemPart) -> NDArray[Any] | bytes | None:
        """An item: a whole tensor's elements, an object's bytes, or an opaque shard's; None if it did not verify."""
        name, chunk = wanted.item.name, wanted.chunk
        if name in self.opaque and chunk is not None:
            return self._each([name], lambda item: self._frame(item, chunk)).get(name)
        return self._each([name], lambda item: self._whole(item) if chunk else self._object(item)).get(name)

    # -- one item; raise `Noted` or anything else if it did not verify ------------------------------

    def _loaded(self, item: ObjectItem) -> Any:
        return self._checkpoint.access.objects.load_at(item.place, self._object(item), "cpu")

    def _load_into(self, item: TensorItem, planner: LoadPlanner) -> None:
        from torch.distributed.tensor import DTensor

        target = planner.state_dict[item.name]
        if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
            raise Noted  # it lies on other ranks
        shards = planner.shards_for(item)
        boxes = [(at, tuple(shard.shape)) for at, shard in shards]
        try:
            found = self._boxes(item, boxes)
        except Opaque:
            frames = self._frames(item)
            for (_, shard), box in zip(shards, boxes, strict=True):
                made = self._made(item, frames, box)
                planner.check_kind(shard, made)
                shard.copy_(made)
            return
        for (_, shard), (part, places) in zip(shards, found, strict=True):
            made = Box(item, (), ()).as_torch(part)
            planner.check_kind(shard, made)
            for cuts in places:
                shard[cuts].copy_(made[cuts])

    def _object(self, item: ObjectItem) -> bytes:
        def read(copy: Copy, _: bool) -> bytes:
            data = self._bytes(copy, "the object")
            if copy[1].kind is Kind.VALUE:
                self._checkpoint.access.objects.load_at(copy[1].place, data, budget=self._budget)
            return data

        return self._agreed(item, None, read, bytes.__eq__)

    def _bytes(self, copy: Copy, what: str) -> bytes:
        data = StreamReader(self._checkpoint.stream(copy)).read()
        self._budget.spend(len(data), what)
        return data

    def _tensor(self, item: TensorItem) -> NDArray[Any] | Frames:
        before = len(self.damaged)
        try:
            return self._whole(item)
        except Opaque:
            del self.damaged[before:]  # which the frames find again
            return self._frames(item)

    def _frames(self, item: TensorItem) -> Frames:
        """What was stored of a tensor that only torch can make, shard by shard."""
        self.opaque.add(item.name)
        found = dict[Ints, bytes]()
        for chunk in item.chunks:
            with suppress(Noted):
                found[chunk.offset] = self._frame(item, chunk)
        try:
            item.check_tiles()
        except errors.MetadataError:
            self.damaged.append(Damage.of(errors.MetadataError(_INCOMPLETE), item.name))
            raise Noted from None
        if len(found) < len(item.chunks):
            raise Noted
        return found

    def _frame(self, item: TensorItem, chunk: Chunk) -> bytes:
        """A shard that only torch can make, as it was stored: checked as far as its classes are allowed here."""
        objects = self._checkpoint.access.objects

        def read(copy: Copy, _: bool) -> bytes:
            data = self._bytes(copy, "the tensor")
            if not objects.unknown_in(io.BytesIO(data), len(data), copy[1].place.size):
                with suppress(errors.ObjectError):
                    objects.load_shard(io.BytesIO(data), len(data), item, chunk)
            return data

        return self._agreed(item, chunk, read, bytes.__eq__)

    def _made(self, item: TensorItem, frames: Frames, box: tuple[Ints, Ints] | None = None) -> torch.Tensor:
        """What torch makes of one shard, by default of all of the tensor."""
        box = box or ((0,) * len(item.shape), item.shape)
        chunk = next((chunk for chunk in item.chunks if chunk[:2] == box), None)
        if chunk is None:
            raise errors.UnsupportedError(
                f"it is stored in {many(len(item.chunks), 'shard')}, which only its class can cut or join: load it "
                "into a state dict that is sharded as when it was saved",
            )
        data = frames[chunk.offset]
        return self._checkpoint.access.objects.load_shard(io.BytesIO(data), len(data), item, chunk)

    def _whole(self, item: TensorItem) -> NDArray[Any]:
        ((whole, _),) = self._boxes(item, [((0,) * len(item.shape), item.shape)], self._budget.spend)
        return whole

    def _boxes(
        self, item: TensorItem, boxes: Sequence[tuple[Ints, Ints]], spend: Callable[..., None] | None = None
    ) -> list[tuple[NDArray[Any], list[Cuts]]]:
        """Parts of a tensor, by their offsets and lengths, each with the places in it that verified; if `partial`, not
        all of them need to. `spend` is told of the memory that it takes.
        """
        shared = [
            [(chunk, part) for chunk in item.chunks if (part := Box(item, *box).shared(chunk)) is not None]
            for box in boxes
        ]
        complete = True
        for (_, lengths), parts in zip(boxes, shared, strict=True):
            chunks = [chunk._replace(offset=at, shape=size) for chunk, (_, size, at) in parts]
            try:
                (item if lengths == item.shape else replace(item, shape=lengths, chunks=tuple(chunks))).check_tiles()
            except errors.MetadataError:
                complete = False
                self.damaged.append(Damage.of(errors.MetadataError(_INCOMPLETE), item.name))
        if not complete and not self._partial:
            raise Noted
        # what is lost of one that is returned in part takes no memory, whatever the metadata says of its size
        in_part = self._partial and not (complete and len(item.chunks) == 1)
        if spend is not None:
            spend(item.size, "the tensor", item=item.name)
        empty = [chunk for chunk in item.chunks if 0 in chunk.shape]  # which are read, too: they may be damaged
        good = [self._read(item, chunk, chunk.offset, memory_for(Box(item, *chunk[:2]))) for chunk in empty]
        found: list[tuple[NDArray[Any], list[Cuts]]] = []
        for wanted, parts in zip(boxes, shared, strict=True):
            box, places = memory_for(Box(item, *wanted), zero=in_part), []
            for chunk, (inside, size, at) in parts:
                # with the ellipsis it is a view in any case
                cuts: Cuts = (*(slice(begin, begin + length) for begin, length in zip(at, size, strict=True)), ...)
                out = memory_for(Box(item, at, size)) if in_part else box[cuts]
                good.append(self._read(item, chunk, tuple(map(int.__add__, chunk.offset, inside)), out))
                if good[-1]:
                    places.append(cuts)
                    if in_part:
                        box[cuts] = out
            found.append((box, places))
        if not (complete and all(good)):
            if not (self._partial and any(good)):
                raise Noted
            self._in_part.append(item.name)
        return found

    def _read(self, item: TensorItem, chunk: Chunk, offset: Ints, out: NDArray[Any]) -> bool:
        """Fill `out` with a shard's part from `offset` on; False if it did not verify, and `out` holds anything."""

        def read(copy: Copy, again: bool) -> NDArray[Any]:
            into = memory_for(Box(item, offset, out.shape)) if again else out
            blocks = self._checkpoint.stream(copy)
            try:
                elements = copy[1].elements(blocks)
            except errors.UnsupportedError:
                raise Opaque from None
            run_jobs(elements.jobs(tuple(map(int.__sub__, offset, chunk.offset)), into.shape, into))
            return into

        try:
            self._agreed(item, chunk, read, same_bits)
        except Noted:
            return False
        return True

    def _agreed(
        self, item: Item, chunk: Chunk | None, read: Callable[[Copy, bool], T], same: Callable[[T, T], bool]
    ) -> T:
        """What `read` makes of all copies that ranks have of an object or a shard: nothing says that they are of one
        save. `read` is told whether another copy was read before.
        """
        offset, shape = (None, None) if chunk is None else chunk[:2]
        found: list[T] = []
        for copy in self._checkpoint.copies(item, chunk):
            file = self._checkpoint.storage.label(copy[1].place.file)
            try:
                with errors.located(file=file, item=item.name):
                    data = read(copy, bool(found))
            except Opaque:
                raise
            except Exception as error:  # torch and foreign transforms raise anything
                if errors.is_exhausted(error):
                    raise
                self.damaged.append(Damage.of(error, item.name, file, offset, shape))
                continue
            if found and not same(found[0], data):
                self.damaged.append(Damage.of(errors.IdentityError(_DIFFERING), item.name, None, offset, shape))
                raise Noted
            found = [data]
        if not found:
            raise Noted
        return found[0]

    def _each(self, names: Collection[str], read: Callable[[Any], T]) -> dict[str, T]:
        """What `read` makes of items that verify, in the order of `names`; files are read from front to back."""
        self._checkpoint.expect(names, self._progress)
        made: dict[str, T] = {}
        items = [self._checkpoint.stored[name] for name in names]
        for item in sorted(items, key=lambda item: item.places[0][:2] if item.places else ("", 0)):
            try:
                made[item.name] = read(item)
            except Noted:
                """The others are read all the same."""
            except Exception as error:  # torch, foreign transforms and pickles raise anything
                if errors.is_exhausted(error):
                    errors.add_note(
                        error, errors.escaped(f"while the item {item.name} was read; nothing is known to be damaged")
                    )
                    raise
                (self._refused if isinstance(error, _REFUSED) else self.damaged).append(Damage.of(error, item.name))
        return {name: made[name] for name in names if name in made}

    def _result(self, state_dict: dict[str, Any], loaded: Iterable[str], missing: Iterable[str] = ()) -> Salvaged:
        if doubt := doubt_of(self._checkpoint.storage, self.damaged):
            raise doubt
        self._checkpoint.shares.finish()
        found = tuple(loaded)
        classes = {cls.__name__: cls for cls in errors.NOT_AT_HAND}
        missed = [entry for entry in self.damaged if entry.error in classes]
        if missed and not found:  # the caller can install it
            reasons = "; ".join(dict.fromkeys(entry.message for entry in missed))
            raise classes[missed[0].error](
                f"{reasons}. Without it nothing can be salvaged; `streamxf verify` tells whether the CRCs match all "
                "the same"
            )
        return Salvaged(
            state_dict=state_dict,
            loaded=found,
            damaged=tuple(each for each in self.damaged if not each.unread),
            unread=tuple(each for each in self.damaged if each.unread),
            partial=tuple(self._in_part),
            missing=tuple(missing),
            unchecked=tuple(self._checkpoint.unchecked),
            refused=tuple(self._refused),
            save_ids={each.name: each.index.save_id for each in self._checkpoint.metadata if each.index is not None},
        )


def memory_for(box: Box, *, zero: bool = False) -> NDArray[Any]:
    """As `Box.array`; raises Opaque if only torch can make it, MetadataError if no array has that shape."""
    if not box.item.fits_numpy:
        raise Opaque
    try:
        return box.array(zero=zero)
    except errors.UnsupportedError as error:
        raise errors.MetadataError(error.message) from None
