"""Objects under keys that are no strings are resumed, and what DCP makes no item of is named by the save."""

import enum
import warnings
from collections import ChainMap, OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import streamxf
from streamxf.dcp.plans import texts_about
from streamxf.errors import UnsupportedError
from tests.dcp.helpers import assert_same, blank, load_into, load_with, refused, save


class Color(str, enum.Enum):  # noqa: UP042  # whose str() is not its value
    RED = "red"


def keys() -> dict[str, Any]:
    """A state dict with keys of each kind, at the ends of paths and on the way."""
    own = {0: 50, -1: "text", None: 2.5, True: [1], 1.5: b"x", (0, "a"): {}, Color.RED: 3, "7": 8, 12: {3: {"step": 4}}}
    return {"state": own, "list": [torch.ones(2), {0: 1}, [{5: {6: 7}}]], "groups": [{"lr": 0.1, "params": [0]}]}


READERS: dict[str, Callable[[Path], Any]] = {
    "streamxf's": streamxf.FileSystemReader,
    "anything": lambda path: streamxf.FileSystemReader(path, weights_only=False),
}


@pytest.mark.parametrize("reader", READERS)
def test_keys_of_every_kind(tmp_path: Path, reader: str) -> None:
    save(keys(), tmp_path, [streamxf.Checksum()])
    found = load_with(keys(), READERS[reader](tmp_path))
    assert_same(found, keys())
    save(found, tmp_path, [streamxf.Checksum()])  # in which no key is there twice


@pytest.mark.filterwarnings("ignore:not resumed by torch's own readers")
def test_the_load_planner_follows_keys_for_torchs_reader_too(tmp_path: Path) -> None:
    save(keys(), tmp_path, [])
    assert_same(load_into(blank(keys()), dcp.FileSystemReader(tmp_path), planner=streamxf.LoadPlanner()), keys())


@pytest.mark.parametrize("planner", [DefaultLoadPlanner, streamxf.LoadPlanner])
@pytest.mark.parametrize("sharded", [False, True])
def test_objects_of_a_state_dict_that_is_not_flattened(tmp_path: Path, planner: Any, sharded: bool) -> None:
    save({"step": 3, "t": torch.ones(2)}, tmp_path, [])
    found = {"step": 0, "t": torch.zeros(2)}
    how = planner(flatten_state_dict=False, flatten_sharded_tensors=sharded)
    dcp.load(found, storage_reader=streamxf.FileSystemReader(tmp_path), planner=how)
    assert_same(found, {"step": 3, "t": torch.ones(2)})


def test_what_is_salvaged_into_a_state_dict(tmp_path: Path) -> None:
    save(keys(), tmp_path, [streamxf.Checksum()])
    found = blank(keys())
    assert streamxf.load_intact(tmp_path, found).missing == ()
    assert_same(found, keys())


@pytest.mark.parametrize("how", ["partial load", "failed load", "load_intact"])
def test_objects_that_are_not_loaded_stay(tmp_path: Path, how: str) -> None:
    """torch's planner makes None of them before it reads anything."""
    save({"a": {"t": torch.ones(1)}}, tmp_path, [])
    first, second = object(), Fraction(1, 3)
    inner = [second, {"set": {1}}, (second, 2, {"deep": {2}}), [{3}, (bytearray(b"x"),)]]
    found = {"a": {"t": torch.zeros(1), 0: first, "list": inner}, "top": first}
    planner = streamxf.LoadPlanner(allow_partial_load=how == "partial load")
    if how == "load_intact":
        assert len(streamxf.load_intact(tmp_path, found).missing) == 6
    elif how == "failed load":
        with refused(RuntimeError, "Missing key"):
            dcp.load(found, storage_reader=streamxf.FileSystemReader(tmp_path), planner=planner)
    else:
        dcp.load(found, storage_reader=streamxf.FileSystemReader(tmp_path), planner=planner)
    assert inner == [second, {"set": {1}}, (second, 2, {"deep": {2}}), [{3}, (bytearray(b"x"),)]]
    assert found == {"a": {"t": found["a"]["t"], 0: first, "list": inner}, "top": first}
    assert found["a"]["t"].item() == (how != "failed load")


def test_an_optimizer_with_numbers_in_its_state(tmp_path: Path) -> None:
    def trained(steps: int) -> tuple[nn.Parameter, torch.optim.LBFGS]:
        weight = nn.Parameter(torch.full((3,), 2.0))
        optimizer = torch.optim.LBFGS([weight], max_iter=steps, tolerance_change=0, tolerance_grad=0)
        optimizer.step(lambda: evaluate(weight))
        return weight, optimizer

    def evaluate(weight: nn.Parameter) -> torch.Tensor:
        weight.grad = None
        loss = (weight**4).sum()
        loss.backward()
        return loss

    weight, optimizer = trained(4)
    save({"weight": weight, "optimizer": optimizer.state_dict()}, tmp_path, [streamxf.Checksum()])
    fresh, resumed = trained(4)
    state = resumed.state_dict()
    state["state"][0] |= {"n_iter": 1, "func_evals": 1, "prev_loss": 0.0}
    found = load_into({"weight": fresh, "optimizer": state}, streamxf.FileSystemReader(tmp_path))
    resumed.load_state_dict(found["optimizer"])
    assert_same(resumed.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("for_torch", [{"extensions": []}, {"stock": True}], ids=["no chain", "stock"])
def test_a_save_for_torchs_readers_names_what_they_do_not_resume(tmp_path: Path, for_torch: dict[str, Any]) -> None:
    state = {"state": {0: {"step": 5, "moments": torch.ones(2)}}, "lr": 1, "groups": [torch.ones(1), {(1, 2): "text"}]}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "not resumed")
        save(state, tmp_path / "own", [streamxf.Checksum()])
    with pytest.warns(UserWarning, match="torch's own readers") as caught:
        save(state, tmp_path / "stock", **{"extensions": [streamxf.Checksum()], **for_torch})
    (text,) = [text for each in caught if "readers" in (text := str(each.message))]
    assert text.startswith("not resumed by torch's own readers: state.0.step, groups.1.(1, 2). They")
    found = load_into(blank(state), dcp.FileSystemReader(tmp_path / "stock", _extension_registry=streamxf.Registry()))
    assert found["state"][0]["step"] != 5  # as the warning says
    assert found["state"]["0"] == {"step": 5}


@pytest.mark.parametrize("keys", [(1, "1"), ("1", 1), ((1, 2), "(1, 2)"), (None, "None")], ids=repr)
def test_keys_of_the_same_text(tmp_path: Path, keys: tuple[Any, Any]) -> None:
    """Torch's planners mix the values up, or put what cannot be put there (2.13.0)."""
    state = {"m": [{"deep": {keys[0]: {"a": 1, "t": torch.ones(1)}, keys[1]: {"b": 2}}}]}
    with refused(UnsupportedError, f"{keys[0]!r} and {keys[1]!r} of one dict", "m.0.deep"):
        save(state, tmp_path, [])
    assert not (tmp_path / ".metadata").exists()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path))
    for planner in (DefaultLoadPlanner(), streamxf.LoadPlanner()):
        with refused(UnsupportedError, "the same text"):
            dcp.load(deepcopy(state), storage_reader=streamxf.FileSystemReader(tmp_path), planner=planner)


def test_keys_at_the_top_that_cannot_be_sorted(tmp_path: Path) -> None:
    state = {"a": torch.ones(1), 0: torch.ones(2), (1, 2): 3}
    with pytest.warns(UserWarning, match=r"cannot be sorted, as dcp.load .*: 0 \(int\), \(1, 2\) \(tuple\)\. Use"):
        save(state, tmp_path, [])
    with pytest.raises(TypeError, match="not supported between"):  # of torch's, before it asks anybody
        load_with(state, streamxf.FileSystemReader(tmp_path))
    found = blank(state)
    streamxf.load_intact(tmp_path, found)
    assert_same(found, state)


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType, ChainMap])
def test_mappings_that_are_no_dict(tmp_path: Path, kind: Any) -> None:
    state = {"top": kind({"a": torch.ones(1)}), "m": {"deep": [torch.ones(1), kind({"b": kind({"c": 1})})]}}
    text = rf"^not loaded by torch's planner: top \({kind.__name__}\), m\.deep\.1 \({kind.__name__}\)\. It makes None"
    with pytest.warns(UserWarning, match=text):
        save(state, tmp_path, [])
    with refused(RuntimeError, "Missing key in checkpoint state_dict"):
        dcp.load({**state}, storage_reader=streamxf.FileSystemReader(tmp_path))
    inner: Any = {"b": {"c": 0}} if kind is MappingProxyType else kind({"b": kind({"c": 0})})
    found: Any = {"top": kind({"a": torch.zeros(1)}), "m": {"deep": [torch.zeros(1), inner]}}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(tmp_path), planner=streamxf.LoadPlanner())
    assert type(found["top"]) is kind
    assert found["m"]["deep"][1] is inner
    assert (found["top"]["a"].item(), found["m"]["deep"][0].item(), inner["b"]["c"]) == (1, 1, 1)


# -- what is not among the items of a mapping ----------------------------------------------------


class Hiding(Mapping[str, Any]):
    """A mapping whose value is none of its items, as that of a TensorDict's NonTensorStack."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("how", ["save", "thread"])
def test_a_save_names_what_it_does_not_store(tmp_path: Path, how: str) -> None:
    state = {"step": 1, "deep": {0: [torch.ones(1), {"label": Hiding(5)}]}}
    writer = streamxf.FileSystemWriter(tmp_path, chain=[], sync_files=False)
    saves = {"save": dcp.save, "thread": lambda *state, **how: dcp.async_save(*state, **how).result()}
    with pytest.warns(UserWarning, match=r"^not stored: deep\.0\.1\.label \(Hiding\)\. DCP takes") as caught:
        saves[how](state, storage_writer=writer)
    assert len([each for each in caught if "not stored" in str(each.message)]) == 1


@pytest.mark.parametrize(
    "empty", [{}, OrderedDict(), UserDict(), MappingProxyType({}), nn.ReLU().state_dict()], ids=repr
)
def test_dictionaries_without_items_hide_nothing(empty: Any) -> None:
    state = {"a": empty, "b": [torch.ones(1), empty], "model": nn.Sequential(nn.ReLU()).state_dict()}
    assert [*texts_about(state, for_torch=True)] == []


@pytest.mark.parametrize(
    ("state", "named", "asked"),
    [
        ([{}, torch.ones(2), {}], r"x\.0", "x.0"),
        ([{"a": {"b": {}}}, torch.ones(2)], r"x\.0", "x.0"),
        ([[{}], {"a": 1}], r"x\.0", "x.0"),
        ([[1], {}], r"x\.1", "x"),
        ({"y": [5, {}, 6]}, r"x\.y\.1", "x.y"),
    ],
    ids=repr,
)
def test_empty_dictionaries_in_lists(tmp_path: Path, state: Any, named: str, asked: str) -> None:
    """Torch's planner makes the state again on load, without them or with None, and asks for other items (2.13.0)."""
    writer = streamxf.FileSystemWriter(tmp_path, sync_files=False)
    with pytest.warns(UserWarning, match=rf"^empty dictionaries in lists, beside what is not empty: {named}\. They"):
        dcp.save({"x": state}, storage_writer=writer)
    target = blank({"x": state})
    with refused(RuntimeError, f"Missing key in checkpoint state_dict: {asked}."):
        load_with(deepcopy(target), streamxf.FileSystemReader(tmp_path))
    dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path), planner=streamxf.LoadPlanner())
    assert_same(target, {"x": state})


def test_what_a_tensorclass_keeps_beside_its_tensors_is_named() -> None:
    """By what its state_dict() says, whose own keys are those of its tensors (tensordict 0.15.3)."""
    made, alone = OrderedDict({"a": torch.ones(1)}), OrderedDict[str, Any]()
    facts = {"batch_size": torch.Size([]), "device": None}
    made._metadata = {"": {**facts, "_type": "TC", "_non_tensor": {"label": "x"}}}  # type: ignore[attr-defined]
    alone._metadata = {"": {**facts, "_type": "NonTensorData", "_non_tensor": {"data": "x"}}}  # type: ignore[attr-defined]
    stack = OrderedDict[str, Any]()
    stack._metadata = {"": facts}  # type: ignore[attr-defined]
    (text,) = texts_about({"m": made, "l": alone, "s": stack}, for_torch=False)
    assert text.startswith("not stored: m.label, l, s. DCP")
    assert [*texts_about({"m": OrderedDict({"a": torch.ones(1)})}, for_torch=False)] == []


def test_values_of_a_tensordict_that_are_no_tensors(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")

    def made(label: Any, number: float) -> Any:
        inner = tensordict.TensorDict({"b": torch.full((2,), number), "m": tensordict.NonTensorData(label)}, [2])
        stack = tensordict.NonTensorStack(label, label)
        return tensordict.TensorDict({"t": torch.full((2, 3), number), "s": stack, "inner": inner}, [2])

    state = {"td": made("saved", 1.0), "nested": {"td": made("saved", 2.0)}}
    with pytest.warns(UserWarning, match="not stored: td.s, td.inner.m, nested.td.s \\(NonTensorStack\\). DCP"):
        save(state, tmp_path, [])
    found = {"td": made("fresh", 0.0)}
    with refused(RuntimeError, "Missing key in checkpoint state_dict: nested.td"):  # dcp.load makes None of the target
        dcp.load({"nested": {"td": made("fresh", 0.0)}}, storage_reader=streamxf.FileSystemReader(tmp_path))
    dcp.load(found, storage_reader=streamxf.FileSystemReader(tmp_path))
    assert found["td"]["t"].eq(1).all()
    assert found["td"]["inner", "b"].eq(1).all()
    assert (found["td"]["s"], found["td"]["inner", "m"]) == (["fresh", "fresh"], "fresh")  # as the warning says


def test_a_tensorclass_of_which_dcp_sees_nothing(tmp_path: Path) -> None:
    """It is no mapping, and says of no key that it has it, so `dcp.load` leaves all of it out (tensordict 0.15.3)."""

    class Fields:
        def __init__(self, number: float) -> None:
            self.x = torch.full((2,), number)

        def keys(self) -> list[str]:
            return ["x"]

        def items(self) -> list[tuple[str, torch.Tensor]]:
            return [("x", self.x)]

        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(self.x)

    saved, target = Fields(1.0), Fields(0.0)
    dcp.save(saved, storage_writer=streamxf.FileSystemWriter(tmp_path))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="empty at its top, as DCP finds a TensorClass"):
        dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path))  # type: ignore[arg-type]
    assert target.x.eq(0).all()


def test_an_attached_writer_names_what_a_load_does_not_bring_back(tmp_path: Path) -> None:
    def attached(name: str) -> Any:
        return streamxf.attach(dcp.FileSystemWriter(tmp_path / name), [streamxf.Checksum()])

    with pytest.warns(UserWarning, match="not loaded by") as caught:
        dcp.save({"a": {0: 1}, "b": [{}, torch.ones(1)], "c": UserDict(d=1), 1: 2}, storage_writer=attached("odd"))
    texts = "\n".join(str(each.message) for each in caught)
    assert all(text in texts for text in ("a.0", "b.0", "c (UserDict)", "1 (int)"))
    with warnings.catch_warnings(record=True) as none:
        warnings.simplefilter("always")
        dcp.save({"a": {"b": 1}, "c": torch.ones(1)}, storage_writer=attached("plain"))
    assert not [each for each in none if "torch.distributed is disabled" not in str(each.message)]
