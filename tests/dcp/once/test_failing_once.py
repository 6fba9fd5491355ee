"""A rank that fails or dies while it reads for others: all of them hear of it soon, and the next load is right."""

from pathlib import Path

import pytest

from tests.dcp.helpers import needs_gloo
from tests.dcp.rank_scenarios import run_ranks

from . import failing_once, random_faults

pytestmark = [pytest.mark.slow, needs_gloo]
MODULE = failing_once.__name__


def test_what_one_rank_fails_with_is_raised_by_all(tmp_path: Path) -> None:
    texts = {
        "finish_plan": "did not begin to read within",
        "resolve_tensor": "ValueError: on purpose",
        "commit_tensor": "ValueError: on purpose",
        "read": "OSError: [Errno 5] Input/output error",
        "connect": "ConnectionError: no route",
        "slow connections": "ConnectionError: no route",
        "message": "did not arrive as it was sent",
        "silent": "rank 1 has given no sign of life",
    }
    for report in run_ranks(3, tmp_path, "raising", module=MODULE):
        found = report["raising"]
        assert found.pop("kept") == 1
        assert found.keys() == texts.keys()
        for name, ended in found.items():
            if name != "commit_tensor":  # when the others may have all that they need
                assert ended["failures"].keys() == {"0", "1", "2"}, name
            assert any(texts[name] in text for text in ended["failures"].values()), (name, ended["failures"])
            if name != "silent":  # which says nothing itself
                assert ended["seconds"] < 12, name
            assert ended["wrong"] == []


def test_damage_is_damage_on_all_ranks(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "damaged", "other_terms", module=MODULE):
        ended = report["damaged"]["failures"]
        assert ended.keys() == {"0", "1", "2"}
        assert all(text.startswith("BlockError: ") for text in ended.values())
        terms = report["other_terms"]
        assert len(terms["require"]) == len(terms["keys"]) == len(terms["rename"]) == 1
        assert "ParameterError: ranks that read for each other need the same terms" in terms["require"][0]
        assert "rank 1 has require='encrypted'" in terms["require"][0]
        assert terms["keys"][0].startswith("KeyMissingError")
        assert "need the same terms" in terms["rename"][0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "checkpoint"
    random_faults.save(path)
    return path


@pytest.mark.parametrize("seed", [0, 2, 3, 6, 8, 26, 27, 44])  # of each kind, and with each store
def test_all_others_end_soon_after_a_fault_at_some_point(tmp_path: Path, saved: Path, seed: int) -> None:
    text, _, problems = random_faults.outcome(seed, saved, tmp_path)
    assert not problems, text
    assert "never came" not in text


def test_all_interfaces_of_gloo_are_used_and_closed(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "over_two_interfaces", module=MODULE):
        found = report["over_two_interfaces"]
        assert found["failures"].keys() == {"0", "1", "2"}
        assert all("Input/output error" in text for text in found["failures"].values())
        assert found["seconds"] < 12
        assert found["wrong"] == []
        assert min(found["sent"]) > 100_000
