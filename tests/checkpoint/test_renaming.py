"""Items under other names than those that they are stored under."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt
from streamxf.checkpoint.access import Renaming
from streamxf.errors import IdentityError, ParameterError
from streamxf.format.items import ObjectItem, Place
from tests.dcp.helpers import KEY, assert_same, blank, load, refused, save, swap

STATE = {"module.a": torch.arange(6.0), "module.b": torch.ones(3), "step": 7}
WANTED = {"a": STATE["module.a"], "b": STATE["module.b"], "step": 7}
STRIP = {"module.*": "*"}


@pytest.mark.parametrize(
    ("path", "old", "new", "wanted"),
    [
        (("model", "module.fc.w"), "model.module.fc.w", "model.fc.w", ("model", "fc.w")),
        (("module", "fc", "w"), "module.fc.w", "fc.w", ("fc", "w")),
        (("model", "fc.w"), "model.fc.w", "fc.w", ("fc.w",)),
        (("model", "fc.w"), "model.fc.w", "module.model.fc.w", ("module", "model", "fc.w")),
        (("a", "b", "c"), "a.b.c", "a.c", ("a", "c")),
        (("a", "b", "c"), "a.b.c", "a.x.y.c", ("a", "x.y", "c")),
        (("a", "b"), "a.b", "a", ("a",)),
        (("a", "b"), "a.b", "b", ("b",)),
        (("x", "x"), "x.x", "x.y", ("x", "y")),
        (("x", "x"), "x.x", "x", ("x",)),
        (("layers", 0, "w"), "layers.0.w", "layers.1.w", ("layers", 1, "w")),
        (("layers", 0, "w"), "layers.0.w", "layers.first.w", ("layers", "first", "w")),
        (("layers", 0, "w"), "layers.0.w", "layers.9999999.w", ("layers", "9999999", "w")),
        (("optim", "state", "w", "m"), "optim.state.w.m", "optim.state.v.m", ("optim", "state", "v", "m")),
        (("elsewhere", "w"), "w", "v", ("elsewhere", "v")),
        (("elsewhere", "x"), "w", "v", ("elsewhere", "x")),
    ],
)
def test_a_path_follows_its_name(path: Any, old: str, new: str, wanted: Any) -> None:
    item = ObjectItem(old, Place("f", 0, 1, ()), path)
    (found,) = Renaming({old: new}).items({old: item}).values()
    assert found.path == wanted


def test_a_whole_name_counts_before_a_pattern_and_the_first_pattern_before_others() -> None:
    names = Renaming({"a.*": "x.*", "*": "y.*", "a.w": "z"})
    assert names.of(["a.w", "a.v", "b", "a.", "a"]) == {"a.w": "z", "a.v": "x.v", "b": "y.b", "a.": "x.", "a": "y.a"}
    wrapped = Renaming({"*._wrapped.*.b.*": "*.*.b.*"})
    assert wrapped.of(["m._wrapped.0.b.*", "m.0.b.w"]) == {"m._wrapped.0.b.*": "m.0.b.*", "m.0.b.w": "m.0.b.w"}
    assert Renaming({"ab*ba": "*"}).of(["aba", "abba "]) == {"aba": "aba", "abba ": "abba "}


@pytest.mark.parametrize("chain", [[], [Checksum()], [Encrypt(KEY)]], ids=["bare", "plain", "encrypted"])
def test_a_load_finds_items_by_other_names(tmp_path: Path, chain: list[Any]) -> None:
    keys = KEY if chain and isinstance(chain[0], Encrypt) else None
    save(STATE, tmp_path, chain)
    assert_same(load(WANTED, tmp_path, keys, rename=STRIP), WANTED)
    with streamxf.Checkpoint(tmp_path, keys=keys, rename=STRIP) as checkpoint:
        assert set(checkpoint) == {"a", "b", "step"}
        assert_same(checkpoint["a"].read(), WANTED["a"])
        assert checkpoint["step"].read() == 7
    assert_same(load({"x.module.a": STATE["module.a"]}, tmp_path, keys, rename={"*": "x.*"})["x.module.a"], WANTED["a"])


@pytest.mark.parametrize("chain", [None, [Checksum()]], ids=["bare", "containers"])
def test_stock_checkpoints_too(tmp_path: Path, chain: Any) -> None:
    dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(tmp_path, _extensions=chain))
    assert_same(load(WANTED, tmp_path, None, rename=STRIP), WANTED)


def test_containers_of_attached_writers_have_their_stored_names(tmp_path: Path) -> None:
    """Without an index the name is what ties a container to its item: a swap shows under other names as well."""
    writer = streamxf.attach(dcp.FileSystemWriter(tmp_path), [Checksum()])
    state = {"a": torch.zeros(3), "b": torch.ones(3)}
    dcp.save(dict(state), storage_writer=writer)
    wanted = {"b": state["a"], "a": state["b"]}
    exchanged = {"a": "b", "b": "a"}
    assert_same(load(wanted, tmp_path, None, rename=exchanged), wanted)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        swap(tmp_path, [item.places[0] for item in checkpoint.stored.values()])
    for rename in (None, exchanged):
        with refused(IdentityError, "swapped"):
            load(state, tmp_path, None, rename=rename)


def test_the_rules_may_stay_when_a_run_goes_on(tmp_path: Path) -> None:
    rules = {"module.*": "*", "old": "step"}
    save(WANTED, tmp_path)
    assert_same(load(WANTED, tmp_path, rename=rules), WANTED)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"module.a": "module.b"}, ("'module.b'", "module.a, module.b")),
        ({"module.c": "c"}, ("no items", "module.c")),
        ({"module.*": ""}, ("number of '*'",)),
    ],
)
def test_names_that_collide_or_are_missing_are_said(tmp_path: Path, names: Any, words: tuple[str, ...]) -> None:
    save(STATE, tmp_path)
    with refused(ParameterError, *words):
        load(STATE, tmp_path, rename=names)
    with refused(ParameterError, *words):
        streamxf.Checkpoint(tmp_path, keys=KEY, rename=names)


def test_a_nested_state_is_planned_by_its_new_paths(tmp_path: Path) -> None:
    """As tools see it that make a state dict out of the metadata alone."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    save({"model": dict(STATE)}, tmp_path)
    state: dict[str, Any] = {}
    reader = streamxf.FileSystemReader(tmp_path, keys=KEY, rename={"model.module.*": "model.*"})
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert_same(state, {"model": WANTED})


def test_a_manager_resumes_under_other_names(tmp_path: Path) -> None:
    with streamxf.CheckpointManager(tmp_path, save=1) as manager:
        manager.save(1, dict(STATE))
    with streamxf.CheckpointManager(tmp_path, save=1) as manager:
        found = blank(WANTED)
        assert manager.resume(found, rename=STRIP) == 1
        assert_same(found, WANTED)
        manager.save(2, found)
        assert manager.resume(found, rename=STRIP) == 2
    assert_same(found, WANTED)
