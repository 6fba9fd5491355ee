"""Plain data is stored as values: types and order come back through both readers, and every tool knows them."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.opening import ItemOpener
from streamxf.errors import StreamxfError
from streamxf.stream.container import BlockReader
from tests.forge import split_metadata
from tests.samples import KEY

STATE: dict[str, Any] = {
    "step": 2**64 - 1,
    "negative": -(2**64),
    "lr": 1e-3,
    "zero": -0.0,
    "on": True,
    "none": None,
    "text": "größe",
    "data": b"\0\xff",
    "betas": (0.9, (1, 1.0)),
    "schedule": [1, [2.0, "x"], (None,)],
    "infinite": [math.inf, -math.inf, math.nan],
}
OBJECTS: dict[str, Any] = {"shared": [a := [1], a], "large": 2**64, "nan": [-math.nan], "device": torch.device("cpu")}
CHAINS: dict[str, Any] = {"zstd": "zstd+checksum", "raw": "raw", "none": "", "mixed": {"*": "zstd", "*e*": "raw"}}


def saved(path: Path, chain: Any, state: dict[str, Any], **options: Any) -> Path:
    writer = streamxf.FileSystemWriter(path, chain=chain, **options)
    dcp.save(dict(state) | {"w": torch.ones(3)}, storage_writer=writer, no_dist=True)
    return path


def blank() -> dict[str, Any]:
    return dict.fromkeys(STATE | OBJECTS) | {"w": torch.zeros(3)}


def shown(values: dict[str, Any], names: Any = STATE) -> dict[str, str]:
    """What tells types, order and signs apart."""
    return {name: repr(values[name]) for name in names}


def kinds(path: Path) -> dict[str, bool]:
    """Which objects are values."""
    with Checkpoint(path, keys=None) as checkpoint:
        items = {name: item for name, item in checkpoint.stored.items() if name != "w"}
        return {name: item.place.span is not None for name, item in items.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_types_and_order_come_back_through_both_readers(chain: Any, tmp_path: Path) -> None:
    path = saved(tmp_path, chain, STATE | OBJECTS, stock=True)
    assert kinds(path) == {**dict.fromkeys(STATE, chain != ""), **dict.fromkeys(OBJECTS, False)}
    registry = streamxf.Registry()
    attached = streamxf.attach(dcp.FileSystemReader(path))
    for reader in (streamxf.FileSystemReader(path), dcp.FileSystemReader(path, _extension_registry=registry), attached):
        target = blank()
        dcp.load(target, storage_reader=reader, no_dist=True)
        assert {name: repr(target[name]) for name in STATE | OBJECTS} == {
            k: repr(v) for k, v in (STATE | OBJECTS).items()
        }
        assert target["shared"][0] is target["shared"][1]


def test_dicts_keep_their_order(tmp_path: Path) -> None:
    value = {"b": 1, "a": {2: "x", 1: {"lr": 1, "step": 2}}, -1: ()}
    with streamxf.CheckpointWriter(tmp_path) as writer:
        writer["config"] = value
    assert kinds(tmp_path) == {"config": True}
    with Checkpoint(tmp_path) as checkpoint:
        assert repr(checkpoint["config"].read()) == repr(value)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, "zstd", STATE)
    target = blank()
    del target["shared"], target["large"], target["nan"], target["device"]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was read")

    for module, name in ((torch, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, name, refuse)
    dcp.load(target, storage_reader=streamxf.FileSystemReader(path), no_dist=True)
    assert repr(target["schedule"]) == repr(STATE["schedule"])


def test_the_values_of_a_container_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, decoded, whole = saved(tmp_path, "zstd", STATE), list[str](), ItemOpener._whole
    monkeypatch.setattr(ItemOpener, "_whole", lambda *args: (decoded.append(args[2].item.name), whole(*args))[1])
    dcp.load(dict.fromkeys(STATE), storage_reader=streamxf.FileSystemReader(path), no_dist=True)
    with Checkpoint(path) as checkpoint:
        assert shown({name: checkpoint[name].read() for name in STATE}) == shown(STATE)
    assert len(decoded) == 2
    path, decoded = saved(tmp_path / "stock", "zstd", STATE, stock=True), []
    ends, registry = BlockReader.decode_ends, streamxf.Registry()
    monkeypatch.setattr(BlockReader, "decode_ends", lambda blocks: (decoded.append(blocks.header), ends(blocks))[1])
    reader, target = dcp.FileSystemReader(path, _extension_registry=registry), dict.fromkeys(STATE)
    dcp.load(target, storage_reader=reader, no_dist=True)
    assert shown(target) == shown(STATE)
    assert len(decoded) == 1


def test_saves_in_the_background_and_copies_have_values_too(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path / "first", chain="zstd")
    dcp.async_save(dict(STATE) | {"w": torch.ones(3)}, storage_writer=writer, no_dist=True).result()
    streamxf.transcode(tmp_path / "first", tmp_path / "copy", "raw")
    streamxf.transcode(tmp_path / "copy", tmp_path / "stock", "")
    for name, are in ("first", True), ("copy", True), ("stock", False):
        assert kinds(tmp_path / name) == dict.fromkeys(STATE, are)
        with Checkpoint(tmp_path / name) as found:
            assert shown({key: found[key].read() for key in STATE}) == shown(STATE)
        assert streamxf.verify(tmp_path / name).ok


def test_values_are_salvaged_without_an_index(tmp_path: Path) -> None:
    path = saved(tmp_path, "zstd", STATE | OBJECTS)
    (path / ".metadata").unlink()
    found = streamxf.load_intact(path, without_metadata=True)
    assert {*found.loaded} == {*STATE, *OBJECTS, "w"}
    assert {name: repr(found.state_dict[name]) for name in STATE} == {
        name: repr(value) for name, value in STATE.items()
    }


def test_values_that_are_exchanged_in_the_pickle_are_found_by_attached_readers(tmp_path: Path) -> None:
    path = saved(tmp_path, [streamxf.ZStandard(), streamxf.Encrypt(KEY)], {"a": 1, "b": 2}, stock=True)
    head = split_metadata((path / ".metadata").read_bytes()).pickled
    one, two = b"?begin=2&end=3", b"?begin=5&end=6"
    assert head.count(one) == head.count(two) == 1
    swapped = head.replace(one, b"?").replace(two, one).replace(b"streamxf.value/1?", b"streamxf.value/1" + two, 1)
    (path / ".metadata").write_bytes(swapped)
    reader = streamxf.attach(dcp.FileSystemReader(path), keys=KEY)
    with pytest.raises((StreamxfError, dcp.api.CheckpointException), match="swapped"):
        dcp.load({"a": 0, "b": 0, "w": torch.zeros(3)}, storage_reader=reader, no_dist=True)


def test_what_has_no_room_is_stored_as_objects(tmp_path: Path) -> None:
    state = {f"t{number:02}": bytes(2**20 - 9) for number in range(20)}
    found = kinds(saved(tmp_path, "zstd", state))
    assert sum(found.values()) == 16
    with Checkpoint(tmp_path) as checkpoint:
        assert all(checkpoint[name].read() == state[name] for name in state)
