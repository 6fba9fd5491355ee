"""Notes of a run, and `Authority`: what shows that one of them, or a checkpoint, is this job's own.

In a checkpoint's folder, beside its own files: the commit record of what a framework wrote, supplements to what a
checkpoint says of itself, and the mark of a save that is under way; docs/format.md, "Notes". In ``.streamxf``: what may
be lost.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import parse_note, seal_note
from streamxf.checkpoint.publish import RUN_FILE, made_by_writers
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import KeyMissingError, KeyServiceError, MetadataError, ParameterError, StreamxfError, escaped
from streamxf.format import fields
from streamxf.format.items import check_path
from streamxf.format.limits import MAX_NOTE, MAX_NUMBER
from streamxf.format.names import is_metadata_name
from streamxf.format.run import RunFacts, metrics_json, metrics_of
from streamxf.keys import VerifyKey
from streamxf.storage.removal import remove_entry
from streamxf.storage.small import MOST_BYTES, put_small, read_small, small_files
from streamxf.storage.storage import Entries, Storage, StorageEntry
from streamxf.wording import some

BLIND = "no key here can verify it"


class Authority:
    """Without keys everything counts. With keys, or `Encrypt` in the chain, only what they authenticate does: as a
    reader would, with the job's keys; by its signature, where the job can only write and sign; and where it can only
    write, only what this process has published itself. If it is `unverified`, everything counts all the same.

    - `access`: of the job's readers; `encryption`, of its writers, vouches for notes.
    - `strict`: whether what is not authenticated does not count.
    - `published`: the saves that this process has published: of each id, which stands in clear there, the folder.
    """

    def __init__(self, access: Access, encryption: Encrypt | None = None, *, unverified: bool = False) -> None:
        self.access = access
        self.strict = (len(access.keys) > 0 or access.refuses_plaintext) and not unverified
        self.published: dict[str, str] = {}
        self.reads = any(key.unwraps for key in access.keys)
        self._trust: Iterable[VerifyKey] = access.keys.trust
        if encryption is not None and encryption.signer is not None and not self.reads:
            self._trust = (encryption.signer.verify_key,)
        if encryption is not None and self.reads:
            _check_resumes(encryption, access)
        if encryption is None and (vouching := [key for key in access.keys if key.vouches]):
            encryption = Encrypt(vouching)
        self._encryption = encryption
        self._session: tuple[int, Encrypt] | None = None

    @property
    def vouches(self) -> bool:
        """Whether what it seals would count for itself later."""
        return not self.strict or (self._encryption is not None and (self.reads or bool(self._trust)))

    @property
    def blind(self) -> bool:
        """Whether nothing that others published can be verified here."""
        return self.strict and not self.reads and not self._trust

    def has_published(self, save_id: str | None, name: str) -> bool:
        """Whether a checkpoint counts since this process saved it, which nothing else shows."""
        return self.blind and save_id is not None and self.published.get(save_id) == name

    def check_reads(self, what: str) -> None:
        """Raise KeyMissingError if the job encrypts to keys that it does not hold, so that it cannot load."""
        if self.strict and not self.reads:
            raise KeyMissingError(
                f"{what} is there, and this job holds no key that reads it: it only encrypts. Give the key by keys=, "
                "or begin in an empty folder; resume(state, plaintext=True) loads an unencrypted checkpoint"
            )

    def doubt(self, check: Callable[[Access], object], signed_by: Callable[[Iterable[VerifyKey]], bool]) -> str:
        """Why something does not count; "" if it does. Raises KeyServiceError if a service that would know cannot be
        reached.
        """
        if not self.strict:
            return ""
        try:
            if self.reads:
                check(self.access)
            elif not self._trust:
                return BLIND
            elif not signed_by(self._trust):
                return "it is not signed by this job's signer"
        except KeyServiceError:
            raise
        except StreamxfError as error:
            return error.message
        return ""

    def seal(self, content: Any) -> bytes:
        """A note, vouched for as the job's checkpoints are."""
        encryption = self._encryption if self.strict else None
        if encryption is None:
            return seal_note(content)
        if self._session is None or self._session[0] != os.getpid():
            self._session = os.getpid(), encryption.renew()
        return seal_note(content, self._session[1])


def _check_resumes(encryption: Encrypt, access: Access) -> None:
    """Raise ParameterError if the job, started again, could not read what it saved, and would go on from before it."""
    given = [key for key in access.keys if key.unwraps]
    if {(key.kind, key.id) for key in given}.isdisjoint((key.kind, key.id) for key in encryption.recipients):
        raise ParameterError(
            f"the chain encrypts to {some(key.id for key in encryption.recipients)}, and keys= reads "
            f"{some(key.id for key in given)} alone: a second start could not resume from what this one saves. Give "
            "both keys, as in keys=[new, old]"
        )


COMMIT, SAVING, REMOVED = ".streamxf-commit", ".streamxf-saving", ".streamxf-removed"
SUPPLEMENT = re.compile(r"\.streamxf-note-[0-9a-f]{8}", re.ASCII)
FOLDER = ".streamxf"

_NONE: frozenset[str] = frozenset()
_log = logging.getLogger(__name__)

T = TypeVar("T")


class CommittedFile(NamedTuple):
    """A file that a framework wrote: with its digest once somebody has computed one, or the store's own checksum."""

    size: int
    sha256: str | None = None
    checksum: str | None = None


@dataclass(frozen=True)
class Commit:
    """What a framework wrote, and has said is complete."""

    save_id: str
    run: RunFacts
    files: Mapping[str, CommittedFile]

    def to_json(self) -> dict[str, Any]:
        files = [
            {"path": path, **{name: value for name, value in file._asdict().items() if value is not None}}
            for path, file in self.files.items()
        ]
        return {"save_id": self.save_id, "run": self.run.to_json(), "files": files}

    def without_digests(self) -> list[str]:
        """The files of whose contents neither it nor a store tells, nor metadata of DCP beside them."""
        of_dcp = {path[: -len(name)] for path in self.files if is_metadata_name(name := path.rpartition("/")[2])}

        def is_told(path: str) -> bool:
            folder, slash, name = path.rpartition("/")
            return folder + slash in of_dcp and bool(is_metadata_name(name) or made_by_writers(name))

        bare = (path for path, file in self.files.items() if file.sha256 is None and file.checksum is None)
        return [path for path in bare if not is_told(path)]

    @classmethod
    def of_json(cls, content: Any) -> Self:
        fields.exact(content, {"save_id", "run", "files"}, _NONE, "a commit record")
        files = {}
        for each in content["files"]:
            fields.exact(each, {"path", "size"}, frozenset({"sha256", "checksum"}), "a file")
            digest, checksum = each.get("sha256"), each.get("checksum")
            path = check_path(each["path"])
            files[path] = CommittedFile(
                natural(each["size"]), digest and digits(digest, 64), checksum and str(checksum)
            )
        return cls(digits(content["save_id"], 32), RunFacts.of_json(content["run"]), files)


@dataclass(frozen=True)
class Supplement:
    """What became known of a save after it was published: metrics, and digests of what a framework wrote."""

    save_id: str
    time: int  # milliseconds since 1970
    metrics: Mapping[str, float] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        known = {"metrics": metrics_json(self.metrics), "sha256": dict(self.sha256)}
        return {"save_id": self.save_id, "time": self.time, **known}

    @classmethod
    def of_json(cls, content: Any) -> Self:
        fields.exact(content, {"save_id", "time", "metrics", "sha256"}, _NONE, "a supplement")
        found = {check_path(path): digits(each, 64) for path, each in content["sha256"].items()}
        return cls(digits(content["save_id"], 32), natural(content["time"]), metrics_of(content["metrics"]), found)


@dataclass(frozen=True)
class Saving:
    """A save that was begun: in which run, by which session, what lay in the folder before, each file with its mark,
    and whether a framework writes there, under names of its own.
    """

    run: str
    name: str
    time: int
    session: str
    before: Mapping[str, str]
    framework: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "before": dict(self.before)}

    @classmethod
    def of_json(cls, content: Any) -> Self:
        fields.exact(content, {"run", "name", "time", "session", "before", "framework"}, _NONE, "the mark of a save")
        before = {check_path(path): str(mark) for path, mark in content["before"].items()}
        run, session = digits(content["run"], 32), digits(content["session"], 32)
        return cls(run, str(content["name"]), natural(content["time"]), session, before, content["framework"] is True)


def put_note(storage: Storage, authority: Authority, file: str, content: Any) -> None:
    """Put a note into ``.streamxf``, or replace it. Raises OSError."""
    put_small(storage, f"{FOLDER}/{file}", authority.seal(content), sync=False)


def remove_notes(storage: Storage, files: Iterable[str]) -> None:
    remove_entry(storage, *(f"{FOLDER}/{file}" for file in files))


def notes_in(storage: Storage, authority: Authority, names: str, make: Callable[[Any], T]) -> dict[str, T]:
    """What the notes in ``.streamxf`` say whose names match a pattern, by their names. What is malformed, or does not
    count, is left out.
    """
    found = {}
    for file, data in small_files(
        storage, FOLDER, lambda name: re.fullmatch(names, name, re.ASCII) is not None
    ).items():
        try:
            note = parse_note(data, MOST_BYTES)
            if not authority.doubt(note.check, note.signed_by):
                found[file] = _parsed(make, note.content)
        except MetadataError as error:
            _log.debug("%s", escaped(f"{storage.label(file)} is ignored: {error.message}"))
    return found


def read(child: Storage, file: str, make: Callable[[Any], T], authority: Authority) -> tuple[T | None, str]:
    """A note in a checkpoint's folder, None if there is none, and why it does not count, if it does not. What the job's
    keys do not verify is None, too, unless there are none that could. Raises MetadataError if it is damaged.
    """
    data = read_small(child, file, MAX_NOTE)
    if data is None:
        return None, ""
    note = parse_note(data)
    doubt = authority.doubt(note.check, note.signed_by)
    return (None if doubt and not authority.blind else _parsed(make, note.content)), doubt


def _parsed(make: Callable[[Any], T], content: Any) -> T:
    """What a note says; raises MetadataError if it does not have this form."""
    try:
        return make(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"the note is malformed ({type(error).__name__}: {error})") from None


def mark_of(entry: StorageEntry) -> str:
    """What changes when a listed file is written to."""
    return f"{entry.size} {entry.tag or entry.written or ''}"


def is_framework_file(path: str) -> bool:
    """Whether a file below a checkpoint's folder is none of the manager's own."""
    return not RUN_FILE.fullmatch(path.rpartition("/")[2])


def written_since(files: Entries, before: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, StorageEntry]:
    """The files that a save wrote: those that were not there before, have changed since, or are `known` to be its."""
    also = set(known)
    return {
        path: entry
        for path, entry in files.items()
        if is_framework_file(path) and (path in also or before.get(path) != mark_of(entry))
    }


def natural(value: Any) -> int:
    return fields.integer(value, "a number", MAX_NUMBER)


def digits(value: Any, count: int) -> str:
    return fields.digits(value, count, "hexadecimal digits")
