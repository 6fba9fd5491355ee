"""A whole checkpoint that is damaged or hostile, and what copies, compares and describes such.

Inputs are those of the target ``checkpoint``; the corpus has what `hostile.made` builds, too.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import streamxf
from tests.fuzz import target_checkpoint
from tests.fuzz.oracle import attempt
from tests.fuzz.target import Target
from tests.fuzz.target_checkpoint import unpacked
from tests.samples import KEY


def run(data: bytes) -> None:
    with unpacked(data) as folder:
        for keys in (KEY, None):
            attempt(lambda keys=keys: _describe(folder, keys))
            attempt(lambda keys=keys: str(streamxf.diff(folder, folder, keys=keys)))
            for copy in (_transcode, _to_torch, _to_safetensors, _to_folder):
                attempt(lambda keys=keys, copy=copy: _copied(copy, folder, keys))


def _describe(folder: Path, keys: Any) -> None:
    streamxf.inspect(folder, keys=keys).as_dict(items=True)
    streamxf.unsafe_globals(folder, keys=keys)
    streamxf.recipients(folder, keys=keys)


def _copied(copy: Any, folder: Path, keys: Any) -> None:
    with TemporaryDirectory(prefix="streamxf-fuzz-", dir=folder.parent) as scratch:
        copy(folder, Path(scratch), keys)


def _transcode(folder: Path, scratch: Path, keys: Any) -> None:
    streamxf.transcode(folder, scratch / "out", "", keys=keys)
    streamxf.inspect(scratch / "out")


def _to_torch(folder: Path, scratch: Path, keys: Any) -> None:
    streamxf.unpack(folder, scratch / "out.pt", keys=keys)
    streamxf.inspect(scratch / "out.pt")


def _to_safetensors(folder: Path, scratch: Path, keys: Any) -> None:
    streamxf.unpack(folder, scratch / "out.safetensors", keys=keys, skip_objects=True)
    streamxf.inspect(scratch / "out.safetensors")


def _to_folder(folder: Path, scratch: Path, keys: Any) -> None:
    streamxf.unpack(folder, scratch / "out", keys=keys, skip_objects=True)
    streamxf.inspect(scratch / "out")


TARGET = Target(run, target_checkpoint.seeds, target_checkpoint.mutate, target_checkpoint.TARGET.max_len)
