"""What a save wrote that another rank failed, or nobody finished, is removed by the process that would have published
it. DCP tells no writer of such a failure, so that is once the writer goes on, or goes.
"""

import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import AbortedError
from streamxf.storage.local import LocalStorage
from tests.cli import preloaded
from tests.failing import fails_with

from .helpers import assert_same, full_chain, index_of, load, needs_gloo, save
from .rank_scenarios import run_ranks
from .shards import Planner, rows

OLD = {"t": torch.arange(6.0)}


@pytest.mark.slow
@needs_gloo
def test_the_files_of_all_ranks_go_with_the_writer_of_the_rank_that_publishes(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "what_failed_saves_leave", module=f"{__package__}.failing_ranks"):
        assert report["what_failed_saves_leave"] == {
            "0 fails": [["0"], ["__1"]],
            **{f"{rank} fails, then {what}": [] for rank in (0, 1) for what in ("elsewhere", "another writer")},
            "1 fails": [["1"], ["__0"]],
            "a plan fails": ["__0"],
            "a plan fails, then reset": [],
            "old loads": [True, True],
        }


def written(path: Any, cls: Any = streamxf.FileSystemWriter, kept: Any = None) -> tuple[Any, Callable[[], None]]:
    """What two ranks wrote, and nobody published yet: the writer that is to do so, and what does it.

    - `kept`: of the notes in the plans, those that a planner puts in their place.
    """
    writers, planners, plans = [], [], []
    for rank in range(2):
        writer = cls(path, _extensions=full_chain())
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
        planner = Planner()
        planner.set_up_planner({"t": rows(OLD["t"] + 1, rank, 2)}, writer.storage_meta(), rank == 0)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
        writers.append(writer)
        planners.append(planner)
    plans, metadata = planners[0].create_global_plan(plans)
    notes = [plan.storage_data for plan in plans]
    if kept is not None:
        plans = [dcp.SavePlan(plan.items, note, plan.planner_data) for plan, note in zip(plans, kept, strict=True)]
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(planner.finish_plan(plan), planner).value()
        for writer, planner, plan in zip(writers, planners, plans, strict=True)
    ]
    publishing = writers[0]
    publishing.notes = notes

    def finish() -> None:
        publishing.finish(metadata, results)

    return publishing, finish


def names(path: Path) -> list[str]:
    """The ranks whose files there are beside a published checkpoint."""
    named = index_of(path).files if (path / ".metadata").exists() else ()
    return sorted(name[:3] for name in os.listdir(path) if name.startswith("__") and name not in named)


def test_they_go_with_the_writer(checkpoint: Path) -> None:
    save(OLD, checkpoint)
    writer, finish = written(checkpoint)
    gc.collect()
    assert names(checkpoint) == ["__0", "__1"]
    del writer, finish
    assert names(checkpoint) == []
    assert_same(load(OLD, checkpoint), OLD)


def test_what_was_published_stays(checkpoint: Path) -> None:
    writer, finish = written(checkpoint)
    finish()
    writer.reset(checkpoint)
    del writer, finish
    gc.collect()
    assert_same(load(OLD, checkpoint), {"t": OLD["t"] + 1})


def test_what_was_given_up_is_not_published(checkpoint: Path) -> None:
    """A thread may still be at it when the interpreter exits."""
    save(OLD, checkpoint)
    writer, finish = written(checkpoint)
    writer._save.unpublished()
    with pytest.raises(AbortedError, match="this save was given up, and its files were removed"):
        finish()
    assert_same(load(OLD, checkpoint), OLD)


def test_in_a_store_they_go_too() -> None:
    fsspec = pytest.importorskip("fsspec")
    writer, finish = written("memory://given/up", streamxf.FsspecWriter)
    found = fsspec.filesystem("memory")
    assert len(found.ls("/given/up")) == 2
    writer.reset("memory://given/elsewhere")
    assert found.ls("/given/up") == []
    with pytest.raises(AbortedError, match="no save is under way"):
        finish()


def test_a_child_leaves_them_to_its_parent(checkpoint: Path) -> None:
    writer, finish = written(checkpoint)
    child = os.fork()
    if child == 0:
        try:
            writer.reset(checkpoint)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    finish()
    assert_same(load(OLD, checkpoint), {"t": OLD["t"] + 1})


def test_copies_of_a_writer_leave_them_alone(checkpoint: Path) -> None:
    writer, finish = written(checkpoint)
    pickle.loads(pickle.dumps(writer)).reset(checkpoint)
    finish()
    assert_same(load(OLD, checkpoint), {"t": OLD["t"] + 1})


@pytest.mark.parametrize("damaged", [False, True])
def test_notes_that_a_planner_kept_cost_no_checkpoint(checkpoint: Path, damaged: bool) -> None:
    published, finish = written(checkpoint)
    finish()
    metadata = (checkpoint / ".metadata").read_bytes()
    if damaged:
        (checkpoint / ".metadata").write_bytes(b"of a newer version")
    writer, _ = written(checkpoint, kept=published.notes)
    before = len(os.listdir(checkpoint))
    writer.reset(checkpoint)
    assert len(os.listdir(checkpoint)) == before - 1  # its own: nothing says that the other rank's are of this save
    (checkpoint / ".metadata").write_bytes(metadata)
    assert_same(load(OLD, checkpoint), {"t": OLD["t"] + 1})


def test_what_cannot_be_removed_is_logged(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("remove", "names"):
        writer, finish = written(checkpoint)
        with monkeypatch.context() as patch:
            failing = {
                "remove": lambda _, names: dict.fromkeys(names, OSError("no")),
                "names": fails_with(OSError, "no listing"),
            }[method]
            patch.setattr(LocalStorage, method, failing)
            writer.reset(checkpoint)
        del finish
    of_files = [line for line in caplog.messages if line.startswith("__")]
    assert len(of_files) == 2
    assert all(line.endswith(f" of a failed save to {checkpoint} could not be removed: no") for line in of_files)
    assert f"data files of a failed save to {checkpoint} could not be removed: no listing" in caplog.messages


SCRIPT = """
import sys
from pathlib import Path
from {package}.test_given_up import names, written

writer, finish = written(Path(sys.argv[1]))
assert names(Path(sys.argv[1])) == ["__0", "__1"]
raise RuntimeError("another rank failed")
"""


def test_they_go_when_the_script_ends_with_the_error(checkpoint: Path) -> None:
    save(OLD, checkpoint)
    top = Path(__file__).parents[len(__package__.split("."))]
    ended = preloaded.script(SCRIPT.format(package=__package__), checkpoint, cwd=top)
    assert "RuntimeError: another rank failed" in ended.stderr
    assert names(checkpoint) == []
    assert_same(load(OLD, checkpoint), OLD)
