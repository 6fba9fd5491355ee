"""`diff`: two checkpoints of any formats, compared item by item, box by box."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from streamxf import errors
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.formats.contents import FileReader, chosen
from streamxf.formats.huggingface import INDEX
from streamxf.formats.opening import is_checkpoint, open_source
from streamxf.keys import KeyRing
from streamxf.places import Location, Storage, open_storage
from streamxf.reading import Access, AccessOptions, Box, BoxReader, Item, Progress, Share, TensorItem
from streamxf.tools.convert.packed import FileTree, PackedReader, PackManifest, is_kept, manifest_of, open_packed
from streamxf.tools.damage import CALLERS, Damage
from streamxf.tools.diff.difference import Change, Difference, Distance, DistanceCounter, Incomparable, difference_of
from streamxf.tools.fleet import Fleet, by_tensors, is_of_machine
from streamxf.tools.values.statistics import is_number
from streamxf.wording import many, some

BOX_BYTES = 16 * 2**20
_TRIED = 20  # names and prefixes
_AS_BYTES = "it was packed as bytes of its file alone: compare the files that `streamxf unpack` writes"


def diff(
    first: Location,
    second: Location,
    *,
    encrypted: tuple[bool, bool] = (True, True),
    only: Sequence[str] = (),
    prefixes: tuple[str, str] = ("", ""),
    values: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[AccessOptions],
) -> Difference:
    """Compare two checkpoints: which items differ, and by how much.

    Either may have any of the formats that streamxf reads, and be sharded in any way; tensors are read in parts, and
    `streamxf.tools.diff.difference` defines equality.

    A folder that was packed is compared with a folder, or with another packed one, file by file. Otherwise only tensors
    and objects are compared; `Difference.not_compared` lists the rest.

    Parameters
    ----------
    first, second : path, str or Storage
        Each a file, a folder, or a URL that fsspec knows.
    keys, trust, allow_unsigned, require, expect_save_id, codecs, storage_options
        As in `Checkpoint`, for both.
    encrypted : tuple of bool
        One for each: whether the keys are for it. With keys a checkpoint of DCP that is not encrypted is refused.
    only : sequence of str
        Shell patterns; only items whose names match one of them are compared.
    prefixes : tuple of str
        One for each: only items whose names begin with it are compared, without it; ``("model.", "")`` compares a model
        that was saved as ``{"model": ...}`` with the model alone.
    values : bool
        Whether to compute `Distance.statistics`: as `inspect` shows them, of the second minus the first.
    max_expansion : int
        Limit on the compared bytes of a checkpoint, as a multiple of its stored size; 256 MiB is always allowed. Blocks
        count by their stored bytes. Items beyond it, such as tensors whose strides repeat elements, are incomparable.
    progress : Progress, optional
        Receives the bytes of the compared tensors, of both checkpoints.
    executor : concurrent.futures.Executor, optional
        Its workers compare the tensors, as in `verify`.

    Raises StreamxfError, OSError if one is not a checkpoint that streamxf can read, its metadata is damaged or needs
    another key, or none of its items can be read, but for damage. An unreadable item is incomparable, and the others
    are compared.
    """
    access = Access.of(**options)
    plain = replace(access.lenient(), keys=KeyRing())
    storages = [open_storage(path, storage_options) for path in (first, second)]
    fleet = None if executor is None else Fleet(executor, storages, access)
    sides: dict[int, BoxReader] = {}
    manifests: dict[int, PackManifest] = {}
    unknown: dict[int, str] = {}
    with ExitStack() as stack:
        # checkpoints first: what was packed says what has to be read of the folder that it is compared with
        for number in sorted((0, 1), key=lambda number: not is_checkpoint(storages[number])):
            storage, packed = storages[number], next(iter(manifests.values()), None)
            if packed is not None and packed.is_folder and storage.is_folder() and not is_checkpoint(storage):
                side: BoxReader = open_packed(FileTree.of(storage), access.objects.max_expansion)
            else:
                side = open_source(storage, access if encrypted[number] else plain, beside=True)
            sides[number] = stack.enter_context(side)
            try:
                if (manifest := manifest_of(side)) is not None:
                    manifests[number] = manifest
            except errors.DAMAGE as error:
                unknown[number] = f"{storage.label()}: what else was packed, since this cannot be read: {error}"
        files = len(manifests) == 2 and all(manifest.is_folder for manifest in manifests.values())
        kept = {number: manifests[number].kept_as_bytes(sides[number].stored) for number in manifests}
        comparison = Comparison(sides[0], sides[1], values, progress, set().union(*kept.values()))
        found = comparison.run((storages[0].label(), storages[1].label()), only, prefixes, files, fleet)
        for number in () if files else kept:
            unread = chosen(dict.fromkeys(kept[number], _AS_BYTES), only, prefixes[number])
            found = replace(found, incomparable={**found.incomparable, **unread})
        left = [unknown.get(number, "") for number in (0, 1)]
        if not only and not any(prefixes):
            for number in {0, 1} - unknown.keys():
                left[number] = _not_compared(storages[number], sides[number], manifests.get(number), files)
        return replace(found, not_compared=tuple(text for text in left if text))


def _not_compared(storage: Storage, side: BoxReader, manifest: PackManifest | None, files: bool) -> str:
    """What one side has besides tensors and objects, if that was not compared."""
    if manifest is not None:
        if manifest.is_folder and not files:
            files_there = many(len(manifest.files), "file")
            return f"{storage.label()}: what {files_there} of the folder that was packed hold besides"
        if manifest.left_out and not isinstance(side, PackedReader):
            return f"{storage.label()}: entries left out when it was packed, {some(manifest.left_out)}"
    elif isinstance(side, FileReader) and storage.is_folder():
        tree = FileTree.of(storage)
        others = (path for path in (*tree.files, *tree.left_out) if path not in side.shards)
        other = next((path for path in others if not path.endswith(INDEX)), None)
        return f"{storage.label()}: what else is in the folder, such as {other}" if other else ""
    return ""


def _measurable(item: TensorItem, beside: TensorItem) -> bool:
    numbers = is_number(item.dtype) and is_number(beside.dtype)
    return item.shape == beside.shape and (item.dtype == beside.dtype or numbers)


@dataclass
class Compared:
    """What came of some items. `read` says how many could be, and `reasons` why the first of the others could not."""

    changed: list[Change] = field(default_factory=list)
    incomparable: list[tuple[str, str]] = field(default_factory=list)
    equal: int = 0
    elements: int = 0
    differing: int = 0
    read: int = 0
    reasons: list[errors.StreamxfError | OSError] = field(default_factory=list)

    def add(self, other: Compared) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Comparison:
    """Compares two opened checkpoints, as `diff` does, without the items `beside`."""

    def __init__(
        self, first: BoxReader, second: BoxReader, values: bool, progress: Progress | None, beside: Collection[str] = ()
    ) -> None:
        self._beside = beside
        self._first, self._second, self._values, self._progress = first, second, values, progress
        self._again = first.budget.renewed()
        keeps = isinstance(first, FileReader) and isinstance(second, FileReader)
        self._known: set[int] | None = set() if keeps else None  # parts of objects by ids, where readers keep these
        self.found = Compared()

    def run(
        self,
        paths: tuple[str, str],
        only: Sequence[str],
        prefixes: tuple[str, str],
        files: bool,
        fleet: Fleet | None = None,
    ) -> Difference:
        """Compare what `only` and `prefixes` choose; with `files`, also what `pack` keeps of files. If nothing could be
        read, and the caller can mend that or there is nothing else to tell, not even damage, the reason is raised.
        """
        one, other = (
            {
                name: item
                for name, item in chosen(side.stored, only, prefix).items()
                if (files or not is_kept(item.name)) and item.name not in self._beside
            }
            for side, prefix in zip((self._first, self._second), prefixes, strict=True)
        )
        if not one and not other and (only or any(prefixes)):
            raise errors.ParameterError("no item of either has such a name, so there is nothing to compare")
        found, pairs = self.found, dict[str, tuple[TensorItem, ...]]()
        for name, item in one.items():
            beside = other.get(name)
            if beside is None:
                continue
            if isinstance(item, TensorItem) and isinstance(beside, TensorItem) and _measurable(item, beside):
                pairs[name] = item, beside
            elif isinstance(item, TensorItem) or isinstance(beside, TensorItem):
                found.changed.append(_change(name, item, beside))
            else:
                self._objects(name, prefixes[0] + name, prefixes[1] + name)
        by_tensors(fleet, (self._first, self._second), pairs, found.add, self._progress, _compare, self._values)
        removed = tuple(name for name in one if name not in other)
        added = tuple(name for name in other if name not in one)
        for reason in () if found.read else found.reasons:
            lists = removed or added or found.changed or errors.is_damage(reason)
            if isinstance(reason, CALLERS) or not lists:
                raise reason
        by_name = {change.name: change for change in found.changed}
        changed = tuple(by_name[name] for name in one if name in by_name)
        counts = found.equal, found.elements, found.differing
        notes = (*_prefix_notes(removed, added), *(fleet.notes if fleet else ()))
        return Difference(*paths, removed, added, changed, dict(found.incomparable), *counts, notes)

    def tensors(self, name: str, item: TensorItem, beside: TensorItem) -> None:
        share = Share(self._progress, item.size + beside.size)

        def change() -> Change | None:
            try:
                distance = self._distance(item, beside, share)
            except (errors.UnsupportedError, _Unreadable) as error:
                if not isinstance(getattr(error, "cause", error), errors.UnsupportedError):
                    raise
                self._frames(item, beside, error)
                return None
            self.found.elements += distance.elements
            self.found.differing += distance.differing
            same = not distance.differing and item.dtype == beside.dtype
            return None if same else _change(name, item, beside, distance)

        self._compare(name, change)
        share.finish()

    def _frames(self, item: TensorItem, beside: TensorItem, reason: Exception) -> None:
        """Compare tensors that only torch and their class can make by what is stored; raises `reason` otherwise."""
        first, second = self._first, self._second
        one_way, other_way = ([each[:2] for each in one.chunks] for one in (item, beside))
        alike = item.dtype == beside.dtype and one_way == other_way
        if not alike or not isinstance(first, Checkpoint) or not isinstance(second, Checkpoint):
            raise reason
        for chunk, other in zip(item.chunks, beside.chunks, strict=True):
            one = _of_the("first", first.read_stored, item, chunk)
            if one != _of_the("second", second.read_stored, beside, other):
                raise Incomparable("only torch and its class can make it, and what is stored of it differs")
        self.found.elements += math.prod(item.shape)

    def _objects(self, name: str, in_first: str, in_second: str) -> None:
        def change() -> Change | None:
            one = _of_the("first", self._first.load_object, in_first)
            other = _of_the("second", self._second.load_object, in_second)
            text = difference_of(one, other, self._again, self._known)
            return None if text is None else Change(name, (None, None), ((), ()), text=text)

        self._compare(name, change)

    def _compare(self, name: str, compare: Callable[[], Change | None]) -> None:
        """Compare one item; where it cannot be read, the others can all the same."""
        try:
            change = compare()
        except Incomparable as error:
            self.found.incomparable.append((name, str(error)))
        except Exception as error:  # a third-party codec, or an object's own code, may raise anything
            cause = error.cause if isinstance(error, _Unreadable) else error
            if errors.is_exhausted(cause) or is_of_machine(cause):
                raise cause from cause.__cause__
            self.found.incomparable.append((name, _reason(error)))
            if not self.found.reasons and isinstance(cause, errors.StreamxfError | OSError):
                self.found.reasons.append(cause)
            return
        else:
            if change is None:
                self.found.equal += 1
            else:
                self.found.changed.append(change)
        self.found.read += 1

    def _distance(self, item: TensorItem, beside: TensorItem, share: Share) -> Distance:
        widest = max(item.itemsize, beside.itemsize)  # both are cut alike
        first, second = (Box.of(each, BOX_BYTES // widest * each.itemsize) for each in (item, beside))
        counter = DistanceCounter(item.dtype, beside.dtype, self._values)
        with closing(self._first.read_boxes(first)) as one, closing(self._second.read_boxes(second)) as other:
            while True:
                part, counterpart = _of_the("first", next, one, None), _of_the("second", next, other, None)
                if part is None or counterpart is None:
                    return counter.result()
                counter.add(part, counterpart)
                share.advance(part.nbytes + counterpart.nbytes)


def _compare(
    sides: Sequence[BoxReader], pairs: Mapping[str, tuple[TensorItem, ...]], progress: Progress | None, values: bool
) -> Compared:
    comparison = Comparison(sides[0], sides[1], values, progress)
    for name, pair in pairs.items():
        comparison.tensors(name, *pair)
    return comparison.found


class _Unreadable(Exception):
    """An item of one of the two cannot be read, because of `cause`."""

    def __init__(self, which: str, cause: Exception) -> None:
        super().__init__(f"that of the {which} cannot be read: {_reason(cause)}")
        self.cause = cause


def _of_the(which: str, read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except Exception as error:
        raise _Unreadable(which, error) from error


def _reason(error: Exception) -> str:
    return str(error if isinstance(error, _Unreadable) else Damage.of(error))


def _change(name: str, first: Item, second: Item, distance: Distance | None = None) -> Change:
    dtypes = tuple(item.dtype if isinstance(item, TensorItem) else None for item in (first, second))
    shapes = tuple(item.shape if isinstance(item, TensorItem) else () for item in (first, second))
    return Change(name, (dtypes[0], dtypes[1]), (shapes[0], shapes[1]), distance)


def _prefix_notes(removed: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Say so if names that only one has are the other's behind a prefix, as in a model saved as ``{"model": ...}``."""
    for these, those, which, other in ((removed, added, "second", "first"), (added, removed, "first", "second")):
        prefix, count = _prefix(these, set(those))
        if count:
            yield (
                f"{many(count, 'name')} of the {which} are names of the {other} behind {prefix!r}: with that prefix of "
                f"the {which} taken off, these items are compared"
            )


def _prefix(bare: Sequence[str], prefixed: set[str]) -> tuple[str, int]:
    """The prefix behind which most of the names `bare` are among `prefixed`, and how many are."""
    tried: list[str] = []
    for name in bare[:_TRIED]:
        if tried := [longer[: -len(name)] for longer in prefixed if longer.endswith(name) and longer != name]:
            break
    names = set(bare)
    counts = {
        prefix: sum(name.startswith(prefix) and name[len(prefix) :] in names for name in prefixed)
        for prefix in tried[:_TRIED]
    }
    return max(counts.items(), key=lambda entry: entry[1], default=("", 0))
