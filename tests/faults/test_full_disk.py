"""A real file system that is too small."""

from __future__ import annotations

import pytest

from .conftest import Try


@pytest.mark.parametrize("chain", ["none", "full"])
def test_less_and_less_room(passes: Try, chain: str) -> None:
    found = passes("full_disk", "4 threads, 4 MiB", chain, levels=6, at_least=6)
    assert found["old"] > 0
    assert found["new"] > 0


def test_the_first_save(passes: Try) -> None:
    found = passes("full_disk", "4 threads, 4 MiB", first=True, levels=4, at_least=4)
    assert found["nothing"] > 0
    assert found["new"] > 0
