"""A user's own storage: what it must do, and where it can be given."""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Retention
from streamxf.errors import ContainerError, ForeignError, NoCheckpointError, ParameterError, UnsupportedError
from streamxf.manager.latest import is_complete
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage, StorageEntry
from streamxf.testing import FILES, ConformanceError, check_storage
from tests.altered import flipped
from tests.dcp.s3_server import storage as s3_options
from tests.manager.runs import complete, resumed, saved_run, state_at
from tests.storage.stores import HttpStorage, MemoryStorage, web_server

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
    storage.write(name, flipped(storage.read(name, 0, 2**30)))


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


@pytest.mark.parametrize(
    "url", ["memory://", "memory:///", "dir://::memory://{}", "dir:///::memory://{}", "dir://::{}"]
)
def test_so_does_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Of a store, and of a folder that poses as one; what is below opens by its own URL, and leads up again."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    run = url.format(uuid4().hex if "memory" in url else tmp_path.as_uri())
    check_storage(open_storage(run))
    saved_run(run, 1)
    dcp.save(state_at(2), storage_writer=streamxf.FsspecWriter(open_storage(run).location("step-2")))
    saved_run(run, 3, keep=2)
    assert complete(run) == ["step-2", "step-3"]
    assert resumed(run) == 3
    newest = str(streamxf.latest(run))
    assert streamxf.verify(newest).ok
    assert is_complete(newest)
    above, name = open_storage(newest).parent()
    assert (complete(above.location()), name) == (["step-2", "step-3"], "step-3")
    if "memory" not in url:
        assert {"step-2", "step-3"} < {each.name for each in tmp_path.iterdir()}


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
        with pytest.raises(UnsupportedError, match="read-only"):
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
        return self.files.get(self.path_of(path), (b"", 0))[0][start:stop]


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


class _RefusesOtherwise(MemoryStorage):
    def put(self, path: str, data: bytes, **how: Any) -> None:
        if how.get("once"):
            raise NotADirectoryError(path)
        super().put(path, data, **how)


@pytest.mark.parametrize("wrong", [_Forgets, _Globs, _Overwrites, _Invents, _KeepsHalves])
def test_what_is_wrong_is_found(wrong: type[MemoryStorage]) -> None:
    with pytest.raises(ConformanceError):
        check_storage(wrong())


def test_an_error_of_another_kind_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(NotADirectoryError):
        check_storage(_RefusesOtherwise())


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


def test_dcp_saves_to_and_loads_from_a_storage() -> None:
    place = MemoryStorage("runs/step-7")
    writer = streamxf.FileSystemWriter(place, chain="zstd+checksum", thread_count=2)
    dcp.save(dict(STATE), storage_writer=writer, no_dist=True)
    assert str(writer.checkpoint_id) == str(place) == "MemoryStorage:runs/step-7"
    assert {*place.names()} == {".metadata", *(name for name in place.names() if name.endswith(".distcp"))}
    check_reads(place)
    loaded = {"weight": torch.zeros(100, 1000), "step": 0}
    reader = streamxf.FileSystemReader(place, expect_save_id=writer.save_id)
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    assert torch.equal(loaded["weight"], STATE["weight"])
    assert loaded["step"] == 7
    assert reader.report is not None
    again, files = {**STATE, "step": 8}, len(place.names())
    with pytest.warns(UserWarning, match="existing checkpoint in MemoryStorage:runs/step-7"):
        dcp.save(again, storage_writer=writer, no_dist=True)  # over it
    assert len(place.names()) == files, "what it replaced is gone"
    with pytest.raises(CheckpointException, match=r"Checkpoint already exists"):
        dcp.save(again, storage_writer=streamxf.FileSystemWriter(place, overwrite=False), no_dist=True)
    dcp.save(again, storage_writer=writer, checkpoint_id=place.parent()[0].child("step-8"), no_dist=True)
    dcp.load(loaded, storage_reader=streamxf.FileSystemReader(place), no_dist=True)
    assert loaded["step"] == 8
    assert [record.name for record in streamxf.list_checkpoints(place.parent()[0])] == ["step-7", "step-8"]
    with pytest.raises(ParameterError, match="this was made for a Storage"):
        writer.reset("elsewhere")


def test_a_save_in_the_background_to_a_storage() -> None:
    place = MemoryStorage("step")
    dcp.async_save(dict(STATE), storage_writer=streamxf.FsspecWriter(place), no_dist=True).result()
    check_reads(place)
    with pytest.raises(ParameterError, match="has its own"):
        streamxf.FsspecWriter(place, anon=True)


def test_a_writer_of_a_path_turns_to_a_storage(tmp_path: Path) -> None:
    place = MemoryStorage("step")
    writer = streamxf.FileSystemWriter(tmp_path / "step")
    dcp.save(dict(STATE), storage_writer=writer, checkpoint_id=place, no_dist=True)
    check_reads(place)
    reader = streamxf.FileSystemReader(tmp_path / "step")
    loaded = {"step": 0}
    dcp.load(loaded, storage_reader=reader, checkpoint_id=place, no_dist=True)
    assert loaded["step"] == 7
    assert not [*tmp_path.iterdir()]


def test_each_rank_for_itself_in_a_storage() -> None:
    place = MemoryStorage("step")
    writer = streamxf.FileSystemWriter(place)
    dcp.save(dict(STATE), storage_writer=writer, use_collectives=False, no_dist=True)
    assert "__0.metadata" in place.names()
    whole = MemoryStorage("whole")
    dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(whole), no_dist=True)
    with pytest.raises(UnsupportedError, match="MemoryStorage:whole holds a checkpoint with global metadata"):
        dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(whole), use_collectives=False, no_dist=True)


def test_a_managed_run_in_a_storage() -> None:
    root = MemoryStorage("run")
    with streamxf.CheckpointManager(root, "zstd", keep=2, async_save=True) as manager:
        assert manager.resume({"weight": torch.zeros(10)}) is None
        for step in range(1, 5):
            manager.save(step, {"weight": torch.full((10,), step)}, metrics={"loss": 1 / step})
        manager.wait()
        assert str(manager.path(4)) == "MemoryStorage:run/step-4"
    assert [record.name for record in streamxf.list_checkpoints(root)] == ["step-3", "step-4"]
    newest = streamxf.latest(root, verify="whole")
    assert isinstance(newest, Storage)
    with streamxf.Checkpoint(newest) as checkpoint:
        assert checkpoint["weight"].read().sum() == 40
    assert is_complete(newest)
    damaged(newest)
    with streamxf.CheckpointManager(root, "zstd", keep=Retention(last=1, best=1, metric="loss")) as manager:
        state = {"weight": torch.zeros(10)}
        assert manager.resume(state) == 3
        assert manager.skipped.keys() == {"step-4"}
        assert torch.equal(state["weight"], torch.full((10,), 3.0))
        best = manager.best()
        assert isinstance(best, Storage)
        assert best.name == "step-3"
        manager.save(5, state)
    assert str(streamxf.latest(root)) == "MemoryStorage:run/step-5"
    report = streamxf.forget(root, 1)
    assert "step-5" not in report.removed


def test_a_framework_saves_to_a_storage() -> None:
    root = MemoryStorage("run")
    with streamxf.CheckpointManager(root) as manager:
        place = manager.begin(1)
        assert isinstance(place, Storage)
        place.write("model.bin", b"of a framework")
        assert not is_complete(place)
        manager.commit(1, metrics={"loss": 2.0})
        assert str(manager.latest()) == str(place)
    assert is_complete(root.child("step-1"))
    root.write("step-1/model.bin", b"shorter")
    assert not is_complete(root.child("step-1"))


def test_a_plain_file_in_a_storage() -> None:
    root, data, key = MemoryStorage("files"), bytes(range(256)) * 20_000, streamxf.Key.generate()
    for place in (root.child("one"), open_storage(f"memory://{uuid4().hex}/one")):
        with streamxf.open(place, "wb", chain=[streamxf.Encrypt(key)]) as file:
            file.write(data)
        with streamxf.open(place, keys=key) as file:
            assert file.seekable()
            file.seek(1_000_000)
            assert file.read(99) == data[1_000_000:1_000_099]
            file.seek(0)
            assert file.read() == data
        with pytest.raises(RuntimeError, match="in the middle"), streamxf.open(place, "wb") as file:
            file.write(bytes(9))
            raise RuntimeError("in the middle")
        with streamxf.open(place, keys=key) as file:
            assert file.read() == data, "what was there before stays"
    root.write("one", root.read("one", 0, 1_000_000))
    with pytest.raises(ContainerError, match="MemoryStorage:files/one"):
        streamxf.open(root.child("one"), keys=key)


def test_a_plain_file_in_a_local_storage(tmp_path: Path) -> None:
    place = open_storage(tmp_path / "file")
    with streamxf.open(place, "wb") as file:
        file.write(b"data")
    assert os.listdir(tmp_path) == ["file"]
    with streamxf.open(tmp_path / "file") as file:
        assert file.read() == b"data"


def test_a_plain_file_at_a_url() -> None:
    url = f"memory://{uuid4().hex}/file"
    with streamxf.open(url, "wb") as file:
        file.write(b"data")
    with streamxf.open(url) as file:
        assert file.read() == b"data"


# -- what goes wrong there ---------------------------------------------------------------------------


class Broken(Exception):
    """What a user's package raises."""


class _Breaks(MemoryStorage):
    broken = False

    def info(self, path: str = "") -> StorageEntry:
        if self.broken:
            raise Broken("no such luck")
        return super().info(path)

    def read(self, path: str, start: int, stop: int) -> bytes:
        if self.broken:
            raise Broken("no such luck")
        return super().read(path, start, stop)


def test_errors_of_a_storage_are_said_to_be_its(saved: Path) -> None:
    storage = copied(saved, _Breaks("step"))
    storage.broken = True
    for act in (streamxf.inspect, streamxf.clean, streamxf.verify, is_complete, streamxf.latest):
        with pytest.raises(ForeignError, match=r"the storage failed: Broken: no such luck"):
            act(storage)


class _FullFile(io.BytesIO):
    def write(self, data: Any, /) -> int:
        raise Broken("the bucket is full")


class _Full(MemoryStorage):
    """Nothing can be written to it, nor removed from it."""

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        raise Broken("the bucket is full")

    @contextmanager
    def create(self, path: str = "") -> Iterator[IO[bytes]]:
        yield _FullFile()

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        return dict.fromkeys(paths, Broken("it cannot be emptied either"))


def test_errors_of_a_storage_that_is_written_to() -> None:
    """Whatever writes: none of them knows what a user's package may raise."""
    place = _Full("step")
    for act in (
        lambda: place.write("a", b""),
        lambda: place.put("a", b""),
        lambda: streamxf.open(place, "wb").close(),
        lambda: dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(place), no_dist=True),
    ):
        with pytest.raises((ForeignError, CheckpointException), match="the storage failed: Broken: the bucket is full"):
            act()
    with (
        pytest.raises(ForeignError, match="the storage failed: Broken") as caught,
        streamxf.CheckpointWriter(place) as writer,
    ):
        writer["a"] = np.ones(5)
    assert "of the failed save could not be removed: ForeignError: the storage failed" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, Broken)


def test_what_is_raised_while_a_file_is_open_is_not_the_storages(saved: Path) -> None:
    storage = copied(saved, _Breaks("step"))
    with pytest.raises(KeyError), storage.create("file"):
        raise KeyError
    with pytest.raises(Broken), storage.open(".metadata"):
        raise Broken


def test_an_error_of_a_storage_that_has_no_text(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Broken) -> str:
        raise KeyError(error.args)

    monkeypatch.setattr(Broken, "__str__", fails)
    storage = copied(saved, _Breaks("step"))
    storage.broken = True
    with pytest.raises(ForeignError, match=r"Broken: .*no text"):
        streamxf.inspect(storage)


@pytest.mark.parametrize("url", [False, True])
def test_an_argument_that_put_does_not_know(tmp_path: Path, url: bool) -> None:
    with pytest.raises((TypeError, ForeignError), match="onec"):
        open_storage(f"memory://{uuid4().hex}" if url else tmp_path).put("file", b"", onec=True)  # type: ignore[call-arg]


def test_errors_of_a_storage_while_values_are_read(saved: Path) -> None:
    storage = copied(saved, _Breaks("step"))
    with pytest.raises(ForeignError, match=r"the storage failed: Broken"):
        streamxf.inspect(storage, values=True, progress=_Breaking(storage))


class _Breaking:
    """Breaks the storage once values are about to be read."""

    def __init__(self, storage: _Breaks) -> None:
        self._storage = storage

    def expect(self, size: int) -> None:
        self._storage.broken = True

    def advance(self, size: int) -> None:
        """Nothing is read."""


class _Endless(MemoryStorage):
    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        yield from super().entries(path)
        for number in count():
            yield StorageEntry(f"other-{number}", "file", 0)


class _Deep(MemoryStorage):
    def info(self, path: str = "") -> StorageEntry:
        return StorageEntry(path.rpartition("/")[2], "folder")

    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        yield StorageEntry("again", "folder")


@pytest.mark.timeout(60)
def test_a_listing_without_an_end(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.storage.storage.MOST", 1000)
    storage = copied(saved, _Endless("step"))
    salvage = partial(streamxf.salvage, target=MemoryStorage("rest"))
    for act in (streamxf.inspect, streamxf.clean, streamxf.verify, salvage, streamxf.list_checkpoints):
        with pytest.raises(ForeignError, match=r"lists more than 1,000 names, which no checkpoint has"):
            act(storage)
    with pytest.raises(ForeignError, match="more than 1,000 names"):
        storage.remove_all()
    assert len(storage.parent()[0].files_below("step", 1000)) == 1000


@pytest.mark.timeout(60)
def test_folders_without_an_end() -> None:
    assert [each.kind for each in _Deep().below()] == ["other"]
    with pytest.raises(NoCheckpointError):
        streamxf.verify(_Deep())


def test_a_run_in_memory(saved: Path) -> None:
    root = MemoryStorage("run")
    for name in ("step-6", "step-7"):
        copied(saved, root.child(name))
    assert [record.name for record in streamxf.list_checkpoints(root)] == ["step-6", "step-7"]
    with streamxf.hold(root.child("step-6")):
        assert streamxf.forget(root, 1, dry_run=True).in_use.keys() == {"step-6"}
    assert streamxf.forget(root, 1, dry_run=True).removed == ("step-6",)


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


class _Says(MemoryStorage):
    """Anything, in place of what it has."""

    said: Any = None
    entry: dict[str, Any] | None = None

    def read(self, path: str, start: int, stop: int) -> bytes:
        if isinstance(self.said, Exception):
            raise self.said
        return super().read(path, start, stop) if self.said is None else self.said

    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        for each in super().entries(path):
            yield each if self.entry is None else each._replace(**self.entry)

    def info(self, path: str = "") -> StorageEntry:
        found = super().info(path)
        return found if self.entry is None or found.kind == "folder" else found._replace(**self.entry)


@pytest.mark.parametrize("said", [Broken("no such luck"), KeyError("key"), "text", 5, [1, 2]])
def test_what_a_storage_reads_is_said_to_be_its(saved: Path, said: Any) -> None:
    storage = copied(saved, _Says("step"))
    with streamxf.Checkpoint(storage) as checkpoint:
        storage.said = said
        with pytest.raises(ForeignError, match=r"the storage failed.*MemoryStorage|the storage failed.*step"):
            checkpoint["step"].read()


class _ListsNone(MemoryStorage):
    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        return iter([None])  # type: ignore[list-item]


@pytest.mark.parametrize("entry", [None, {"size": -1}, {"size": "7"}, {"size": 7.5}])
def test_what_a_storage_lists_is_looked_at(saved: Path, entry: dict[str, Any] | None) -> None:
    storage = copied(saved, _Says("step"))
    storage.entry = entry
    if entry is None:
        storage = copied(saved, _ListsNone("step"))
    with pytest.raises((ForeignError, UnsupportedError), match="step"):
        streamxf.Checkpoint(storage)
