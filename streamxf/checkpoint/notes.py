"""Notes: small files that say something of a checkpoint, vouched for as an index is; docs/format.md, "Notes"."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

from streamxf import errors
from streamxf.buffers import collector_paused
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import _open
from streamxf.checkpoint.publish import made_by_writers
from streamxf.codecs.encrypt import Encrypt
from streamxf.format import fields
from streamxf.format.fields import check_plain, pack_json, parse_json
from streamxf.format.index import Index
from streamxf.format.items import check_literal_path
from streamxf.format.limits import MAX_NOTE, MAX_NOTE_MARKS, MAX_NUMBER
from streamxf.format.names import is_metadata_name
from streamxf.format.run import RunFacts, metrics_json, metrics_of
from streamxf.format.trailer import NOTE_LABEL, Sections, Trailer, pack, pack_keys
from streamxf.keys.envelope import Envelope, Vouchers
from streamxf.keys.pair import VerifyKey
from streamxf.storage.small import read_small
from streamxf.storage.storage import Storage

T = TypeVar("T")

_CURE = "the checkpoint has too many files for one"


def seal_note(content: Any, encryption: Encrypt | None = None) -> bytes:
    """A note of plain JSON that `encryption` vouches for. Raises MetadataError if readers refuse it, and as `vouch`."""
    check_plain(content, "the note")
    frame, keys = pack_json(content, "the note", _CURE, MAX_NOTE, MAX_NOTE_MARKS), b""
    if encryption is not None:
        fresh = encryption.renew()
        digest = Sections(memoryview(frame), memoryview(b""), NOTE_LABEL).digest
        keys = pack_keys(fresh.wrapped, fresh.vouch(digest))
    made = pack(b"", b"", frame, keys)
    if len(made) > MAX_NOTE:
        raise errors.MetadataError(f"the note would have {len(made)} bytes, {MAX_NOTE} are allowed; {_CURE}")
    return made


@dataclass(frozen=True)
class Note:
    """A note, of which nothing is parsed until its content is asked for: after `check`, where there are keys."""

    sections: Sections = field(repr=False)
    _lines: tuple[str, str] | None = field(repr=False)
    _most: int = MAX_NOTE

    @property
    @collector_paused()
    def content(self) -> Any:
        """What it says. Raises MetadataError if it is damaged or hostile."""
        content = parse_json(self.sections.root, "the note", self._most, MAX_NOTE_MARKS)
        check_plain(content, "the note")
        return content

    @property
    def keyed(self) -> bool:
        """Whether it has vouchers."""
        return self._lines is not None

    def check(self, access: Access) -> None:
        """Check who vouches for it; raises as `read_metadata` does for a checkpoint with the same keys."""
        if self._lines is not None:
            _open(self.sections, self._lines, access)
        elif access.require is not None:
            raise errors.PolicyError(
                "the note is not authenticated: it has no MAC, and that of an encrypted checkpoint has one"
            )

    def said(self, make: Callable[[Any], T], access: Access | None = None) -> T:
        """What it says, made of its content: where there are keys, once these have shown who wrote it. Raises
        MetadataError if it does not have this form, and as `check`.
        """
        if access is not None and (len(access.keys) > 0 or access.refuses_plaintext):
            self.check(access)
        try:
            return make(self.content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise errors.MetadataError(f"the note is malformed ({type(error).__name__}: {error})") from None

    def signed_by(self, trust: Iterable[VerifyKey]) -> bool:
        """As `Metadata.signed_by`."""
        return self._lines is not None and Vouchers.parse(self._lines[1]).signed_by(trust, self.sections.digest)


def parse_note(data: bytes, most: int = MAX_NOTE) -> Note:
    """Read a note of at most so many bytes, unauthenticated before `check`. Raises MetadataError if it is damaged."""
    if len(data) > most:
        raise errors.MetadataError(f"the note has {len(data)} bytes, {most} are allowed")
    trailer = Trailer.parse(data, len(data))
    if trailer is None or trailer.size != len(data) or trailer.head_digest != hashlib.sha256().digest():
        raise errors.MetadataError("this is not a note: it was cut, or something else was put in its place")
    sections = trailer.split(data, NOTE_LABEL)
    lines = sections.key_lines()
    if lines is not None:
        try:
            Envelope.parse(lines[0]), Vouchers.parse(lines[1])
        except errors.DescriptorError as error:
            raise errors.MetadataError(f"the note's keys are malformed: {error.message}") from None
    return Note(sections, lines, most)


# -- what notes in a checkpoint's folder say ---------------------------------------------------------

COMMIT, SAVING, REMOVED = ".streamxf-commit", ".streamxf-saving", ".streamxf-removed"
SUPPLEMENT = re.compile(r"\.streamxf-note-[0-9a-f]{8}", re.ASCII)

_NONE: frozenset[str] = frozenset()


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
            path = check_literal_path(each["path"])
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
        found = {check_literal_path(path): digits(each, 64) for path, each in content["sha256"].items()}
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
        before = {check_literal_path(path): str(mark) for path, mark in content["before"].items()}
        run, session = digits(content["run"], 32), digits(content["session"], 32)
        return cls(run, str(content["name"]), natural(content["time"]), session, before, content["framework"] is True)


def natural(value: Any) -> int:
    return fields.integer(value, "a number", MAX_NUMBER)


def digits(value: Any, count: int) -> str:
    return fields.digits(value, count, "hexadecimal digits")


# -- what tools that rewrite a checkpoint do about them ----------------------------------------------


def ordered(supplements: Iterable[tuple[str, Supplement]]) -> list[Supplement]:
    """Supplements by the names of their files; of two that say the same, the later one in this order holds."""
    return [each for _, each in sorted(supplements, key=lambda pair: (pair[1].time, pair[0]))]


def known_run(
    storage: Storage, index: Index | None, access: Access
) -> tuple[RunFacts | None, Sequence[str], Sequence[str]]:
    """What a checkpoint in this folder says of its run, with the metrics that were noted later, as far as `access`
    believes the notes; the files that say so; and those that do not count, of which nobody knows what they say of it.
    Raises MetadataError if there are more metrics than an index takes.
    """
    if index is None or index.run is None:
        return None, (), ()
    notes = {
        file: _said(storage, file, Supplement.of_json, access)
        for file in storage.names(())
        if SUPPLEMENT.fullmatch(file)
    }
    own = {file: said for file, said in notes.items() if said is not None and said.save_id == index.save_id}
    metrics = dict(index.run.metrics)
    for each in ordered(own.items()):
        metrics |= each.metrics
    run = replace(index.run, metrics=metrics)
    run.to_json()
    return run, sorted(own), sorted(notes.keys() - own)


def check_uncommitted(storage: Storage, files: Collection[str], access: Access) -> None:
    """Raise UnsupportedError if a commit record here, or above, has these files' sizes: others would be damage."""
    above, name = storage.parent()
    for place, prefix in [(storage, ""), *([(above, f"{name}/")] if above.path and name else [])]:
        commit = None
        with nullcontext() if place is storage else suppress(PermissionError):  # of credentials for this folder alone
            commit = _said(place, COMMIT, Commit.of_json, access)
        if commit is not None and any(f"{prefix}{file}" in commit.files for file in files):
            raise errors.UnsupportedError(
                "a framework saved this for a CheckpointManager, whose commit record has the sizes of its files, so "
                "it cannot be rewritten here: copy it to another folder (`streamxf transcode`), and change the copy",
                file=place.label(COMMIT),
            )


def _said(storage: Storage, file: str, make: Callable[[Any], T], access: Access) -> T | None:
    """What a note says; None if it is not there, or does not count."""
    data = read_small(storage, file, MAX_NOTE)
    try:
        return None if data is None else parse_note(data).said(make, access)
    except errors.KeyServiceError:
        raise
    except errors.StreamxfError:
        return None
