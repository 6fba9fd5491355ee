"""Keys that are no strings and empty dicts, which DCP's names do not have, come back; so do torch's optimizers."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.format import values
from streamxf.format.values import NESTING, Nesting
from streamxf.tools.nesting import nested
from tests.dcp.rank_scenarios import run_ranks

OPTIMIZERS: dict[str, Any] = {
    "AdamW": (torch.optim.AdamW, {}, 2),
    "AdamW before its first step": (torch.optim.AdamW, {}, 0),
    "SGD": (torch.optim.SGD, {"lr": 0.1}, 2),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, 2),
}


def optimizer(kind: str, seed: int, steps: int | None = None) -> Any:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    cls, options, usual = OPTIMIZERS[kind]
    made = cls(model.parameters(), **options)
    for _ in range(usual if steps is None else steps):
        model(torch.ones(1, 3)).sum().backward()
        made.step()
    return made


def assert_equal(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert {(type(key), key) for key in found} == {(type(key), key) for key in wanted}
        for key, value in wanted.items():
            assert_equal(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    else:
        assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found == wanted


def unpacked(source: Path, **options: Any) -> tuple[Any, tuple[str, ...]]:
    target = source.with_suffix(".pt")
    done = streamxf.unpack(source, target, overwrite=True, **options)
    return torch.load(target), done.notes


WRITERS = {"streamxf": streamxf.FileSystemWriter, "stock": dcp.FileSystemWriter}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_is_restored(tmp_path: Path, kind: str, writer: str) -> None:
    """From stock's files AdamW restored nothing, and said nothing; SGD's raised KeyError."""
    trained = optimizer(kind, 1)
    state = {"training": {"optimizer": trained.state_dict()}, "w": torch.ones(2)}
    dcp.save(state, storage_writer=WRITERS[writer](tmp_path / "saved"))
    for options in ({}, {"prefix": "training.optimizer."}):
        found, notes = unpacked(tmp_path / "saved", **options)
        found = found if options else found["training"]["optimizer"]
        fresh = optimizer(kind, 2, 0)
        fresh.load_state_dict(found)
        assert_equal(fresh.state_dict(), trained.state_dict())
        assert bool(notes) == (writer == "stock")
    assert writer != "stock" or any("strings of all keys" in note for note in notes)


def test_a_choice_of_items_gets_nothing_else(tmp_path: Path) -> None:
    state = {"optimizer": optimizer("AdamW", 1).state_dict()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "saved"))
    found, _ = unpacked(tmp_path / "saved", only=["*.param_groups.*"])
    assert found["optimizer"].keys() == {"param_groups"}


STATE = {
    "odd": {3: {"a": {}}, -1: 1, None: 2, True: torch.ones(1), 2.5: "x", "text": {"04": 1, "4": 2}},
    "both": {1: torch.zeros(1), "2": 3},
    "list": [torch.ones(1), {}, {"x": {7: 1}}, {}],
    "nothing": {},
    "only empty": {"a": {"b": {}}, 5: {}, "list": [{}, [{}]]},
    6: {7: torch.ones(2)},
}


def changed(source: Path, how: str) -> Path:
    target = source.with_name(how)
    if how == "transcoded":
        streamxf.transcode(source, target, chain="zstd")
    elif how == "renamed":
        streamxf.rename(source, {"odd.*": "model.odd.*"})
    return target if target.exists() else source


@pytest.mark.parametrize("how", ["saved", "background", "transcoded", "renamed", "of a rank", "torch.save", "packed"])
def test_every_key_and_every_empty_dict_comes_back(tmp_path: Path, how: str) -> None:
    writer = streamxf.FileSystemWriter(tmp_path / "saved")
    if how == "background":
        dcp.async_save(STATE, storage_writer=writer).result()  # type: ignore[union-attr]
    elif how in ("torch.save", "packed"):
        torch.save(STATE, tmp_path / "saved")
        streamxf.pack(tmp_path / "saved", tmp_path / "packed")
    else:
        dcp.save(STATE, storage_writer=writer, use_collectives=how != "of a rank")
    source = changed(tmp_path / "saved", how)
    wanted: Any = dict(STATE)
    if how == "renamed":
        wanted = {"model": {"odd": wanted["odd"]}, **wanted}
        del wanted["odd"]
    found, notes = unpacked(source, format="torch", only=["*"] if how == "packed" else ())
    assert_equal(found, wanted)
    assert not notes
    if source.is_dir() and how != "packed":
        assert_equal(streamxf.load_intact(source).state_dict, wanted)


@pytest.mark.parametrize("state", [{"e": {}, "f": {}}, {"e": {"f": {}}}, {"l": [{}]}], ids=str)
def test_a_state_of_nothing_but_empty_dicts_comes_back(tmp_path: Path, state: Any) -> None:
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "saved"))
    assert unpacked(tmp_path / "saved") == (state, ())


@pytest.mark.parametrize("key", [("a", 1), 10**20, float("inf"), float("nan"), b"a", torch.float32, frozenset([1])])
@pytest.mark.parametrize("how", ["saved", "renamed"])
def test_a_key_that_cannot_be_given_back_is_named(tmp_path: Path, key: Any, how: str) -> None:
    state = {"odd": {key: torch.ones(1), 5: torch.ones(2)}}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "saved"))
    found, notes = unpacked(changed(tmp_path / "saved", how))
    prefix = "model.odd" if how == "renamed" else "odd"
    assert notes == (f"keys that were not strings before, and are now: {prefix}.{key}",)
    assert (found["model"] if how == "renamed" else found)["odd"].keys() == {str(key), 5}


@pytest.mark.parametrize("how", ["saved", "transcoded", "salvaged"])
@pytest.mark.parametrize("state", [{1: torch.ones(2)}, {"a": torch.ones(2), "e": {}}], ids=["integer", "empty dict"])
def test_what_stock_dcp_did_not_record_is_said(tmp_path: Path, state: Any, how: str) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "saved"))
    if how == "salvaged":
        streamxf.salvage(tmp_path / "saved", tmp_path / how)
    _, notes = unpacked(changed(tmp_path / "saved", how))
    assert any("strings of all keys" in note for note in notes)


def test_more_exceptions_than_are_recorded_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MOST_NESTING", 20)
    dcp.save({"a": {1: {}}}, storage_writer=streamxf.FileSystemWriter(tmp_path / "saved"))
    assert "strings of all keys" in unpacked(tmp_path / "saved")[1][0]


def parts_of_a_pipeline(folder: Path) -> None:
    rank = dist.get_rank()
    state = {"shared": torch.ones(2), f"stage {rank}": {rank: torch.ones(1), "none": {}}}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder / "saved"))


def test_all_ranks_say_what_they_have(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, "parts_of_a_pipeline", module=__name__)
    found, _ = unpacked(tmp_path / "saved")
    one = torch.ones(1)
    wanted = {f"stage {rank}": {rank: one, "none": {}} for rank in range(2)}
    assert_equal(found, {"shared": torch.ones(2), **wanted})


@pytest.mark.parametrize(
    "record",
    [
        None, 1, [], {"empty": 1}, {"empty": [[], [1], ["w"], ["w", "a"], ["d", "l", 9], ["d", "l", 2**20 - 1], "d"]},
        {"integers": [["x"], [], [[]], ["w"], ["d", "l"]]}, {"keys": [1, [], [["d"]], [["d", "1"], {"bytes": "zz"}]]},
        {"keys": [[["d", "1"], {"tuple": []}], [["d", "1"], {"number": "?"}], [["d", "1"], "text"], [[], 1]]},
        {"keys": [[["d", "1"], {"number": "0.5"}], [["d", "2"], {"number": "0.5"}]]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_record_of_another_form_changes_nothing(record: Any) -> None:
    flat = {"w": 1, "d.1": 2, "d.2": 3, "d.l.0": 4}
    paths: Any = {"w": ("w",), "d.1": ("d", "1"), "d.2": ("d", "2"), "d.l.0": ("d", "l", 0)}
    assert nested(flat, paths, Nesting({NESTING: record})) == {"w": 1, "d": {"1": 2, "2": 3, "l": [4]}}


# -- the order of names --------------------------------------------------------------------------


def ordered() -> dict[str, Any]:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {
        "z": 1,
        "model": {**model.state_dict()},
        "optimizer": optimizer.state_dict(),
        "a": [torch.ones(1), {"c": 1}],
    }


def names_in(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(str(key), names_in(each)) for key, each in pairs]


def made_by(how: str, state: dict[str, Any], folder: Path) -> Path:
    made = folder / how
    if how == "stock":
        dcp.save(state, checkpoint_id=made)
        return made
    if how == "pack":
        torch.save(state, folder / "file.pt")
        streamxf.pack(folder / "file.pt", made, "zstd")
        return made
    planner = streamxf.SavePlanner() if how == "planner" else None
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(made, chain="zstd", sync_files=False), planner=planner)
    if how == "transcode":
        streamxf.transcode(made, folder / "copy", "checksum")
        return folder / "copy"
    if how == "salvage":
        streamxf.salvage(made, folder / "copy", "checksum")
        return folder / "copy"
    if how == "rename":
        streamxf.rename(made, {"model.*": "b.*"})
    return made


@pytest.mark.parametrize("how", ["save", "planner", "transcode", "salvage", "rename", "stock", "pack"])
def test_names_keep_the_order_of_the_save(tmp_path: Path, how: str) -> None:
    """As ``vector_to_parameters`` goes through them, for one."""
    state = ordered()
    path = made_by(how, state, tmp_path)
    if how == "rename":
        state = {{"model": "b"}.get(name, name): value for name, value in state.items()}
    patterns = ["z", "model*", "b.*", "optimizer*", "a.*"]  # all, since what was packed would come back as it was
    streamxf.unpack(path, tmp_path / "out.pt", only=patterns if how == "pack" else ())
    assert names_in(torch.load(tmp_path / "out.pt")) == names_in(state)
    streamxf.unpack(path, tmp_path / "some.pt", only=["optimizer.state.*", "z"])
    found = torch.load(tmp_path / "some.pt")
    assert names_in(found["optimizer"]["state"]) == names_in(state["optimizer"]["state"])
    if how != "rename":
        assert names_in(streamxf.load_intact(path).state_dict["model"]) == names_in(state["model"])


def test_items_of_a_checkpoint_writer_keep_their_order(tmp_path: Path) -> None:
    with streamxf.CheckpointWriter(tmp_path / "made", "zstd") as writer:
        for name in ("z", "b.10", "b.2"):
            writer[name] = torch.ones(2)
    streamxf.unpack(tmp_path / "made", tmp_path / "out.pt")
    assert [*torch.load(tmp_path / "out.pt")] == ["z", "b.10", "b.2"]


NAMES = ["z", "b.10", "b.2", "a"]


@pytest.mark.parametrize(
    "order",
    [
        None,
        1,
        [],
        ["", ""],
        ["7d5d", "0123"],
        lambda digest, places: [digest, places[:-1]],
        lambda digest, places: [digest, "0" * len(places)],
        lambda digest, places: [digest, places.replace("0", "9")],
        lambda digest, places: [digest, "wxyz"],
        lambda digest, places: ["0" * 64, places],
    ],
)
def test_an_order_that_is_none_is_passed_over(order: Any) -> None:
    recorded = Nesting(Nesting({}).with_order(NAMES))
    assert recorded.in_saved_order(sorted(NAMES)) == NAMES
    assert recorded.in_saved_order([*sorted(NAMES), "more"]) == [*sorted(NAMES), "more"]
    order = order(*recorded.extra[NESTING]["order"]) if callable(order) else order
    assert Nesting({NESTING: {"order": order}}).in_saved_order(sorted(NAMES)) == sorted(NAMES)


def test_no_order_is_recorded_where_names_have_it() -> None:
    assert Nesting({"a": 1}).with_order(sorted(NAMES)) == {"a": 1}
    assert Nesting({}).with_order([]) == {}
    assert Nesting({NESTING: {"order": [sha256(b"").hexdigest(), "0"]}}).in_saved_order([]) == []
    with mock.patch("streamxf.format.values._MOST_NESTING", 3):
        assert Nesting({}).with_order(NAMES) == {}
