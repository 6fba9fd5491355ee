"""The reader with one check taken out, for each check that keeps an attacker out: the tests must notice.

`mutants` has the table of what is taken out. For each mutant, tests of the hostile rows run in a process of their own:
those that attack what the check protects must fail, and those that show that what is intact loads must pass, so that
the mutant is not just broken.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.mutants import MUTANTS

TESTS = Path(__file__).parent
INTACT = "hostile/test_intact.py"

ATTACKS = {
    "tag": "hostile/test_bit_flips.py::test_every_bit_of_keyed_plain_files_with_all_crcs_mended",
    "seal": "hostile/test_bit_flips.py::test_every_bit_of_keyed_containers_with_all_crcs_mended",
    "block number": "hostile/test_blocks.py::test_every_order_of_every_choice[sample-file]",
    "last block": "hostile/test_blocks.py::test_a_stream_that_was_cut_between_two_blocks",
    "last block first": "hostile/test_lengths.py::test_the_size_is_believed_only_where_a_block_vouches_for_it",
    "name": "hostile/test_swaps.py::test_items_of_an_attached_writer_without_an_index",
    "number": "hostile/test_swaps.py::test_every_pair_of_entries[sample-full chain]",
    "offset": "hostile/test_swaps.py::test_shards_of_one_tensor[sample-full chain]",
    "kind": "hostile/test_swaps.py::test_a_tensor_and_an_object_of_one_name",
    "writer": "hostile/test_swaps.py::test_every_mixture_of_the_files_of_two_saves[sample-unkeyed]",
    "chain": "hostile/test_descriptors.py::test_every_subset_and_order_that_is_vouched_for[sample-unkeyed]",
    "vouchers": "hostile/test_descriptors.py::test_metadata_that_was_vouched_for_without_the_key",
    "file size": "hostile/test_truncate_append.py::test_data[sample-own, keyed]",
    "policy of items": "hostile/test_downgrades.py::test_what_an_item_lacks_is_named_by_the_word_that_relaxes_it",
    "policy of metadata": "hostile/test_downgrades.py::test_metadata_without_an_index_is_not_even_unpickled",
    "policy of files": "hostile/test_downgrades.py::test_a_plain_file_without_encryption",
}


Runs = dict[str, tuple[int, dict[str, str], str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """For each mutant, and "none": pytest's exit status, what each test came to, and what was printed."""
    folder = tmp_path_factory.mktemp("mutants")
    plans = {mutant: [INTACT, attack] for mutant, attack in ATTACKS.items()}
    plans["none"] = [INTACT, ATTACKS["vouchers"]]  # that all of them pass without a mutant is seen where they are
    paths = [str(TESTS.parent), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "tests.mutants", str(folder), json.dumps(plans)]
    subprocess.run(command, cwd=TESTS, env=environment, check=True, timeout=600)
    return {mutant: _result(folder, mutant) for mutant in plans}


def _result(folder: Path, mutant: str) -> tuple[int, dict[str, str], str]:
    printed = (folder / f"{mutant}.txt").read_text()
    outcomes = folder / f"{mutant}.json"
    assert outcomes.exists(), printed
    return int((folder / f"{mutant}.status").read_text()), json.loads(outcomes.read_text()), printed


def test_every_mutant_is_attacked() -> None:
    assert ATTACKS.keys() == MUTANTS.keys() - {"none"}
    assert all(callable(resolve_name(mutant[0])) for mutant in MUTANTS.values() if mutant is not None)


@pytest.mark.exhaustive
def test_without_a_mutant_they_pass_in_such_a_process(runs: Runs) -> None:
    status, outcomes, printed = runs["none"]
    assert status == pytest.ExitCode.OK, printed
    assert set(outcomes.values()) == {"passed"}
    assert any(ATTACKS["vouchers"].partition("::")[2] in test for test in outcomes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", ATTACKS)
def test_the_tests_notice(runs: Runs, mutant: str) -> None:
    status, outcomes, printed = runs[mutant]
    assert status == pytest.ExitCode.TESTS_FAILED, f"the mutant survives:\n{printed}"
    intact = {found for test, found in outcomes.items() if "test_intact" in test}
    attacks = {found for test, found in outcomes.items() if "test_intact" not in test}
    assert intact == {"passed"}, f"the mutant does not even load what is intact:\n{printed}"
    assert "failed" in attacks, printed
    assert attacks <= {"passed", "failed"}, f"an error outside of the tests themselves:\n{printed}"
