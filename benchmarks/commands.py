"""Commands that look at whole checkpoints of very many small items, as processes: seconds and memory. Linux only."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamxf
from benchmarks.child import in_child
from benchmarks.harness import MIB, Settings, progress
from benchmarks.memory import need_proc
from benchmarks.result import Result, Row, Table
from benchmarks.simulated import plan, sent, states, write
from benchmarks.spread import Spread

RANKS, SMOKE_RANKS = 64, 4
ITEMS, SMOKE_ITEMS = (10_000, 100_000), (400,)
MAX_ROUNDS = 3  # a round takes minutes
FIRST, SECOND, OTHER = "first", "second", "other"
CHAINS = {FIRST: "floatzip+checksum", SECOND: "zstd:level=1", OTHER: "floatzip+checksum"}
COMMANDS: dict[str, tuple[list[str], int]] = {
    "--help": (["--help"], 0),
    "inspect": (["inspect", FIRST], 0),
    "inspect --tree": (["inspect", FIRST, "--tree"], 0),
    "inspect --json --items": (["inspect", FIRST, "--json", "--items"], 0),
    "verify": (["verify", FIRST], 0),
    "diff, the same values through another chain": (["diff", FIRST, SECOND], 0),
    "diff, other values everywhere": (["diff", FIRST, OTHER], 1),
}
"""Arguments, and the exit code."""


def run(settings: Settings) -> Result:
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    AssertionError
        If a command ends otherwise than it should.
    """
    need_proc()
    rows: list[Row] = []
    for items in settings.pick(ITEMS, SMOKE_ITEMS):
        folder = settings.folder / "commands"
        folder.mkdir()
        progress(f"commands: {items:,} items")
        ranks = settings.pick(RANKS, SMOKE_RANKS)
        in_child("benchmarks.commands", "child", folder=str(folder), items=items, ranks=ranks)
        for name, (arguments, code) in COMMANDS.items():
            measured = [_measure(folder, arguments, code) for _ in range(min(settings.rounds, MAX_ROUNDS))]
            rows.append(
                {
                    "command": name,
                    "items": items,
                    "seconds": Spread.of([seconds for seconds, _ in measured]),
                    "MiB of the process": Spread.of([peak / MIB for _, peak in measured]),
                }
            )
        shutil.rmtree(folder)
    note = (
        f"Checkpoints as under *Very many items*: by {settings.pick(RANKS, SMOKE_RANKS)} ranks, an item is one shard "
        "of 4 x 8 bf16, three quarters of them belong to tensors that lie on all ranks, and one in a hundred of the "
        f"others is an object. Their chain is {CHAINS[FIRST]}; that of the one beside it in a `diff` {CHAINS[SECOND]}, "
        "or the same with other values. Seconds are those of a whole process, from its start to its end, and memory is "
        "its peak; `--help` shows what of that is Python's."
    )
    return Result("commands", "Commands on very many items", note, [Table(rows, digits=2)])


def _measure(folder: Path, arguments: Sequence[str], code: int) -> tuple[float, int]:
    """Seconds, and bytes at the peak, of a process that runs a command."""
    paths = [str(folder / argument) if argument in CHAINS else argument for argument in arguments]
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _RUN, *paths], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds = time.perf_counter() - begin
    if done.returncode != code:
        raise AssertionError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode()}")
    return seconds, int(done.stderr.split()[-1]) * 1024


_RUN = """
import sys
from streamxf.cli.__main__ import main
code = main(sys.argv[1:])
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:')), file=sys.stderr)
sys.exit(code)
"""


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, items: int, ranks: int) -> None:
    """Save the checkpoints."""
    for name, chain in CHAINS.items():
        state = states(items, ranks)
        if name == OTHER:
            _change(state)
        extensions = list(streamxf.Chain.parse(chain))

        def writer(path: Path, extensions: list[Any] = extensions) -> Any:
            return streamxf.FileSystemWriter(path, sync_files=False, _extensions=extensions)

        planned = plan(Path(folder) / name, state, writer, collectives=True)
        planned.writers[0].finish(planned.metadata[0], sent(write(planned)))


def _change(state: list[dict[str, Any]]) -> None:
    """Give every tensor other values; all of them are one tensor, or shards of it."""
    held = next(iter(state[0].values()))
    data = getattr(held, "data", held)
    data.add_(1)
