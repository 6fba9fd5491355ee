"""A real file system that is too small."""

from __future__ import annotations

import pytest

from .conftest import Try


@pytest.mark.parametrize("chain", ["none", "full"])
def test_less_and_less_room(passes: Try, chain: str) -> None:
    found = passes("full_disk", "4 threads, 4 MiB", chain, levels=6, at_least=6)
    assert found["old"] > 0
    assert found["new"] > 0


def test_nobody_tells_how_much_room_there_is(passes: Try) -> None:
    """So that the disk is really full in the middle of the save."""
    mutant = "nobody tells how much room there is"
    found = passes("full_disk", "4 threads, 4 MiB", "none", mutant=mutant, levels=6, at_least=6)
    assert found["old"] > 0
    assert found["new"] > 0


def test_the_first_save(passes: Try) -> None:
    found = passes("full_disk", "4 threads, 4 MiB", first=True, levels=4, at_least=4)
    assert found["nothing"] > 0
    assert found["new"] > 0
