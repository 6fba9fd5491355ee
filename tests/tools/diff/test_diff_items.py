"""What two checkpoints have in common, and what not."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import BlockError, ForeignError, ParameterError, PolicyError, UnknownCodecError
from streamxf.tools.convert.packed import ITEM
from streamxf.tools.diff.diff import Comparison
from streamxf.tools.diff.difference import Difference
from tests.progress.recorder import Recorder
from tests.tools.elements import Memory


def compare(
    first: Memory,
    second: Memory,
    only: Sequence[str] = (),
    prefixes: tuple[str, str] = ("", ""),
    progress: Recorder | None = None,
) -> Difference:
    paths = first.contents.path, second.contents.path
    return Comparison(first, second, False, progress).run(paths, only, prefixes, False)


def states() -> tuple[dict, dict]:
    one = {
        "same": torch.arange(6.0).view(2, 3),
        "values": torch.zeros(4),
        "dtype": torch.tensor([1.0, 2.0]),
        "both": torch.tensor([1.0, 1 / 3]),
        "shape": torch.zeros(2, 3),
        "kind": torch.zeros(1),
        "gone": torch.zeros(1),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7),
        "packed": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "step": 3,
        "options": {"lr": 0.1},
    }
    other = {
        **one,
        "values": torch.tensor([0.0, 0.5, -1.5, 0.0]),
        "dtype": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "both": torch.tensor([1.0, 1 / 3], dtype=torch.float16),
        "shape": torch.zeros(3, 2),
        "kind": 5,
        "new": "text",
        "packed": torch.zeros(2, dtype=torch.uint8),
        "options": {"lr": 0.2},
    }
    del other["gone"]
    return one, other


def test_every_kind_of_difference():
    one, other = states()
    found = compare(Memory(one, "one"), Memory(other, "other"))
    assert (found.first, found.second, found.same) == ("one", "other", False)
    assert (found.removed, found.added, found.incomparable) == (("gone",), ("new",), {})
    assert found.equal == 4
    changed = {change.name: change for change in found.changed}
    assert list(changed) == ["values", "dtype", "both", "shape", "kind", "packed", "options"]
    assert {name: str(change) for name, change in changed.items()} == {
        "values": "values: values: 2 of 4 elements differ, by 1.5 at most and 0.5 on average",
        "dtype": "dtype: float32 became bfloat16: the same values",
        "both": "both: float32 became float16, values: 1 of 2 elements differ, by 8.139e-05 at most and 4.07e-05 on "
        "average",
        "shape": "shape: [2, 3] became [3, 2]",
        "kind": "kind: a tensor of float32 became an object",
        "packed": "packed: float4_e2m1fn_x2 became uint8",
        "options": "options: ['lr']: 0.1 became 0.2",
    }
    assert (found.elements, found.differing) == (15, 3)


def test_what_is_the_same_says_so():
    one, _ = states()
    found = compare(Memory(one), Memory({name: one[name] for name in reversed(one)}))
    assert found.same
    assert (found.equal, found.changed) == (len(one), ())
    assert str(found).startswith("the same\n12 items the same; 0 of 25 compared elements differ")


@given(st.data())
def test_boxes_do_not_show(data):
    """A difference is found wherever it is, and however small the boxes are."""
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3).map(tuple))
    dtypes = data.draw(st.tuples(*[st.sampled_from([torch.float32, torch.int8, torch.float64])] * 2))
    one = torch.randint(-100, 100, shape).to(dtypes[0])
    other = one.to(dtypes[1], copy=True)
    place = data.draw(st.integers(0, one.numel() - 1))
    other.view(-1)[place] += 3
    limit = data.draw(st.integers(1, 64))
    bar = Recorder()
    first, second = Memory({"x": one}), Memory({"x": other})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamxf.tools.diff.diff.BOX_BYTES", limit)
        found = compare(first, second, progress=bar)
    assert max(first.largest, second.largest) <= max(limit, 8)
    distance = found.changed[0].distance
    assert (distance.elements, distance.differing, distance.largest) == (one.numel(), 1, 3)
    assert bar.expected == bar.done == one.nbytes + other.nbytes


def test_names_are_chosen_by_patterns():
    one, other = states()
    found = compare(Memory(one), Memory(other), only=["s*", "g?ne"])
    assert (found.equal, found.removed, found.added) == (3, ("gone",), ())
    assert [change.name for change in found.changed] == ["shape"]
    with pytest.raises(ParameterError, match="no item"):
        compare(Memory(one), Memory(other), only=["nothing*"])


def test_names_behind_a_prefix():
    bare = {f"layer.{number}": torch.zeros(2) for number in range(3)}
    behind = {f"model.{name}": tensor for name, tensor in bare.items()} | {"epoch": 1}
    found = compare(Memory(bare), Memory(behind))
    assert (len(found.removed), len(found.added)) == (3, 4)
    assert "3 names of the second are names of the first behind 'model.'" in found.notes[0]
    assert (
        "3 names of the first are names of the second behind 'model.'" in compare(Memory(behind), Memory(bare)).notes[0]
    )
    chosen = compare(Memory(bare), Memory(behind), prefixes=("", "model."))
    assert chosen.same
    assert chosen.equal == 3


def test_objects_that_may_not_be_loaded_are_not_taken_for_the_same():
    first, second = Memory({"x": 1, "y": 2}), Memory({"x": 1, "y": 2})
    second.refused["x"] = PolicyError("it asks for acme.Thing")
    found = compare(first, second)
    reason = "that of the second cannot be read: PolicyError: it asks for acme.Thing"
    assert (found.incomparable, found.equal, found.same) == ({"x": reason}, 1, False)
    assert f"not comparable: x: {reason}" in str(found)


@pytest.mark.parametrize("error", [BlockError("torn"), RuntimeError("torn"), OSError(5, "torn")], ids=repr)
@pytest.mark.parametrize("torn", [{0}, {7}, {29}, {7, 8, 21}, {0, 29}])
def test_what_cannot_be_read_does_not_keep_the_others_from_being_compared(torn, error, monkeypatch):
    monkeypatch.setattr("streamxf.tools.diff.diff.BOX_BYTES", 8)
    state = {f"w{number}": torch.arange(5.0) for number in range(30)} | {"step": 1, "note": "a"}
    first, second = Memory(state), Memory(state | {"w3": torch.arange(5.0) + 1, "note": "b"})
    for number in torn:
        (first if number % 2 else second).refused[f"w{number}"] = error
    second.refused["step"] = error
    bar = Recorder()
    found = compare(first, second, progress=bar)
    assert set(found.incomparable) == {f"w{number}" for number in torn} | {"step"}
    assert all(f"{type(error).__name__}: " in reason and "torn" in reason for reason in found.incomparable.values())
    assert "that of the second cannot be read" in found.incomparable["step"]
    assert [change.name for change in found.changed] == ["w3", "note"]
    assert (found.equal, found.same) == (30 - len(torn) - 1, False)
    assert found.elements == 5 * (30 - len(torn))
    assert bar.expected == bar.done == 30 * 2 * 20


@pytest.mark.parametrize("state", [{"x": 1}, {"x": torch.zeros(3)}], ids=["object", "tensor"])
def test_where_nothing_can_be_read_the_reason_is_raised_unless_it_is_damage(state):
    first, second = Memory(state), Memory(state)
    second.refused["x"] = ForeignError("the server is out")
    with pytest.raises(ForeignError, match="is out"):
        compare(first, second)
    second.refused["x"] = BlockError("torn")
    assert [*compare(first, second).incomparable] == ["x"]
    found = compare(Memory(state | {"y": 1}), second)
    assert (found.removed, list(found.incomparable)) == (("y",), ["x"])
    second.refused["x"] = UnknownCodecError("acme is not installed")
    with pytest.raises(UnknownCodecError, match="not installed"):
        compare(Memory(state | {"y": 1}), second)


def test_what_pack_keeps_of_a_file_is_left_out():
    assert compare(Memory({"x": 1}), Memory({"x": 1, ITEM: {"version": 1}})).same
