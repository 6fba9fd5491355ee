"""Incremental saves where files cannot be linked: they name files of the base's folder, and pins keep these there."""

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import SaveMemory, Storage
from streamxf.checkpoint import publish
from streamxf.checkpoint.publish import Pins
from streamxf.errors import MetadataError, ParameterError, UnsupportedError
from streamxf.manager.pins import pin_base
from streamxf.places import open_storage
from streamxf.tools.rekey.rekey import stock
from tests.dcp.s3_server import storage as s3_options
from tests.failing import fails_with
from tests.storage.stores import MemoryStorage

FROZEN = np.arange(50_000, dtype="float32")
SURE = {"links": False, "stored": True, "in_order": True, "fresh": True}
DAY = 86_400


@pytest.fixture(params=["own", "memory", "no links", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    name = f"runs-{secrets.token_hex(4)}"
    if request.param == "own":
        yield MemoryStorage().told({"in_one_step": True})
    elif request.param == "no links":
        yield open_storage(tmp_path, abilities=SURE)
    elif request.param == "s3":
        yield open_storage(f"s3://checkpoints/{name}", s3_options(request.getfixturevalue("endpoint")))
    else:
        yield open_storage(f"memory://{name}")
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def write(run: Storage, name: str, memory: SaveMemory, base: str | None = None, *, pin: Any = pin_base) -> Any:
    place = None if base is None else run.child(base)
    writer = streamxf.CheckpointWriter(run.child(name), memory=memory, base=place, overwrite=True)
    writer.pin = pin
    with writer:
        writer["moving"] = moving(name)
        writer["frozen"] = FROZEN
        writer["name"] = name
    assert writer.report is not None
    return writer.report


def two_on(run: Storage) -> SaveMemory:
    """Step 1, and step 2 on it."""
    memory = SaveMemory()
    write(run, "step-1", memory)
    write(run, "step-2", memory, "step-1")
    return memory


def moving(name: str) -> Any:
    return np.random.default_rng([*name.encode()]).integers(0, 256, 12_000, "uint8")


def assert_holds(place: Storage, name: str | None = None) -> None:
    name = name or place.name
    with streamxf.Checkpoint(place, framework="numpy") as checkpoint:
        assert checkpoint["name"].read() == name
        assert np.asarray(checkpoint["frozen"].read()).tobytes() == FROZEN.tobytes()
        assert np.asarray(checkpoint["moving"].read()).tobytes() == moving(name).tobytes()
    report = streamxf.verify(place)
    assert report.ok, report


def folders_of(place: Storage) -> set[str]:
    with streamxf.Checkpoint(place) as checkpoint:
        index = checkpoint.metadata[0].index
        assert index is not None
        return index.beside


def files(run: Storage, name: str) -> list[str]:
    return sorted(name for name in run.child(name).names() if name.endswith(".distcp"))


def pins(run: Storage, name: str) -> list[str]:
    return sorted(name for name in run.child(name).names() if name.startswith(".streamxf-pin-"))


def test_files_of_bases_are_named_where_they_are(run: Storage) -> None:
    memory = SaveMemory()
    assert write(run, "step-1", memory).stock
    for step in (2, 3):
        report = write(run, f"step-{step}", memory, f"step-{step - 1}")
        assert (report.unchanged, report.whole, report.stock) == (1, {"changed": 1}, False)
        assert folders_of(run.child(f"step-{step}")) == {"step-1"}
        assert len(files(run, f"step-{step}")) == 1
    for step in (1, 2, 3):
        assert_holds(run.child(f"step-{step}"))
    assert {*Pins.of(run.child("step-1")).by} == {"step-2", "step-3"}
    assert not Pins.of(run.child("step-2")).by
    state = {"frozen": torch.zeros(50_000), "moving": torch.zeros(12_000, dtype=torch.uint8), "name": ""}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(run.child("step-3")))
    assert state["name"] == "step-3"
    assert np.array_equal(state["frozen"].numpy(), FROZEN)  # type: ignore[attr-defined]
    found = streamxf.diff(run.child("step-2"), run.child("step-3"))
    assert ([each.name for each in found.changed], found.equal) == (["moving", "name"], 1)
    with pytest.raises(UnsupportedError, match=r"files in step-1, .*consolidate"):
        stock(run.child("step-3"))
    found = streamxf.inspect(run.child("step-3")).contents
    assert not found.incomplete
    assert sum(file.startswith("../step-1/") for file in found.files) == 1


def test_without_a_pin_all_is_stored(run: Storage) -> None:
    memory = SaveMemory()
    write(run, "step-1", memory)
    report = write(run, "step-2", memory, "step-1", pin=None)
    assert report.unchanged == 0
    assert [reason for reason in report.whole if "cannot be linked" in reason]
    report = write(run, "step-3", memory, "step-1", pin=lambda *_: "no pins today")
    assert report.whole == {"no pins today": 1, "changed": 1}
    assert not folders_of(run.child("step-3"))


def test_a_save_over_a_base_keeps_what_is_needed_and_clean_does(run: Storage) -> None:
    two_on(run)
    (kept,) = files(run, "step-1")
    write(run, "step-1", SaveMemory())
    dcp.save({"name": "by dcp"}, storage_writer=streamxf.FileSystemWriter(run.child("step-1")))
    report = streamxf.clean(run.child("step-1"), min_age=0)
    assert kept in files(run, "step-1")
    assert (report.removed, [*report.pinned]) == ((), [kept])
    assert "step-2" in str(report)
    assert len(files(run, "step-1")) == 2
    assert_holds(run.child("step-2"))
    write(run, "step-2", SaveMemory())  # which needs nothing
    age(run, "step-1")
    assert streamxf.clean(run.child("step-1"), min_age=0).removed == (kept,)


def age(run: Storage, name: str) -> None:
    """Have the pins be older than a day."""
    place = run.child(name)
    for pin in pins(run, name):
        if run.near:
            os.utime(place.path_of(pin), (time.time() - DAY - 60,) * 2)
        else:
            place.remove([pin])


def test_a_base_that_was_replaced_is_none(run: Storage) -> None:
    memory = two_on(run)
    write(run, "step-1", SaveMemory())
    assert write(run, "step-3", memory, "step-2").whole == {"the base was replaced": 1, "changed": 1}
    write(run, "step-4", memory, "step-3")
    for step in (1, 2, 3, 4):
        assert_holds(run.child(f"step-{step}"))


def test_a_failed_save_takes_its_pins_back(run: Storage) -> None:
    memory = SaveMemory()
    write(run, "step-1", memory)
    writer = streamxf.CheckpointWriter(run.child("step-2"), memory=memory, base=run.child("step-1"))
    writer.pin = pin_base
    with pytest.raises(ZeroDivisionError), writer:
        writer["frozen"] = FROZEN
        assert len(pins(run, "step-1")) == 1
        raise ZeroDivisionError
    assert not pins(run, "step-1")


def test_a_failed_publication_removes_nothing_of_its_base(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers of folders would, when asked for ``../``."""
    memory, removed = SaveMemory(), list[str]()
    write(run, "step-1", memory)
    with monkeypatch.context() as patch:
        patch.setattr(publish, "check_present", fails_with(OSError, 5, "the storage failed"))
        remove = type(run).remove

        def noted(self: Storage, paths: Any) -> Any:
            removed.extend(paths := [*paths])
            return remove(self, paths)

        patch.setattr(type(run), "remove", noted)
        with pytest.raises(OSError, match="the storage failed"):
            write(run, "step-2", memory, "step-1")
    assert [path for path in removed if path.endswith(".distcp")]
    assert not [path for path in removed if path.startswith("../")]
    assert_holds(run.child("step-1"))


def test_nothing_outside_of_a_remote_folder_is_removed() -> None:
    with pytest.raises(ParameterError, match=r"^../step-1/x: nothing outside"):
        open_storage(f"memory://runs-{secrets.token_hex(4)}/step-2").remove(["y", "../step-1/x"])


def test_a_save_that_is_to_replace_an_increment_may_need_anything(tmp_path: Path) -> None:
    two_on(run := open_storage(tmp_path, abilities=SURE))
    pin_base(run.child("step-1"), "0" * 32, "step-2")
    for order in (False, True):
        assert Pins.of(run.child("step-1"), sorted(run.child("step-1").names(), reverse=order)).by == {"step-2": None}


def test_what_a_base_has_lost_is_damage(run: Storage) -> None:
    two_on(run)
    run.child("step-1").remove(files(run, "step-1"))
    assert streamxf.verify(run.child("step-2")).damaged
    with streamxf.Checkpoint(run.child("step-2")) as checkpoint, pytest.raises(MetadataError, match="missing"):
        checkpoint["frozen"].read()
    assert [*streamxf.inspect(run.child("step-2")).contents.incomplete]


def test_a_pin_counts_for_a_day_without_its_save(tmp_path: Path) -> None:
    run = open_storage(tmp_path, abilities=SURE)
    write(run, "step-1", SaveMemory())
    assert pin_base(run.child("step-1"), "ab" * 16, "step-2") == ""
    assert Pins.of(run.child("step-1")).by == {"step-2": None}
    (pin,), (data,) = pins(run, "step-1"), files(run, "step-1")
    names = [pin, data, ".metadata", ".streamxf-commit"]
    assert Pins.of(run.child("step-1")).needed(names) == {pin, data}
    assert streamxf.clean(run.child("step-1")).pinned == ()
    age(run, "step-1")
    assert not Pins.of(run.child("step-1")).by
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2/.metadata").write_bytes(b"damaged")
    assert Pins.of(run.child("step-1")).by == {"step-2": None}


@pytest.mark.parametrize("lacks", [{"stored": False}, {"stored": None}, {"in_order": None}, {"fresh": None}], ids=str)
def test_where_a_place_is_not_sure_all_is_stored(lacks: dict[str, Any]) -> None:
    run, memory = MemoryStorage(), SaveMemory()
    run.own_abilities = replace(run.own_abilities, **lacks)
    write(run, "step-1", memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = write(run, "step-2", memory, "step-1")
    assert report.unchanged == 0
    assert any("this place may store later" in reason for reason in report.whole)
    assert not pins(run, "step-1")


def test_no_link_leads_out_of_the_run(tmp_path: Path) -> None:
    two_on(open_storage(tmp_path / "run", abilities=SURE))
    (tmp_path / "run/latest").symlink_to("step-2")
    assert_holds(open_storage(tmp_path / "run/latest"), "step-2")
    (tmp_path / "latest").symlink_to("run/step-2")
    assert_holds(open_storage(tmp_path / "latest"), "step-2")
    shutil.move(tmp_path / "run/step-1", tmp_path / "out")
    (tmp_path / "run/step-1").symlink_to(tmp_path / "out")
    with streamxf.Checkpoint(tmp_path / "run/step-2") as checkpoint, pytest.raises(MetadataError, match="outside"):
        checkpoint["frozen"].read()
    shutil.move(tmp_path / "out", tmp_path / "run/kept-1")
    (tmp_path / "run/step-1").unlink()
    (tmp_path / "run/step-1").symlink_to("kept-1")
    assert_holds(open_storage(tmp_path / "run/step-2"))


def test_a_base_elsewhere_is_not_named(tmp_path: Path) -> None:
    one, two = (open_storage(tmp_path / name, abilities=SURE) for name in "ab")
    memory = SaveMemory()
    write(one, "step-1", memory)
    writer = streamxf.CheckpointWriter(two.child("step-2"), memory=memory, base=one.child("step-1"))
    writer.pin = pin_base
    with writer:
        writer["frozen"] = FROZEN
    assert writer.report is not None
    assert writer.report.unchanged == 0
    assert not pins(one, "step-1")
