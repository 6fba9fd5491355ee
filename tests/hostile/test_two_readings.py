"""What is checked of a file of ``torch.save`` is what is opened: the same bytes, from the same offset.

``torch.load`` decides by the first bytes what a file is, and whoever looks for a zip file's directory does so at the
end. A file in the format that torch wrote before 1.6, with a harmless zip file behind it, is two files; so is a zip
file whose directory leads to other records than those that stand where torch writes them.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.device_mesh import DeviceMesh

import streamxf
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import ContainerError, PolicyError, StreamxfError
from tests.archives import behind, old_form, one_over_another, redirected, saved
from tests.cli.command import Run
from tests.dcp.helpers import error_of, load_into

from .planted import OF_TORCH, WRITERS, keys_of, with_object, with_tensor

GOOD, OTHER = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 9.0)
STATE = {"t": GOOD, "step": 17, "mode": "train", "last": torch.ones(4)}
READERS = {"own": streamxf.FileSystemReader, "fsspec": lambda path, **given: streamxf.FsspecReader(str(path), **given)}


class Mesh:
    """Opens a TCP port when it is unpickled, where the environment says that this is rank 0 of several."""

    def __reduce__(self) -> Any:
        return DeviceMesh, ("cpu", [0])


@pytest.fixture(autouse=True)
def no_port_is_opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    yield
    opened = dist.is_initialized()
    if opened:
        dist.destroy_process_group()
    assert not opened


FRONTS = {
    "other values": old_form(OTHER),
    "a DeviceMesh": old_form(Mesh()),
    "a pickle of another protocol": b"\x80\x04" + old_form(OTHER)[2:],
    "a byte": b"\0",
    "an empty zip file": b"PK\x05\x06" + bytes(18),
}


def blank() -> dict[str, Any]:
    return {"t": torch.full((2, 3), -1.0), "step": None, "mode": None, "last": torch.zeros(4)}


# -- the format from before torch 1.6, in front of a zip file ----------------------------------------


def test_torch_reads_what_stands_in_front() -> None:
    """Or there were nothing to guard against."""
    data = behind(FRONTS["other values"], saved(GOOD))
    assert torch.equal(torch.load(io.BytesIO(data), weights_only=True), OTHER)
    assert torch.equal(torch.load(io.BytesIO(redirected(saved(GOOD), {"data/0": OTHER.numpy().tobytes()}))), OTHER)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("writer", OF_TORCH)
def test_a_tensor_behind_something_else(tmp_path: Path, writer: str, front: str) -> None:
    path = tmp_path / "checkpoint"
    with_tensor(STATE, "t", behind(FRONTS[front], saved(GOOD)), path, writer)
    for reader in READERS.values():
        error = error_of(lambda reader=reader: dcp.load(blank(), storage_reader=reader(path)))
        assert "does not begin as a file of torch.save" in str(error)
        assert error.item == "t"


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("writer", OF_TORCH)
def test_what_tools_make_of_such_a_tensor(tmp_path: Path, writer: str, front: str, run: Run) -> None:
    right, path = tmp_path / "right", tmp_path / "checkpoint"
    dcp.save(STATE, storage_writer=WRITERS[writer](right))
    with_tensor(STATE, "t", behind(FRONTS[front], saved(GOOD)), path, writer)
    report = streamxf.verify(path)
    assert [damage.item for damage in report.damaged] == ["t"]
    difference = streamxf.diff(path, right)
    assert not difference.same
    assert list(difference.incomparable) == ["t"]
    found = streamxf.load_intact(path)
    assert set(found.loaded) == {"step", "mode", "last"}
    assert {lost.item for lost in found.damaged} == {"t"}
    assert run("verify", path).code == 1
    assert run("diff", path, right).code


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_an_object_behind_something_else(tmp_path: Path, writer: str, front: str) -> None:
    path, keys = tmp_path / "checkpoint", keys_of(writer)
    with_object(STATE, "step", behind(FRONTS[front], saved(17)), path, writer)
    readers = [reader(path, **keys) for reader in READERS.values()]
    if not keys:
        readers.append(streamxf.attach(dcp.FileSystemReader(path)))
    for reader in readers:
        error = error_of(lambda reader=reader: dcp.load(blank(), storage_reader=reader))
        assert isinstance(error, PolicyError)
        assert "does not begin as a file of torch.save" in str(error)
    assert streamxf.unsafe_globals(path, **keys).refused
    with Checkpoint(path, **keys) as opened, pytest.raises(PolicyError, match="does not begin"):
        opened["step"].read()


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_tools_make_of_such_an_object(tmp_path: Path, writer: str, front: str) -> None:
    right, path, keys = tmp_path / "right", tmp_path / "checkpoint", keys_of(writer)
    dcp.save(STATE, storage_writer=WRITERS[writer](right))
    with_object(STATE, "step", behind(FRONTS[front], saved(17)), path, writer)
    difference = streamxf.diff(path, right, **keys)
    assert not difference.same
    assert list(difference.incomparable) == ["step"]
    found = streamxf.load_intact(path, **keys)
    assert set(found.loaded) == {"t", "mode", "last"}
    report = streamxf.verify(path, **keys)
    in_containers = "bare" not in writer and writer not in ("stock", "stock ZStandard")
    whole = in_containers or writer == "own, bare"  # then a digest is right, and objects were not looked at
    assert [damage.item for damage in report.damaged] == ([] if whole else ["step"])


@pytest.mark.parametrize("front", FRONTS)
def test_a_file_behind_something_else(tmp_path: Path, front: str, run: Run) -> None:
    right, file = tmp_path / "right.pt", tmp_path / "model.pt"
    right.write_bytes(saved({"t": GOOD}))
    file.write_bytes(behind(FRONTS[front], saved({"t": GOOD})))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "pytorch_model-1.bin").write_bytes(file.read_bytes())
    index = {"weight_map": {"t": "pytorch_model-1.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for path in (file, folder):
        with pytest.raises(StreamxfError):
            streamxf.diff(path, right)
        for command in (("inspect", path), ("diff", path, right)):
            assert run(*command).code
    packed = tmp_path / "packed"
    assert run("pack", file, packed).code
    assert not (packed / ".metadata").exists()
    if run("pack", folder, packed).code == 0:  # of a folder, what is in torch's old form is kept as bytes
        with Checkpoint(packed) as opened:
            assert all(name.startswith("streamxf.source") for name in opened)


# -- a directory that leads elsewhere ------------------------------------------------------------------


@pytest.mark.parametrize("writer", OF_TORCH)
def test_a_directory_that_leads_elsewhere(tmp_path: Path, writer: str) -> None:
    """It decides."""
    with_tensor(STATE, "t", redirected(saved(GOOD), {"data/0": OTHER.numpy().tobytes()}), tmp_path, writer)
    target = load_into(blank(), streamxf.FileSystemReader(tmp_path))
    assert torch.equal(target["t"], OTHER)


@pytest.mark.parametrize("writer", OF_TORCH)
def test_what_tools_make_of_such_a_directory(tmp_path: Path, writer: str) -> None:
    """Whoever reads what stands where torch writes it, and has not asked the directory, is told."""
    path, copy = tmp_path / "checkpoint", tmp_path / "copy"
    with_tensor(STATE, "t", redirected(saved(GOOD), {"data/0": OTHER.numpy().tobytes()}), path, writer)
    assert torch.equal(streamxf.load_intact(path).state_dict["t"], OTHER)
    try:
        streamxf.transcode(path, copy, "zstd")
    except ContainerError as error:
        assert error.item == "t"  # noqa: PT017
        assert not (copy / ".metadata").exists()
        assert writer == "stock ZStandard"
    else:
        copied = load_into(blank(), streamxf.FileSystemReader(copy))
        assert torch.equal(copied["t"], OTHER)
        assert streamxf.diff(path, copy).same


@pytest.mark.parametrize("writer", OF_TORCH)
def test_records_that_lie_over_one_another(tmp_path: Path, writer: str) -> None:
    """Each is as large as the file, and a thousand of them would take a thousand times its memory."""
    many = {str(number): torch.zeros(1000) for number in range(40)}
    data = one_over_another(saved(many), [f"data/{number}" for number in range(40)])
    assert len(data) < 20_000
    assert len(torch.load(io.BytesIO(data), weights_only=True)) == 40
    path = tmp_path / "checkpoint"
    with_object({"o": 5}, "o", data, path, writer)
    error = error_of(lambda: dcp.load({"o": None}, storage_reader=streamxf.FileSystemReader(path)))
    assert isinstance(error, PolicyError)
    assert "records overlap" in str(error)


# -- a file that is another one when it is read again --------------------------------------------------


class Turning(io.BytesIO):
    """After so many reads it has other bytes."""

    def __init__(self, first: bytes, then: bytes, after: int) -> None:
        super().__init__(first)
        self._then = then
        self._left = after

    def _count(self) -> None:
        if not self._left:
            self.getbuffer()[:] = self._then
        self._left -= 1

    def read(self, size: int | None = -1, /) -> bytes:
        self._count()
        return super().read(size)

    def readinto(self, buffer: Any, /) -> int:
        self._count()
        return super().readinto(buffer)


def with_pickle(value: torch.Tensor, pickled: bytes) -> bytes:
    return redirected(saved(value), {"data.pkl": pickled.ljust(500)})


@pytest.mark.parametrize("reads", range(16))
def test_a_pickle_that_is_another_one_once_it_was_checked(tmp_path: Path, reads: int) -> None:
    large = torch.arange(60_000.0)  # too many bytes for a single read
    with zipfile.ZipFile(io.BytesIO(saved(large))) as archive:
        good = with_pickle(large, archive.read("archive/data.pkl"))
    with_tensor({"t": large}, "t", good, tmp_path, "stock")
    bad = with_pickle(large, pickle.dumps(Mesh(), 2))
    (file,) = tmp_path.glob("*.distcp")
    assert file.read_bytes() == good
    assert len(good) == len(bad)

    class Files(FileSystem):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            if Path(path) == file:
                yield Turning(good, bad, reads)
            else:
                with super().create_stream(path, mode) as stream:
                    yield stream

    reader = streamxf.FileSystemReader(tmp_path)
    reader.fs = Files()
    target = {"t": torch.zeros(60_000)}
    error = error_of(lambda: dcp.load(target, storage_reader=reader))
    assert isinstance(error, StreamxfError) or torch.equal(target["t"], large)
    assert reads or isinstance(error, StreamxfError)
