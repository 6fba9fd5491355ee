"""Holds: who reads a checkpoint keeps it from being removed meanwhile.

A hold is an empty file whose name says all. It is put first, and then its owner looks whether the checkpoint is still
there; who removes notes that first, and then looks for holds. So at least one of the two sees the other.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from streamxf.checkpoint.publish import DAY
from streamxf.checkpoint.storage import Storage, is_url, storage_errors
from streamxf.errors import MetadataError, NoCheckpointError, ParameterError
from streamxf.manager.catalog import FOLDER, RunCatalog, read_catalog
from streamxf.manager.listing import look

_FOLDER = f"{FOLDER}/holds"
_HOLD = re.compile(r"(?P<name>.+)@(?P<time>[0-9]+)@(?P<who>[^@]+)-[0-9a-f]{8}")


@contextmanager
def hold(path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Keep a checkpoint of a run from being removed by a `CheckpointManager` or `forget` while it is read::

        with streamxf.hold("run/step-1000"):
            dcp.load(state, storage_reader=streamxf.FileSystemReader("run/step-1000"))

    `CheckpointManager.resume` does it by itself. A hold whose process was killed counts for a day.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder in its run's folder, or its URL.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError
        If there is no complete checkpoint, or its removal has begun.
    OSError, ForeignError
        If the run's folder cannot be written to.
    """
    given = os.fspath(path)
    if not is_url(given):
        if not os.path.isdir(given):
            raise NoCheckpointError("there is no such folder", file=given)
        given = os.path.realpath(given)  # of a link, what it leads to
    run, _, name = given.rstrip("/").rpartition("/")
    if not name:
        raise ParameterError(f"{given!r:.80} is not the folder of a checkpoint in a run's folder")
    with holding(Storage.of(run or ".", storage_options), name):
        yield


@contextmanager
def holding(storage: Storage, name: str) -> Iterator[None]:
    """The same, of a checkpoint by its name in a run."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())
    file = f"{_FOLDER}/{name}@{int(time.time())}@{host}-{os.getpid()}-{secrets.token_hex(4)}"
    with storage_errors(storage.full(file)):
        if (local := storage.local_path(_FOLDER)) is not None:
            os.makedirs(local, exist_ok=True)
        storage.put(file, b"", sync=False)
    try:
        with storage_errors(storage.given):
            try:
                catalog = read_catalog(storage)
            except MetadataError:  # nothing is removed, then
                catalog = RunCatalog()
            record = look(storage, name, catalog)
        if record is None or record.state != "complete":
            state = "there is none" if record is None else f"it is {record.state}"
            raise NoCheckpointError(f"no complete checkpoint: {state}", file=storage.full(name))
        yield
    finally:
        storage.remove([file])


def held(storage: Storage) -> dict[str, str]:
    """The checkpoints of a run that someone reads, each with a text that says who."""
    child = storage.child(_FOLDER)
    now = time.time()
    found: dict[str, str] = {}
    with suppress(FileNotFoundError):
        for file in child.names(()):
            match = _HOLD.fullmatch(file)
            if match is None:
                continue
            begun = int(match["time"])
            if abs(now - begun) < DAY:
                when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun))
                found[match["name"]] = f"{match['who']} reads it, since {when} UTC"
            else:  # its owner was killed
                child.remove([file])
    return found
