"""Lines for bash, run at a terminal of 80 columns in a folder of their own."""

import fcntl
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cli import preloaded

COLUMNS = 80
ROWS = 50


@dataclass(frozen=True)
class Typed:
    """A line, and what came of it."""

    line: str
    shown: str
    code: int


class Shell:
    """Runs lines in `folder`, where ``streamxf`` is the command of this interpreter.

    Parameters
    ----------
    folder : Path
        Not there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        command = folder / "bin" / "streamxf"
        run = shlex.join([sys.executable, "-I", "-S", preloaded.__file__])
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {run} "$@"\n')
        command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMXF_")}
        self._environment = kept | {
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": str(COLUMNS),
            "LANG": "C.UTF-8",
        }
        self._environment.pop("NO_COLOR", None)
        self._descriptor, variables = preloaded.inherited()
        self._environment |= variables

    def run(self, line: str, colours: bool = False) -> Typed:
        """Run a line to its end, in a terminal that has `colours` or none."""
        ours, theirs = pty.openpty()
        try:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            process = subprocess.Popen(
                ["bash", "--norc", "-c", line],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                cwd=self.folder,
                env=self._environment | {"TERM": "xterm-256color" if colours else "dumb"},
                start_new_session=True,
                pass_fds=[self._descriptor],
            )
            os.close(theirs)
            shown = b""
            with suppress(OSError):  # Linux's word for the end
                while more := os.read(ours, 65536):
                    shown += more
            return Typed(line, shown.decode().replace("\r\n", "\n"), process.wait())
        finally:
            os.close(ours)
