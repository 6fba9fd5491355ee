"""A failure at each file operation of `streamxf.rekey`: old metadata is there, or new, and nothing beside it."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import streamxf
from streamxf.errors import MetadataError, StreamxfError
from streamxf.format.names import LOCK
from streamxf.format.sections import pack_keys
from streamxf.storage.lock import locked
from streamxf.storage.opening import open_storage
from tests.dcp.fsspec_checks import load_from, save_to
from tests.dcp.helpers import assert_same, load, refused, save
from tests.dcp.shards import save_as_ranks
from tests.failing import fails_with
from tests.tools.rekey.rekeying import KEY, OTHER_KEY, untouched
from tests.tools.rekey.rekeying import opens as opens_one

# without lstat, whose failures os.path.realpath ignores
CALLS = [(os, name) for name in ("open", "stat", "fstat", "fsync", "fchmod", "fchown", "close", "scandir", "replace")]
CALLS += [(builtins, "open"), (Path, "stat"), (Path, "replace")]


class Faults:
    """Counts file operations below a folder, and lets one of them fail.

    Parameters
    ----------
    number : int
        Which one fails, from 0.
    after : bool
        Whether it fails after it was done, as a call that is interrupted does.
    """

    def __init__(self, patch: pytest.MonkeyPatch, number: int, error: BaseException, after: bool) -> None:
        self.seen: list[str] = []
        self._number = number
        self._error = error
        self._after = after
        for owner, name in CALLS:
            patch.setattr(owner, name, self._wrapped(name, getattr(owner, name)))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            fails = self._count(name)
            if fails and not self._after:
                raise self._error
            result = original(*arguments, **options)
            if fails:
                if hasattr(result, "close"):
                    result.close()
                raise self._error
            if name == "open" and hasattr(result, "write") and result.writable():
                return _Writing(result, self)
            return result

        return call

    def _count(self, name: str) -> bool:
        self.seen.append(name)
        return len(self.seen) == self._number + 1

    def write(self, file: Any, data: bytes) -> int:
        if self._count("write"):
            file.write(data[: len(data) // 2])
            raise self._error
        written: int = file.write(data)
        return written


class _Writing:
    """A file whose writes are counted, too."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    def write(self, data: bytes) -> int:
        return self._faults.write(self._file, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def opens(path: Path, key: Any) -> list[str]:
    """The metadata files that a key opens, of which none may be anything but whole."""
    return [file.name for file in sorted(path.glob("*.metadata")) if opens_one(path, key, file.name)]


FAILED, INTERRUPTED = OSError("injected"), KeyboardInterrupt("injected")


@pytest.mark.parametrize(
    ("ranks", "error", "after"),
    [(0, FAILED, False), (0, INTERRUPTED, True), (2, FAILED, True), (2, INTERRUPTED, False)],  # each pair of them
    ids=["global-error-before", "global-interrupt-after", "of ranks-error-after", "of ranks-interrupt-before"],
)
def test_the_old_metadata_or_the_new(tmp_path: Path, ranks: int, error: BaseException, after: bool) -> None:
    path = tmp_path / "checkpoint"
    if ranks:
        state = save_as_ranks(ranks, path, lambda: [streamxf.Encrypt(KEY)], items=1, use_collectives=False)
    else:
        state = {"step": 1}
        save(state, path, [streamxf.Encrypt(KEY)])
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    names = sorted(name for name in before if name.endswith(".metadata"))
    outcomes = set()
    number = 0
    while True:
        for name, data in before.items():
            (path / name).write_bytes(data)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, number, error, after)
            try:
                streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY)
            except (OSError, KeyboardInterrupt, StreamxfError) as caught:
                failed: BaseException | None = caught
            else:
                failed = None
        old, new = opens(path, KEY), opens(path, OTHER_KEY)
        assert sorted(old + new) == names
        # the lock's file may stay, free for whoever comes next
        assert {file.name for file in path.iterdir()} - {LOCK} == before.keys(), faults.seen[number:]
        for name, data in before.items():
            assert (path / name).read_bytes() == data or name in new
        if failed is None:
            assert new == names
        if number == len(faults.seen):
            assert failed is None
            break
        outcomes.add((len(old), len(new)))
        streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY)
        assert opens(path, OTHER_KEY) == names
        with locked(open_storage(path), patience=0.0):
            pass
        assert {file.name for file in path.iterdir()} == before.keys()
        number += 1
    assert number > 15
    assert {"open", "write", "fsync", "replace", "stat", "scandir"} <= set(faults.seen)
    assert {(len(names), 0), (0, len(names))} <= outcomes  # failures before the step, and after it
    if not ranks:
        assert_same(load(state, path, OTHER_KEY), state)


def test_an_object_store_that_fails(state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://rekey-faults"
    save_to(url, state)
    memory = fsspec.filesystem("memory")
    before = memory.cat_file(url + "/.metadata")
    try:
        for name in ("pipe_file", "ls", "open"):
            with monkeypatch.context() as patch:
                patch.setattr(type(memory), name, fails_with(OSError, "injected"))
                with refused(OSError, "injected"):
                    streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY)
            assert memory.cat_file(url + "/.metadata") == before
        assert_same(load_from(url, state), state)
        streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY)
        assert_same(load_from(url, state, keys=OTHER_KEY), state)
    finally:
        memory.rm(url, recursive=True)


def test_keys_that_would_not_be_read_back_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"n": 1}, tmp_path)

    def pack_others(wrapped: str, vouchers: str) -> bytes:
        return pack_keys(wrapped, f"mac={'0' * 64}{vouchers[68:]}")

    monkeypatch.setattr("streamxf.format.sections.pack_keys", pack_others)
    untouched(
        lambda: streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY), tmp_path, MetadataError, "cannot be replaced"
    )
