"""What a listing finds out of each checkpoint, and what it leaves to those that resume."""

from pathlib import Path

import pytest

from streamxf.manager.latest import latest
from streamxf.manager.listing import list_checkpoints
from streamxf.tools.clean import clean
from tests.forge import pack_columns, split_metadata, unpack_columns

from .runs import resumed, saved_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    saved_run(tmp_path, 1, 2)
    return tmp_path


@pytest.mark.parametrize("small", [2**20, -1])
def test_items_that_are_malformed_are_found_by_who_resumes(
    run: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", small)
    file = run / "step-2" / ".metadata"
    parts = split_metadata(file.read_bytes())
    columns = unpack_columns(parts.raw_parts()[1])
    columns[12] = [7 for _ in columns[12]]  # which is no kind
    file.write_bytes(parts.with_part(1, pack_columns(columns, len(columns[1]), len(columns[12]))).pack())
    assert [each.damaged for each in list_checkpoints(run)] == [False, False], "the root says what a listing shows"
    assert resumed(run) == 1


def test_nobody_who_resumes_makes_an_object_for_each_chunk_of_a_large_index(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", -1)
    monkeypatch.setattr("streamxf.format.table.StoredChunks.__iter__", lambda *_: 1 / 0)
    assert latest(run) == str(run / "step-2")
    assert clean(run / "step-2", dry_run=True).removed == ()
