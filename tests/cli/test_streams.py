"""Commands whose standard streams are closed, full, or read by nobody: the exit code is right, and all else works."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

import pytest
import torch
from safetensors.torch import save_file

import streamxf
from tests.cli import preloaded


def in_shell(folder: Path, command: str, streams: str) -> tuple[int, str, str]:
    text = f"{shlex.quote(sys.executable)} -m streamxf.cli {command} {streams}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as for most people
    done = subprocess.run(["bash", "-c", text], cwd=folder, env=buffered, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({f"w{number}": torch.full((100, 100), float(number)) for number in range(20)}, tmp_path / "a.safetensors")
    return tmp_path


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_checkpoint_is_whole_though_a_stream_is_closed(folder: Path, streams: str):
    """The files that are opened must not get the number of a stream."""
    assert in_shell(folder, "pack a.safetensors packed", streams)[0] == 0
    assert streamxf.verify(folder / "packed").ok


@pytest.mark.parametrize("options", ["", "--json"])
def test_what_cannot_be_printed_is_a_failure(folder: Path, options: str):
    code, _, shown = in_shell(folder, f"inspect a.safetensors {options}", ">/dev/full")
    lost = "standard output: No space left on device; all but the output may be complete\n"
    assert (code, shown) == (1, f"streamxf inspect: {lost}")
    code, _, shown = in_shell(folder, f"pack a.safetensors packed {options}", ">/dev/full")
    assert (code, shown) == (1, f"streamxf pack: {lost}")
    assert streamxf.verify(folder / "packed").ok


def test_an_item_that_cannot_be_printed_is_a_failure(folder: Path):
    streamxf.pack(folder / "a.safetensors", folder / "packed")
    lost = "standard output: No space left on device; all but the output may be complete\n"
    for text in ([], ["--text"]):
        with open("/dev/full", "w") as full, TemporaryFile() as shown:
            process = preloaded.start(["cat", folder / "packed", "w3", *text], (0, full.fileno(), shown.fileno()))
            code = process.wait()
            assert (code, os.pread(shown.fileno(), 1000, 0).decode()) == (1, f"streamxf cat: {lost}")


@pytest.mark.parametrize("streams", [">&-", ">/dev/full"])
@pytest.mark.parametrize("options", ["", "--json"])
def test_what_is_wrong_is_said_on_stderr_then(folder: Path, options: str, streams: str):
    code, _, shown = in_shell(folder, f"inspect nothing {options}", streams)
    assert code == 2
    assert "there is no file or folder" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_the_exit_code_is_right_where_nothing_can_be_said(folder: Path, streams: str):
    assert in_shell(folder, "inspect nothing", streams) == (2, "", "")


@pytest.mark.parametrize("arguments", [["a.safetensors"], ["nothing", "--json"]], ids=" ".join)
def test_nobody_reads(folder: Path, arguments: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "streamxf.cli", "inspect", *arguments]
    done = subprocess.run(command, cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
