"""Saves and loads in which calls fail, disks fill up, processes are killed and what was not synced is lost: the old
checkpoint loads afterwards, or the new one, whole; and the new one once the save returned.
"""

from collections.abc import Callable

import pytest

from tests.dcp.helpers import needs_gloo

from .conftest import Try
from .mutants import MUTANTS
from .torture import CHANGES

# a chain changes how much is written, and not by which calls
PAIRS = [("none", "1 thread"), ("checksum", "4 threads"), ("full", "2 threads")]
EITHER = "old new"
each_pair = pytest.mark.parametrize(("chain", "layout"), PAIRS)


# -- calls on files that fail, or do less than they were asked --------------------------------------------------------


@each_pair
def test_full_and_broken_disks(passes: Try, chain: str, layout: str) -> None:
    near = 2 if chain == "full" else 0  # of the calls around the rename
    passes("failing", layout, chain, every=48, near=near, at_least=4, shows=EITHER)


def test_full_and_broken_disks_while_it_is_signed(passes: Try) -> None:
    passes("failing", "1 thread", change="sign", every=12, near=2, at_least=4, shows=EITHER)


def test_what_fails_on_one_of_two_ranks_is_told_on_both(passes: Try) -> None:
    """A rank that returns says that the new checkpoint loads."""
    passes("failing", "2 ranks, few tensors", every=48, near=1, at_least=6, shows=EITHER)


@each_pair
def test_short_and_interrupted_calls_and_broken_disks_while_loading(passes: Try, chain: str, layout: str) -> None:
    passes("interrupted", layout, chain, every=20, near=0, at_least=4, shows="new")
    passes("interrupted_load", layout, chain, every=5, at_least=4, shows="old refused")


# -- a real file system that is too small -----------------------------------------------------------------------------


UNTOLD = "nobody tells how much room there is"  # so that the disk is really full in the middle of the save


@pytest.mark.parametrize(("chain", "mutant"), [("full", None), ("none", UNTOLD)])
def test_less_and_less_room(passes: Try, chain: str, mutant: str | None) -> None:
    passes("full_disk", "4 threads, 4 MiB", chain, mutant=mutant, levels=6, at_least=6, shows=EITHER)


def test_less_and_less_room_for_the_first_save(passes: Try) -> None:
    passes("full_disk", "4 threads, 4 MiB", first=True, levels=4, at_least=4, shows="nothing new")


# -- processes that are killed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["one rank, one thread", "one rank, 4 threads, a file per item"])
def test_one_process_is_killed(passes: Try, layout: str) -> None:
    passes("killed", layout, every=48, next_every=8, at_least=10, shows=EITHER)


@pytest.mark.parametrize("together", [False, True])
def test_one_of_two_ranks_is_killed_or_both(passes: Try, together: bool) -> None:
    passes("killed", "two ranks", every=96, next_every=8, near=1, together=together, at_least=6, shows=EITHER)


def test_one_of_two_ranks_that_save_each_for_itself_is_killed(passes: Try) -> None:
    passes("killed", "two ranks, each for itself", every=256, next_every=16, near=1, at_least=8)


@pytest.mark.parametrize(("change", "chain", "layout"), CHANGES[1:4] + CHANGES[5:])
def test_a_process_that_replaces_metadata_is_killed(passes: Try, change: str, chain: str, layout: str) -> None:
    """All names are the old ones or the new ones, of each rank's metadata, and a second call does what is missing."""
    passes("killed_change", layout, chain, change=change, every=64, next_every=8, near=1, at_least=4, shows=EITHER)


def test_the_first_save_is_killed(passes: Try) -> None:
    """There is no checkpoint then, or a whole one."""
    passes("killed", "1 thread", first=True, every=8, next_every=4, at_least=10, shows="nothing new")


@pytest.mark.slow
@needs_gloo
def test_a_training_job_that_is_killed_comes_to_its_end_by_itself(passes: Try) -> None:
    """A fixed part of what `make torture` tries."""
    passes("managed", "in a thread", "floatzip+checksum", kills=2, at_least=2, shows="runs")


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.exhaustive
@needs_gloo
def test_so_does_one_that_saves_to_an_s3_server(passes: Try) -> None:
    passes("managed_s3", "in the foreground", "floatzip+checksum", kills=2, at_least=2)


# -- crashes that lose what was not synced -----------------------------------------------------------------------------


@pytest.mark.parametrize(("chain", "layout"), [("encrypt", "1 thread"), ("full", "4 threads, a file per item")])
def test_lost_writes_of_one_process(passes: Try, chain: str, layout: str) -> None:
    passes("lost_writes", layout, chain, seeds=2, every=4, at_least=30, shows=EITHER)


def test_lost_writes_of_two_ranks(passes: Try) -> None:
    passes("lost_writes", "2 ranks, few tensors", every=2, seeds=3, at_least=60)


@pytest.mark.parametrize("layout", ["4 threads", "2 ranks, few tensors"])
def test_lost_writes_of_the_first_save(passes: Try, layout: str) -> None:
    """The folders that the save made must be there, too."""
    passes("lost_writes", layout, first=True, every=2, seeds=3, at_least=40, shows="nothing new")


# -- an S3 server whose clients are killed, and whose requests fail ----------------------------------------------------


def on_s3(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.s3(pytest.mark.slow(pytest.mark.usefixtures("s3fs")(test)))


@pytest.fixture
def s3fs() -> None:
    pytest.importorskip("s3fs")


@on_s3
def test_one_process_that_saves_to_s3_is_killed(passes: Try) -> None:
    passes("killed_s3", "2 threads, 16 MiB", every=48, at_least=3, shows=EITHER)


@on_s3
@pytest.mark.exhaustive
@pytest.mark.parametrize("change", ["rename", "stock"])
def test_a_process_that_replaces_metadata_on_s3_is_killed(passes: Try, change: str) -> None:
    passes("killed_change_s3", "2 threads", change=change, every=12, at_least=3, shows=EITHER)


@on_s3
@pytest.mark.exhaustive
def test_requests_fail(passes: Try) -> None:
    """Of several kinds; `make torture` has all of them."""
    passes("faulty_s3", "2 threads", saves=7, loads=4, at_least=9, shows="new refused")


# -- the rows notice writers that are broken, and stock DCP ------------------------------------------------------------

BROKEN = {
    "a kill": ("killed", "1 thread", "full", {"mutant": "the old metadata goes first", "every": 8}, "unloadable"),
    "stock loses checkpoints": ("killed", "1 thread", "stock", {"every": 12}, "unloadable"),
    "stock tells nobody of threads that fail": ("failing", "4 threads", "stock", {"every": 12}, "false_success"),
    "stock mixes checkpoints": (
        "lost_writes",
        "4 threads, a file per item",
        "stock",
        {"every": 4, "seeds": 2},
        "mixed unloadable",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_lost_writes_show(attempt: Try, mutant: str) -> None:
    found = attempt("lost_writes", "1 thread", mutant=mutant, every=2, seeds=2)
    assert found["unloadable"] + found["false_success"] > 0


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_shows(attempt: Try, what: str) -> None:
    row, layout, chain, options, shows = BROKEN[what]
    found = attempt(row, layout, chain, **options)
    assert all(found[name] > 0 for name in shows.split()), found
