"""`emulated` runs the emulator of an object store; checks that hold for every store, and what they need."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage
from tests.dcp.fsspec_checks import assert_only_the_save_remains, fsspec_files, load_from, save_to
from tests.dcp.helpers import assert_same, error_of
from tests.polling import wait_until

SECONDS = 120.0  # far above what anything here takes


@contextmanager
def emulated(command: list[str], port: int, log: Path, **variables: str) -> Iterator[None]:
    """Run an emulator that listens on a port of loopback."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | variables
    with log.open("wb") as written:
        server = subprocess.Popen(command, cwd=log.parent, stdout=written, stderr=written, env=environment)
        try:

            def listens() -> bool:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return True
                assert server.poll() is None, f"it did not start: {log.read_text(errors='replace')[-2000:]}"
                return False

            wait_until(listens, SECONDS, pause=0.02)
            yield
        finally:
            server.kill()
            server.wait()


def state_of(value: int) -> dict[str, Any]:
    return {"weight": torch.full((1000,), float(value)), "step": value}


def large_state(step: int) -> dict[str, Any]:
    """Of several parts, and several ranges, whatever size they have."""
    generator = torch.Generator().manual_seed(step)
    return {"large": torch.randn(9 * 2**20, generator=generator), **state_of(step)}


def check_two_saves_at_once(url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """The last one stays whole."""
    if not first:
        save_to(url, state_of(0), options)
    just_before_the_put(monkeypatch, lambda: save_to(url, state_of(1), options))
    save_to(url, state_of(2), options)
    assert_same(load_from(url, state_of(0), options), state_of(2))
    assert_only_the_save_remains(url, options)


def just_before_the_put(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], times: int = 1) -> None:
    """Have something done when `.metadata` is about to be put, after all that was looked at before."""
    original = RemoteStorage.put
    left = [times]

    def put(self: Storage, name: str, data: bytes, **options: Any) -> None:
        if left[0] and name == ".metadata":
            left[0] -= 1
            act()
        original(self, name, data, **options)

    monkeypatch.setattr(RemoteStorage, "put", put)


class Meeting:
    """Replaces a coroutine function: the first call waits for a second one, so that two are under way at a time if the
    caller ever has two. Calls without a text among their arguments that ends with `end` pass.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, end: str = "") -> None:
        self.calls = self.most = self._under_way = 0
        met = asyncio.Event()
        original = getattr(owner, name)

        async def call(*args: Any, **options: Any) -> Any:
            if not any(isinstance(each, str) and each.endswith(end) for each in args):
                return await original(*args, **options)
            self.calls += 1
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            if self._under_way > 1:
                met.set()
            try:
                await asyncio.wait_for(met.wait(), SECONDS)
                return await original(*args, **options)
            finally:
                self._under_way -= 1

        monkeypatch.setattr(owner, name, call)


def check_failing_save(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, owner: Any, upload: str
) -> None:
    """A save whose second part is refused leaves the checkpoint that was there, and nothing of its own."""
    save_to(url, state_of(1), options)
    before = fsspec_files(url, options)
    original = getattr(owner, upload)
    calls = []

    def refuse(*args: Any, **arguments: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise PermissionError("refused by the test")
        return original(*args, **arguments)

    monkeypatch.setattr(owner, upload, refuse)
    error = error_of(lambda: save_to(url, large_state(2), options))
    assert "refused by the test" in str(error)
    monkeypatch.undo()
    assert fsspec_files(url, options) == before
    assert_same(load_from(url, state_of(0), options), state_of(1))
    save_to(url, state_of(3), options)
    assert_only_the_save_remains(url, options)
    assert_same(load_from(url, state_of(0), options), state_of(3))
