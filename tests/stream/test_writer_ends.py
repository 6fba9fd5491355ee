"""Only `close` finishes a file: whatever else ends a writer leaves no readable file, and the previous one as it was."""

import errno
import gc
import io
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import streamxf
from streamxf import Codec, engine
from streamxf.chain import Chain
from streamxf.errors import AbortedError, CodecError, ContainerError, ParameterError, StreamxfError
from streamxf.stream.encoder import ContainerEncoder, StreamWriter
from tests.failing import fails_with
from tests.polling import wait_until
from tests.samples import BLOCK, FULL, KEY, READERS, data_of, encode

DATA = data_of(5 * BLOCK + 7)


class Stop(Exception):
    pass


@pytest.fixture
def path(tmp_path) -> Path:
    """A file that was there before."""
    path = tmp_path / "file.sxf"
    path.write_bytes(b"as it was")
    return path


def untouched(path: Path) -> bool:
    return path.read_bytes() == b"as it was" and list(path.parent.iterdir()) == [path]


def unreadable(target: io.BytesIO) -> bool:
    for read in READERS:
        with pytest.raises(StreamxfError):
            read(target.getvalue())
    return True


def start(target, chain=FULL) -> StreamWriter:
    file = streamxf.open(target, "wb", chain=chain, block_size=BLOCK)
    file.write(DATA)
    return file


@pytest.mark.parametrize("end", ["exception", "abort", "dropped", "cycle"])
def test_without_close(path, end):
    for target in (path, io.BytesIO()):
        file = start(target)
        if end == "exception":
            with pytest.raises(Stop), file:
                raise Stop
        elif end == "abort":
            file.abort()
        elif end == "cycle":
            holder = [file]
            holder.append(holder)
            del holder
        if end in ("exception", "abort"):
            assert file.closed
            with pytest.raises(AbortedError):
                file.write(b"more")
            with pytest.raises(AbortedError):
                file.close()
        del file
        gc.collect()
        assert untouched(path)
        if isinstance(target, io.BytesIO):
            assert unreadable(target)


def test_close_finishes_and_replaces(path):
    file = start(path)
    assert path.read_bytes() == b"as it was"
    file.close()
    file.close()
    assert list(path.parent.iterdir()) == [path]
    with streamxf.open(path, keys=KEY) as reader:
        assert reader.read() == DATA
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_an_abort_returns_what_was_in_flight():
    budget = engine.shared().budget
    before = budget.jobs
    for end in (lambda file: file.abort(), lambda file: None):
        file = streamxf.open(io.BytesIO(), "wb", chain=FULL, block_size=BLOCK)
        file.write(DATA)
        end(file)
        del file
        gc.collect()
        wait_until(lambda: budget.jobs == before)  # a dropped stream does not wait for the job that runs


def test_an_abort_waits_for_the_job_that_runs():
    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def job():
        begun.set()
        goes_on.wait(60)
        done.set()

    file = streamxf.open(io.BytesIO(), "wb")
    file._pipeline.submit(job, 1)
    assert begun.wait(60)
    threading.Timer(0.05, goes_on.set).start()
    file.abort()
    assert done.is_set()


FORK = """
import gc, os, sys, streamxf
path, how = sys.argv[1:]
key = bytes(range(32))
data = os.urandom(700_001)
file = streamxf.open(path, "wb", chain=[streamxf.ZStandard(), streamxf.Encrypt(key)], block_size=65536)
file.write(data)
pid = os.fork()
if not pid:
    from streamxf.errors import AbortedError
    code = 1
    try:
        if how == "write":
            file.write(b"child")
        elif how == "close":
            file.close()
        elif how == "drop":
            del file
            gc.collect()
            raise AbortedError("stands for the silence of a drop")
        elif how == "abort":
            file.abort()
            raise AbortedError("an abort is silent, too")
    except AbortedError:
        code = 0
    # what a process does at its end
    file = None
    gc.collect()
    sys.stdout.flush()
    os._exit(code)
assert os.waitpid(pid, 0)[1] == 0, how
file.write(b"parent")
file.close()
with streamxf.open(path, keys=key) as reader:
    assert reader.read() == data + b"parent"
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", ["write", "close", "drop", "abort"])
def test_a_forked_child_neither_finishes_nor_spoils_the_file(tmp_path, how):
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path / "file.sxf"), how], check=True, timeout=60)


@pytest.mark.parametrize("size", [0, -1, 1, 65535, 65537, 1 << 15, 1 << 25, -65536, 65536.0, "65536", True, None])
def test_block_sizes(path, size):
    with pytest.raises(ParameterError, match="power of two from 65536"):
        streamxf.open(path, "wb", block_size=size)
    assert untouched(path)


def test_other_arguments(path):
    with pytest.raises(ParameterError, match="mode"):
        streamxf.open(path, "ab")
    with pytest.raises(ParameterError, match="keys= only"):
        streamxf.open(path, "rb", chain="zstd")
    assert untouched(path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        streamxf.open(tmp_path / "none" / "file", "wb")


# -- raw files that fail ---------------------------------------------------------------------------------------------


class Full(io.BytesIO):
    """Takes `calls` writes and then no more."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def write(self, data):
        self.calls -= 1
        if self.calls < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().write(data)


def count_calls() -> int:
    target = Full(10**9)
    start(target).close()
    return 10**9 - target.calls


@pytest.mark.parametrize("calls", range(count_calls()))
def test_no_space_at_any_write(calls):
    target = Full(calls)
    file = None
    with pytest.raises(OSError, match="no space"):
        file = streamxf.open(target, "wb", chain=FULL, block_size=BLOCK)
        file.write(DATA)
        file.close()
    if file is not None:
        with pytest.raises(AbortedError):
            file.write(b"more")
        with pytest.raises(AbortedError):
            file.close()
    assert unreadable(target)


class Grudging(io.BytesIO):
    """Takes 1, 2, ... `most` bytes at a time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.turn = 0

    def write(self, data):
        self.turn = self.turn % self.most + 1
        return super().write(memoryview(data)[: self.turn])


@pytest.mark.parametrize("most", [1, 2, 100])
def test_short_writes(most):
    target = Grudging(most)
    data = data_of(BLOCK + 50)
    with streamxf.open(target, "wb", chain=(), block_size=BLOCK) as file:
        file.write(data)
    assert all(read(target.getvalue()) == data for read in READERS)


@pytest.mark.parametrize(("base", "answer"), [(io.BytesIO, 0), (io.RawIOBase, None)])
def test_a_file_that_takes_nothing(base, answer):
    class Refusing(base):
        def write(self, data):
            return answer

    with pytest.raises(OSError, match="no more"):
        streamxf.open(Refusing(), "wb")


def test_errors_of_publishing_surface_and_leave_the_old_file(path, monkeypatch):
    file = start(path)
    monkeypatch.setattr(os, "fsync", fails_with(OSError, errno.EIO, "fsync failed"))
    with pytest.raises(OSError, match="fsync failed"):
        file.close()
    assert untouched(path)


def test_each_file_has_a_salt_and_a_data_key_of_its_own():
    first, second = encode(b"same", FULL), encode(b"same", FULL)
    assert first != second
    assert len({first[12:500], second[12:500]}) == 2


def test_the_most_bytes():
    encoder = ContainerEncoder(Chain([]), block_log2=16)
    encoder.raw_size = 2**48 - 2**16
    encoder.job(lambda: b"", 2**16, last=False)
    with pytest.raises(ContainerError, match="more bytes than a container may hold"):
        encoder.job(lambda: b"", 1, last=True)


@dataclass(frozen=True)
class Nothing(Codec):
    """What it makes of a block has no bytes."""

    name: ClassVar[str] = "acme.nothing"

    def encode(self, block, info):
        return memoryview(b"")

    def decode(self, block, info):
        return memoryview(b"")


def test_a_stored_block_has_bytes_unless_it_is_the_only_one():
    """A hole in a file would be a row of others."""
    assert len(streamxf.encode(b"", [Nothing()])) > 60
    with pytest.raises(CodecError, match="at least one"):
        streamxf.encode(bytes(2**20 + 1), [Nothing()])
