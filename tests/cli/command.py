"""The command ``streamxf``, run in this process: what it returns, and what it prints."""

import json
from collections.abc import Callable
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


Run = Callable[..., Done]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command with its arguments."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return run
