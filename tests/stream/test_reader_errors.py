"""Readers give out nothing unverified, keep the last block until the end is known, and stay dead after an error."""

import io
import mmap

import fsspec
import pytest

import streamxf
from streamxf.codec import CodecRegistry
from streamxf.errors import AbortedError, ContainerError, KeyMissingError, PolicyError, StreamxfError
from streamxf.keys import KeyRing
from streamxf.stream.plain import read_file
from tests.altered import flipped
from tests.forge import take_apart
from tests.samples import BLOCK, FULL, KEY, OneWay, data_of, encode

DATA = data_of(3 * BLOCK + 9)
FILE = encode(DATA, FULL)


def spoil(file: bytes, block: int) -> bytes:
    """The file with one bit of a block's payload flipped, and its CRC made right."""
    parts = take_apart(file)
    blocks = list(parts.blocks)
    last, payload = blocks[block]
    blocks[block] = (last, flipped(payload))
    return parts.change(blocks=tuple(blocks)).pack()


def test_a_pipe_holds_the_last_block_back():
    """Damage behind the last block keeps that block, and only that, from being read."""
    for damaged in (FILE[:-1], FILE + b"\0", flipped(FILE, -9)):
        with streamxf.open(OneWay(damaged), keys=KEY) as file:
            got = b""
            with pytest.raises(ContainerError):
                while piece := file.read(10_000):
                    got += piece
        assert got == DATA[: 3 * BLOCK]


def test_a_pipe_does_not_even_start_a_single_block_without_its_end():
    whole = encode(b"small", FULL)
    for size in range(len(whole) - 44, len(whole)):
        with streamxf.open(OneWay(whole[:size]), keys=KEY) as file:
            with pytest.raises(ContainerError):
                file.read(1)


@pytest.mark.parametrize("source", [io.BytesIO, OneWay])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_dead_after_an_error(source, block):
    with streamxf.open(source(spoil(FILE, block)), keys=KEY) as file:
        got = b""
        with pytest.raises(StreamxfError) as first:
            while piece := file.read(BLOCK):
                got += piece
        assert got == DATA[: block * BLOCK]
        assert first.value.block == block
        assert file.error is first.value
        with pytest.raises(StreamxfError) as again:
            file.read(1)
        assert again.value is first.value
        if file.seekable():
            file.seek(0)
            with pytest.raises(StreamxfError):
                file.read(1)


def test_a_spoiled_block_does_not_leave_its_plaintext_in_the_callers_buffer():
    parts = take_apart(encode(DATA, [streamxf.Encrypt(KEY)]))
    spoiled = spoil(parts.pack(), 1)
    target = bytearray(b"\xee" * len(DATA))
    with streamxf.open(io.BytesIO(spoiled), keys=KEY) as file:
        with pytest.raises(StreamxfError):
            file.readinto(target)
    second = bytes(target[BLOCK : 2 * BLOCK])
    assert second in (bytes(BLOCK), b"\xee" * BLOCK)


def test_the_last_block_vouches_for_the_size_when_a_keyed_file_is_opened():
    with pytest.raises(StreamxfError):
        streamxf.open(io.BytesIO(spoil(FILE, 3)), keys=KEY)


class Interrupted(OneWay):
    """Raises once, in the middle of the stream or where its end is looked for."""

    def __init__(self, data: bytes, after: int, error: BaseException) -> None:
        super().__init__(data, 5000)
        self.after = after
        self.error: BaseException | None = error

    def readinto(self, buffer):
        if self.source.tell() >= self.after and self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().readinto(buffer)


@pytest.mark.parametrize("after", [BLOCK, len(FILE) - 40, len(FILE)])
@pytest.mark.parametrize("error", [OSError("connection reset"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_pipe_whose_source_failed_stays_dead(after, error):
    with streamxf.open(Interrupted(FILE, after, error), keys=KEY) as file:
        with pytest.raises(type(error)):
            file.read()
        with pytest.raises(AbortedError):
            file.read()


def test_closed():
    for source in (io.BytesIO, OneWay):
        file = streamxf.open(source(FILE), keys=KEY)
        file.close()
        file.close()
        with pytest.raises(ValueError, match="closed"):
            file.read(1)


def test_seeks_that_make_no_sense():
    with streamxf.open(io.BytesIO(FILE), keys=KEY) as file:
        with pytest.raises(ValueError, match="before the start"):
            file.seek(-1)
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 3)
        assert file.seek(10**12) == 10**12
        assert file.read() == b""


def test_opening_names_the_file(tmp_path):
    path = tmp_path / "file.sxf"
    path.write_bytes(FILE)
    with pytest.raises(KeyMissingError) as caught:
        streamxf.open(path)
    assert caught.value.file == str(path)
    assert str(path) in str(caught.value)


def test_short_reads_of_a_seekable_file():
    class Slow(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 777) if size > 0 else size)

    with streamxf.open(Slow(FILE), keys=KEY) as file:
        assert file.read() == DATA


def test_large_reads_go_in_steps(monkeypatch):
    monkeypatch.setattr("streamxf.stream.reader._READ_STEP", 2 * BLOCK)
    with streamxf.open(io.BytesIO(FILE), keys=KEY) as file:
        for start in (0, 5, BLOCK, 2 * BLOCK + 1, len(DATA)):
            file.seek(start)
            assert file.read() == DATA[start:]
            file.seek(start)
            assert file.read(2 * BLOCK + 3) == DATA[start : start + 2 * BLOCK + 3]


@pytest.mark.parametrize("read", [io.BytesIO, OneWay])
def test_where_only_encrypted_files_are_read_others_are_refused_without_a_key(read):
    plain = encode(DATA, [streamxf.ZStandard()])
    with pytest.raises(PolicyError, match="the chain in use encrypts"):
        read_file(read(plain), KeyRing(), CodecRegistry(), encrypted=True)
    with read_file(read(FILE), KeyRing([KEY]), CodecRegistry(), encrypted=True) as file:
        assert file.read() == DATA


def test_an_error_that_comes_late_names_the_file(tmp_path):
    path = tmp_path / "file.sxf"
    path.write_bytes(spoil(FILE, 1))
    with streamxf.open(path, keys=KEY) as file, pytest.raises(StreamxfError) as caught:
        file.read()
    assert caught.value.file == str(path)
    assert caught.value.block == 1


class Remote(fsspec.spec.AbstractBufferedFile):
    """As s3fs and others have it."""

    def __init__(self, data):
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe("/bucket/file.sxf", data)
        super().__init__(filesystem, "/bucket/file.sxf")
        self._data = data

    def _fetch_range(self, start, end):
        return self._data[start:end]


@pytest.mark.parametrize("at", [2, len(FILE) // 2, len(FILE) - 2], ids=["begin", "middle", "end"])
def test_an_open_file_is_named_as_far_as_it_has_a_name(at, tmp_path):
    damaged = flipped(FILE, at)
    path = tmp_path / "file.sxf"
    path.write_bytes(damaged)
    with open(path, "rb") as file, open(path, "rb") as raw, open(raw.fileno(), "rb", closefd=False) as unnamed:
        opened = {file: str(path), Remote(damaged): "memory:///bucket/file.sxf", unnamed: None}
        for source, name in opened.items():
            with pytest.raises(StreamxfError) as caught, streamxf.open(source, keys=KEY) as reader:
                reader.read()
            assert caught.value.file == name


@pytest.mark.parametrize("block", [0, 2])
def test_an_error_holds_no_memory_of_the_caller(block):
    """Memory that is mapped cannot be closed while there is a view of it, and that error would hide this one."""
    memory = mmap.mmap(-1, len(DATA))
    with streamxf.open(io.BytesIO(spoil(FILE, block)), keys=KEY) as file:
        with pytest.raises(StreamxfError) as caught:
            file.readinto(memory)
        memory.close()
        assert file.error is caught.value
