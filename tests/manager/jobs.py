"""Jobs that tests start as processes: modules beside this one, which say in a file what they do."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.cli import preloaded
from tests.polling import wait_until


class Job:
    """A job and what it says; its processes are a group, which is killed at the end."""

    def __init__(self, module: str, folder: Path, *how: str) -> None:
        self.run, self.said = folder / "run", folder / "said"
        self.said.touch()
        self.errors = (folder / "errors").open("w+b")
        code = f"import runpy; runpy.run_module('tests.manager.{module}', run_name='__main__', alter_sys=True)"
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1"}
        streams = (0, 1, self.errors.fileno())
        self.process = preloaded.start(["-c", code, self.run, self.said, *how], streams, environment=environment)

    def wait_for(self, text: str) -> int:
        """The process that said it."""
        wait_until(lambda: text in self.said.read_text() or self.process.poll() is not None)
        assert text in self.said.read_text(), self.failure()
        return int(self.said.read_text().partition(text)[2].split()[0])

    def tell(self, *signals: int) -> None:
        for number in signals:
            os.killpg(self.process.pid, number)

    def ends(self) -> None:
        wait_until(lambda: self.process.poll() is not None)
        assert self.process.returncode == 0, self.failure()

    def failure(self) -> str:
        return os.pread(self.errors.fileno(), 2**16, 0).decode()[-2000:]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.tell(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.errors.close()
