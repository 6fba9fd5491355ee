"""A terminal for another process: a pseudo-terminal, and what would stand on its screen."""

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TOKEN = re.compile(r"\x1b\[(?P<args>[0-9;?]*)(?P<final>[A-Za-z])|(?P<char>[\r\n])|(?P<text>[^\x1b\r\n]+)")


class Terminal:
    """A process whose stderr is a terminal of 80 columns.

    Attributes
    ----------
    process : Popen
    written : str
        What was read from it so far.
    """

    def __init__(self, process: subprocess.Popen[str], master: int) -> None:
        self.process = process
        self.written = ""
        self._master = master

    def read_until(self, text: str) -> None:
        """Wait until the screen has shown `text`, however its colours part it."""
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written):
            assert self._read(), f"the process ended before it showed {text!r}: {self.written!r}"

    def read_until_cursor(self) -> None:
        """Wait until the cursor is seen."""
        while not self.has_cursor:
            assert self._read(), f"the process ended without a cursor: {self.written!r}"

    def go_on(self) -> None:
        """Let the process go on, which waits for a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for the end of the process; gives its exit status."""
        while self._read():
            """All of it is wanted."""
        return self.process.wait(60)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 2**16)
        except OSError:  # EIO: the other end is closed
            return False
        self.written += data.decode()
        return bool(data)

    @property
    def screen(self) -> list[str]:
        """The lines that stand there, as far as they are not empty."""
        lines, row, column = [""], 0, 0
        for token in _TOKEN.finditer(self.written):
            if token["char"] == "\r":
                column = 0
            elif token["char"] == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif token["text"]:
                text = token["text"]
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
            elif token["final"] == "A":
                row -= int(token["args"] or 1)
            elif token["final"] == "K":
                assert token["args"] == "2"
                lines[row] = ""
            else:
                assert token["final"] in "mhl", token
        return [line.rstrip() for line in lines if line.strip()]

    @property
    def has_cursor(self) -> bool:
        """Whether the cursor is seen."""
        return self.written.rfind("\x1b[?25h") >= self.written.rfind("\x1b[?25l")


@contextmanager
def terminal(code: str, **environment: str) -> Iterator[Terminal]:
    """Run Python code whose stderr is a terminal, and whose stdin `Terminal.go_on` writes to."""
    import fcntl
    import pty
    import termios

    master, slave = pty.openpty()
    try:
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", code],
                stdin=subprocess.PIPE,
                stderr=slave,
                text=True,
                env={**os.environ, "TERM": "xterm", **environment},
            )
        finally:
            os.close(slave)
        with process:
            try:
                yield Terminal(process, master)
            finally:
                process.kill()
    finally:
        os.close(master)
