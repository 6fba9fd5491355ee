"""A publish and a follower that are killed at one of the moments at which they touch a file, and started again."""

import os
from pathlib import Path
from shutil import copytree, rmtree

import pytest

import streamxf
from streamxf.checkpoint.datafile import DataFile
from streamxf.storage.local import LocalStorage
from tests.publishing.test_folder import loaded
from tests.publishing.test_folder import small_shards as small_shards  # a fixture
from tests.publishing.weights import Policy, assert_same, copies, publisher
from tests.tools.convert.child import STEPS, kills

TOUCHES = [(LocalStorage, "put"), (LocalStorage, "create"), (LocalStorage, "remove"), (DataFile, "write")]
OF_FOLDERS = [*[(Path, name) for name in ("replace", "unlink", "symlink_to", "mkdir", "open", "touch")], (os, "link")]
POLICY = Policy()
STATES = [(POLICY.step(), copies(POLICY))[1] for _ in range(5)]


def publish(run: Path, *steps: int) -> None:
    publishing = publisher(run, keep=1, grace=0)
    for step in steps:
        publishing.publish(step, STATES[step])


@pytest.mark.parametrize("step", STEPS)
def test_followers_see_the_version_before_or_the_new_one(tmp_path: Path, step: int):
    run = tmp_path / "run"
    for _ in kills(step, TOUCHES, lambda: publish(run, 1, 2, 3), lambda: (rmtree(run, True), publish(run, 0))):
        into, seen = {}, []
        for steps in (), (4,):
            publish(run, *steps)
            follower = streamxf.Follower(run, into)
            follower.prepare().apply()
            assert_same(into, STATES[follower.held.step])
            seen.append(follower.held)
            assert all(streamxf.verify(run / each.name).ok for each in streamxf.list_checkpoints(run) if each.complete)
        assert (seen[1].step, seen[1].run, seen[1].number > seen[0].number) == (4, seen[0].run, True)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_folder_has_a_whole_version(tmp_path: Path, in_place: bool, step: int):
    """In place it is known if it has none."""
    run, before, into = tmp_path / "run", tmp_path / "before", tmp_path / "into"
    publish(before, 0)
    copytree(before, run)
    publish(run, 1, 2)

    def follow(run: Path = run) -> None:
        with streamxf.Follower(run, into, in_place=in_place) as follower:
            if (update := follower.prepare()) is not None:
                update.apply()

    for _ in kills(step, [*TOUCHES, *OF_FOLDERS], follow, lambda: (rmtree(into, True), follow(before))):
        with streamxf.Follower(run, into, in_place=in_place) as follower:
            if follower.held is not None or not in_place:
                assert_same(loaded(follower.folder), STATES[0 if follower.held is None else follower.held.step])
        follow()
        with streamxf.Follower(run, into, in_place=in_place) as follower:
            assert_same(loaded(follower.folder), STATES[2])
            assert follower.verify() == ()
