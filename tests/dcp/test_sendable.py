"""An error that leaves a method which DCP calls on every rank can be read by every rank, and tells its causes."""

import pickle
import subprocess
import sys
import traceback
from typing import Any

import pytest

from streamxf.dcp.base import errors_reach_all_ranks
from streamxf.errors import MAX_SENT, BlockError, KeyMissingError, MetadataError, sendable

from .foreign_errors import MADE, BadBlock, NeedsTwo, RunsCode

ELSEWHERE = """
import pickle, sys
for error in pickle.load(sys.stdin.buffer):
    error = pickle.loads(error)
    print(type(error).__name__, "|", str(error).replace("\\n", " "), "|", *getattr(error, "__notes__", ()))
"""


def raised(error: BaseException) -> BaseException:
    """The error, with a traceback and a cause."""
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise error from cause
    except BaseException as caught:
        return caught


def test_another_process_that_knows_none_of_the_classes_reads_all_of_them() -> None:
    sent = [pickle.dumps(sendable(raised(make()))) for make, _, _ in MADE.values()]
    assert max(map(len, sent)) < MAX_SENT + 1000
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=pickle.dumps(sent), capture_output=True, check=True
    ).stdout.decode()
    lines = found.splitlines()
    assert len(lines) == len(MADE)
    for line, (name, (_, kind, text)) in zip(lines, MADE.items(), strict=True):
        shown_kind, shown_text, notes = line.split(" | ")
        assert shown_kind == kind, name
        assert text in shown_text, name
        assert notes == "caused by KeyError: 'the cause'", name
    assert not RunsCode.unpickled


@pytest.mark.parametrize("name", MADE)
def test_what_is_sent_comes_out_as_it_went_in(name: str) -> None:
    made = sendable(MADE[name][0]())
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert str(again) == str(made)


@pytest.mark.parametrize("name", ["plain", "a full disk", "memory", "exit"])
def test_an_error_that_every_rank_knows_stays_the_same_object(name: str) -> None:
    error = MADE[name][0]()
    assert sendable(error) is error
    assert not hasattr(error, "__notes__")


def test_the_place_and_the_number_of_an_error_stay() -> None:
    error = BadBlock("no")
    error.locate(file="f", item="i")
    made: Any = sendable(error)
    assert type(made) is BlockError
    assert (made.file, made.item, made.block) == ("f", "i", 3)
    sent: Any = sendable(MADE["connection"][0]())
    assert sent.errno == 104


def test_notes_of_streamxfs_errors_travel() -> None:
    error = KeyMissingError("no key", item="i")
    error.add_note("look there")
    again = pickle.loads(pickle.dumps(sendable(raised(error))))
    assert again.__notes__ == ["look there", "caused by KeyError: 'the cause'"]
    assert (again.item, str(again)) == ("i", str(error))


def test_a_long_chain_of_causes_ends() -> None:
    error: BaseException = ValueError("0")
    for number in range(100):
        following = ValueError(str(number + 1))
        following.__cause__ = error
        error = following
    assert len(getattr(sendable(error), "__notes__")) == 8  # noqa: B009
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert getattr(sendable(one), "__notes__") == ["caused by ValueError: two"]  # noqa: B009


def test_passing_twice_adds_nothing() -> None:
    error = raised(ValueError("x"))
    once = list(getattr(sendable(error), "__notes__"))  # noqa: B009
    assert getattr(sendable(error), "__notes__") == once  # noqa: B009


def test_what_was_being_handled_is_told_unless_the_code_hides_it() -> None:
    def fail(hide: bool) -> None:
        try:
            raise KeyError("before")
        except KeyError:
            if hide:
                raise MetadataError("after") from None
            raise MetadataError("after")  # noqa: B904

    notes = []
    for hide in (True, False):
        with pytest.raises(MetadataError) as caught:
            errors_reach_all_ranks(fail)(hide)
        notes.append(getattr(caught.value, "__notes__", []))
    assert notes == [[], ["raised while this was handled: KeyError: 'before'"]]


def test_in_this_process_the_original_is_the_cause_and_the_traceback_leads_to_it() -> None:
    @errors_reach_all_ranks
    def method() -> None:
        raise NeedsTwo("put", 503)

    with pytest.raises(Exception, match="put failed") as caught:
        method()
    assert type(caught.value.__cause__) is NeedsTwo
    assert "method" in {frame.name for frame in traceback.extract_tb(caught.value.__traceback__)}
