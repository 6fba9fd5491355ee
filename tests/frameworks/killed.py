"""Examples of docs/examples/ as processes: run to the end, or killed on the way and started again."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import streamxf
from tests.cli import preloaded

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SECONDS = 300

WAITING = Path(__file__).parent / "waiting.py"
COPIED = Path(__file__).parent / "copied.py"
IMPORTS = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.launcher.api")
COMMIT = "streamxf.manager.manager:CheckpointManager.commit"
SHOULD_SAVE = "streamxf.manager.manager:CheckpointManager.should_save"


def two_ranks(*command: str | Path) -> list[str | Path]:
    """A script and its arguments under torchrun."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **variables}


def copies(count: int = 1) -> list[str | Path]:
    """A script and its arguments in a process that has imported torch before it begins, or in ranks that have."""
    return [COPIED, str(count)]


def started(command: list[str | Path], **variables: str) -> Any:
    """A process whose output can be read."""
    if command[0] != COPIED:
        return subprocess.Popen(command, env=environment(**variables), stdout=subprocess.PIPE, text=True)
    reading, writing = os.pipe()
    code = f"import runpy; runpy.run_path({str(COPIED)!r}, run_name='__main__')"
    process: Any = preloaded.start(
        ["-c", code, *command[1:]], (0, writing, 2), environment=environment(**variables), imports=IMPORTS
    )
    os.close(writing)
    process.stdout = os.fdopen(reading)
    return process


@contextmanager
def running(command: list[str | Path], **variables: str) -> Iterator[Any]:
    """A process that is killed at the end with its descendants, all at once."""
    process = started(command, **variables)
    late = threading.Timer(SECONDS, kill, (process.pid,))  # which ends its output, too
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        if process.poll() is None:
            kill(process.pid)
        process.stdout.close()
        process.wait()


def finished(command: list[str | Path], **variables: str) -> list[str]:
    """The lines that a process prints until it ends by itself."""
    with running(command, **variables) as process:
        printed: str = process.stdout.read()
        assert process.wait() == 0, printed
    return printed.splitlines()


def killed_at(line: str, command: list[str | Path], **variables: str) -> None:
    """Kill a process and its descendants, all at once, when it has printed a line that begins so."""
    with printing(line, command, **variables):
        """It is killed now."""


@contextmanager
def printing(line: str, command: list[str | Path], **variables: str) -> Iterator[Any]:
    """A process that has printed a line that begins so. It and its descendants are killed at the end, all at once."""
    with running(command, **variables) as process:
        assert any(printed.startswith(line) for printed in process.stdout), f"it has not printed {line!r}"
        yield process


def kill(pid: int) -> None:
    """Kill a process and its descendants. torchrun gives every rank a session of its own, so a group would not do."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
        children = " ".join(tasks.read_text() for tasks in Path(f"/proc/{pid}/task").glob("*/children"))
        os.kill(pid, signal.SIGKILL)
        for child in children.split():
            kill(int(child))


def losses(lines: list[str]) -> dict[str, str]:
    """What was printed after each step."""
    steps = (line.split() for line in lines if line.startswith("step "))
    return {words[1]: words[-1] for words in steps}


def assert_resumes(folder: Path, command: list[str | Path], **variables: str) -> Path:
    """Run a training of 12 steps that saves at every third, in one go, and killed after step 7; returns the folder of
    the second run. `command` is called with a run's folder.
    """
    whole = losses(finished([*command, folder / "whole"], **variables))
    assert [*whole] == [str(step) for step in range(1, 13)]
    killed_at("step 7 ", [*command, folder / "killed"], **variables)
    lines = finished([*command, folder / "killed"], **variables)
    resumed = losses(lines)
    first = int(next(iter(resumed)))
    assert any(line.startswith("resumed from ") for line in lines)
    assert 7 <= first <= 10, "it began at the last save before it was killed"
    assert resumed == {step: loss for step, loss in whole.items() if int(step) >= first}
    return folder / "killed"


def assert_managed(
    folder: Path,
    launcher: list[str | Path],
    script: list[str | Path],
    *,
    saving: str = COMMIT,
    inside: str = "",
    told: list[str | Path] | None = None,
    **variables: str,
) -> Path:
    """The same of one with a `CheckpointManager`: killed in its second save, where `saving` is called; and then told by
    SIGTERM to end, in its fourth step from there, by a launcher of its own if `told` is one. Returns the manager's
    folder, which is `inside` that of the run.
    """
    whole = losses(finished([*launcher, *script, folder / "whole"], **variables))
    assert [*whole] == [str(step) for step in range(1, 13)]
    run = folder / "managed"
    killed_at("waiting", [*launcher, WAITING, saving, "2", *script, run], **variables)
    with printing("waiting", [*(told or launcher), WAITING, SHOULD_SAVE, "4", *script, run], **variables) as process:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()  # until it has ended
    saved = streamxf.list_checkpoints(run / inside)[-1]
    assert saved.complete
    assert saved.step in (7, 8), "it resumed from 3, and saved when it was told to end, or a step later"
    lines = finished([*launcher, *script, run], **variables)
    assert any(line.startswith("resumed from ") and str(saved.step) in line for line in lines)
    assert losses(lines) == {step: loss for step, loss in whole.items() if int(step) > saved.step}
    return run / inside
