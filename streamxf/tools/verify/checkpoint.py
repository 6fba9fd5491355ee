"""A checkpoint of DCP: its metadata, and the files that this names, or those that are there without it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from streamxf.checkpoint.access import UNKNOWN_RANKS
from streamxf.checkpoint.metadata import GLOBAL, Metadata, rank_of, read_metadata
from streamxf.checkpoint.missing import unfinished
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.publish import names as files_of_writers
from streamxf.checkpoint.storage import storage_errors
from streamxf.collector import collector_paused
from streamxf.dcp.threads import side_by_side
from streamxf.errors import (
    IdentityError,
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    NoCheckpointError,
    PolicyError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.format.items import TensorItem
from streamxf.format.limits import TRAILER_BYTES
from streamxf.format.trailer import Trailer
from streamxf.proportion import Budget, most
from streamxf.tools.verify.file import Call, guarded, pieces_of
from streamxf.tools.verify.files import FileCheck
from streamxf.tools.verify.items import Opening
from streamxf.wording import many

_SUFFIX = ".distcp"
_NO_METADATA = (
    "the metadata is missing, so it is not known what was saved: it was lost, or no save to this folder was published "
    "yet"
)
_AT_ONCE = 4  # files that fsspec reads: each by one thread, which waits for each request
_MAX_OBJECT = 2 * 2**30

_Tasks = dict[str, tuple[FileCheck, Callable[[], None]]]


class CheckpointCheck:
    """A check of a whole checkpoint, which fills the findings of `call`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._storage = call.storage
        self._findings = call.findings
        self._without_key: list[str] = []
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Check everything; raises as `verify`."""
        with storage_errors(self._storage.given):
            listed = self._storage.names()
        ranks = sorted((name for name in listed if rank_of(name) is not None), key=lambda name: rank_of(name) or 0)
        names = [GLOBAL] if GLOBAL in listed else ranks
        data = {name for name in listed if name.endswith(_SUFFIX)}
        reason = unfinished(listed) if data else "there is no checkpoint: the folder has no .metadata"
        if not names and reason is not None:
            raise NoCheckpointError(reason, file=self._storage.given)
        if not names:
            self._findings.damage(MetadataError(_NO_METADATA), GLOBAL)
        contents = {name: self._read(name) for name in names}
        tasks: _Tasks = {}
        for content in contents.values():
            if content is not None:
                self._plan(content, tasks, listed)
        if not names or None in contents.values():
            opening = Opening(self._call.access, None, Budget(self._call.max_expansion, 0))
            for name in sorted(data - tasks.keys()):
                check = self._check_of(opening, name, listed[name] or 0)
                tasks[name] = check, check.scan
        self._check_files(tasks)
        beside = sorted(
            name
            for name in listed
            if name not in names and name not in tasks and files_of_writers.made_by_writers(name)
        )
        self._findings.leftovers += self._without_strangers(beside, names) if names and names == ranks else beside
        self._say_what_was_not_checked()
        if self._findings.refused and not self._findings.opened:
            raise self._findings.refused[0]

    # -- metadata ----------------------------------------------------------------------------------

    def _read(self, name: str) -> Metadata | None:
        """A metadata file as readers read it; None if it is damaged."""
        try:
            has_index = self._check_pickle(name)
            if not has_index and self._call.access.require == "published":
                raise MetadataError("the metadata does not end in an index: it was cut, as far as can be told")
            with storage_errors(self._storage.full(name)):
                content = read_metadata(self._storage, name, self._call.access, listing=True)
        except (KeyMissingError, WrongKeyError, KeyServiceError, PolicyError, IdentityError):
            raise
        except (StreamxfError, OSError) as error:
            self._findings.damage(error, name)
            return None
        if content.index is None:
            self._findings.not_checked("the digest of the metadata, which only streamxf's writer makes")
        else:
            self._findings.save_ids.append(content.index.save_id)
            if not content.authenticated:
                self._without_key.append(name)
        return content

    def _check_pickle(self, name: str) -> bool:
        """Compare the digest of what torch's readers read, and streamxf's do not; whether there is one."""
        with guarded(self._storage, name, self._call.max_expansion, name=name) as file:
            self._findings.bytes_read += file.size
            end = min(file.size, TRAILER_BYTES)
            trailer = Trailer.parse(file.slice(file.size - end, end).read_at(0, end), file.size)
            if trailer is None:
                return False
            digest = hashlib.sha256()
            try:
                for piece in pieces_of(file.slice(0, file.size - trailer.size)):
                    digest.update(piece)
                if digest.digest() != trailer.pickle_digest:
                    raise MetadataError(
                        "the digest of the pickle, which torch's own readers read, does not match: it is damaged"
                    )
            except (StreamxfError, OSError) as error:  # the index says what there is all the same
                self._findings.damage(error, name)
            return True

    # -- data files --------------------------------------------------------------------------------

    def _plan(self, content: Metadata, tasks: _Tasks, listed: Mapping[str, int | None]) -> None:
        """Add the files that a metadata file speaks of to those that are to be checked."""
        times = self._call.max_expansion
        files = _by_file(content)
        budget = Budget(times, self._storage.held_by(files, listed))
        opener = ItemOpener(
            content,
            self._call.access,
            lambda stored: min(_MAX_OBJECT, most(stored, times)),
            budget=budget,
        )
        opening = Opening(self._call.access, opener, budget.renewed())
        for path, items in files.items():
            if path in tasks:  # read once: otherwise little metadata could have the same bytes read without end
                text = f"other metadata places items in {path!r:.120}, too; these were not checked"
                self._findings.damage(MetadataError(text), content.name)
                continue
            facts = content.files.get(path)
            size = listed.get(path)
            if size is None:
                ends = (wanted.place.at + wanted.place.size for wanted in items)
                size = facts.size if facts is not None else max(ends)
            check = self._check_of(opening, path, size)
            tasks[path] = check, partial(check.run, items, facts)

    def _check_of(self, opening: Opening, name: str, size: int) -> FileCheck:
        call = self._call
        return FileCheck(self._storage, name, opening, call.max_expansion, self._stopped, call.share(size))

    def _check_files(self, tasks: _Tasks) -> None:
        waiting = deque(run for _, run in tasks.values())

        def work() -> None:
            while not self._failures:
                try:
                    run = waiting.popleft()
                except IndexError:
                    return
                try:
                    run()
                except BaseException as error:
                    self._failures.append(error)

        # else workers read, all from one file
        threads = min(_AT_ONCE, len(tasks)) if self._storage.filesystem is not None else 1
        side_by_side(work, threads, self._failures.append)
        if self._failures:
            cause = self._failures[0]
            self._failures.clear()
            try:
                raise cause
            finally:
                del cause  # or it would lead to itself, and live until the garbage is collected
        for check, _ in tasks.values():
            self._findings.add(check.findings)

    def _stopped(self) -> bool:
        return bool(self._failures)

    # -- what is said in the end -------------------------------------------------------------------

    def _without_strangers(self, beside: list[str], names: list[str]) -> list[str]:
        """The leftovers where each rank has metadata of its own: another rank's files may be all that is left of its
        part of the checkpoint.
        """
        expected = self._call.access.expected_saves
        if expected is None or expected != set(self._findings.save_ids):
            self._findings.not_checked(UNKNOWN_RANKS)
        known = {None, *map(rank_of, names)}
        ranks = {name: files_of_writers.rank_of(name) for name in beside}
        strangers = [name for name, rank in ranks.items() if rank not in known]
        if strangers:
            self._findings.not_checked(
                f"{many(len(strangers), 'file')} of ranks that have no metadata here, such as {strangers[0]}, which "
                "may be all that is left of these ranks' part of the checkpoint"
            )
        return [name for name, rank in ranks.items() if rank in known]

    def _say_what_was_not_checked(self) -> None:
        """Record it in the findings; raises UnknownCodecError and the like if a codec is all that is missing."""
        findings = self._findings
        if self._without_key:
            several = f"{len(self._without_key):,} metadata files"
            what = self._without_key[0] if len(self._without_key) == 1 else several
            findings.not_checked(f"the vouchers of {what}, which need a key")
        if not (missing := findings.missing):
            return
        reasons = "; ".join(dict.fromkeys(error.message for error in missing))
        items = many(len(missing), "item")
        if findings.is_damaged:
            findings.not_checked(f"the content of {items}, since {reasons}")
            return
        checked = "nothing was checked"
        if findings.blocks:
            checked = f"the CRCs of {many(findings.blocks, 'block')} were compared all the same, and match"
        raise type(missing[0])(f"{reasons}. Without it {items} cannot be decoded; {checked}", file=self._storage.given)


@collector_paused()
def _by_file(content: Metadata) -> dict[str, list[Wanted]]:
    """The items of each file, in the order of their places; also of files that hold none."""
    found: dict[str, list[Wanted]] = {path: [] for path in content.files}
    for item in content.items.values():
        if isinstance(item, TensorItem):
            for chunk in item.chunks:
                found.setdefault(chunk.place.file, []).append(Wanted(item, chunk))
        else:
            found.setdefault(item.place.file, []).append(Wanted(item))
    for items in found.values():
        items.sort(key=lambda wanted: wanted.place[1:3])
    return found
