"""How `verify` reads: files that may fail or be full of holes, and each block of containers, whatever others have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from streamxf import errors
from streamxf.errors import is_damage, shorten
from streamxf.format.items import ObjectItem, Place
from streamxf.pipeline import Pipeline
from streamxf.places import Storage
from streamxf.reading import (
    Access,
    ItemOpener,
    ItemPart,
    Kind,
    Metadata,
    Progress,
    Scan,
    Share,
    StoredFile,
    StoredStream,
    StreamReader,
    TensorItem,
)
from streamxf.tools.fleet import TASK_BYTES, Fleet, Terms, worker_name
from streamxf.tools.verify.report import KEYED, TRANSFORMED, UNBOUND, WITHOUT_CRC, Findings, Notes, opaque
from streamxf.wording import many, some

_STEP = 2**20
_REMOTE_STEP = 8 * 2**20  # bytes that fsspec fetches at a time; by itself it would hold up to 100 MiB for each file
_AT_ONCE = 32  # streams that are kept until their blocks were checked, of 128 KiB at most, if they are in memory
_CHECK_HERE = 128 * 1024  # bytes of a stream that is checked sooner than a worker is told to


@dataclass
class Verification:
    """One call of `verify`, and its findings in the order of the report.

    `failures` end the call, in any thread; `unread` is what the storage failed with, where that does not mean damage.
    """

    storage: Storage
    access: Access
    progress: Progress | None
    found: list[Findings] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    unread: list[Exception] = field(default_factory=list)

    def findings(self, file: str) -> Findings:
        """A place for what is found in one more file."""
        self.found.append(Findings(file))
        return self.found[-1]

    @contextmanager
    def noting_unread(self) -> Iterator[None]:
        """Keep what the storage failed with, unless it means damage."""
        try:
            yield
        except (OSError, errors.ForeignError) as error:
            if not is_damage(error):
                self.unread.append(error)
            raise

    @contextmanager
    def open(
        self, label: str, storage: Storage | None = None, share: Share | None = None, held: int | None = None
    ) -> Iterator[StoredFile]:
        """Open the file `label` of the folder, or what `storage` is, which has that name in errors; what is read counts
        for `share`, by default a new one. Of what the storage has of the file, `held` bytes are to be read.
        """
        with ExitStack() as stack:
            place, name = (self.storage, label) if storage is None else (storage, "")
            with self.noting_unread(), errors.located(file=place.label(name)):
                file = stack.enter_context(place.open(name, step=_REMOTE_STEP))
            share = share or Share.announced(self.progress, file.size)
            yield StoredFile(label, file.size, file.raw, GuardedAccess(self, file.counted(share.advance), held))
        share.finish()


class GuardedAccess:
    """Reads by position that raise no errors but Python's and streamxf's, as long as the call goes on. What may be read
    is bounded by the bytes `held` in storage: holes have no end.
    """

    def __init__(self, call: Verification, file: StoredFile, held: int | None) -> None:
        self._call, self._access = call, file.access
        self.parallel, self.expect = self._access.parallel, self._access.expect
        self._budget = call.access.budget(file.held if held is None else held)

    def read_into(self, position: int, out: memoryview) -> int:
        """Raises OSError, ForeignError; PolicyError if too much of it is holes, AbortedError once the call failed."""
        if self._call.failures:
            raise errors.AbortedError("another check has failed")
        self._budget.spend(len(out), "reading the file")
        with self._call.noting_unread():
            return self._access.read_into(position, out)


def pieces_of(file: StoredFile, begin: int, size: int) -> Iterator[bytes]:
    """A part of a file, piece by piece and in order, which workers read where several threads can."""
    source = file.slice(begin, size)
    source.expect((0, size))
    with Pipeline[bytes]() as pipeline:
        for at in range(0, size, _STEP):
            read = partial(source.read_at, at, min(_STEP, size - at))
            yield from pipeline.submit(read, _STEP) if source.parallel else [read()]
        yield from pipeline.results()


class BlockChecks(Pipeline[Callable[[], None]]):
    """Checks of blocks by workers, each of which gives what notes its outcome, in the thread that collects."""

    def add(self, stream: StoredStream, notes: Notes) -> bool:
        """Note what is wrong with a stream, and check all blocks that there are of it; returns whether they are
        decoded. Workers read the blocks where several threads can read at the same time.
        """
        source, blocks, findings = stream.source, stream.blocks, notes.findings
        coder = None if blocks is None else blocks.coder
        findings.skipped[KEYED] += stream.locked
        findings.opened += coder is not None and coder.seal is not None
        for error in stream.errors:
            notes.error(error)
        if blocks is None and stream.header is not None:
            _check_along_heads(stream, notes)
        elif blocks is not None:
            blocks.expect((0, blocks.count))
            small = blocks.count == 1 and max(source.length, blocks.size) <= _CHECK_HERE
            for index in range(blocks.count):
                held = blocks.stored_size_of(index) + (blocks.size_of(index) if coder is not None else 0)
                try:
                    check = partial(_check, notes, index, blocks.decoder(index))
                    done = self.put(check(), held) if small else self.submit(check, held)
                except (errors.StreamxfError, OSError) as error:
                    done = self.put(partial(notes.outcome, index, error), held)
                self.note(done)
        return coder is not None

    def note(self, outcomes: Iterable[Callable[[], None]] | None = None) -> None:
        """Note `outcomes`, by default all that are left."""
        for note in self.results() if outcomes is None else outcomes:
            note()


def _check(notes: Notes, index: int, decode: Callable[[None], None]) -> Callable[[], None]:
    try:
        decode(None)
    except (errors.StreamxfError, OSError) as error:
        return partial(notes.outcome, index, error)
    return partial(notes.outcome, index, None)


def _check_along_heads(stream: StoredStream, notes: Notes) -> None:
    """Go from block to block by the lengths in their heads, because there is no table to find them by."""
    index = -1
    try:
        for index, error in Scan.follow(stream.source):
            notes.outcome(index, error)
    except (errors.StreamxfError, OSError) as cause:
        notes.error(cause, index + 1)


Plan = tuple[Sequence["AnyCheck"], Callable[[], tuple[Any, ...]]]
"""The checks of a place; and what is left to do when all were made, which returns the rest of `report_of`'s arguments.
"""


class AnyCheck(ABC):
    """A check of a file, whose results go to `findings`, and what ends it in a worker to the failures of `call`."""

    share: Share | None = None

    def __init__(self, call: Verification, name: str) -> None:
        self.call, self.storage, self.findings = call, call.storage, call.findings(name)

    @abstractmethod
    def run(self) -> None:
        """Make the check, here."""

    @abstractmethod
    def parts(self) -> list[tuple[Any, ...]]:
        """The arguments, after a name, of checks by workers that make up this one."""

    def submit(self, fleet: Fleet) -> None:
        """Have a fleet make it."""
        there = _check_in_worker, type(self), self.storage, fleet.terms(self.call.access), self.findings.file
        for args in self.parts():
            fleet.submit(partial(self._take, partial(fleet.check_here, *there, *args)), *there, *args)
        if self.share is not None:
            fleet.then(self.share.finish)

    def _take(self, check_here: Callable[..., Any], found: Findings | errors.StreamxfError) -> None:
        if isinstance(found, Findings) and (doubt := found.doubt):
            there = found
            found = check_here(doubt=doubt, agrees=lambda here: here.blames() == there.blames())
        if isinstance(found, errors.StreamxfError):
            self.call.failures.append(found)
        else:
            self.findings.add(found)
            (self.share or Share.announced(self.call.progress, found.bytes_read)).advance(found.bytes_read)


def _check_in_worker(kind: Callable[..., AnyCheck], storage: Storage, terms: Terms, *args: Any) -> Findings:
    """A worker's task; raises as the check and `terms`."""
    check = kind(Verification(storage, terms(), None), *args)
    check.run()
    return replace(check.findings, worker=worker_name())


class ItemRun(NamedTuple):
    """Items of a data file that are checked together, in the order of their places: number `begin` to `end`. What
    stands before them ends at `at`, and `held` is their share of the bytes that the storage has.
    """

    begin: int
    end: int
    at: int
    held: int
    last: bool


class FileCheck(AnyCheck):
    """A check of one data file of about `size` bytes, or of one `run` of its items. `metadata` says what is known of
    these, which come in the order of their places; what no metadata describes is scanned.
    """

    def __init__(
        self,
        call: Verification,
        name: str,
        size: int,
        metadata: Metadata | None = None,
        items: Sequence[ItemPart] = (),
        only: ItemRun | None = None,
    ) -> None:
        super().__init__(call, name)
        self._only = only
        self._metadata = metadata
        self._beneath = call.storage.open_files(partial(call.open, share=Share(None, 0)))
        metadata = metadata or Metadata("", None, {}, None)
        self._opener = ItemOpener(metadata, call.access, open_file=self._beneath.__getitem__)
        self._items = items
        self._size = size
        self.share: Share = Share.announced(call.progress, size)
        self._checks, self._later = BlockChecks(), list[Callable[[], None]]()

    def run(self) -> None:
        """Make the check; damage goes to the findings."""
        findings, only = self.findings, self._only
        try:
            if any(wanted.place.file != findings.file for wanted in self._items):
                raise FileNotFoundError  # it was not listed, and they lie upon it
            with self.call.open(findings.file, share=self.share, held=only.held if only else None) as file:
                findings.files = 1
                with closing(self._beneath), self._checks:
                    self._scan(file) if self._metadata is None else self._check(file, only)
        except FileNotFoundError:
            self._lose_all("the file is missing from the checkpoint")
        except errors.UnsupportedError as error:
            findings.missing.append(error)
        except (errors.StreamxfError, OSError) as error:
            findings.damage(error)
            if not findings.files and self._items:
                unread = findings.damaged[-1].unread
                self._lose_all("the file cannot be read", errors.ForeignError if unread else errors.MetadataError)
        self.share.finish()
        if only is not None and only.begin:
            findings.files = 0  # the first run counts it

    def parts(self) -> list[tuple[Any, ...]]:
        """The runs, if there are several and the file can be opened here."""
        name, runs = self.findings.file, list[ItemRun | None]([None])
        if self._metadata is not None and self._size >= 2 * TASK_BYTES:
            with suppress(errors.StreamxfError, OSError), self.call.open(name, share=Share(None, 0)) as file:
                runs = [*self._runs(file.held)]
        files = {name, *(file for wanted in self._items for file in wanted.place.files)}
        metadata, items = self._metadata and self._metadata.of_files(files), [*map(_alone, self._items)]
        self._items = ()
        return [(0, metadata, items[run.begin : run.end] if run else items, run) for run in runs]

    def _runs(self, held: int) -> Iterator[ItemRun]:
        """The runs of a file that stores `held` bytes: no more than these explain, whatever the metadata says."""
        places = [wanted.place for wanted in self._items]
        most = max(1, held // TASK_BYTES)
        length = max(TASK_BYTES, max((place.at + place.size for place in places), default=0) // most)
        begins, ats, at = [0], [0], 0
        for number, place in enumerate(places):
            if place.at >= ats[-1] + length and number:
                begins.append(number)
                ats.append(at)
            if place.at >= at or not place.size:
                at = max(at, place.at + place.size)
        for number, (begin, end) in enumerate(pairwise([*begins, len(places)])):
            yield ItemRun(begin, end, ats[number], held // len(begins), end == len(places))

    def _lose_all(self, text: str, kind: type[errors.StreamxfError] = errors.MetadataError) -> None:
        self.findings.items += len(self._items)
        items = some(shorten(wanted.item.name) for wanted in self._items)
        lost = f", and with it {many(len(self._items), 'item')}: {items}" if self._items else ""
        self.findings.damage(kind(f"{text}{lost}"))

    def _check(self, file: StoredFile, only: ItemRun | None) -> None:
        facts = self._opener.metadata.files.get(self.findings.file)
        if facts is not None and facts.size != file.size and not (only and only.begin):
            text = f"the file has {file.size} bytes, the metadata says {facts.size}: it was truncated or appended to"
            self.findings.damage(errors.ContainerError(text))
        for run in [only] if only is not None else self._runs(file.held):
            self._opener.budget = self.call.access.budget(run.held)
            items = self._items if only is not None else self._items[run.begin : run.end]
            for wanted, *others in self._in_place(items, run, file):
                self._check_stored(file, wanted, others)
                if len(self._later) == _AT_ONCE:
                    self._check_later()
            self._check_later()

    def _in_place(self, items: Sequence[ItemPart], run: ItemRun, file: StoredFile) -> Iterator[list[ItemPart]]:
        """Those of the items that can be checked, values of one container together; what lies between is noted."""
        at, size, index = run.at, file.size, self._opener.metadata.index
        is_stock, is_shared = index is None, index is not None and index.bases is not None  # with what an index has not
        for _, group in groupby(items, _container_of):
            each = [*group]
            if len(each) > 1:  # of whose container the header of one is compared
                container = Counter(one.place.container for one in each).most_common(1)[0][0]
                strange = [one for one in each if one.place.container != container]
                self._lose(strange, "its number, chain or digest is not that of other values in its container")
                each = [one for one in each if one.place.container == container]
            wanted, place = each[0], each[0].place
            if place.size and place.at < at:
                # otherwise little metadata could have the same bytes read without end
                self._lose(each, "the metadata places the item over another one; it was not checked")
                continue
            if is_stock and wanted.kind is Kind.TENSOR and place.at - at >= 8:  # the length and header of safetensors
                at = min(place.at, at + 8 + int.from_bytes(file.read(at, 8), "little"))
            if place.at - at >= wanted.alignment and not is_shared:
                self.findings.damage(
                    errors.ContainerError(f"nothing accounts for the {place.at - at} bytes from {at} on")
                )
            at = max(at, place.at + place.size)
            if place.at > size or (place.size and place.at == size):
                self._lose(each, "the metadata places the item beyond the end of its file: the file was cut")
                continue
            self.findings.items += len(each)
            self.findings.bytes_read += min(place.size, size - place.at)
            yield each
        if run.last and at < size and not is_shared:
            text = f"{size - at} bytes follow the last item, and nothing accounts for them: they were appended"
            self.findings.damage(errors.ContainerError(text))

    def _lose(self, each: Sequence[ItemPart], text: str) -> None:
        self.findings.items += len(each)
        for wanted in each:
            self._notes(wanted).error(errors.MetadataError(text))

    def _notes(self, wanted: ItemPart) -> Notes:
        return Notes(self.findings, wanted.item.name, wanted.chunk.offset if wanted.chunk is not None else None)

    # -- one item: on the way through the file, and once its blocks were found intact ----------------

    def _check_stored(self, file: StoredFile, wanted: ItemPart, others: Sequence[ItemPart]) -> None:
        """Check the container of an item, which `others` share, that begins in the file; its content later, if there is
        more to check.
        """
        notes, place, skipped, is_decoded = self._notes(wanted), wanted.place, self.findings.skipped, False
        length = min(place.size, file.size - place.at)
        if length < place.size:
            notes.error(
                errors.ContainerError("the metadata places the item beyond the end of its file: the file was cut")
            )
        try:
            stream = self._opener.examine(file.slice(place.at, length), wanted)
            if (header := stream.header) is not None:
                skipped[UNBOUND] += header.identity is None
                is_decoded = self._checks.add(stream, notes)
                has_elements = header.chain == header.block_chain and wanted.kind is not Kind.FRAMED
                if wanted.kind is not Kind.VALUE and (not is_decoded or has_elements):
                    return
            elif stream.errors or place.crcs is not None:
                self._checks.add(stream, notes)
            elif wanted.kind is Kind.TENSOR:  # as stock DCP stores in safetensors' format
                deque(pieces_of(file, place.at, length), 0)
                skipped[UNBOUND] += 1
                skipped[WITHOUT_CRC] += 1
            if wanted.kind is Kind.VALUE and place.crcs is None:
                self._later.append(partial(self._check_values, [wanted, *others], notes, stream, is_decoded))
            elif wanted.kind is not Kind.TENSOR or stream.header is not None:
                self._later.append(partial(self._check_content, wanted, notes, stream))
        except (errors.StreamxfError, OSError) as error:
            for each in (wanted, *others):
                self._notes(each).error(error)

    def _check_later(self) -> None:
        self._checks.note()
        for check in self._later:
            check()
        self._later.clear()

    def _check_values(self, each: Sequence[ItemPart], notes: Notes, stored: StoredStream, is_decoded: bool) -> None:
        """Check the whole stream of values, and that those of some items are in it."""
        try:
            if not notes.damaged and is_decoded and stored.blocks is not None:
                assert self._opener.budget is not None
                left: set[tuple[int, int] | None] = {wanted.place.span for wanted in each}
                for _, span in StreamReader(stored.blocks).values(self._opener.budget, len(each)):
                    left.discard(span)
                for wanted in each:
                    if wanted.place.span in left:
                        text = "the stream has no value where the metadata says it is: one of them was altered"
                        self._notes(wanted).error(errors.MetadataError(text))
        except (errors.StreamxfError, OSError) as error:
            notes.error(error)
        for wanted in each[1:] if notes.damaged else ():
            text = f"it is stored together with {shorten(each[0].item.name)!r}, and that is damaged"
            self._notes(wanted).error(errors.ContainerError(text))

    def _check_content(self, wanted: ItemPart, notes: Notes, stored: StoredStream) -> None:
        """Check that an item whose blocks were found intact holds what the metadata says."""
        if notes.damaged or stored.blocks is None:
            return
        item, chunk, opener, skipped = wanted.item, wanted.chunk, self._opener, self.findings.skipped
        objects = self.call.access.objects
        try:
            blocks = opener.content(stored.blocks, wanted)
            stream = StreamReader(blocks)
            skipped[TRANSFORMED] += blocks is not stored.blocks
            if blocks.header is None and wanted.place.crcs is None:
                skipped[UNBOUND] += 1
                skipped[WITHOUT_CRC] += objects.check_records(stream, blocks.size) is None
            if wanted.kind is Kind.VALUE:
                objects.load_at(wanted.place, stream.read())
            if chunk is None or not isinstance(item, TensorItem):
                return
            try:
                stream.framed(item.dtype, chunk.shape)
            except errors.UnsupportedError:  # only torch can tell what it is, and whoever defines its class
                assert opener.budget is not None
                stream.seek(0)
                if unknown := objects.unknown_in(stream, blocks.size, wanted.place.size):
                    skipped[opaque(some(unknown))] += 1
                    return
                opener.budget.renewed().spend(blocks.size, "the tensor, which torch has to load whole,")
                objects.load_shard(stream, blocks.size, item, chunk)
        except errors.ObjectError as error:
            skipped[opaque(f"code that fails: {shorten(error.message, 200)}")] += 1
        except (errors.StreamxfError, OSError) as error:
            notes.error(error)

    # -- a file of which no metadata says what is in it ----------------------------------------------

    def _scan(self, file: StoredFile) -> None:
        findings, undescribed, places = self.findings, 0, 0
        for found in Scan(file.slice(0, file.size)):
            if (header := found.header) is not None:
                findings.items += 1
                findings.bytes_read += found.size
                identity = header.identity
                notes = Notes(findings, f"(at byte {found.at})")
                if identity is not None:
                    notes = Notes(findings, identity.name, identity.offset)
                place, locked = Place("", 0, 0, header.chain), header.keyed  # by keys that are in metadata
                stream = StoredStream(file.slice(found.at, found.size), header, locked=locked)
                stream.examine(None if locked else stream.attempt(self._opener.chain, header, place))
                self._checks.add(stream, notes)
            elif found.begun:
                text = f"the header of the container at byte {found.at} is damaged, so that its content is unknown"
                findings.damage(errors.ContainerError(text))
            elif found.size == file.size:
                findings.unchecked.append(
                    f"the content of {findings.file}, which has no containers, so that it is unknown without metadata"
                )
            else:
                undescribed, places = undescribed + found.size, places + 1
        if undescribed:  # items that were saved raw, which are intact perhaps; or containers that lost their headers
            findings.unchecked.append(
                f"{many(undescribed, 'byte')} of {findings.file} in {many(places, 'place')}, which no container "
                "describes, so that it is unknown without metadata what they are"
            )
        self._checks.note()


def _container_of(wanted: ItemPart) -> Any:
    """What is the same for items that are said to be in one container."""
    place = wanted.place
    return id(wanted) if place.span is None or place.crcs is not None else place[:3]


def _alone(wanted: ItemPart) -> ItemPart:
    """The same, without what is said of other chunks, nor of more than its stream."""
    item = wanted.item
    if wanted.chunk is None or not isinstance(item, TensorItem):
        return ItemPart(ObjectItem(item.name, wanted.place))
    return ItemPart(TensorItem(item.name, item.dtype, item.shape, (wanted.chunk,)), wanted.chunk)
