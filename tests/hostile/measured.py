"""Each tool on each of the `LARGE` inputs that are named, in a process of its own. As a program it prints a line of
JSON for each: what came of it, and what it took.
"""

import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from streamxf.cli.__main__ import main as streamxf_command
from streamxf.errors import StreamxfError
from tests.hostile.made import GIB, LARGE
from tests.hostile.tools import Tool, tools_for

ADDRESS_SPACE = 8 * GIB  # more than now: what runs away ends with an error, and not with the machine
CPU_SECONDS = 240  # of one tool, where the slowest takes five: what runs away ends
FILE_SIZE = 2 * GIB
LEFT_OUT = {  # what does no more than others that are here
    "$ inspect --tree --depth 2",
    "$ diff",
    "$ verify",
    "$ salvage",
    "clean",
    "recipients",
    "unpack to a folder",
}


def main(names: list[str]) -> None:
    with redirect_stdout(io.StringIO()):  # what it imports is then shared by all that follow
        streamxf_command(["codecs"])
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "in").mkdir()
            path = LARGE[name](Path(folder) / "in")
            stored = sum(512 * file.stat().st_blocks for file in (Path(folder) / "in").iterdir())
            for label, tool in tools_for(path).items():
                if label in LEFT_OUT:
                    continue
                scratch = Path(folder) / "scratch"
                scratch.mkdir()
                outcome = _apart(tool, path, scratch)
                shutil.rmtree(scratch)
                print(json.dumps([name, label, stored, *outcome]), flush=True)


def _apart(tool: Tool, path: Path, scratch: Path) -> list[Any]:
    """What comes of it, bytes that it took more at its peak, and bytes that it printed."""
    report, back = os.pipe()
    child = os.fork()
    if not child:
        os.close(report)
        os.write(back, json.dumps(_outcome(tool, path, scratch)).encode())
        os._exit(0)
    os.close(back)
    with os.fdopen(report, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return list(json.loads(said)) if said else [f"killed: {status}", 0, 0]


def _outcome(tool: Tool, path: Path, scratch: Path) -> tuple[str | None, int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    printed = scratch.with_name("printed")
    with printed.open("wb") as out:
        sys.stdout.flush()
        os.dup2(out.fileno(), 1)
    before = _peak()
    try:
        tool(path, scratch)
        sys.stdout.flush()
        failed = None
    except StreamxfError:
        failed = None
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"[:2000]
    return failed, _peak() - before, printed.stat().st_size


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
