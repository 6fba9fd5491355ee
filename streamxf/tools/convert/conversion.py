"""Conversions: items written under one metadata file, by this process or a fleet; a `ResumableSave` keeps what is
finished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from streamxf.errors import ContainerError, ParameterError
from streamxf.places import Location, Storage
from streamxf.reading import BoxReader, Item, ItemPart, Progress, Share
from streamxf.tools.fleet import Fleet, Items
from streamxf.wording import listed, many, size_text
from streamxf.writing import Content, ResumableSave, RunFacts, Save

_NOT_THERE = "the target has not all that workers wrote, as it is seen here, for these recipients and by this signer"
_ADDED_UP = ("save_ids", "items", "files", "kept_files", "discarded_files", "raw_bytes", "stored_bytes", "seconds")
FILE_SIZE = 256 * 2**20
"""Bytes of items, before the chain, in one data file: what is lost of the work when the process is killed."""


@dataclass(frozen=True)
class Converted:
    """The result of `pack` and `transcode`.

    - `chain`: in its text form; several as ``NAME=CHAIN``, joined by commas.
    - `key_ids`, `signers`: kinds and ids of keys that open it (``"aeskw:0123456789abcdef"``), ids of those that sign.
    - `save_ids`: one for each metadata file.
    - `items`, `files`: tensors, shards and objects; data files.
    - `kept_files`: data files that an interrupted call had finished.
    - `discarded_files`: finished files of earlier calls that had another source or chain, or cannot be shown not to.
    - `raw_bytes`, `stored_bytes`: of the items that this call wrote, before the chain; of all items, in storage.
    - `notes`: remarks, in sentences.
    """

    chain: str
    key_ids: tuple[str, ...]
    signers: tuple[str, ...]
    save_ids: tuple[str, ...]
    items: int
    files: int
    kept_files: int
    discarded_files: int
    raw_bytes: int
    stored_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        files = f"{many(self.items, 'item')} in {many(self.files, 'file')}, {size_text(self.stored_bytes)} stored"
        ids = ", ".join(text.rpartition(":")[2] for text in self.key_ids)
        chain = f"chain {self.chain or 'none'}" + (f" under key {ids}" if ids else "")
        chain = ", ".join([chain, *(f"signed by {signer}" for signer in self.signers)])
        lines = [f"wrote {files} in {self.seconds:.1f} s", chain]
        lines += [f"save {save_id}" for save_id in self.save_ids]
        if self.kept_files:
            lines.append(f"resumed: an earlier call had finished {many(self.kept_files, 'file')}")
        if self.discarded_files:
            lines.append(
                f"started over: {many(self.discarded_files, 'finished file')} had another source, chain or key and "
                "could not be used"
            )
        return "\n".join([*lines, *listed("note", self.notes)])

    @classmethod
    def together(cls, parts: Sequence[Converted]) -> Converted:
        """What several conversions did for one checkpoint."""
        done = parts[-1]
        for part in reversed(parts[:-1]):
            done = replace(done, **{name: getattr(part, name) + getattr(done, name) for name in _ADDED_UP})
        return done


@dataclass(frozen=True)
class Conversion:
    """Items, and where their contents come from.

    - `items`: those of the new checkpoint, with their places in the source.
    - `rank`: of the metadata that will name them; None for that of all ranks.
    - `identity`: tells contents of the source apart unread. What an earlier call finished is reused if it had the same.
    - `read`: returns the data of an object or a shard, from `reader`; called in their order within each data file.
    - `extra`, `run`: as in the index.
    - `check`: called just before publishing; raises to prevent it.
    """

    items: Sequence[Item]
    rank: int | None
    identity: str
    reader: BoxReader | None
    read: Callable[[Any, ItemPart], Content]
    extra: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[], None] | None = None
    run: RunFacts | None = None


def refuse_same(source: Location, target: Location, cure: str = "; in_place replaces the source") -> None:
    """Raise ParameterError, with the advice `cure`, if two paths or URLs are known to lead to the same place."""
    places = (each.real() if isinstance(each, Storage) else os.fspath(each) for each in (source, target))
    one, other = (each.removeprefix("file://") for each in places)
    try:
        same = os.path.samefile(one, other)
    except OSError:  # one of them is not there, or a URL
        same = one.rstrip("/") == other.rstrip("/")
    if same:
        raise ParameterError(f"source and target are the same{cure}")


def check_same(source: Storage, before: object, now: object) -> None:
    """Raise ContainerError if the source was changed: the copy may be of both versions, in part."""
    if now != before:
        raise ContainerError(
            "the source was changed while it was read, so the copy was not published; call again when no other process "
            "writes to it",
            file=source.label(),
        )


def convert(
    to: Save, conversion: Conversion, file_size: int, progress: Progress | None = None, fleet: Fleet | None = None
) -> Converted:
    """Write a conversion's items to data files of about `file_size` bytes, or have a fleet do it, and publish them.

    Whatever it raises, nothing was published then, and finished files stay for the next call.
    """
    begin = perf_counter()
    resumable = ResumableSave(to, conversion.items, conversion.identity, file_size, conversion.rank)
    made = to.storage.make_folder()
    try:
        return replace(_convert(resumable, conversion, progress, fleet), seconds=perf_counter() - begin)
    except BaseException:
        with suppress(OSError):  # it is not empty, or was removed
            for folder in made:
                folder.rmdir()
        raise


def _convert(
    resumable: ResumableSave, conversion: Conversion, progress: Progress | None, fleet: Fleet | None
) -> Converted:
    save = resumable.save
    with save.beside(save.file_name(resumable.number, len(resumable.files))):
        resumable.find_finished()
        kept, discarded = len(resumable.finished), resumable.discarded
        expected = resumable.plan()
        if progress is not None:
            save.progress = progress
            progress.expect(expected)
        raw = _write_all(resumable, conversion, fleet)
        save_id = _publish(resumable, conversion)
    own, signer = save.extensions.encryption, save.extensions.signer
    recipients = own.recipients if own else ()
    who = tuple(f"{key.kind}:{key.id}" for key in recipients), (signer.id,) if signer is not None else ()
    counts = sum(map(len, resumable.files)), len(resumable.files), kept, discarded
    raw += save.meter.total().raw_bytes
    notes = tuple(fleet.notes) if fleet else ()
    return Converted(str(save.extensions.chains), *who, (save_id,), *counts, raw, resumable.stored_bytes(), 0.0, notes)


def _write_all(resumable: ResumableSave, conversion: Conversion, fleet: Fleet | None) -> int:
    """Write the files that are left, or have a fleet do it; returns the bytes of the items in those that it wrote."""
    told: list[tuple[str, int]] = []  # names of files that workers wrote, and bytes of the items in them
    try:
        if fleet is not None and resumable.left:
            _hand_out(resumable, conversion, fleet, told)
        raw = sum(size for _, size in told)
        told.clear()
        for number in resumable.left:
            resumable.write(number, partial(conversion.read, conversion.reader))
        return raw
    except BaseException as error:
        more = " or more" if fleet is not None else ""  # workers go on with what they have begun
        interrupted = isinstance(error, KeyboardInterrupt)
        if (finished := len(resumable.finished) + len(told)) or (more and interrupted):
            error.add_note(
                f"nothing was published; finished data files, which stay: {finished}{more} of {len(resumable.files)}; "
                "repeat it to resume"
            )
        elif interrupted:
            error.add_note("nothing was published, and no data file is finished: repeating it starts over")
        raise


def _hand_out(resumable: ResumableSave, conversion: Conversion, fleet: Fleet, told: list[tuple[str, int]]) -> None:
    """Have a fleet write files, which are there once their slips say so."""
    resumable.check_opens()  # where a slip cannot be opened, nothing is begun
    assert conversion.reader is not None
    with fleet:
        for number, parts in resumable.left.items():
            items = {name: (item,) for name, item in resumable.items_in(number).items()}
            share = Share(resumable.save.progress, sum(part.planned for part in parts))
            task = _write_in_worker, conversion.read, resumable.write_apart(number), fleet.extensions
            fleet.read([conversion.reader], items, share, told.append, *task)
    resumable.find_finished([name for name, _ in told])
    fleet.missed += [_NOT_THERE] * len(resumable.left)


def _publish(resumable: ResumableSave, conversion: Conversion) -> str:
    try:
        return resumable.publish(conversion.check, extra=conversion.extra, run=conversion.run)
    except BaseException as error:
        paths = resumable.paths()
        with suppress(Exception):  # or all of them are taken to be there
            paths = [*filter(resumable.save.storage.names(paths).__contains__, paths)]
        if paths:  # else whoever published to the same place has removed them
            error.add_note(
                f"{many(len(paths), 'finished data file')} left: repeat it to resume while source and target are as "
                "they were, and `streamxf clean` removes what no checkpoint needs"
            )
        raise


def _write_in_worker(
    readers: Sequence[BoxReader], items: Items, _: None, read: Any, write: Any, extensions: Any
) -> tuple[str, int]:
    """A worker's task: write a data file. Its name, and the items' bytes."""
    name, size = write(extensions(), [item for (item,) in items.values()], partial(read, readers[0]))
    return name, size
