"""The command ``streamxf``, run in this process: what it returns, and what it prints."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from streamxf.cli.__main__ import main


@dataclass(frozen=True)
class Done:
    """A command that is over."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Run:
    """Runs commands with their arguments."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Done:
        self._capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *self._capsys.readouterr())

    def exits(self, code: int, *arguments: object, out: str | None = None, err: str | None = None) -> Done:
        """Run a command that must exit with `code`, and print `out` and `err` where these are given."""
        done = self(*arguments)
        wanted = Done(code, done.out if out is None else out, done.err if err is None else err)
        assert done == wanted, (done, wanted)
        return done
