"""A user's own storage: what it must do, and where it can be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp.s3_server import storage as s3_options

import streamxf
from storage.stores import HttpStorage, MemoryStorage, web_server
from streamxf.errors import ContainerError, ParameterError, UnsupportedError
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.testing import FILES, ConformanceError, check_storage

STATE = {"weight": torch.arange(100_000, dtype=torch.float32).reshape(100, 1000), "step": 7}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "step-7"
    dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(path), no_dist=True)
    return path


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Callable[[], str]]:
    with web_server(tmp_path) as url:
        yield lambda: url


def copied(path: Path, storage: Storage) -> Storage:
    for file in path.iterdir():
        storage.write(file.name, file.read_bytes())
    return storage


def damaged(storage: Storage) -> None:
    (name,) = (each.name for each in storage.entries() if each.name.endswith(".distcp"))
    data = bytearray(storage.read(name, 0, 2**30))
    data[len(data) // 2] ^= 1
    storage.write(name, data)


# -- the suite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "memory of fsspec", "a user's"])
def test_storages_do_what_is_relied_on(tmp_path: Path, kind: str) -> None:
    if kind == "local":
        check_storage(open_storage(tmp_path / "new"))
        assert not (tmp_path / "new").exists()
    elif kind == "memory of fsspec":
        check_storage(open_storage(f"memory://{uuid4().hex}"))
    else:
        storage = MemoryStorage("below/root")
        check_storage(storage)
        assert not storage.files


@pytest.mark.s3
@pytest.mark.slow
def test_so_does_s3(endpoint: str) -> None:
    check_storage(open_storage(f"s3://checkpoints/{uuid4().hex}", s3_options(endpoint)))


def test_a_storage_that_is_only_read(tmp_path: Path, web: Callable[[], str]) -> None:
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_bytes(data)
    storage = HttpStorage(web())
    check_storage(storage, FILES)
    for act in (lambda: storage.write("a", b""), lambda: storage.create("a"), lambda: storage.remove(["plain"])):
        with pytest.raises(UnsupportedError, match="only read"):
            act()


class _Forgets(MemoryStorage):
    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        super().write(path, data[:1000], over=over)


class _Globs(MemoryStorage):
    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        every = [each.name for each in self.below()]
        return super().remove([name for path in paths for name in every if name.startswith(path.rstrip("*"))])


class _Overwrites(MemoryStorage):
    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        super().write(path, data)


class _Invents(MemoryStorage):
    def read(self, path: str, start: int, stop: int) -> bytes:
        return self.files.get(self.inner(path), (b"", 0))[0][start:stop]


class _KeepsHalves(MemoryStorage):
    def create(self, path: str = "") -> Any:
        from contextlib import contextmanager

        @contextmanager
        def created() -> Iterator[Any]:
            import io

            file = io.BytesIO()
            try:
                yield file
            finally:
                self.write(path, file.getvalue())

        return created()


@pytest.mark.parametrize("wrong", [_Forgets, _Globs, _Overwrites, _Invents, _KeepsHalves])
def test_what_is_wrong_is_found(wrong: type[MemoryStorage]) -> None:
    with pytest.raises(ConformanceError):
        check_storage(wrong())


# -- where it can be given ---------------------------------------------------------------------------


def check_reads(storage: Storage) -> None:
    with streamxf.Checkpoint(storage, framework="numpy") as checkpoint:
        assert np.array_equal(checkpoint["weight"].read(), STATE["weight"].numpy())
        assert checkpoint["step"].read() == 7
    report = streamxf.verify(storage)
    assert report.ok, report
    assert "weight" in str(streamxf.inspect(storage))
    assert streamxf.diff(storage, storage).equal


def test_a_checkpoint_in_memory(saved: Path, tmp_path: Path) -> None:
    storage = copied(saved, MemoryStorage("runs/step-7"))
    check_reads(storage)
    assert not streamxf.clean(storage).removed
    assert not streamxf.load_intact(storage).lost
    streamxf.transcode(storage, tmp_path / "here", chain="zstd")
    check_reads(open_storage(tmp_path / "here"))
    back = MemoryStorage("back")
    streamxf.transcode(tmp_path / "here", back, chain="floatzip")
    check_reads(back)
    damaged(storage)
    assert not streamxf.verify(storage).ok
    with streamxf.Checkpoint(storage) as checkpoint, pytest.raises(ContainerError):
        checkpoint["weight"].read()


def test_a_run_in_memory(saved: Path) -> None:
    root = MemoryStorage("run")
    for name in ("step-6", "step-7"):
        copied(saved, root.child(name))
    assert [record.name for record in streamxf.list_checkpoints(root)] == ["step-6", "step-7"]
    with streamxf.hold(root.child("step-6")):
        assert streamxf.forget(root, 1, dry_run=True).in_use.keys() == {"step-6"}
    assert streamxf.forget(root, 1, dry_run=True).removed == ("step-6",)
    assert streamxf.tune(root.child("step-7"), bandwidth=1e9).raw_bytes


def test_a_checkpoint_on_a_web_server(saved: Path) -> None:
    with web_server(saved.parent) as url:
        check_reads(HttpStorage(f"{url}/{saved.name}"))


def test_keys_of_a_checkpoint_in_memory(tmp_path: Path) -> None:
    old, new = streamxf.Key.generate(), streamxf.Key.generate()
    writer = streamxf.FileSystemWriter(tmp_path / "step", chain=[streamxf.Encrypt(old)])
    dcp.save(dict(STATE), storage_writer=writer, no_dist=True)
    storage = copied(tmp_path / "step", MemoryStorage())
    streamxf.rekey(storage, keys=old, recipients=new)
    with streamxf.Checkpoint(storage, keys=new) as checkpoint:
        assert checkpoint["step"].read() == 7


def test_options_are_for_urls() -> None:
    with pytest.raises(ParameterError, match="has its own"):
        streamxf.verify(MemoryStorage(), storage_options={"anon": True})
