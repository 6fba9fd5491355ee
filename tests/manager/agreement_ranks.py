"""What each rank does in the tests with several ranks. Every function here runs in a process of its own."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from streamxf.errors import ParameterError, WrongKeyError
from streamxf.manager import agreement as agreement_module
from streamxf.manager.agreement import Agreement, Flags
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.signals import StopSignals
from tests.dcp.process_groups import join_group

SHORT = timedelta(seconds=3)


def told(flags: Flags) -> list[Any]:
    return [flags.due, flags.stop, flags.finished]


def one_step_late(folder: Path) -> Any:
    """Rank 0's clock finds a save due at step 2, as does the clock of another rank at step 4, which nobody asks."""
    agreement, rank = Agreement(), dist.get_rank()
    found = [told(agreement.exchange(step, due=step == (2 if rank == 0 else 4))) for step in range(1, 7)]
    agreement.close()
    return found


def due_until_saved(folder: Path) -> Any:
    """A save stays due by the clock until it is made, in the step after the one that found it due."""
    agreement, rank, saved = Agreement(), dist.get_rank(), []
    for step in range(1, 8):
        due = rank == 0 and not saved and step >= 3
        if agreement.exchange(step, due=due).due:
            saved.append(step)
    agreement.close()
    return saved


def due_when_saving_anyway(folder: Path) -> Any:
    """What is found due in a step that saves anyway asks for no other save."""
    agreement = Agreement()
    found = [told(agreement.exchange(step, due=step in (2, 3), wait=step == 3)) for step in range(1, 6)]
    agreement.close()
    return found


def stopped_by_one(folder: Path) -> Any:
    """The last rank gets a signal in step 3; all others learn of it at the same step, and it stays."""
    agreement, last = Agreement(), dist.get_rank() == dist.get_world_size() - 1
    signals = StopSignals((signal.SIGTERM,))
    found = []
    for step in range(1, 7):
        if last and step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        found.append(told(agreement.exchange(step, stop=signals.requested))[1])
    signals.close()
    agreement.close()
    return found


def stopped_in_a_step_that_waits(folder: Path) -> Any:
    agreement, last = Agreement(), dist.get_rank() == dist.get_world_size() - 1
    found = [told(agreement.exchange(step, stop=last and step >= 3, wait=step == 3))[1] for step in range(1, 5)]
    agreement.close()
    return found


def finished_on_all(folder: Path) -> Any:
    """Each rank's save is finished at a step of its own; it counts when the slowest one's is."""
    agreement, rank = Agreement(), dist.get_rank()
    found = [told(agreement.exchange(step, finished=step // (rank + 1)))[2] for step in range(1, 7)]
    agreement.close()
    return found


def long_steps(folder: Path) -> Any:
    """Where rank 0's steps are long, all wait for the answer, so that a signal counts at the end of its own step."""
    agreement, rank = Agreement(), dist.get_rank()
    agreement.exchange(1)
    agreement._called -= 100 if rank == 0 else 0  # as if the step had taken so long
    agreement.exchange(2)
    found = [told(agreement.exchange(3, due=rank == 0, stop=rank == 1)), told(agreement.exchange(4))]
    agreement.close()
    return found


def different_steps(folder: Path) -> Any:
    """At the third call the last rank is a step ahead; rank 0 is about to save there, and must not."""
    return about_to_save(10, 12, ahead=dist.get_rank() == dist.get_world_size() - 1)


def different_schedules(folder: Path) -> Any:
    """Rank 0 alone is about to save at step 2; it is told before it does."""
    return about_to_save(1, 2)


def about_to_save(first: int, at: int, ahead: bool = False) -> Any:
    """Which steps are done, of those to `at` and one more, and why no others are; from `at` on a rank may be ahead."""
    agreement, rank = Agreement(), dist.get_rank()
    done = []
    try:
        for step in range(first, at + 2):
            agreement.exchange(step + (ahead and step >= at), wait=rank == 0 and step == at)
            done.append(step)
    except ParameterError as error:
        return {"done": done, "error": str(error)}
    finally:
        agreement.close()
    return {"done": done}


def messages(folder: Path) -> Any:
    """Rank 0's answer, and rank 0's error, on every rank, with an exchange under way."""
    agreement, rank = Agreement(), dist.get_rank()
    calls = []

    def answer() -> dict[str, Any]:
        calls.append(rank)
        return {"name": "step-7", "from": rank}

    def fail() -> None:
        raise WrongKeyError("no key opens it", file="step-7/.metadata")

    agreement.exchange(1, finished=5)
    got = agreement.broadcast(answer)
    try:
        agreement.broadcast(fail)
    except WrongKeyError as error:
        got["error"] = [str(error), error.file]
    got["everywhere"] = agreement.everywhere(lambda: time.sleep(rank) or rank)
    try:
        agreement.everywhere(fail if rank == 1 else answer)
    except WrongKeyError as error:
        got["error everywhere"] = str(error)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which may be ignored where tests run
    try:
        agreement.broadcast(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60))
    except KeyboardInterrupt as error:
        got["interrupted"] = type(error).__name__
    got["calls"] = calls
    got["finished"] = agreement.exchange(2).finished
    agreement.close()
    return got


def part_of_the_ranks(folder: Path) -> Any:
    """Two halves of the job agree apart, and a rank alone at once; nobody else takes part."""
    rank, size = dist.get_rank(), dist.get_world_size()
    halves = [dist.new_group(list(range(size // 2))), dist.new_group(list(range(size // 2, size)))]
    mine, other = halves if rank < size // 2 else halves[::-1]
    agreement = Agreement(mine)
    got: dict[str, Any] = {"place": [agreement.rank, agreement.size], "from": agreement.broadcast(dist.get_rank)}
    agreement.exchange(1, stop=rank == 0)
    got["stop"] = agreement.exchange(2).stop
    agreement.close()
    try:
        Agreement(other)
    except ParameterError as error:
        got["error"] = str(error)
    alone = [dist.new_group([number]) for number in range(size)][rank]
    single = Agreement(alone)
    got["alone"] = [single.rank, single.size, told(single.exchange(1, due=True, stop=True, finished=2))]
    single.close()
    return got


def managers_of_some_ranks(folder: Path) -> Any:
    """All but the last of four train, one manager after the other; rank 0 has groups of its own besides."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = list(range(max(2, size - 1)))
    trainers, found = dist.new_group(ranks), []
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    for step in range(1, 4):
        if rank in ranks:
            with CheckpointManager(folder / "some", process_group=trainers) as manager:
                found.append(manager.resume({"step": 0}))
                manager.save(step, {"step": step})
    dist.barrier()
    return found


def closed_after_the_job(folder: Path) -> Any:
    """The group of all ranks is gone before: there is nothing to give back."""
    agreement = Agreement()
    agreement.exchange(1, finished=1)
    dist.barrier()
    store = dist.FileStore(str(folder / "again"), dist.get_world_size())
    place = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    dist.destroy_process_group()
    agreement.close()
    agreement.close()
    dist.init_process_group("gloo", store=store, **place)  # for what comes after
    return "closed"


# -- ranks that end --------------------------------------------------------------------------------


def alone(rank: int, count: int, meeting: str, folder: str, scenario: str) -> None:
    """Run a scenario in which ranks end, each on its own."""
    join_group(rank, count, meeting)
    found = globals()[scenario]()
    (Path(folder) / f"ended {rank}.json").write_text(json.dumps(found))
    os._exit(0)  # what torch does when ranks leave one another is not the subject


def one_is_killed() -> Any:
    agreement, rank = Agreement(), dist.get_rank()
    try:
        for step in range(1, 1000):
            if step == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            agreement.exchange(step)
            time.sleep(0.01)
    except RuntimeError as error:
        agreement.close(failed=True)
        return {"error": str(error)}
    return "nothing noticed"


def one_hangs() -> Any:
    agreement, rank = Agreement(timeout=SHORT), dist.get_rank()
    if rank == 1:
        dist.barrier()  # in which rank 0 joins when it has given up
        return "was there"
    agreement.exchange(1)
    try:
        agreement.exchange(2)
    except RuntimeError as error:
        agreement.close(failed=True)
        dist.barrier()
        return {"error": str(error)}
    return "nothing noticed"


def one_fails_early() -> Any:
    """Rank 1 has posted a step to which the others never come: they wait for rank 1 in training."""
    agreement, rank = Agreement(), dist.get_rank()
    if rank == 1:
        agreement.exchange(1)
        with (
            mock.patch.object(agreement_module, "PATIENCE", timedelta(seconds=1)),
            mock.patch.object(agreement_module._log, "warning") as warning,
        ):
            agreement.close(failed=True)
        return {"logged": warning.call_count == 1}
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        return {"error": str(error)}
    return "nothing noticed"
