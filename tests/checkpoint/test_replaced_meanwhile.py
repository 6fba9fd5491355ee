"""Metadata that another save replaces while it is read: the reader starts over once, and never calls it damaged."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
import streamxf.format.index
from streamxf.checkpoint import metadata
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.errors import MetadataError, ReplacedError, is_damage
from streamxf.format.index import File, Index
from streamxf.format.items import ObjectItem, Place
from streamxf.format.limits import NO_PICKLE
from streamxf.format.sections import pack
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.tools.salvage import damaged
from tests.altered import flipped
from tests.dcp.helpers import assert_same, blank, load_into, refused, small_state
from tests.dcp.s3_server import storage as s3_options
from tests.failing import fails_with
from tests.storage.stores import MemoryStorage

NAME = ".metadata"
CHAIN = ("streamxf.zstd/1",)


def version(seed: int, items: int = 40) -> bytes:
    """A metadata file whose parts do not shrink."""
    draw = random.Random(seed)
    files = {"a.distcp": File(2**50, draw.randbytes(16))}
    places = [Place("a.distcp", draw.randrange(2**49), draw.randrange(2**40), CHAIN, None, at) for at in range(items)]
    made = {f"item {at:05}": ObjectItem(f"item {at:05}", place, None) for at, place in enumerate(places)}
    index = Index(draw.randbytes(16).hex(), None, (), (CHAIN,), files, made)
    root, parts = index.pack()
    return pack(NO_PICKLE, parts, root, b"")


def same_sizes() -> tuple[bytes, bytes]:
    first = version(0)
    return first, next(made for seed in count(1) if len(made := version(seed)) == len(first))


PAIRS = [same_sizes(), (version(1, 40), version(2, 60)), (version(3, 60), version(4, 40)), (version(5), version(6, 1))]


def save_id_of(data: bytes) -> str:
    store = MemoryStorage()
    store.write(NAME, data)
    return str(read(store).index.save_id)  # type: ignore[union-attr]


def read(storage: Any) -> metadata.Metadata:
    found = read_metadata(storage, NAME, Access())
    assert found.index is not None
    assert [*found.items] == [f"item {at:05}" for at in range(len(found.items))]
    return found


@pytest.fixture(autouse=True)
def several_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_TAIL", 256)


class Replacer:
    """A thread that replaces a file whenever it is asked to, and says when it has."""

    def __init__(self, replace: Callable[[], object]) -> None:
        self._replace, self._over = replace, False
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Replacer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._go.release()
        self._thread.join()

    def __call__(self) -> None:
        self._go.release()
        assert self._done.acquire(timeout=60)

    def _run(self) -> None:
        while self._go.acquire() and not self._over:
            self._replace()
            self._done.release()


class Store(MemoryStorage):
    """An object store that calls `between` after each of the ranges that are named by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.after: set[int] = set()
        self.between: Callable[[], object] = lambda: None
        self.ranges = 0

    def read(self, path: str, start: int, stop: int) -> bytes:
        data = super().read(path, start, stop)
        self.ranges += path == NAME
        if path == NAME and self.ranges in self.after:
            self.between()
        return data


def ranges_of(data: bytes) -> int:
    store = Store()
    store.write(NAME, data)
    read_metadata(store, NAME, Access())
    return store.ranges


# -- between two ranges ------------------------------------------------------------------------------------------------


def test_there_are_several_ranges() -> None:
    assert ranges_of(PAIRS[0][0]) > 2


def test_an_object_that_is_replaced_between_any_two_ranges() -> None:
    store = Store()
    coming: list[bytes] = []
    ids = {data: save_id_of(data) for pair in PAIRS for data in pair}
    most = {data: ranges_of(data) for data in ids}
    with Replacer(lambda: store.write(NAME, coming.pop())) as store.between:
        for number in range(100):
            first, second = PAIRS[number % len(PAIRS)]
            store.write(NAME, first)
            coming.append(second)
            store.ranges, store.after = 0, {1 + number // len(PAIRS) % (most[first] - 1)}
            assert read(store).index.save_id == ids[second]  # type: ignore[union-attr]
            assert not coming


def test_it_starts_over_once() -> None:
    """Another replacement then is an error of its own, and no damage."""
    store, versions = Store(), cycle([version(seed) for seed in range(4)])
    store.write(NAME, next(versions))
    store.between, store.after = lambda: store.write(NAME, next(versions)), {*range(1, 100)}
    with pytest.raises(ReplacedError, match="another save was published here") as caught:
        read(store)
    assert not is_damage(caught.value)
    assert caught.value.file is not None


@pytest.mark.parametrize("place", [20, 200, -300, -20])
def test_damage_is_damage(place: int) -> None:
    store = Store()
    store.write(NAME, flipped(version(0), place))
    with pytest.raises(MetadataError):
        read(store)


# -- items that are read later -----------------------------------------------------------------------------------------


@pytest.fixture
def items_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamxf.format.index, "_SMALL", 0)


@pytest.mark.usefixtures("items_later")
def test_items_that_are_read_after_a_replacement(tmp_path: Path) -> None:
    store, (first, second) = Store(), PAIRS[0]
    store.write(NAME, first)
    found = read_metadata(store, NAME, Access())
    store.write(NAME, second)
    with pytest.raises(ReplacedError):
        found.items["item 00001"]
    (tmp_path / NAME).write_bytes(first)
    found = read_metadata(LocalStorage(tmp_path), NAME, Access())
    (tmp_path / "new").write_bytes(second)
    os.replace(tmp_path / "new", tmp_path / NAME)
    assert len([*found.items.values()]) == 40, "the file that was opened is still there"


def test_digests_that_are_read_after_a_replacement(tmp_path: Path) -> None:
    store, signer, versions = Store(), streamxf.SigningKey.generate(), list[bytes]()
    for name in "ab":
        with streamxf.CheckpointWriter(tmp_path / name, "zstd", signer=signer) as writer:
            writer["item"] = torch.ones(300)
        versions.append((tmp_path / name / NAME).read_bytes())
    store.write(NAME, versions[0])
    index = read_metadata(store, NAME, Access.of(trust=signer.verify_key)).index
    store.write(NAME, versions[1])
    with pytest.raises(ReplacedError):
        index.digests.some(0, 1)  # type: ignore[union-attr]


@pytest.mark.usefixtures("items_later")
def test_items_that_are_damaged() -> None:
    store = Store()
    store.write(NAME, flipped(PAIRS[0][0], 300))
    with pytest.raises(MetadataError):
        [*read_metadata(store, NAME, Access()).items.values()]


# -- local files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def replaced_all_the_time(tmp_path: Path) -> Iterator[Path]:
    """A folder whose metadata another thread replaces as fast as it can."""
    versions, over = [data for pair in PAIRS for data in pair], threading.Event()
    (tmp_path / NAME).write_bytes(versions[0])

    def replace() -> None:
        while not over.is_set():
            for data in versions:
                (tmp_path / "new").write_bytes(data)
                os.replace(tmp_path / "new", tmp_path / NAME)

    thread = threading.Thread(target=replace)
    thread.start()
    yield tmp_path
    over.set()
    thread.join()


def test_a_local_file_that_is_replaced_all_the_time(replaced_all_the_time: Path) -> None:
    storage = LocalStorage(replaced_all_the_time)
    seen = {read(storage).index.save_id for _ in range(200)}  # type: ignore[union-attr]
    assert len(seen) > 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_network_file_system_that_has_lost_what_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second = PAIRS[0]
    (tmp_path / NAME).write_bytes(first)
    reads, preadv = count(1), os.preadv

    def stale(*arguments: Any) -> int:
        if next(reads) == number:
            (tmp_path / NAME).write_bytes(second)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", stale)
    assert read(LocalStorage(tmp_path)).index.save_id == save_id_of(second)  # type: ignore[union-attr]
    monkeypatch.setattr(os, "preadv", fails_with(OSError, errno.ESTALE, os.strerror(errno.ESTALE)))
    with pytest.raises(ReplacedError):
        read(LocalStorage(tmp_path))


# -- loads -------------------------------------------------------------------------------------------------------------


def test_a_load(tmp_path: Path) -> None:
    """What is loaded is a checkpoint as it was saved."""
    store, state = Store(), small_state()
    for name, scale in (("old", 1), ("new", 2)):
        scaled = {**state, "weight": state["weight"] * scale}
        dcp.save(scaled, storage_writer=streamxf.FileSystemWriter(tmp_path / name, chain="zstd"), no_dist=True)
        for file in (tmp_path / name).glob("*.distcp"):
            store.write(file.name, file.read_bytes())
    old, new = ((tmp_path / name / NAME).read_bytes() for name in ("old", "new"))
    store.write(NAME, old)
    store.between = lambda: store.write(NAME, new)
    for after in range(1, ranges_of(old)):
        store.write(NAME, old)
        store.ranges, store.after = 0, {after}
        target = load_into(blank(state), streamxf.FileSystemReader(store), no_dist=True)
        # the last range may be the same in both
        scale = 1 if torch.equal(target["weight"], state["weight"]) else 2
        assert_same(target, {**state, "weight": state["weight"] * scale})
        assert scale == 2 or after > 2


@pytest.mark.s3
@pytest.mark.slow
def test_s3(endpoint: str) -> None:
    storage = open_storage("s3://checkpoints/replaced", s3_options(endpoint))
    first, second = PAIRS[0]
    wanted, calls, after = save_id_of(second), count(1), 0
    get = storage.filesystem._cat_file  # type: ignore[attr-defined]
    other = open_storage("s3://checkpoints/replaced", {**s3_options(endpoint), "skip_instance_cache": True})
    with Replacer(lambda: other.put(NAME, second)) as replace:

        async def cat_file(*arguments: Any, **options: Any) -> bytes:
            data: bytes = await get(*arguments, **options)
            if next(calls) == after:
                await asyncio.to_thread(replace)
            return data

        storage.filesystem._cat_file = cat_file  # type: ignore[attr-defined]
        storage.put(NAME, first)
        read(storage)
        most = next(calls) - 1
        assert most > 1
        for number in range(2 * most):
            storage.put(NAME, first)
            calls, after = count(1), 1 + number % (most - 1)
            assert read(storage).index.save_id == wanted  # type: ignore[union-attr]


# -- between metadata and data -----------------------------------------------------------------------------------------


def replaced(path: Path) -> None:
    """Another save takes the place of a checkpoint, and removes its files."""
    old = {*path.glob("*.distcp")}
    dcp.save(small_state(), storage_writer=streamxf.FileSystemWriter(path, chain="zstd"), no_dist=True)
    assert old
    assert not any(file.exists() for file in old)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint in a run, where readers note damage."""
    (tmp_path / ".streamxf").mkdir()
    dcp.save(small_state(), storage_writer=streamxf.FileSystemWriter(tmp_path / "step-1"), no_dist=True)
    return tmp_path / "step-1"


class ReplacedAfterMetadata(streamxf.FileSystemReader):
    def read_data(self, plan: Any, planner: Any) -> Any:
        replaced(Path(self.path))
        return super().read_data(plan, planner)


def test_a_save_that_is_published_between_metadata_and_data(saved: Path) -> None:
    with refused(ReplacedError, "another save was published here"):
        dcp.load(blank(small_state()), storage_reader=ReplacedAfterMetadata(saved), no_dist=True)
    assert [*(saved.parent / ".streamxf").iterdir()] == [], "nothing is damaged"
    with streamxf.Checkpoint(saved) as checkpoint:
        replaced(saved)
        with pytest.raises(ReplacedError) as error:
            checkpoint["weight"][:]
    assert not is_damage(error.value)


@pytest.mark.parametrize("published", [True, False])
def test_objects_that_are_removed_while_they_are_read(tmp_path: Path, published: bool) -> None:
    class Removing(MemoryStorage):
        def read(self, path: str, start: int, stop: int) -> bytes:
            if path.endswith(".distcp") and path in self.files:
                self.files = {} if published else {NAME: self.files[NAME]}
                for name, data in new.items() if published else ():
                    self.write(name, data)
            return super().read(path, start, stop)

    store, state = Removing(), small_state() | {"large": torch.randn(2**18)}  # not read at once
    for name in ("old", "new"):
        dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / name, chain="zstd"), no_dist=True)
    new = {file.name: file.read_bytes() for file in (tmp_path / "new").iterdir()}
    for file in (tmp_path / "old").iterdir():
        store.write(file.name, file.read_bytes())
    with refused(ReplacedError if published else FileNotFoundError):
        dcp.load(blank(state), storage_reader=streamxf.FileSystemReader(store), no_dist=True)


def test_a_file_that_is_missing_is_damage_all_the_same(saved: Path) -> None:
    with streamxf.Checkpoint(saved) as checkpoint:
        for file in saved.glob("*.distcp"):
            file.unlink()
        with pytest.raises(MetadataError, match="missing from the checkpoint"):
            checkpoint["weight"][:]
        (saved / NAME).unlink()
        with pytest.raises(MetadataError, match="missing from the checkpoint"):
            checkpoint["weight"][:]


def test_what_is_lost_to_a_salvage_was_replaced(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaged.DamagedCheckpoint, "expect", lambda *_: replaced(saved))
    found = streamxf.load_intact(saved)
    assert not found.loaded
    assert {each.error for each in found.damaged} == {"ReplacedError"}
