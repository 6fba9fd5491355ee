"""`FsspecWriter` and `FsspecReader` on fsspec's file systems that need no server."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import ContainerError, MetadataError, StreamxfError, UnsupportedError
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage

from .fsspec_checks import assert_only_the_save_remains, check_round_trips, load_from, save_to
from .helpers import KEY, assert_same, error_of, full_chain, refused


@pytest.fixture(params=["memory", "file", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param != "memory":
        yield f"{request.param}://{tmp_path}/some/where"
        return
    folder = f"/{uuid.uuid4().hex}"  # the memory file system is one for the whole process
    yield f"memory:/{folder}/some/where"
    if fsspec.filesystem("memory").exists(folder):
        fsspec.filesystem("memory").rm(folder, recursive=True)


@pytest.mark.parametrize("threads", [1, 3])
def test_round_trips(url: str, state: dict[str, Any], threads: int) -> None:
    check_round_trips(url, state, thread_count=threads)


def test_an_ordinary_path(tmp_path: Path, state: dict[str, Any]) -> None:
    check_round_trips(str(tmp_path / "folder"), state)


def test_without_collectives(url: str, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=streamxf.FsspecWriter(url, _extensions=full_chain()), use_collectives=False)
    assert_same(load_from(url, state), state)
    save_to(url + "/global", state)
    with refused(UnsupportedError, "global metadata"):
        writer = streamxf.FsspecWriter(url + "/global", _extensions=full_chain())
        dcp.save(state, storage_writer=writer, use_collectives=False)


def test_damage_is_found(url: str, state: dict[str, Any]) -> None:
    save_to(url, state)
    filesystem, path = fsspec.core.url_to_fs(url)
    (file,) = [name for name in filesystem.find(path) if name.endswith(".distcp")]
    whole = filesystem.cat_file(file)
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 4
    filesystem.pipe_file(file, bytes(changed))
    with refused(StreamxfError, file.rpartition("/")[2]):
        load_from(url, state)
    filesystem.pipe_file(file, whole[:-1])
    with refused(ContainerError, "the metadata says"):
        load_from(url, state)
    filesystem.rm(file)
    with refused(MetadataError, "missing"):
        load_from(url, state)


def test_a_save_that_fails_leaves_the_old_one(url: str, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    save_to(url, state)
    writer = streamxf.FsspecWriter(url, _extensions=full_chain(), thread_count=2)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("fault injected")

    # the second of two files fails, so that there is one that was finished
    kind = type(open_storage(url))
    original: Any = kind.create
    opened: list[str] = []

    def create(self: Storage, name: str = "") -> Any:
        opened.append(name)
        if len(opened) == 2:
            fail()
        return original(self, name)

    monkeypatch.setattr(kind, "create", create)
    error = error_of(lambda: dcp.save({**state, "step": 99}, storage_writer=writer))
    monkeypatch.undo()
    assert isinstance(error, OSError)
    assert_same(load_from(url, state), state)
    assert_only_the_save_remains(url)


def test_storage_options_survive_a_reset(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint and credentials are among them."""
    from torch.distributed.checkpoint import _fsspec_filesystem as torch_fsspec

    given: list[dict[str, Any]] = []
    original = torch_fsspec.FileSystem.init_path

    def init_path(self: Any, path: Any, **options: Any) -> Any:
        given.append(options)
        return original(self, path)

    monkeypatch.setattr(torch_fsspec.FileSystem, "init_path", init_path)
    for made in (
        streamxf.FsspecWriter(url, endpoint_url="http://127.0.0.1:1", secret="s"),
        streamxf.FsspecReader(url, keys=KEY, endpoint_url="http://127.0.0.1:1", secret="s"),
    ):
        made.reset(url + "/other")
        assert str(made.path).endswith("/other")
        made.reset()
        assert str(made.path).endswith("/other")
    assert given == [{"endpoint_url": "http://127.0.0.1:1", "secret": "s"}] * 4
