"""The catalog: what the folders of a run cannot say of themselves. One small file, replaced in one step.

The folders decide which checkpoints there are. The catalog adds what was given to a save (metrics, the time), spares a
listing from looking into every folder, and notes what is under way before it begins, so that whoever comes next
can finish it. A catalog that is lost costs the metrics.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from streamxf.checkpoint.publish import locked
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import AbortedError, MetadataError
from streamxf.manager.record import Record
from streamxf.transfer.conditional import ReplacedMeanwhile

FOLDER = ".streamxf"
CATALOG = f"{FOLDER}/catalog.json"

_VERSION = 1
_ATTEMPTS = 20
_RUNS = 1000  # the latest ones: they are for the rate of failures

T = TypeVar("T")


@dataclass(frozen=True)
class Saving:
    """A save that was begun.

    - `replaced`: the mark of the save that the folder had before; None if it had none.
    - `commits`: whether it is complete only once that is noted here, since a framework writes more than DCP's files.
    """

    time: float
    metrics: Mapping[str, float]
    replaced: str | None
    commits: bool = False


@dataclass
class Session:
    """A process that saved to the folder, from its beginning to when it was last heard of, in seconds since 1970."""

    began: float
    seen: float
    ended: bool = False


@dataclass
class RunCatalog:
    """Each by the names of checkpoints.

    - `saved`: records of complete ones.
    - `removing`: what someone began to remove, with the mark of the save that is to go.
    - `runs`: the processes that saved here, the first one first.
    """

    saved: dict[str, Record] = field(default_factory=dict)
    saving: dict[str, Saving] = field(default_factory=dict)
    removing: dict[str, str | None] = field(default_factory=dict)
    runs: list[Session] = field(default_factory=list)

    def pack(self) -> bytes:
        saved = {
            name: {"time": each.time, "bytes": each.bytes, "metrics": _packed(each.metrics), "mark": each.mark}
            for name, each in self.saved.items()
        }
        saving = {
            name: {
                "time": each.time,
                "metrics": _packed(each.metrics),
                "replaced": each.replaced,
                "commits": each.commits,
            }
            for name, each in self.saving.items()
        }
        runs = [[run.began, run.seen, run.ended] for run in self.runs[-_RUNS:]]
        made = {"version": _VERSION, "saved": saved, "saving": saving, "removing": self.removing, "runs": runs}
        return json.dumps(made, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> RunCatalog:
        """Raises MetadataError if it is damaged, or a later version."""
        try:
            found = json.loads(data)
            if (version := found["version"]) != _VERSION:
                raise MetadataError(f"this catalog has version {version!r:.40}; read it with a newer streamxf")
            return cls(
                {name: _record(name, each) for name, each in found["saved"].items()},
                {name: _saving(each) for name, each in found["saving"].items()},
                {name: _mark(mark) for name, mark in found["removing"].items()},
                [Session(_number(began), _number(seen), bool(ended)) for began, seen, ended in found["runs"]],
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MetadataError(
                f"the catalog of this run is damaged ({type(error).__name__}: {error}). It holds the metrics of the "
                "checkpoints, and nothing that loading needs: restore it from a copy, or remove it to go on without "
                "the metrics"
            ) from None


def read_catalog(storage: Storage) -> RunCatalog:
    """The catalog of a run's folder, empty if there is none; raises MetadataError if it is damaged."""
    data = _read(storage)
    if data is None:
        return RunCatalog()
    try:
        return RunCatalog.parse(data)
    except MetadataError as error:
        raise error.locate(file=storage.full(CATALOG)) from None


def change_catalog(storage: Storage, change: Callable[[RunCatalog], T]) -> T:
    """Read the catalog, have it changed, and put it back, so that no change by another process is lost.

    `change` may be called several times, each time with what is there by then. Where the storage has neither locks nor
    puts on a condition, of two changes at the same moment one may be lost.
    """
    if (local := storage.local_path(FOLDER)) is not None:
        os.makedirs(local, exist_ok=True)
    with locked(storage), storage_errors(storage.full(CATALOG)):
        for _ in range(_ATTEMPTS):
            stamp = storage.stamp(CATALOG)
            catalog = read_catalog(storage)
            result = change(catalog)
            with suppress(ReplacedMeanwhile):
                storage.put(CATALOG, catalog.pack(), over=stamp)
                return result
    raise AbortedError(
        f"{_ATTEMPTS} times another process changed the catalog at the same moment; try again",
        file=storage.full(CATALOG),
    )


def _read(storage: Storage) -> bytes | None:
    try:
        if (path := storage.local_path(CATALOG)) is not None:
            with open(path, "rb") as file:
                return file.read()
        # in one request: a size that was asked for before may be that of an older one
        data: bytes = storage.filesystem.cat_file(storage.inner(CATALOG))
        return data
    except (FileNotFoundError, NotADirectoryError):
        return None


def _record(name: str, facts: Any) -> Record:
    metrics = _metrics(facts["metrics"]) if facts["metrics"] is not None else None
    return Record(name, _number(facts["time"]), _bytes(facts["bytes"]), metrics, "complete", _mark(facts["mark"]))


def _saving(facts: Any) -> Saving:
    return Saving(_number(facts["time"]), _metrics(facts["metrics"]), _mark(facts["replaced"]), bool(facts["commits"]))


def _packed(metrics: Mapping[str, float] | None) -> dict[str, float | str] | None:
    """JSON has no number for infinity, nor for what is no number."""
    if metrics is None:
        return None
    return {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is not a time")
    return float(value)


def _bytes(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ValueError(f"{value!r:.40} is not a size")
    return value


def _metrics(value: Any) -> dict[str, float]:
    return {str(name): float(each) for name, each in value.items()}


def _mark(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a mark")
    return value
