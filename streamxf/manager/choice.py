"""Which checkpoint to resume from: the newest that is as it was saved, as far as that was looked at."""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal, get_args

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.metadata import GLOBAL, metadata_among, read_metadata
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import (
    ContainerError,
    MetadataError,
    NoCheckpointError,
    ParameterError,
    StreamxfError,
    escaped,
    is_damage,
)
from streamxf.formats.opening import contents_of
from streamxf.manager.catalog import RunCatalog, read_catalog
from streamxf.manager.holds import holding
from streamxf.manager.listing import survey
from streamxf.manager.record import Record
from streamxf.tuning.sample import StoredTensors, take_sample

Verify = Literal["none", "sample", "whole"]

_TEXT = 500  # characters of a reason
_log = logging.getLogger(__name__)


@dataclass
class Choice:
    """What to resume from, if anything.

    - `record`: the newest that passed.
    - `skipped`: newer ones that did not, each with the reason.
    - `save_id`: of that record's save, once somebody has asked for it.
    """

    record: Record | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    save_id: str | None = None


def choose(storage: Storage, records: Iterable[Record], access: Access, verify: Verify = "sample") -> Choice:
    """Go from the newest complete checkpoint to older ones until one passes. Raises what is no damage: that a key or
    a codec is missing, or that the storage cannot be reached.
    """
    choice = Choice()
    for record in sorted(records, key=lambda record: record.order, reverse=True):
        if record.state != "complete":
            continue
        reason = damage_of(storage, record, access, verify)
        if reason is None:
            choice.record = record
            break
        choice.skipped[record.name] = reason
    return choice


class Chooser:
    """Chooses among the checkpoints of one series, and keeps what it chose from being removed."""

    def __init__(self, storage: Storage, series: str, access: Access, verify: Verify) -> None:
        self._storage = storage
        self._series = series
        self._access = access
        self._verify = verify
        self._holds = ExitStack()

    def choose(self, skipped: Collection[str], name: str | None = None, *, without_catalog: bool) -> Choice:
        """As `choose`, of those not in `skipped`, or of one alone. It is held until `release`, unless the run's folder
        is read-only.

        - `without_catalog`: whether a damaged catalog is done without. What dcp.save saved is complete when it has
          metadata, but of what a framework saved only the catalog says so.
        """
        with storage_errors(self._storage.given):
            while True:
                own = [record for record in self._records(without_catalog) if record.series == self._series]
                wanted = [record for record in own if record.name not in skipped and name in (None, record.name)]
                found = choose(self._storage, wanted, self._access, self._verify)
                if found.record is None:
                    return found
                try:
                    self._holds.enter_context(holding(self._storage, found.record.name))
                except NoCheckpointError:
                    continue  # someone has begun to remove it
                except OSError as error:
                    if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
                        raise
                    _log.warning("nothing keeps %s from being removed while it is read: %s", found.record.name, error)
                found.save_id = _save_id(self._storage.child(found.record.name))
                return found

    def release(self) -> None:
        self._holds.close()

    def _records(self, without_catalog: bool) -> list[Record]:
        try:
            return survey(self._storage, read_catalog(self._storage))
        except MetadataError as error:
            records = survey(self._storage, RunCatalog()) if without_catalog else []
            if not any(record.state == "complete" for record in records):
                raise
            _log.warning("resuming without the catalog: %s", escaped(str(error)))
            return records


def check_verify(verify: str) -> None:
    if verify not in get_args(Verify):
        raise ParameterError(f"verify={verify!r:.40}: it is one of {', '.join(map(repr, get_args(Verify)))}")


def damage_of(storage: Storage, record: Record, access: Access, verify: Verify) -> str | None:
    """Why a checkpoint cannot be resumed from; None if nothing was found.

    With ``"none"``, its metadata can be read, and all files are there in their sizes; with ``"sample"``, blocks spread
    over its tensors were read as well; with ``"whole"``, all of it.
    """
    child = storage.child(record.name)
    try:
        with storage_errors(child.given):
            if metadata_among(child.names(())):
                _check(child, access, verify)
                return None
            # of a framework, with checkpoints of DCP in folders of their own, perhaps
            parts = [part for name in child.folders() if metadata_among((part := child.child(name)).names(()))]
            for part in parts:
                _check(part, access, verify)
            if record.bytes is None or record.mark is not None:
                raise MetadataError("there is no metadata")
            if (size := size_of(child)) != record.bytes:
                raise ContainerError(f"its files had {record.bytes} bytes when it was committed, and now have {size}")
    except Exception as error:
        if not is_damage(error):
            raise
        return f"{type(error).__name__}: {error}"[:_TEXT]
    return None


def size_of(storage: Storage) -> int:
    """What all files below a folder have, in bytes."""
    return sum(size or 0 for size in storage.names().values()) + sum(
        size_of(storage.child(name)) for name in storage.folders()
    )


def _check(child: Storage, access: Access, verify: Verify) -> None:
    if verify == "whole":
        from streamxf.tools.verify.verify import verify_at

        report = verify_at(child, access)
        if not report.ok:
            raise ContainerError(f"verify found damage: {report.damaged[0]}")
        return
    with Checkpoint.at(child, access, listing=verify == "none") as checkpoint:
        if missing := contents_of(checkpoint).incomplete:
            raise MetadataError(f"not there in the size that the metadata gives: {', '.join(missing[:3])}")
        if verify == "sample":
            take_sample(StoredTensors(checkpoint))


def _save_id(child: Storage) -> str | None:
    """streamxf's id of the save that a folder has now; None of metadata that has none, or cannot be read."""
    try:
        index = read_metadata(child, GLOBAL, Access(), listing=True).index
    except (StreamxfError, FileNotFoundError):
        return None
    return index.save_id if index is not None else None
