"""Several ranks over gloo: a sharded model, resharding, errors that reach every rank, and saves in the background; and
ranks that fail or die while they save: all others are told, and the old one loads.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf.errors import KeyMissingError, MetadataError

from .failing_ranks import run_doomed
from .helpers import KEY, OTHER_KEY, assert_same, data_files, index_of, load, needs_gloo, refused, since
from .process_groups import TIMEOUT
from .rank_scenarios import SIGNER, run_ranks

pytestmark = [pytest.mark.slow, needs_gloo]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that two ranks saved, and loaded again themselves."""
    folder = tmp_path_factory.mktemp("ranks")
    reports = run_ranks(2, folder, "save_model", "load_model")
    for report in reports:
        check_loaded(report["load_model"])
    index = index_of(folder / "model")
    assert reports[0]["save_model"]["files"] == sorted([".metadata", *index.files])
    assert len({file.writer for file in index.files.values()}) == 2
    assert len({file.key for file in index.files.values()}) == 2
    return folder


def check_loaded(report: dict[str, object]) -> None:
    assert report == {"tensors": report["tensors"], "same": report["tensors"], "names": True, "step": 3}
    assert isinstance(report["tensors"], int)
    assert report["tensors"] >= 15  # five parameters, and two moments and a step for each


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_that_two_ranks_saved_loads_on_others(saved: Path, count: int) -> None:
    reports = run_ranks(count, saved, "load_model")
    assert len(reports) == count
    for report in reports:
        check_loaded(report["load_model"])


def test_raw_shards_of_two_ranks_are_loaded_and_mapped(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "raw_shards"):
        found = report["raw_shards"]
        assert found["loaded"] == found["mapped"] == found["tensors"] >= 15
        assert found["several"] >= 10


def test_a_model_that_two_ranks_saved_gets_another_key(saved: Path, tmp_path: Path) -> None:
    """Each rank has a data key of its own."""
    path = shutil.copytree(saved / "model", tmp_path / "model")
    before = [(file.name, file.read_bytes()) for file in data_files(path)]
    assert streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    whole = torch.load(saved / "whole.pt")
    assert_same(load(whole, path, OTHER_KEY), whole)
    with refused(KeyMissingError, OTHER_KEY.id):
        load(whole, path, KEY)
    assert [(file.name, file.read_bytes()) for file in data_files(path)] == before


def test_errors_reach_every_rank(tmp_path: Path) -> None:
    reports = run_ranks(
        2,
        tmp_path,
        "wrong_key_on_one_rank",
        "wrong_key_on_the_coordinator",
        "damaged_item_on_one_rank",
        "failing_write_on_one_rank",
        "without_collectives",
    )
    for report in reports:
        one = report["wrong_key_on_one_rank"]
        assert one["kinds"] == {"1": "KeyMissingError"}
        assert one["typed"]
        assert report["wrong_key_on_the_coordinator"]["kinds"] == {"0": "KeyMissingError"}
        damaged = report["damaged_item_on_one_rank"]
        assert damaged["kinds"] == {"1": "BlockError"}
        assert damaged["items"] == {"1": "of rank 1"}
        full = report["failing_write_on_one_rank"]
        assert full["kinds"] == {"1": "OSError"}
        assert full["old loads"]
        assert report["without_collectives"]["same"]
    for number, each in enumerate(zip(*(report["without_collectives"]["groups"] for report in reports), strict=True)):
        first, second = each  # all four saves, then what verify says of the second
        assert (first == second) == (number != 3)
        assert number == 4 or first[1] == (1 if number == 3 else 2)
    found = reports[0]["without_collectives"]["groups"]
    assert len({group for group, _ in found[:4]}) == 4
    assert found[4] is True


@since("2.9", "has no metadata of single ranks")
@pytest.mark.filterwarnings("ignore:.*rank")
def test_ranks_of_two_saves_are_not_one_checkpoint(tmp_path: Path) -> None:
    first, second = (report["mixed_ranks"] for report in run_ranks(2, tmp_path, "mixed_ranks"))
    for how in ("open", "signed"):
        assert first[f"a {how}"] == second[f"a {how}"] == ["", [1.0] * 4]
        text, values = first[f"mixed {how}"]
        assert [text, values] == second[f"mixed {how}"]
        assert re.match(r"0 MetadataError .*rank 0 in \S+ \(group \w{32}\), rank 1 in .*--merge-ranks", text)
        assert values == [0.0] * 4
    trust: Any = SIGNER.verify_key
    with refused(MetadataError, "of 2 saves: rank 0; rank 1"):
        streamxf.Checkpoint(tmp_path / "mixed")
    (tmp_path / "a" / "__1.metadata").unlink()
    with refused(MetadataError, "2 ranks saved it, and there is no metadata of rank 1"):
        streamxf.Checkpoint(tmp_path / "a", trust=trust)
    with pytest.warns(UserWarning, match="no metadata of rank 1"):
        streamxf.Checkpoint(tmp_path / "a").close()


def test_saves_in_the_background(tmp_path: Path) -> None:
    reports = run_ranks(2, tmp_path, "async_by_thread", "async_by_process")
    for report in reports:
        for how in ("async_by_thread", "async_by_process"):
            assert report[how] == {"same": True, "tensors": 6, "files": 4, "priorities": True}, how


MODULE = f"{__package__}.failing_ranks"


def put(*ranks: int) -> dict[str, str]:
    """What `NeedsTwo("put", rank)` becomes for the other ranks."""
    name = f"{__package__}.foreign_errors.NeedsTwo"
    return {str(rank): f"ForeignError: {name}: put failed with {rank}" for rank in ranks}


def plain(failures: Any) -> Any:
    """Without the place that follows the text."""
    return {rank: text.partition(" [")[0] for rank, text in failures.items()} if failures else failures


def test_every_rank_is_told_what_failed_on_which(tmp_path: Path) -> None:
    reports = run_ranks(3, tmp_path, "failing_saves", "cached_plans", "failing_loads", module=MODULE)
    for report in reports:
        saves = report["failing_saves"]
        assert plain(saves["data of one"]) == put(1)
        assert plain(saves["data of the coordinator"]) == put(0)
        assert plain(saves["data of two"]) == put(1, 2)
        assert saves["plan of one"] == {"2": "ValueError: no plan"}
        assert list(saves["publishing"]) == ["0"]
        assert saves["publishing"]["0"].startswith("ConnectionResetError: [Errno 104] ")
        assert "the store answered 503" in saves["publishing"]["0"]
        assert list(saves["no folder"]) == ["1"]
        assert saves["no folder"]["1"].startswith(("NotADirectoryError", "FileExistsError"))
        assert [name for name, published in saves.items() if name.endswith(": published") and published] == []
        assert saves["report of the rank that publishes"]
        assert saves["old loads"]
        assert saves["new loads"]
        assert saves["leftovers"] == []

        assert report["cached_plans"] == {"right": [True] * 7, "cached": True}

        loads = report["failing_loads"]
        assert list(loads["metadata"]) == ["1"]
        assert loads["metadata"]["1"].startswith("ForeignError: the storage failed: ")
        assert "get failed with 1" in loads["metadata"]["1"]
        assert list(loads["data"]) == ["2"]
        assert "NeedsTwo: get failed with 2" in loads["data"]["2"]


@since("2.9", "has a background process that ends with a failed save, and the next save waits for it forever")
def test_saves_in_the_background_tell_it_through_their_futures(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "failing_in_the_background", module=MODULE):
        behind = report["failing_in_the_background"]
        for kind in ("thread", "process"):
            for number, failures in enumerate([None, put(1), put(0), None]):
                assert plain(behind[f"{kind} {number}"]) == failures
                assert behind[f"{kind} {number} loads"]
                for rank, text in (failures or {}).items():
                    logged = behind[f"{kind} {number} logged"]
                    assert logged.startswith(f"a save in the background failed: rank {rank}: {text}; ")
                    assert re.search(rf"while writing item .+ of file __{rank}_", logged)
        assert behind["logged"] == 4


def test_ranks_that_die_are_noticed_by_all_others(tmp_path: Path) -> None:
    found = run_doomed(3, tmp_path, dies_while_writing={2}, dies_before_publishing={0}, dies_after_publishing={0})
    for name, reports in found.items():
        for report in filter(None, reports):
            assert report["error"] is not None, name
            assert report["seconds"] < TIMEOUT.total_seconds() / 2, name
    for name, value in [("dies_while_writing", 1), ("dies_before_publishing", 1), ("dies_after_publishing", 2)]:
        state = {f"of rank {rank}": torch.full((50,), float(value + rank)) for rank in range(3)}
        state["shared"] = torch.full((20,), float(value))
        assert_same(load(state, tmp_path / name / "checkpoint"), state)


@since("2.9", "saves with collectives only")
def test_a_rank_that_saves_for_itself_fails_alone(tmp_path: Path) -> None:
    reports = run_doomed(3, tmp_path, fails_alone=set())["fails_alone"]
    assert all(report["error"] is not None and report["seconds"] < TIMEOUT.total_seconds() / 2 for report in reports)
    assert reports[1]["error"] == "ValueError: no plan"
    for rank in range(3):  # the failed one has its old checkpoint, the others their new ones
        value = 1.0 if rank == 1 else 2.0
        wanted = {f"of rank {rank}": torch.full((50,), value + rank), "shared": torch.full((20,), value)}
        assert_same(load_rank(tmp_path / "fails_alone" / "checkpoint", rank, wanted), wanted)


def load_rank(path: Path, rank: int, state: dict[str, Any]) -> dict[str, Any]:
    """What a rank's own metadata leads to, read in this process."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    import streamxf

    from .helpers import KEY, blank

    found = blank(state)
    reader, planner = streamxf.FileSystemReader(path, keys=KEY), DefaultLoadPlanner()
    metadata = reader.read_metadata(rank=rank)
    planner.set_up_planner(found, metadata, True)
    reader.set_up_storage_reader(metadata, True, rank=rank, use_collectives=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(plan, planner).wait()
    return dict(found)
