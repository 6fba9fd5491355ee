"""The fixtures `row` and `small`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamxf import ZStandard
from tests.dcp.helpers import full_chain

from .rows import MEMORY, Row
from .targets import KINDS, Checkpoint


@pytest.fixture
def small(request: pytest.FixtureRequest, checkpoint: Path) -> Checkpoint:
    """One of `KINDS`; `on` says which."""
    return Checkpoint(checkpoint, **KINDS[request.param])


@pytest.fixture(params=["sample", pytest.param("all", marks=pytest.mark.exhaustive)])
def row(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Row]:
    """The row that the test's file stands for; the file says if a case may take more memory than 16 MiB."""
    tried = Row(request.module.ROW, getattr(request.module, "MEBIBYTES", 16), request.param == "all")
    yield tried
    assert tried.cases, "a row without a case shows nothing"
    record_property("row", tried.name)
    for name in ("cases", "silent", "seconds", *(["mebibytes"] if MEMORY.known else [])):
        record_property(name, getattr(tried, name))


@pytest.fixture(params=["full chain", "unkeyed"])
def chain(request: pytest.FixtureRequest) -> list[Any]:
    return full_chain() if request.param == "full chain" else [ZStandard(), *request.module.UNKEYED]
