"""What a listing finds out of each checkpoint, and what it leaves to those that resume."""

from pathlib import Path

import pytest

from streamxf.manager.latest import latest
from streamxf.manager.listing import Run, list_checkpoints
from streamxf.storage.local import LocalStorage
from streamxf.tools.clean import clean
from tests.altered import flipped
from tests.forge import pack_columns, split_metadata, unpack_columns

from .runs import resumed, saved_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    saved_run(tmp_path, 1, 2)
    return tmp_path


def test_any_flipped_bit_of_an_index_is_shown(run: Path) -> None:
    file = run / "step-2" / ".metadata"
    data = file.read_bytes()
    parts = split_metadata(data)
    begin = len(parts.pickled)
    assert len(data) - begin > 600
    for at in range(begin, len(data)):
        file.write_bytes(flipped(data, at, 1 << at % 8))
        record = Run(LocalStorage(run)).record("step-2")
        assert record is not None
        assert record.damaged, at
        assert "Error" in record.note


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
