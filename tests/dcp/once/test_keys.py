"""Ranks without keys get what they need from those that have some, or all ranks end in an error."""

from pathlib import Path

import pytest

from tests.dcp.helpers import KEY, needs_gloo
from tests.dcp.rank_scenarios import run_ranks

from . import key_ranks

pytestmark = [pytest.mark.slow, needs_gloo]
MODULE = key_ranks.__name__


def test_ranks_without_keys_are_served_and_read_nothing(tmp_path: Path) -> None:
    for report in run_ranks(4, tmp_path, "loads", "sharded", module=MODULE):
        for name, (wrong, read, own, ratio) in report["loads"].items():
            assert (wrong, read, own) == ([], "once", 0), name
            assert ratio < 1.05, name
        found = report["sharded"]
        for name in ("hybrid to rows", "hybrid to grid"):  # nobody with keys needs any of the second half of the rows
            (error,), _ = found.pop(name)
            assert error.startswith("KeyMissingError: ranks ")
        assert len(found) == 6
        assert all(ended == [[], []] for ended in found.values()), found


def test_what_nobody_with_keys_needs_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    reports = run_ranks(4, tmp_path, "refused", module=MODULE)
    alone = reports[2]["refused"].pop("alone")
    assert len(alone) == 1
    assert KEY.id in alone[0]
    assert "one rank loads alone" in alone[0]
    texts = {
        "its own tensor": "ranks 1 cannot decrypt this, and no rank with a key loads it",
        "its own object": "ranks 1 cannot decrypt this, and no rank with a key loads it",
        "nobody has keys": f"encrypted for key id {KEY.id}",
        "coordinator and objects": "the coordinator needs keys, too",
        "rank 3 has each": "ranks without read='once'",
        "rank 0 has each": "rank 0 has read='each'",
        "each": f"encrypted for key id {KEY.id}",
        "changed plan": "finish_plan has changed a plan",
    }
    for report in reports:
        found = report["refused"]
        assert found.keys() == texts.keys()
        for name, errors in found.items():
            assert any(texts[name] in error for error in errors), (name, errors)
            assert {error.partition(":")[0] for error in errors} == {"KeyMissingError"}, (name, errors)


def test_metadata_that_only_a_rank_without_keys_was_shown_is_refused(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "altered", module=MODULE):
        (error,) = report["altered"]["keyless"]
        assert error.startswith("MetadataError: the ranks found different metadata")
        assert report["altered"]["right"] == []


def test_ranks_that_read_for_others_trust_the_same(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "signed", module=MODULE):
        found = report["signed"]
        for name in ("none", "same"):
            assert found.pop(name) == [[], []]
        assert found.keys() == {"more", "unsigned", "encrypted"}
        for errors, _ in found.values():
            assert len(errors) == 1
            assert errors[0].startswith("ParameterError: ranks that read for each other need the same terms")


def test_a_job_of_which_one_rank_can_decrypt(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "managed", module=MODULE):
        assert report["managed"] == {"manager": [3, []], "install": []}
