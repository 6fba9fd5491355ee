"""What two ranks do with a `CheckpointManager`. Every function here runs in a process of its own."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from streamxf.checkpoint.notes import Note
from streamxf.errors import NoCheckpointError, ParameterError
from streamxf.manager import agreement
from streamxf.manager.housekeeper import Housekeeper
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.retention import Retention
from streamxf.notes import COMMIT
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage
from tests.dcp.rank_scenarios import sharded_state
from tests.failing import fails_with

from .runs import complete, damage


def state_at(step: int, *, fails: bool = False) -> dict[str, Any]:
    """A tensor of this rank's own, and one that all have."""
    rank = dist.get_rank()
    state = {f"of rank {rank}": torch.full((500,), 10.0 * step + rank), "shared": torch.full((20,), float(step))}
    return {**state, f"bad {rank}": lambda: 0} if fails else state


def is_at(state: dict[str, Any], step: int) -> bool:
    return all(torch.equal(value, state_at(step)[name]) for name, value in state.items())


def error_of(action: Callable[[], Any]) -> str:
    """The error's class, and what failed on which rank."""
    try:
        action()
    except CheckpointException as error:
        return f"CheckpointException of {sorted(error.failures)}"
    except Exception as error:
        return type(error).__name__
    return ""


def saves_and_resumes(folder: Path) -> Any:
    """FSDP2, in each mode; each with a resume by a new manager."""
    found: dict[str, Any] = {}
    for mode in (False, "thread", "process"):
        run = folder / f"saves {mode}"
        wanted = {step: sharded_state(step, steps=step) for step in (1, 2, 3)}
        with CheckpointManager(run, async_save=mode, save=1, keep=2) as manager:
            found[f"{mode} fresh"] = manager.resume(sharded_state(9))
            for step, state in wanted.items():
                assert manager.should_save(step)
                manager.save(step, state, metrics={"loss": float(step)})
        state = sharded_state(9)
        with CheckpointManager(run) as manager:
            found[f"{mode} resumed"] = manager.resume(state)
        found[f"{mode} equal"] = _flat(state) == _flat(wanted[3])
        found[f"{mode} left"] = complete(run)
        dist.barrier()
    return found


def _flat(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _flat(value) for name, value in state.items()}
    if isinstance(state, torch.Tensor):
        return (state.to_local() if hasattr(state, "to_local") else state).tolist()  # type: ignore[operator]
    return state


def failing_saves(folder: Path) -> Any:
    """One rank or the other fails: both raise it, at the same step, and the next save works."""
    found: dict[str, Any] = {}
    for mode in (False, "thread"):
        run = folder / f"fails {mode}"
        with CheckpointManager(run, async_save=mode, save=1) as manager:
            raised = []
            for step in range(1, 7):

                def train(step: int = step) -> None:
                    fails = {2: 1, 4: 0}.get(step) == dist.get_rank()
                    if manager.should_save(step):
                        manager.save(step, state_at(step, fails=fails))

                if error := error_of(train):
                    raised.append(f"{step}: {error}")
                if mode:  # so that it is known at the next step which save failed
                    for saving in manager._saving:
                        saving.future.exception(240)
            state = state_at(0)
            found[f"{mode} resumed"] = manager.resume(state), is_at(state, 6)
            found[f"{mode} raised"] = raised
        found[f"{mode} left"] = complete(run)
        dist.barrier()
    return found


def busy(folder: Path) -> Any:
    """One rank is slower than the other; which saves are left out is the same on both."""
    put = LocalStorage.put

    def slow(storage: Storage, name: str, *arguments: Any, **options: Any) -> None:
        if name == ".metadata":
            time.sleep(0.3)
        put(storage, name, *arguments, **options)

    LocalStorage.put = slow  # type: ignore[method-assign]
    saved = []
    try:
        with CheckpointManager(folder / "busy", async_save=True, save=1, when_busy="skip", in_flight=2) as manager:
            for step in range(1, 40):
                time.sleep(0.02 * dist.get_rank())
                if manager.should_save(step, last=step == 39):
                    saved.append(step)
                    manager.save(step, state_at(step))
    finally:
        LocalStorage.put = put  # type: ignore[method-assign]
    dist.barrier()
    return {"saved": saved, "there": [int(name[5:]) for name in complete(folder / "busy")]}


def damaged(folder: Path) -> Any:
    """The newest one is damaged; then one rank alone cannot read the next one; then all are damaged."""
    rank, run = dist.get_rank(), folder / "damaged"
    found: dict[str, Any] = {}
    with CheckpointManager(run) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_at(step))
    dist.barrier()
    if rank == 0:
        damage(run / "step-3")
    dist.barrier()

    def resume() -> Any:
        state = state_at(0)
        with CheckpointManager(run) as manager:
            step = manager.resume(state)
        return step, is_at(state, step or 0)

    found["fell back"] = resume()
    make = CheckpointManager._make_reader

    def lost(manager: CheckpointManager, path: Any, **options: Any) -> Any:
        reader = make(manager, path, **options)
        if str(path).endswith("step-2") and rank == 1:
            reader.read_data = fails_with(FileNotFoundError, 2, "gone", str(path))  # type: ignore[method-assign, assignment]
        return reader

    CheckpointManager._make_reader = lost  # type: ignore[method-assign]
    try:
        found["one rank fails"] = resume()
    finally:
        CheckpointManager._make_reader = make  # type: ignore[method-assign]
    dist.barrier()
    if rank == 0:
        damage(run / "step-1")
        damage(run / "step-2")
    dist.barrier()
    found["all damaged"] = error_of(resume) == NoCheckpointError.__name__
    holds = run / ".streamxf" / "holds"
    dist.barrier()
    found["holds"] = [file.name for file in holds.iterdir()]
    return found


def error_in_the_block(folder: Path) -> Any:
    """An exception on one rank only ends its block; saves in the background that both began are complete."""
    run = folder / "block"

    def train() -> None:
        with CheckpointManager(run, async_save=True, keep=Retention(last=1)) as manager:
            manager.should_save(1)
            manager.save(1, state_at(1))
            if dist.get_rank() == 1:
                raise ZeroDivisionError

    error = error_of(train)
    dist.barrier()
    return {"error": error, "left": complete(run)}


def announced(folder: Path) -> Any:
    """What cannot be announced is an error on both ranks."""
    found: dict[str, Any] = {}
    run = folder / "announced"
    with CheckpointManager(run) as manager:
        path = Path(manager.begin(1))
        if dist.get_rank() == 0:
            path.mkdir(exist_ok=True)
        dist.barrier()
        (path / f"part {dist.get_rank()}").write_bytes(b"weights")
        found["before"] = manager.latest()
        manager.commit(1, metrics={"loss": 1.0})
        found["after"] = Path(manager.latest() or "").name
        note = Housekeeper._note
        Housekeeper._note = fails_with(PermissionError, 13, "Permission denied")  # type: ignore[method-assign, assignment]
        try:
            found["refused"] = error_of(lambda: manager.begin(2))
        finally:
            Housekeeper._note = note  # type: ignore[method-assign]
    return found


def folders_of_their_own(folder: Path) -> Any:
    """Each rank, or each host, has another disk, or another name for the same folder."""
    rank, found = dist.get_rank(), {}
    (folder / "one").mkdir(exist_ok=True)
    if rank == 0:
        (folder / "link").symlink_to("one")
    dist.barrier()
    places = {"two folders": folder / f"disk {rank}", "two names": folder / ("one", "link")[rank]}
    for case, run in [*places.items(), ("two hosts", folder / f"host {rank}" / "run")]:
        run.mkdir(parents=True, exist_ok=True)
        with CheckpointManager(run) as manager, ExitStack() as patches:
            if case == "two hosts":  # with one path, as each of them shows it
                patches.enter_context(mock.patch("socket.gethostname", return_value=f"node{rank}"))
                patches.enter_context(mock.patch.object(agreement.Mount, "machine", return_value=f"node{rank}"))
            for call in (lambda: manager.save(1, state_at(1)), lambda: manager.begin(2)):
                try:
                    call()
                    found[case] = "saved"
                except ParameterError as error:
                    found[case] = error.message
        dist.barrier()
        found[f"{case} left"] = sorted(path.name for path in run.rglob("*"))
    return found


def digested(folder: Path) -> Any:
    """Each rank knows the digest of the file that it has written in the background."""
    run = folder / "digested"
    with CheckpointManager(run) as manager:
        path = Path(manager.begin(1))
        dist.barrier()
        file = f"part {dist.get_rank()}"
        (path / file).write_bytes(file.encode())
        saved: Future[None] = Future()
        manager.commit(1, after=saved, digests={file: sha256(file.encode()).hexdigest()})
        saved.set_result(None)
        manager.wait()
        dist.barrier()
        content = Note.parse((path / COMMIT).read_bytes()).content
    return {each["path"]: each.get("sha256") == sha256(each["path"].encode()).hexdigest() for each in content["files"]}


def increments(folder: Path) -> Any:
    """FSDP2, of which an optimizer's state is frozen, in each mode; then over a resume. What is shared, and loads."""
    found: dict[str, Any] = {}
    for mode in (False, "thread", "process"):
        run = folder / f"increments {mode}"
        frozen = torch.arange(6000.0) + dist.get_rank()
        wanted = {step: {**sharded_state(step), f"own {dist.get_rank()}": frozen} for step in (1, 2, 3, 4)}
        with CheckpointManager(run, async_save=mode, incremental=3) as manager:
            for step, state in wanted.items():
                manager.save(step, state)
                manager.wait()
        dist.barrier()
        shared = [sum(file.stat().st_nlink > 1 for file in (run / f"step-{step}").iterdir()) for step in wanted]
        equal = []
        for step, saved in wanted.items():
            state = {**sharded_state(9), f"own {dist.get_rank()}": torch.zeros(6000)}
            with CheckpointManager(run) as manager:
                equal.append(manager.resume(state, step=step) == step and _flat(state) == _flat(saved))
        found[str(mode)] = [shared, equal]
        dist.barrier()
    return found
