"""The process in which saves go wrong, for all tests of this folder."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .runner import Runner
from .shim import compiler

Try = Callable[..., dict[str, Any]]

BAD = ("unloadable", "mixed", "corrupt", "false_success", "hung", "disagree", "unclean")


@pytest.fixture(scope="package")
def runner() -> Iterator[Runner]:
    if compiler() is None:
        pytest.skip("the library under the writer needs Linux and a C compiler")
    with Runner() as started:
        yield started


@pytest.fixture
def attempt(runner: Runner) -> Try:
    """Run a job; the arguments are those of `jobs.Job`, and the options of its row."""

    def run(row: str, layout: str, chain: str = "full", **rest: Any) -> dict[str, Any]:
        own = {name: rest.pop(name) for name in ("first", "mutant", "change") if name in rest}
        found = runner.run(row=row, layout=layout, chain=chain, **own, options=rest)
        if "skipped" in found:
            pytest.skip(found["skipped"])
        return found

    return run


@pytest.fixture
def passes(attempt: Try) -> Try:
    """Run a job in which nothing may be lost, something must have gone wrong at `at_least` points, and each of the
    outcomes that `shows` names was there.
    """

    def run(*arguments: Any, at_least: int, shows: str = "", **rest: Any) -> dict[str, Any]:
        found = attempt(*arguments, **rest)
        assert {name: found[name] for name in BAD} == dict.fromkeys(BAD, 0), found["examples"]
        assert found["points"] >= at_least, found
        assert all(found[name] > 0 for name in shows.split()), found
        return found

    return run
