"""Weights published to a folder, and followed into tensors in memory."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamxf
from streamxf import errors
from streamxf.publishing.update import Part
from tests.dcp.test_write_failures import FaultyFiles
from tests.publishing.test_folder import loaded
from tests.publishing.weights import Policy, assert_same, bits, copies, publisher


def test_followers_have_each_version_bit_for_bit(tmp_path: Path):
    """One that takes each, one that takes every fifth, one that begins with nothing, and one that has some tensors."""
    policy, fast, slow, new, some = Policy(), {}, copies(Policy(1)), {}, {"embed": copies(Policy(2))["embed"]}
    publishing = publisher(tmp_path, full_every=4)
    followers = [streamxf.Follower(tmp_path, into) for into in (fast, slow, some)]
    assert followers[0].prepare() is None
    for step in range(1, 11):
        policy.step()
        made = publishing.publish(10 * step, policy.tensors.items())
        assert (made.number, made.step, made.folder) == (step, 10 * step, f"step-{10 * step}")
        assert (publishing.report.unchanged > 0) == (step % 4 != 1)
        for follower in followers[::2] if step % 5 else followers:
            update = follower.prepare()
            assert update is not None
            update.apply()
            assert follower.held == made
            assert follower.prepare() is None
        assert_same(fast, policy.tensors)
        assert torch.equal(bits(some["embed"]), bits(policy.tensors["embed"]))
    assert_same(slow, policy.tensors)
    streamxf.Follower(tmp_path, new).prepare().apply()
    assert_same(new, policy.tensors)


@pytest.mark.parametrize("into", ["dict", "folder"])
def test_differences_of_tensors_of_any_shape_are_applied(tmp_path: Path, into: str):
    names = [f"{number}.{'x' * 200}" for number in range(4)]  # so long that a few bytes are stored as a difference
    shapes = ((), (1,), (1, 1), (2, 0, 3))
    dtype = torch.complex128 if into == "dict" else torch.float64
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape in zip(names, shapes, strict=True)}
    tensors |= {"large": torch.randn(300, 300).bfloat16()}
    publishing, target = publisher(tmp_path / "run"), {} if into == "dict" else tmp_path / "into"
    follower = streamxf.Follower(tmp_path / "run", target)
    for step in range(3):
        publishing.publish(step, tensors.items())
        follower.prepare().apply()
        assert_same(target if isinstance(target, dict) else loaded(target / "newest"), tensors)
        for tensor in tensors.values():
            tensor.view(-1)[:5] += 1
    follower.close()


def test_nothing_changes_before_apply_and_what_changes_is_told(tmp_path: Path):
    policy, publishing = Policy(), publisher(tmp_path)
    publishing.publish(1, policy.tensors.items())
    into = copies(policy)
    follower = streamxf.Follower(tmp_path, into)
    follower.prepare().apply()
    policy.step()
    publishing.publish(2, policy.tensors.items())
    before = copies(policy) | {name: tensor.clone() for name, tensor in into.items()}
    update = follower.prepare()
    assert set(update.changed) == {"embed", "layers.0.weight", "layers.0.count", "norm", "scale"}
    assert_same(into, before)
    assert_same(dict(update.tensors()), {name: policy.tensors[name] for name in update.changed})
    patches = {patch.name: patch for patch in update.patches()}
    # vLLM takes NaN for "unchanged", and positions for floats alone
    assert {name for name, patch in patches.items() if patch.indices is not None} == {"embed", "layers.0.weight"}
    for name, patch in patches.items():
        assert (patch.shape, patch.dtype) == (before[name].shape, before[name].dtype)
        flat = before[name].reshape(-1)
        flat[slice(None) if patch.indices is None else patch.indices] = patch.values
        assert torch.equal(bits(flat), bits(policy.tensors[name]))
    update.apply()
    assert_same(into, policy.tensors)


@pytest.mark.parametrize("in_place", [False, True])
def test_any_error_undoes_an_update(tmp_path: Path, monkeypatch, in_place: bool):
    """In memory, or in a folder."""
    policy, publishing = Policy(), publisher(tmp_path / "run")
    into: Any = tmp_path / "into" if in_place else copies(policy)
    follower = streamxf.Follower(tmp_path / "run", into, in_place=in_place)

    def there() -> dict[str, torch.Tensor]:
        return loaded(into) if in_place else into

    publishing.publish(1, policy.tensors.items())
    follower.prepare().apply()
    before = {name: tensor.clone() for name, tensor in there().items()}
    policy.step()
    publishing.publish(2, policy.tensors.items())
    update, calls, put = follower.prepare(), [], Part.put

    def interrupted(*given: Any) -> None:
        put(*given)
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Part, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            update.apply()
    assert_same(there(), before)
    assert follower.held.number == 1
    again = follower.prepare()
    update.apply()
    assert_same(there(), policy.tensors)
    with pytest.raises(errors.ParameterError, match="another update was applied"):
        again.apply()
    assert_same(there(), policy.tensors)


def test_a_publish_that_fails_changes_nothing_that_followers_see(tmp_path: Path):
    policy, publishing, into = Policy(), publisher(tmp_path), {}
    publishing.publish(1, policy.tensors.items())
    follower = streamxf.Follower(tmp_path, into)
    follower.prepare().apply()
    first = copies(policy)
    policy.step()

    def broken():
        yield from [*policy.tensors.items()][:3]
        raise OSError(errno.EIO, "the device is lost")

    for step in (1, 2):  # over what is there, and beside it
        with pytest.raises(OSError, match="lost"):
            publishing.publish(step, broken())
        with pytest.raises(errors.ParameterError, match="are tensors"):
            publishing.publish(step, [("lr", 0.1)])
    assert follower.prepare() is None
    assert [each.name for each in tmp_path.iterdir() if each.name[0] != "."] == ["step-1"]
    assert_same(into, first)
    publishing.publish(2, policy.tensors.items())
    follower.prepare().apply()
    assert_same(into, policy.tensors)


def test_a_full_disk_is_told_with_the_runs_folder(tmp_path: Path):
    publishing, policy = publisher(tmp_path), Policy()
    publishing.publish(1, policy.tensors)
    with FaultyFiles("write", 1).patched(), pytest.raises(OSError, match="fault injected") as caught:
        publishing.publish(2, {name: tensor + 1 for name, tensor in policy.tensors.items()})
    assert str(caught.value.filename).startswith(f"{tmp_path}/step-2")
    assert [*tmp_path.glob("step-*")] == [tmp_path / "step-1"]


def test_going_back_is_a_newer_version_and_a_new_publisher_counts_on(tmp_path: Path):
    policy, into = Policy(), {}
    first = publisher(tmp_path, grace=0, keep=1)
    for step in (100, 200, 300):
        first.publish(step, policy.tensors.items())
    follower = streamxf.Follower(tmp_path, into)
    follower.prepare().apply()
    policy.step()
    second = publisher(tmp_path, grace=0, keep=1)
    for step, number in ((200, 4), (250, 5), (250, 6)):
        policy.step()
        made = second.publish(step, policy.tensors.items())
        assert (made.number, made.run) == (number, follower.held.run)
        follower.prepare().apply()
        assert_same(into, policy.tensors)
    assert sorted(each.name for each in tmp_path.glob("step*")) == ["step-250"]


def test_old_versions_stay_for_the_time_of_grace_and_while_they_are_read(tmp_path: Path):
    policy, publishing = Policy(), publisher(tmp_path, keep=1, grace="1h")
    for step in range(4):
        publishing.publish(step, policy.tensors.items())
    assert len([*tmp_path.glob("step-*")]) == 4
    hasty = publisher(tmp_path, keep=2, grace=0)
    with streamxf.hold(tmp_path / "step-1"):
        hasty.publish(4, policy.tensors.items())
        assert sorted(each.name for each in tmp_path.glob("step-*")) == ["step-1", "step-3", "step-4"]
    hasty.publish(5, policy.tensors.items())
    assert sorted(each.name for each in tmp_path.glob("step-*")) == ["step-4", "step-5"]


def test_a_version_that_is_removed_meanwhile_is_left_for_the_newest(tmp_path: Path, monkeypatch):
    policy, publishing, into = Policy(), publisher(tmp_path, keep=1, grace=0), {}
    publishing.publish(1, policy.tensors.items())
    follower, read = streamxf.Follower(tmp_path, into), streamxf.Checkpoint.read_boxes

    def late(self: Any, boxes: Any) -> Any:
        if publishing._number == 1:
            policy.step()
            publishing.publish(2, policy.tensors.items())
        return read(self, boxes)

    monkeypatch.setattr(streamxf.Checkpoint, "read_boxes", late)
    follower.prepare().apply()
    assert follower.held.number == 2
    assert_same(into, policy.tensors)


@pytest.mark.parametrize(
    ("into", "error"),
    [
        ({"embed": torch.zeros(3, 4)}, errors.UnsupportedError),
        ({"embed": torch.zeros(3000, 100)}, errors.UnsupportedError),
        ({"elsewhere": torch.zeros(3)}, errors.MetadataError),
    ],
)
def test_tensors_that_do_not_fit_are_told_by_name(tmp_path: Path, into: dict[str, torch.Tensor], error: Any):
    publisher(tmp_path).publish(1, Policy().tensors.items())
    with pytest.raises(error, match=next(iter(into))) as caught:
        streamxf.Follower(tmp_path, into).prepare()
    assert "version 1, of step 1 cannot be taken" in caught.value.message
    assert caught.value.file == str(tmp_path / "step-1")


def test_an_empty_dict_gets_what_appears_and_loses_what_disappears(tmp_path: Path):
    policy, publishing, interrupts = Policy(), publisher(tmp_path), list[BaseException]()

    class Dict(dict[str, Any]):
        def pop(self, *given: Any) -> Any:
            found = super().pop(*given)
            if interrupts:
                raise interrupts.pop()
            return found

    into = Dict()
    follower = streamxf.Follower(tmp_path, into)
    publishing.publish(1, policy.tensors)
    follower.prepare().apply()
    embed = into["embed"]
    first, policy.tensors["new"] = copies(policy), torch.arange(5.0)
    kept = [policy.tensors.pop(name) for name in ("scale", "layers.0.weight")]
    policy.tensors["embed"] += 1
    publishing.publish(2, policy.tensors)
    update = follower.prepare()
    assert update.changed == ("embed", "new")
    assert_same(into, first)
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        update.apply()
    assert_same(into, first)
    update.apply()
    with pytest.raises(errors.ParameterError, match="applied already"):
        update.apply()
    assert_same(into, policy.tensors)
    assert into["embed"] is embed
    assert follower.verify() == ()
    policy.tensors["scale"] = kept[0] + 1
    publishing.publish(3, policy.tensors)
    follower.prepare().apply()
    assert_same(into, policy.tensors)


def test_a_module_is_no_dict_of_tensors(tmp_path: Path):
    with pytest.raises(errors.ParameterError, match=r"dict\(module.named_parameters\(\)\)"):
        streamxf.Follower(tmp_path, torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    "tensor", [torch.zeros(4, 6).T, torch.zeros(3, dtype=torch.complex64).conj(), np.zeros(4)[::2]]
)
def test_memory_that_cannot_be_changed_in_place_is_refused(tmp_path: Path, tensor: Any):
    with pytest.raises(errors.StreamxfError, match="contiguous"):
        streamxf.Follower(tmp_path, {"weight": tensor})


@pytest.mark.parametrize("given", [iter(()), {}, [], torch.nn.Linear(2, 2), ["weight"], [torch.zeros(2)], [("a",)]])
def test_what_is_no_names_and_tensors_is_not_published(tmp_path: Path, given: Any):
    publishing = publisher(tmp_path)
    with pytest.raises(errors.ParameterError, match=r"no tensors were given|named_parameters\(\)"):
        publishing.publish(1, given)
    assert streamxf.Follower(tmp_path, {}).prepare() is None
    assert [*tmp_path.glob("step-*")] == []
    publishing.publish(1, {"weight": torch.zeros(2)})


def test_a_chain_that_there_is_not_is_told_before_anything_is_published(tmp_path: Path):
    with pytest.raises(errors.StreamxfError, match="floatzap"):
        publisher(tmp_path, chain="floatzap")
    with pytest.raises(errors.ParameterError, match="increments='no'"):
        streamxf.SaveMemory(increments="no")


@pytest.mark.parametrize("how", [{"full_every": 0}, {"keep": 0}, {"grace": "soon"}, {"grace": -1}, {"keep": True}])
def test_a_publisher_refuses_what_makes_no_sense(tmp_path: Path, how: dict[str, Any]):
    with pytest.raises(errors.ParameterError, match=next(iter(how))):
        publisher(tmp_path, **how)
    with pytest.raises(errors.ParameterError, match="step="):
        publisher(tmp_path).publish(-1, [])
