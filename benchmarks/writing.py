"""Ways to bring a file to the disk while its blocks are still being encoded."""

from __future__ import annotations

import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import torch

from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import State, full_chain
from benchmarks.harness import MIB, Phases, Settings, alternate, timed
from benchmarks.peers import flat_bytes
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread, ratios
from streamxf import Chain
from streamxf.buffers import write_all
from streamxf.engine import Pipeline
from streamxf.format.header import Identity, Kind
from streamxf.storage.synced import SyncedFile
from streamxf.stream.encoder import ContainerEncoder, Encoded, MemorySource

PRESENT = "writeback begun every 4 MiB, one file"
ALIGNMENT = 4096


class Way(ABC):
    """A file that is written from its start to its end; `finish` returns when all of it is on the disk."""

    def __init__(self, path: Path, size: int) -> None:
        self.descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | self.flags(), 0o600)
        self.written = 0

    @staticmethod
    def flags() -> int:
        return 0

    @abstractmethod
    def write(self, data: memoryview) -> int: ...

    def finish(self) -> None:
        os.fsync(self.descriptor)
        os.close(self.descriptor)


class Plain(Way):
    """What the kernel does when it is left alone."""

    def write(self, data: memoryview) -> int:
        count = os.write(self.descriptor, data)
        self.written += count
        return count


class Present(Way):
    """What saves do."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._raw = os.fdopen(self.descriptor, "wb", buffering=0)
        self._file = SyncedFile(self._raw)

    def write(self, data: memoryview) -> int:
        count = self._file.write(data) or 0
        self.written += count
        return count

    def finish(self) -> None:
        self._file.sync()
        self._raw.close()


class Allocated(Present):
    """The same, in a file whose place on the disk was reserved before."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size)
        os.posix_fallocate(self.descriptor, 0, size)

    def finish(self) -> None:
        os.ftruncate(self.descriptor, self.written)
        super().finish()


class Advised(Plain):
    """`posix_fadvise`, which begins writeback, too, and takes what is written out of the page cache."""

    def write(self, data: memoryview) -> int:
        before = self.written
        count = super().write(data)
        if before // (4 * MIB) != self.written // (4 * MIB):
            os.posix_fadvise(self.descriptor, 0, self.written, os.POSIX_FADV_DONTNEED)
        return count


class SyncedMeanwhile(Plain):
    """`fdatasync` every 64 MiB, in a thread of its own."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._due: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._sync)
        self._thread.start()

    def _sync(self) -> None:
        while self._due.get():
            os.fdatasync(self.descriptor)

    def write(self, data: memoryview) -> int:
        before = self.written
        count = super().write(data)
        if before // (64 * MIB) != self.written // (64 * MIB):
            self._due.put(True)
        return count

    def finish(self) -> None:
        self._due.put(False)
        self._thread.join()
        super().finish()


class Direct(Way):
    """`O_DIRECT` past the page cache, from aligned buffers, in a thread of its own while the next buffer is filled."""

    SIZE = 4 * MIB
    BUFFERS = 3

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._free: SimpleQueue[mmap.mmap] = SimpleQueue()
        self._full: SimpleQueue[mmap.mmap | None] = SimpleQueue()
        self._errors: list[BaseException] = []
        for _ in range(self.BUFFERS):
            self._free.put(mmap.mmap(-1, self.SIZE))
        self._buffer = self._free.get()
        self._thread = threading.Thread(target=self._write_buffers)
        self._thread.start()

    @staticmethod
    def flags() -> int:
        return os.O_DIRECT

    def _write_buffers(self) -> None:
        while (buffer := self._full.get()) is not None:
            try:
                write_all(_Descriptor(self.descriptor), memoryview(buffer))
            except BaseException as error:
                self._errors.append(error)
            self._free.put(buffer)

    def write(self, data: memoryview) -> int:
        done = 0
        while done < len(data):
            at = self.written % self.SIZE
            part = data[done : done + self.SIZE - at]
            self._buffer[at : at + len(part)] = part
            done += len(part)
            self.written += len(part)
            if self.written % self.SIZE == 0:
                self._full.put(self._buffer)
                self._buffer = self._free.get()
        return done

    def finish(self) -> None:
        if self.written % self.SIZE:
            self._full.put(self._buffer)  # whole: only whole pages can be written
        self._full.put(None)
        self._thread.join()
        if self._errors:
            raise self._errors[0]
        os.ftruncate(self.descriptor, self.written)
        super().finish()


class _Descriptor:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: memoryview) -> int:
        return os.write(self._descriptor, data)


WAYS: dict[str, tuple[type[Way], int]] = {
    PRESENT: (Present, 1),
    "write, then fsync": (Plain, 1),
    "fdatasync every 64 MiB in a second thread": (SyncedMeanwhile, 1),
    "posix_fadvise every 4 MiB": (Advised, 1),
    "reserved by fallocate, writeback every 4 MiB": (Allocated, 1),
    "O_DIRECT, buffers of 4 MiB in a second thread": (Direct, 1),
    "writeback every 4 MiB, two files": (Present, 2),
    "writeback every 4 MiB, four files": (Present, 4),
}


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(settings.mib // 2, 16)
    state = gaussian_layers(mib, torch.bfloat16)
    folder = settings.folder / "writing"
    folder.mkdir()
    sides = {name: partial(_phases, way, files, state, folder) for name, (way, files) in WAYS.items()}
    rounds = alternate(sides, settings.rounds, "writing")
    rows: list[Row] = [
        {
            "way": name,
            "seconds": Spread.of(phases["write"]),
            "against the present one": ratios(phases["write"], rounds[PRESENT]["write"]),
        }
        for name, phases in rounds.items()
    ]
    note = (
        f"{mib} MiB of bf16 Gaussian weights in tensors of {mib // len(state)} MiB, encoded with FloatZip + Checksum + "
        "Encrypt by all workers and written by the calling thread (with several files, each by a thread of its own), "
        f"until all is on the disk; {settings.rounds} rounds after one to warm up. The first row is what saves do. "
        "After O_DIRECT and posix_fadvise the next load finds nothing in the page cache."
    )
    return Result("writing", "Ways to write", note, [Table(rows)])


def _phases(way: type[Way], files: int, state: State, folder: Path) -> Phases:
    names = list(state)
    paths = [folder / f"file{number}" for number in range(files)]
    parts = [{name: state[name] for name in names[number::files]} for number in range(files)]

    def write() -> None:
        errors: list[BaseException] = []
        threads = [
            threading.Thread(target=_noting, args=(partial(_encode_into, way, path, part), errors))
            for path, part in zip(paths[1:], parts[1:], strict=True)
        ]
        for thread in threads:
            thread.start()
        _encode_into(way, paths[0], parts[0])
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    seconds = timed(write)
    for path in paths:
        path.unlink()
    return {"write": seconds}


def _noting(action: Callable[[], None], errors: list[BaseException]) -> None:
    try:
        action()
    except BaseException as error:
        errors.append(error)


def _encode_into(way: type[Way], path: Path, state: State) -> None:
    file = way(path, sum(tensor.nbytes for tensor in state.values()))
    chain = Chain(full_chain()).renew()
    for name, tensor in state.items():
        shape = tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        identity = Identity(bytes(16), Kind.TENSOR, name, dtype, (0,) * len(shape), shape, shape)
        encoder = ContainerEncoder(chain, identity=identity, published=True)
        pipeline: Pipeline[Encoded] = Pipeline()
        for job, size in encoder.jobs(MemorySource(memoryview(flat_bytes(tensor)))):
            _write(file, encoder, pipeline.submit(job, size))
        _write(file, encoder, pipeline.results())
    file.finish()


def _write(file: Way, encoder: ContainerEncoder, blocks: Iterable[Encoded]) -> None:
    for block in blocks:
        for part in encoder.framed(block):
            write_all(file, part)
        block.release()
