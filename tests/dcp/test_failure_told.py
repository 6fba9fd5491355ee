"""What fails in a save before it is published, in any thread: the save raises the first cause, and leaves nothing."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlanner

import streamxf
from streamxf import Checksum
from streamxf.checkpoint.datafile import DataFile
from streamxf.errors import AbortedError, CodecError
from streamxf.storage.local import LocalStorage
from tests.failing import fails_with

from .foreign_errors import MADE, NeedsTwo
from .helpers import Acting, assert_only, assert_same, full_chain, index_of, load, raising, save, since, unwrapped

ITEMS = 8


def states() -> tuple[dict[str, Any], dict[str, Any]]:
    old = {str(number): torch.full((300, 100), float(number)) for number in range(ITEMS)}
    return old, {name: value + 1 for name, value in old.items()}


def ignore_torch() -> None:
    """Torch warns in every save, too."""
    for message in ("torch.distributed is disabled", "Detected an existing checkpoint"):
        warnings.filterwarnings("ignore", message=message)


def writer_for(path: Path, threads: int = 1, **options: Any) -> streamxf.FileSystemWriter:
    return streamxf.FileSystemWriter(path, _extensions=full_chain(), thread_count=threads, sync_files=False, **options)


def failure_of(action: Callable[[], Any]) -> BaseException:
    """The error of the only rank, out of DCP's CheckpointException."""
    with pytest.raises(CheckpointException) as caught:
        action()
    assert list(caught.value.failures) == [0]
    return unwrapped(caught.value)


# -- anything, in any thread -----------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt("k"), SystemExit(1), GeneratorExit("g"), MemoryError("m"), StopIteration("s"), RuntimeError()],
    ids=lambda error: type(error).__name__,
)
def test_what_a_planner_raises_fails_the_save(checkpoint: Path, error: BaseException, threads: int) -> None:
    old, new = states()
    save(old, checkpoint)
    writer = writer_for(checkpoint, threads)
    for at in (1, 3, ITEMS):
        found = failure_of(lambda at=at: dcp.save(new, storage_writer=writer, planner=Acting(raising(at, error))))
        assert found is error
        assert_only(checkpoint, old)
        assert writer.report is None
        error.__traceback__ = None
    dcp.save(new, storage_writer=writer)
    assert writer.report is not None
    assert_only(checkpoint, new)


@pytest.mark.parametrize("name", MADE)
def test_errors_of_other_libraries_fail_the_save_as_errors_that_can_be_sent(checkpoint: Path, name: str) -> None:
    make, kind, text = MADE[name]
    old, new = states()
    save(old, checkpoint)
    planner = Acting(raising(2, make()))
    found = failure_of(lambda: dcp.save(new, storage_writer=writer_for(checkpoint, 2), planner=planner))
    assert type(found).__name__ == kind
    assert text in str(found)
    assert_only(checkpoint, old)


def test_without_collectives_the_error_comes_as_it_is(checkpoint: Path) -> None:
    old, _ = states()
    planner = Acting(raising(2, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        dcp.save(old, storage_writer=writer_for(checkpoint, 2), planner=planner, use_collectives=False)
    assert not list(checkpoint.iterdir())


def test_the_notes_tell_the_item_and_the_file(checkpoint: Path) -> None:
    old, _ = states()
    planner = Acting(raising(3, OSError(errno.EIO, "torn cable")))
    found = failure_of(lambda: dcp.save(old, storage_writer=writer_for(checkpoint), planner=planner))
    note, advice = getattr(found, "__notes__")  # noqa: B009
    assert note.startswith("while writing item 2 of file __0_0_")
    assert str(checkpoint) in advice


class Refusing(Checksum):
    """A codec that fails in a worker."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self._raised = raised

    def renew(self) -> Refusing:
        return self

    def encode(self, block: Any, info: Any) -> Any:
        raise self._raised


def test_an_error_in_a_worker_names_codec_item_and_file(checkpoint: Path) -> None:
    old, _ = states()
    writer = streamxf.FileSystemWriter(checkpoint, _extensions=[Refusing(NeedsTwo("gpu", 7))], thread_count=2)
    found = failure_of(lambda: dcp.save(old, storage_writer=writer))
    assert type(found) is CodecError
    assert "gpu failed with 7" in str(found)
    assert found.item in old
    assert found.file is not None
    (note,) = getattr(found, "__notes__")  # noqa: B009
    assert note.startswith("caused by ")
    assert note.endswith("NeedsTwo: gpu failed with 7")


def test_threads_that_cannot_be_started_leave_their_work_to_the_others(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = states()
    start = threading.Thread.start
    tried: list[str] = []

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("streamxf-file_"):
            tried.append(thread.name)
            if len(tried) > 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    save(old, checkpoint, thread_count=4)
    assert len(tried) == 2
    assert_only(checkpoint, old)


# -- the first cause -------------------------------------------------------------------------------


def test_of_two_failures_the_first_in_time_is_raised_even_if_it_takes_longer(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = states()
    save(old, checkpoint)
    both = threading.Barrier(2, timeout=300)
    second_over = threading.Event()
    cancel = DataFile.cancel

    def act(number: int) -> None:
        if number > 2:
            return
        both.wait()
        if number == 1:
            raise ValueError("first")
        assert first_told.wait(300)
        raise KeyError("second")

    first_told = threading.Event()

    def slow(self: Any) -> None:
        if not first_told.is_set():
            first_told.set()
            assert second_over.wait(300)
        else:
            second_over.set()
        cancel(self)

    monkeypatch.setattr(DataFile, "cancel", slow)
    found = failure_of(lambda: dcp.save(new, storage_writer=writer_for(checkpoint, 2), planner=Acting(act)))
    assert second_over.is_set()
    assert isinstance(found, ValueError)
    assert_only(checkpoint, old)


may_not_be_removed = fails_with(PermissionError, errno.EPERM, "may not be removed")


class Unclosable:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        raise OSError(errno.EIO, "cannot be closed")


@pytest.mark.parametrize("filters", ["default", "error"])
def test_errors_while_a_failed_save_is_cleaned_up_do_not_hide_why_it_failed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, filters: Any
) -> None:
    old, new = states()
    save(old, checkpoint)
    monkeypatch.setattr(os, "unlink", may_not_be_removed)
    writer = writer_for(checkpoint, 2)
    create = LocalStorage.create
    monkeypatch.setattr(LocalStorage, "create", lambda storage, name: Unclosable(create(storage, name)))
    planner = Acting(raising(3, ValueError("the cause")))
    with warnings.catch_warnings():
        warnings.simplefilter(filters)
        ignore_torch()
        found = failure_of(lambda: dcp.save(new, storage_writer=writer, planner=planner, no_dist=True))
    assert str(found) == "the cause"
    notes = "\n".join(getattr(found, "__notes__"))  # noqa: B009
    assert notes.count("of the failed save could not be removed") == 2
    assert_same(load(old, checkpoint), old)


def test_a_failure_keeps_no_memory(checkpoint: Path) -> None:
    """A writer that failed lets go of the error, which leads to the tensors."""
    import gc
    import weakref

    class Marked(ValueError):
        pass

    error: Any = Marked("x")
    gone = weakref.ref(error)
    writer = writer_for(checkpoint, 2)
    state, _ = states()
    with pytest.raises(CheckpointException):
        dcp.save(state, storage_writer=writer, planner=Acting(raising(2, error)))
    error = None
    gc.collect()
    assert gone() is None
    assert writer.report is None


# -- signals ---------------------------------------------------------------------------------------


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C as Python starts with it. Without callbacks of the garbage collector, such as Hypothesis', in which Python
    drops an interrupt.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("at", range(1, ITEMS + 1))
@pytest.mark.parametrize("whose", ["main", "other"])
def test_ctrl_c_stops_all_threads_and_reaches_the_caller(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, at: int, whose: str
) -> None:
    """The signal comes while the main thread writes, or while it waits for one that writes."""
    old, new = states()
    save(old, checkpoint)
    sent = threading.Event()
    at_work: list[int] = []
    cancel = DataFile.cancel

    def slow(self: Any) -> None:
        at_work.append(1)
        time.sleep(0.01)
        cancel(self)
        at_work.append(-1)

    monkeypatch.setattr(DataFile, "cancel", slow)

    def act(number: int) -> None:
        main = threading.current_thread() is threading.main_thread()
        if number >= at and main == (whose == "main") and not sent.is_set():
            sent.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if not main:
                time.sleep(0.05)  # at work, while the main thread hears of it

    try:
        error: BaseException | None = failure_of(
            lambda: dcp.save(new, storage_writer=writer_for(checkpoint, 4), planner=Acting(act))
        )
    except pytest.fail.Exception:
        error = None  # nobody raised, because
        assert not sent.is_set()  # that thread had no item any more
    assert sum(at_work) == 0, "somebody was still at work when the save had ended"
    if sent.is_set():
        assert type(error) is KeyboardInterrupt
        assert_only(checkpoint, old)
    else:
        assert_only(checkpoint, new)


def test_no_destructor_takes_an_interrupt(checkpoint: Path) -> None:
    """What is raised in one is dropped, a KeyboardInterrupt too: none may run where a save or a load can hear of it."""
    state, _ = states()
    called: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_locals.get("_", 0) is not None:  # nobody has called a finalizer by hand
            called.add(frame.f_code.co_qualname)

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        save(state, checkpoint)
        load(state, checkpoint)
        failure_of(lambda: save({**state, "bad": lambda: 0}, checkpoint))
        gc.collect()  # of the failed save
    finally:
        sys.setprofile(None)
        gc.enable()
    assert any(name.endswith("side_by_side") for name in called)
    assert not {name for name in called if name.endswith(("__del__", "finalize.__call__"))}


# -- publishing, and after it ----------------------------------------------------------------------


@pytest.mark.parametrize("filters", ["error", "default"])
def test_clean_up_that_fails_never_fails_a_published_save(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, filters: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even where filters make errors of warnings: the log has them then."""
    old, new = states()
    save(old, checkpoint)
    monkeypatch.setattr(os, "unlink", may_not_be_removed)
    writer = writer_for(checkpoint)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(filters)
        ignore_torch()
        dcp.save(new, storage_writer=writer)
    assert_same(load(new, checkpoint), new)
    assert writer.report is not None
    assert writer.save_id == index_of(checkpoint).save_id
    told = [str(warning.message) for warning in caught] if filters == "default" else caplog.messages
    assert any("is saved, but" in message for message in told)


def test_a_warning_that_is_an_error_fails_the_save_before_it_is_published(checkpoint: Path) -> None:
    old, new = states()
    save(old, checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ignore_torch()
        found = failure_of(lambda: dcp.save({**new, "object": Path("x")}, storage_writer=writer_for(checkpoint, 2)))
    assert isinstance(found, UserWarning)
    assert_only(checkpoint, old)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_save_that_fails_in_publishing_is_not_in_report_and_id(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    old, new = states()
    writer = writer_for(checkpoint, threads)
    dcp.save(old, storage_writer=writer)
    first = writer.save_id
    made: list[str] = []

    def fail(*_: Any, **__: Any) -> Any:
        made.append("tried")
        raise NeedsTwo("publish", 1)

    monkeypatch.setattr(LocalStorage, "put", fail)
    found = failure_of(lambda: dcp.save(new, storage_writer=writer))
    assert made
    assert "publish failed with 1" in str(found)
    assert writer.report is None
    assert writer.save_id == first == index_of(checkpoint).save_id
    assert_only(checkpoint, old)


def test_what_was_not_published_has_no_id(checkpoint: Path) -> None:
    """Torch gives its writers an id before anything is saved: whoever noted that would wait for a save that is none."""
    writer = writer_for(checkpoint, 1)
    assert writer.save_id is None
    failure_of(lambda: dcp.save({"w": threading.Lock()}, storage_writer=writer))
    assert writer.save_id is None
    dcp.save(states()[0], storage_writer=writer)
    assert writer.save_id == index_of(checkpoint).save_id
    failure_of(lambda: dcp.save({"w": threading.Lock()}, storage_writer=writer, checkpoint_id=str(checkpoint)))
    assert writer.save_id is None
    remote = streamxf.FsspecWriter("memory://no-id")
    assert remote.save_id is None
    dcp.save(states()[0], storage_writer=remote)
    assert remote.save_id is not None
    remote.reset("memory://no-id-either")
    assert remote.save_id is None


def test_an_error_after_the_rename_is_reported_and_the_new_checkpoint_loads(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = states()
    save(old, checkpoint)
    replace = os.replace
    replaced: list[str] = []

    def noted(draft: str, target: str, **folders: Any) -> None:
        replaced.append(draft)
        replace(draft, target, **folders)

    sync = os.fsync

    def fail(descriptor: int) -> None:
        if replaced:
            raise OSError(errno.EIO, "after the rename")
        sync(descriptor)

    monkeypatch.setattr(os, "replace", noted)
    monkeypatch.setattr(os, "fsync", fail)
    writer = streamxf.FileSystemWriter(checkpoint, _extensions=full_chain())
    found = failure_of(lambda: dcp.save(new, storage_writer=writer))
    monkeypatch.undo()
    assert "after the rename" in str(found)
    assert_same(load(new, checkpoint), new)


# -- in the background, and with cached plans ------------------------------------------------------


def in_background(state: dict[str, Any], **options: Any) -> Future[Any]:
    future = dcp.async_save(state, no_dist=True, **options)
    assert isinstance(future, Future)
    return future


def test_the_future_of_a_save_in_the_background_has_the_error(checkpoint: Path) -> None:
    old, new = states()
    writer = writer_for(checkpoint, 2)
    in_background(old, storage_writer=writer).result(300)
    assert_only(checkpoint, old)
    future = in_background(new, storage_writer=writer, planner=Acting(raising(3, NeedsTwo("put", 1))))
    error = future.exception(60)
    assert isinstance(error, CheckpointException)
    assert "NeedsTwo: put failed with 1" in str(error)
    with pytest.raises(CheckpointException):
        future.result()
    assert_only(checkpoint, old)
    in_background(new, storage_writer=writer).result(300)
    assert_only(checkpoint, new)


def test_what_cannot_be_staged_fails_at_once(checkpoint: Path) -> None:
    class Uncopyable(torch.Tensor):
        pass

    old, _ = states()
    bad = torch.zeros(3).as_subclass(Uncopyable)
    writer = writer_for(checkpoint)
    writer.stage = lambda state_dict: (_ for _ in ()).throw(NeedsTwo("stage", 2))  # type: ignore[method-assign]
    with pytest.raises(NeedsTwo):
        in_background({**old, "bad": bad}, storage_writer=writer)
    assert not checkpoint.exists()


def test_a_second_save_beside_one_in_the_background_is_refused_and_the_first_one_stands(checkpoint: Path) -> None:
    old, _ = states()
    writer = writer_for(checkpoint)
    under_way, go_on = threading.Event(), threading.Event()

    def act(number: int) -> None:
        if number == 2:
            under_way.set()
            assert go_on.wait(60)

    first = in_background(old, storage_writer=writer, planner=Acting(act))
    assert under_way.wait(60)
    other = writer_for(checkpoint.with_name("other"))
    dcp.save(old, storage_writer=other)  # a writer of its own is no problem
    go_on.set()
    first.result(300)
    assert_only(checkpoint, old)
    assert_only(checkpoint.with_name("other"), old)


@pytest.fixture
def no_cached_plans() -> Iterator[None]:
    caches = [
        SavePlanner._cached_save_plan,
        SavePlanner._cached_all_plans,
        SavePlanner._cached_global_plan,
        SavePlanner._cached_metadata,
        SavePlanner._cached_final_save_plan,
    ]
    before = [dict(cache) for cache in caches]
    for cache in caches:
        cache.clear()
    yield
    for cache, kept in zip(caches, before, strict=True):
        cache.clear()
        cache.update(kept)


@pytest.mark.usefixtures("no_cached_plans")
@since("2.8", "caches no metadata")
def test_cached_plans_survive_a_save_that_fails(checkpoint: Path) -> None:
    writer = writer_for(checkpoint, 2)
    state, _ = states()
    here = checkpoint / ".metadata"
    last: dict[str, Any] | None = None
    for number, fails in enumerate([True, False, True, True, False]):
        state = {name: value + 1 for name, value in state.items()}
        act = raising(2 if fails else -1, ValueError(f"save {number}"))
        planner = Acting(act, enable_plan_caching=True)
        if fails:
            found = failure_of(lambda planner=planner: dcp.save(state, storage_writer=writer, planner=planner))  # noqa: B023
            assert str(found) == f"save {number}"
        else:
            dcp.save(state, storage_writer=writer, planner=planner)
            last = state
        if last is None:
            assert not here.exists()
        else:
            assert_only(checkpoint, last)
    assert SavePlanner._cached_save_plan, "nothing was cached, so this test shows nothing"


def test_a_writer_that_never_began_says_so(checkpoint: Path) -> None:
    with pytest.raises(AbortedError, match="no save is under way"):
        writer_for(checkpoint).write_data(dcp.SavePlan([]), dcp.DefaultSavePlanner())
