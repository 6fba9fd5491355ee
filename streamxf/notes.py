"""What notes in a checkpoint's folder say of its run, and what tools that rewrite a checkpoint do about them;
docs/format.md, "Notes".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

from streamxf import errors
from streamxf.places import Storage, is_metadata_name, is_run_file, made_by_saves, read_small
from streamxf.reading import Access, Metadata, Note
from streamxf.writing import RunFacts

T = TypeVar("T")

COMMIT, SAVING, REMOVED = ".streamxf-commit", ".streamxf-saving", ".streamxf-removed"
SAVES = ".streamxf/saves"  # in the run's folder
SUPPLEMENT = re.compile(r"\.streamxf-note-[0-9a-f]{8}", re.ASCII)


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
            return folder + slash in of_dcp and bool(is_metadata_name(name) or is_run_file(name) or made_by_saves(name))

        bare = (path for path, file in self.files.items() if file.sha256 is None and file.checksum is None)
        return [path for path in bare if not is_told(path)]

    @classmethod
    def of_json(cls, content: Any) -> Self:
        check_members(content, {"save_id", "run", "files"})
        files = {}
        for each in content["files"]:
            check_members(each, {"path", "size"}, {"sha256", "checksum"})
            sha256 = digits(each["sha256"], 64) if "sha256" in each else None
            checksum = text(each["checksum"]) if "checksum" in each else None
            files[Note.check_path(each["path"])] = CommittedFile(natural(each["size"]), sha256, checksum)
        return cls(digits(content["save_id"], 32), RunFacts.of_json(content["run"]), files)


@dataclass(frozen=True)
class Supplement:
    """What became known of a save after it was published: metrics, and digests of what a framework wrote."""

    save_id: str
    time: int  # milliseconds since 1970
    metrics: Mapping[str, float] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        known = {"metrics": RunFacts.metrics_json(self.metrics), "sha256": dict(self.sha256)}
        return {"save_id": self.save_id, "time": self.time, **known}

    @classmethod
    def of_json(cls, content: Any) -> Self:
        check_members(content, {"save_id", "time", "metrics", "sha256"})
        found = {Note.check_path(path): digits(each, 64) for path, each in content["sha256"].items()}
        return cls(
            digits(content["save_id"], 32), natural(content["time"]), RunFacts.metrics_of(content["metrics"]), found
        )


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
        check_members(content, {"run", "name", "time", "session", "before", "framework"})
        before = {Note.check_path(path): text(mark) for path, mark in content["before"].items()}
        run, session = digits(content["run"], 32), digits(content["session"], 32)
        if not isinstance(content["framework"], bool):
            raise ValueError("this is no truth value")
        return cls(run, text(content["name"]), natural(content["time"]), session, before, content["framework"])


# -- what a note's content has to be, which is JSON of numbers from 0 to 2**53 - 1 ----------------------


def check_members(value: Any, required: Collection[str], optional: Collection[str] = ()) -> None:
    """Raise ValueError unless an object has these members, and others only that later versions give a meaning."""
    if odd := {name for name in value.keys() ^ required if name in required or name[:1] != "_"}.difference(optional):
        raise ValueError(f"it has too few or unknown members: {sorted(odd)}")


def natural(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("this is not a number")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("this is not text")
    return value


def digits(value: Any, count: int) -> str:
    if not re.fullmatch(f"[0-9a-f]{{{count}}}", value):
        raise ValueError(f"these are not {count} hexadecimal digits")
    return str(value)


# -- what tools that rewrite a checkpoint do about them ----------------------------------------------


def ordered(supplements: Iterable[tuple[str, Supplement]]) -> list[Supplement]:
    """Supplements by the names of their files; of two that say the same, the later one in this order holds."""
    return [each for _, each in sorted(supplements, key=lambda pair: (pair[1].time, pair[0]))]


def known_run(
    storage: Storage, metadata: Metadata | None, access: Access
) -> tuple[RunFacts | None, Sequence[str], Sequence[str]]:
    """What a checkpoint in this folder says of its run, with the metrics that were noted later, as far as `access`
    believes the notes; the files that say so; and those that do not count, of which nobody knows what they say of it.
    Raises MetadataError if there are more metrics than an index takes.
    """
    index = None if metadata is None else metadata.index
    if index is None or index.run is None:
        return None, (), ()
    files = filter(SUPPLEMENT.fullmatch, storage.names(()))
    notes = {file: _said(storage, file, Supplement.of_json, access) for file in files}
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
    data = read_small(storage, file)
    try:
        return None if data is None else Note.parse(data).said(make, access)
    except errors.KeyServiceError:
        raise
    except errors.StreamxfError:
        return None
