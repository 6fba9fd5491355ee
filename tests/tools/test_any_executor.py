"""``executor=`` of all that takes one: what is lost is done here, keys stay here, and nothing is left running."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import streamxf
from streamxf import Key
from streamxf.errors import KeyMissingError, ParameterError
from streamxf.keys import KeyRing
from streamxf.keys.ring import format_key
from streamxf.tools import fleet
from streamxf.tools.verify import reading
from tests.dcp.helpers import KEY, full_chain, save
from tests.progress.recorder import Recorder
from tests.tools.executors import Deadly, Elsewhere, Poor, Silent, Unpicklable

STATE = {f"w{number:02}": torch.randn(100, 300) for number in range(12)} | {"step": torch.tensor(3), "lr": {"a": 0.1}}


class Tool(NamedTuple):
    """A tool; what it finds, without what it says of the executor; and that."""

    run: Callable[..., Any]
    found: Callable[[Any], Any]
    said: Callable[[Any], str]


def copy(source: Any, **options: Any) -> Any:
    """And what is in the copy."""
    target = Path(str(source)).with_name(f"copy-{len(os.listdir(Path(str(source)).parent))}")
    done = streamxf.transcode(source, target, "zstd", file_size=200_000, **options)
    return done, streamxf.verify(target).ok, streamxf.load_intact(target).loaded, {*target.iterdir()} - named(target)


def named(target: Path) -> set[Path]:
    with streamxf.Checkpoint(target) as checkpoint:
        places = [place for item in checkpoint.stored.values() for place in item.places]
    return {target / ".metadata", *(target / place.file for place in places)}


TOOLS = {
    "verify": Tool(
        streamxf.verify,
        lambda report: replace(report, seconds=0, finished_here=""),
        lambda report: report.finished_here,
    ),
    "inspect": Tool(
        lambda path, **options: streamxf.inspect(path, values=True, **options),
        lambda summary: replace(summary, notes=tuple(note for note in summary.notes if "in this process" not in note)),
        lambda summary: str(summary.notes),
    ),
    "diff": Tool(
        lambda path, **options: streamxf.diff(path, path, **options),
        lambda difference: replace(difference, notes=()),
        lambda difference: str(difference.notes),
    ),
    "transcode": Tool(copy, lambda copied: (copied[0].items, *copied[1:]), lambda copied: str(copied[0].notes)),
}


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setattr(fleet, "TASK_BYTES", 2**19)
    monkeypatch.setattr(reading, "TASK_BYTES", 2**17)
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    return TOOLS[request.param]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "source", full_chain(), block_size=1 << 16, thread_count=2)
    return tmp_path / "source"


def test_workers_that_are_killed(tool: Tool, source: Path) -> None:
    storage = Deadly(str(source))
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        result = tool.run(storage, keys=KEY, executor=pool)
    assert "BrokenProcessPool" in tool.said(result)
    assert "terminated abruptly while the future was running or pending." in str(result)
    assert tool.found(result) == tool.found(tool.run(storage, keys=KEY))


def test_an_executor_that_was_shut_down(tool: Tool, source: Path) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    result = tool.run(source, keys=KEY, executor=pool)
    assert "RuntimeError: cannot schedule" in tool.said(result)
    assert tool.found(result) == tool.found(tool.run(source, keys=KEY))


@pytest.mark.parametrize("kind", ["key", "bytes", "ring", "both", "generator"])
def test_a_key_in_memory_stays_here(tool: Tool, source: Path, kind: str) -> None:
    keys = {"key": KEY, "bytes": KEY.reveal(), "ring": KeyRing(KEY), "both": [KEY, "env:SOME_KEY"]}
    executor = Elsewhere()
    with pytest.raises(ParameterError, match="'env:CHECKPOINT_KEY'"):
        tool.run(source, keys=keys.get(kind) or (key for key in ["env:SOME_KEY", KEY]), executor=executor)
    assert not executor.sent


def test_what_is_sent_has_no_key(tool: Tool, source: Path) -> None:
    executor = Elsewhere()
    tool.run(source, keys=iter(["env:SOME_KEY"]), executor=executor)
    assert executor.sent
    assert KEY.reveal() not in b"".join(executor.sent)


def test_a_key_that_a_worker_does_not_have(tool: Tool, source: Path) -> None:
    with pytest.raises(KeyMissingError, match="SOME_KEY"):
        lacking = Poor(lambda: nullcontext(os.environ.pop("SOME_KEY", None)))
        tool.run(source, keys="env:SOME_KEY", executor=lacking)


def test_a_wrong_key(tool: Tool, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", format_key(Key.generate()))
    texts = set()
    for executor in (None, Elsewhere()):
        with pytest.raises(KeyMissingError) as caught:
            tool.run(source, keys="env:SOME_KEY", executor=executor)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_what_cannot_be_sent_is_refused_by_name(tool: Tool, source: Path, processes: Executor) -> None:
    for executor in (Elsewhere(), processes):
        with pytest.raises(ParameterError, match=r"^path= cannot be sent .* pickle"):
            tool.run(Unpicklable(str(source)), keys="env:SOME_KEY", executor=executor)
    with pytest.raises(ParameterError, match="executor= takes an executor"):
        tool.run(source, keys=KEY, executor=4)


def test_an_interrupt_cancels_what_has_not_begun(tool: Tool, source: Path) -> None:
    executor = Silent()
    with pytest.raises(KeyboardInterrupt):
        tool.run(source, keys="env:SOME_KEY", executor=executor)
    assert len(executor.futures) > 2
    assert all(future.cancelled() for future in executor.futures)
    assert [path.name for path in source.parent.iterdir()] == ["source"]


def test_progress(tool: Tool, source: Path) -> None:
    alone, there = Recorder(), Recorder()
    tool.run(source, keys=KEY, progress=alone)
    tool.run(source, keys="env:SOME_KEY", progress=there, executor=Elsewhere())
    assert there.done == there.expected
    assert 0 < there.expected <= alone.expected  # of objects, whose sizes are not known before, nothing is said
