"""Ctrl-C and SIGTERM at a command that is at work: one line, the documented exit code, and nothing half done."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from tests.cli import preloaded
from tests.cli.command import Run
from tests.polling import wait_until

LIMIT = 300.0
SLOW = ["--chain", "zstd:level=19+checksum"]  # some seconds for a few MiB


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A checkpoint of 8 MiB."""
    generator = torch.Generator().manual_seed(0)
    state = {f"layers.{n}.weight": torch.randn(512, 1024, generator=generator) for n in range(4)}
    save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "weights"))
    return tmp_path / "weights"


def interrupted(
    arguments: Sequence[object], when: Callable[[int], bool], number: int = signal.SIGINT, wait: float = 0.0
) -> tuple[int, str]:
    """Start a command and, after `when`, send it a signal; returns its exit code, as shells show it, and its stderr."""
    with open(os.devnull, "w") as nothing, TemporaryFile() as shown:
        streams = (nothing.fileno(), nothing.fileno(), shown.fileno())
        process = preloaded.start(arguments, streams)
        try:
            wait_until(lambda: process.poll() is not None or when(process.pid))
            time.sleep(wait)
            process.send_signal(number)
            return _as_a_shell_shows_it(process.wait()), os.pread(shown.fileno(), 2**16, 0).decode()
        finally:
            process.send_signal(signal.SIGKILL)


def _as_a_shell_shows_it(code: int) -> int:
    """Where a library's own code was interrupted within an import, Python itself ends by the signal after all clean-up.
    A shell shows the same for both.
    """
    return code if code >= 0 else 128 - code


def begun(arguments: Sequence[object], number: int, handling: signal.Handlers) -> subprocess.Popen[str]:
    """Start a command by an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "streamxf.cli", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts jobs in the background with SIGINT ignored
        preexec_fn=lambda: signal.signal(number, handling),
    )


def is_importing_torch(process: int) -> bool:
    """Whether a process has begun to load torch's library."""
    try:
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


def one_line(command: str) -> str:
    return f"streamxf {command}: interrupted\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_a_command_likewise(weights: Path, tmp_path: Path, number: int, code: int):
    new = tmp_path / "new"
    ended, shown = interrupted(["salvage", weights, new, *SLOW], lambda _: new.exists(), number)
    assert (ended, shown.startswith("streamxf salvage: interrupted")) == (code, True)
    assert not (new / ".metadata").exists()


@pytest.mark.parametrize("written", [False, True])
def test_salvage_publishes_nothing_and_can_be_called_again(run: Run, weights: Path, tmp_path: Path, written: bool):
    new = tmp_path / "new"

    def begun(_: int) -> bool:
        return any(file.stat().st_size for file in new.glob("*.distcp")) if written else new.exists()

    code, shown = interrupted(["salvage", weights, new, *SLOW], begun)
    assert code == 130
    assert shown.startswith("streamxf salvage: interrupted")
    assert shown.count("\n") == 1
    assert not (new / ".metadata").exists()
    run.exits(0, "salvage", weights, new, "--chain", "lz4+checksum")
    whole, copy = ({f"layers.{n}.weight": torch.zeros(512, 1024) for n in range(4)} for _ in range(2))
    load(whole, storage_reader=streamxf.FileSystemReader(weights))
    load(copy, storage_reader=streamxf.FileSystemReader(new))
    assert all(torch.equal(copy[name], tensor) for name, tensor in whole.items())
    assert run("clean", new, "--yes").code == 0
    assert run("verify", new, "--json").json["leftovers"] == []


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at a process through /proc")
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_while_torch_is_imported(weights: Path, wait: float):
    process = begun(["verify", weights], signal.SIGINT, signal.SIG_DFL)
    wait_until(lambda: process.poll() is not None or is_importing_torch(process.pid))
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=LIMIT)
    code = _as_a_shell_shows_it(process.returncode)
    assert (code, shown) in [(130, one_line("verify")), (0, "")]


def test_an_interrupt_that_a_library_swallowed_is_one(run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch):
    """As torch does while it imports numpy; what half of numpy is good for is no verdict."""
    real = streamxf.verify
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def swallowing(*arguments: Any, **options: Any) -> Any:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    monkeypatch.setattr(streamxf, "verify", swallowing)
    try:
        done = run("verify", weights)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.code, done.err) == (130, one_line("verify"))


def test_a_process_that_ignores_hangups_goes_on_ignoring_them(weights: Path):
    """As under nohup."""
    process = begun(["verify", weights], signal.SIGHUP, signal.SIG_IGN)
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert (process.returncode, process.communicate()[1]) == (0, "")
