"""Whether all ranks of a job have the run in one folder: with a disk for each host, nothing saved could be loaded."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamxf.errors import ParameterError, escaped
from streamxf.manager.notes import FOLDER
from streamxf.storage.disk import Mount, machine
from streamxf.storage.removal import remove_entry
from streamxf.storage.small import put_small, small_names
from streamxf.storage.storage import Storage
from streamxf.wording import some

if TYPE_CHECKING:
    from streamxf.manager.agreement import Agreement

_PATIENCE = 60.0  # seconds for which a client of NFS may believe that a folder has no new names
_PAUSE = 0.25


@dataclass(frozen=True)
class Whereabouts:
    """The run's folder as one rank finds it; without a `mount` it is in an object store, or not there. `device` numbers
    the file system on its `machine`.
    """

    host: str
    machine: str
    path: str
    device: int = 0
    mount: Mount | None = None

    @classmethod
    def of(cls, storage: Storage) -> Whereabouts:
        mount, label = storage.mount(), storage.label()
        device = os.stat(label).st_dev if mount is not None else 0
        return cls(socket.gethostname(), machine(), label, device, mount)

    def is_one_with(self, other: Whereabouts) -> bool | None:
        """Whether these are surely one folder, or surely two."""
        if self.mount is None or other.mount is None:
            own_disk = any(each.mount is not None and each.mount.of_one_machine for each in (self, other))
            return True if self.path == other.path and self.mount is other.mount else False if own_disk else None
        if self.machine == other.machine:
            if (self.device, self.mount.inode) == (other.device, other.mount.inode):
                return True
            return False if self.mount.of_one_machine or other.mount.of_one_machine else None
        return False if self.mount.is_other_than(other.mount) else None

    def __str__(self) -> str:
        where = (
            "not there"
            if self.mount is None
            else f"{self.mount.kind} of {self.mount.source}, folder {self.mount.inode}"
        )
        return escaped(f"{self.host} has {self.path}" + (f" ({where})" if "://" not in self.path else ""))


def check_one_folder(storage: Storage, agreement: Agreement) -> None:
    """Raise ParameterError on every rank unless all see what rank 0, which publishes, puts into the run's folder."""
    if agreement.size == 1:
        return
    file = f"{FOLDER}/host-{secrets.token_hex(8)}"

    def put() -> tuple[Whereabouts, str]:
        with suppress(OSError):  # the save has an error for that
            storage.make_folder(durable=False)
            put_small(storage, file, b"", sync=False)
        return Whereabouts.of(storage), file

    first, file = agreement.broadcast(put)
    try:
        found = agreement.everywhere(lambda: _look(storage, first, file))
    finally:
        if agreement.rank == 0:
            remove_entry(storage, file)
    if not all(is_there for _, is_there in found):
        raise ParameterError(
            f"the run's folder is not the same on all ranks: {'; '.join(_in_words([place for place, _ in found]))}. "
            "Each would keep its part of a checkpoint, and no start could load that. Give one folder that all of them "
            "share, on a network file system or in an object store"
        )


def _look(storage: Storage, first: Whereabouts, file: str) -> tuple[Whereabouts, bool]:
    """Where this rank finds the run, and whether rank 0's file is there."""
    end = time.monotonic() + _PATIENCE
    while True:
        own = Whereabouts.of(storage)
        is_one = own.is_one_with(first)
        is_there = is_one or file.rpartition("/")[2] in small_names(storage, FOLDER)
        if is_there or is_one is False or time.monotonic() > end:
            return own, is_there
        time.sleep(_PAUSE)


def _in_words(places: Sequence[Whereabouts]) -> list[str]:
    ranks: dict[str, list[str]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(str(place), []).append(str(rank))
    return [f"rank {some(those)} on {place}" for place, those in ranks.items()][:10]
