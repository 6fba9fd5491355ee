"""A run has one publisher, and a folder is of a publisher or of a manager: nothing silently takes another's place."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import errors
from streamxf.publishing.version import Version
from tests.publishing.weights import Policy, assert_same, publisher


def interrupted(publishing: Any, moment: str, meanwhile: Callable[[], None], tensors: Any) -> Iterator[Any]:
    """Tensors to publish; something happens in between, during these or before what that moment names is put."""
    check, announce = publishing._check_alone, publishing._announce
    if moment == "hint":  # which has been looked at
        publishing._check_alone = lambda *place: (check(*place), place or meanwhile())[0]
    elif moment == "metadata":
        publishing._announce = lambda *made: (meanwhile(), announce(*made))[0]
    yield from tensors.items()
    if moment == "tensors":
        meanwhile()


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("moment", ["tensors", "metadata", "hint"])
def test_of_two_at_one_moment_one_publishes(place: tuple[str, dict[str, Any]], moment: str, step: int):
    """The other is told, and takes back what it wrote. Between the last look and the hint, where hints have stamps."""
    url, options = place
    if moment == "hint" and not url.startswith("s3"):
        pytest.skip("this place puts nothing on a condition")
    check_two_at_one_moment(url, moment, step, storage_options=options)


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("moment", ["tensors", "metadata"])
def test_of_two_in_a_folder_one_publishes(tmp_path: Path, moment: str, step: int):
    check_two_at_one_moment(str(tmp_path), moment, step)


def check_two_at_one_moment(run: str, moment: str, step: int, **how: Any) -> None:
    policy, other, into = Policy(), Policy(1), {}
    publisher(run, **how).publish(1, policy.tensors)
    follower = streamxf.Follower(run, into, **how)
    follower.prepare().apply()
    late, early, made = publisher(run, **how), publisher(run, **how), []
    given = interrupted(late, moment, lambda: made.append(early.publish(step, other.tensors)), policy.tensors)
    for tensors in (given, policy.tensors):
        with pytest.raises(errors.AbortedError, match=r"another publisher .* a new Publisher|another save to this"):
            late.publish(2, tensors)
    assert Version.hinted(early._storage) == made[0]
    follower.prepare().apply()
    assert_same(into, other.tensors)
    assert [each.name for each in streamxf.list_checkpoints(run, **how)] == ["step-1", f"step-{step}"]
    assert publisher(run, **how).publish(4, policy.tensors).number == made[0].number + 1


@pytest.mark.parametrize("under_way", [False, True])
def test_no_version_takes_the_place_of_a_managers_checkpoint(tmp_path: Path, under_way: bool):
    policy, state = Policy(), {"norm": torch.zeros(64)}
    with streamxf.CheckpointManager(tmp_path) as manager:
        manager.begin(5) if under_way else manager.save(5, state)
        with pytest.raises(errors.ParameterError, match="take its place: publish to a folder of its own") as caught:
            publisher(tmp_path).publish(5, policy.tensors)
        assert caught.value.file == str(tmp_path / "step-5")
        publisher(tmp_path).publish(6, policy.tensors)
        assert under_way or manager.resume(state) == 5


def test_no_save_takes_the_place_of_a_version(tmp_path: Path):
    policy, into, state = Policy(), {}, {"norm": torch.zeros(64)}
    publishing = publisher(tmp_path)
    publishing.publish(5, policy.tensors)
    with streamxf.CheckpointManager(tmp_path) as manager:
        manager.save(4, state)
        for save in (lambda: manager.save(5, state), lambda: manager.begin(5)):
            with pytest.raises(errors.ParameterError, match=r"version 1 of .*weights is here.* a folder of its own"):
                save()
        manager.save(6, state)
        streamxf.Follower(tmp_path, into).prepare().apply()
        assert_same(into, policy.tensors)
        publishing.publish(5, policy.tensors)
        assert manager.resume(state) == 6
