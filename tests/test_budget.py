"""The rule by which sizes from outside become memory, work or output; and how much a file holds."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from streamxf import budget
from streamxf.budget import FREE, FREE_WHOLE, MAX_EXPANSION, Budget, held_bytes
from streamxf.checkpoint.bare import BareHeader
from streamxf.errors import ContainerError, ParameterError, PolicyError
from streamxf.storage.files import held_at
from streamxf.storage.reading import StoredFile, access_to

MIB = 2**20


def hole(path: Path, size: int, data: bytes = b"") -> Path:
    path.write_bytes(data)
    os.truncate(path, size)
    return path


# -- budgets ---------------------------------------------------------------------------------------


def test_a_budget_is_a_multiple_of_what_is_stored() -> None:
    budget = Budget(100, FREE)
    budget.spend(100 * FREE, "it")
    with pytest.raises(PolicyError, match="out of proportion"):
        budget.spend(1, "it")


def test_little_is_free_however_little_is_stored() -> None:
    budget = Budget(MAX_EXPANSION, 1)
    budget.spend(FREE, "it")
    with pytest.raises(PolicyError):
        budget.spend(1, "it")


def test_what_was_refused_takes_nothing() -> None:
    budget = Budget(MAX_EXPANSION, 0)
    for _ in range(3):
        with pytest.raises(PolicyError):
            budget.spend(2**60, "it")
    budget.spend(FREE, "it")


def test_a_refusal_says_what_and_where_and_how_to_allow_it() -> None:
    budget = Budget(MAX_EXPANSION, 3 * MIB)
    budget.spend(MIB, "the first")
    with pytest.raises(PolicyError) as caught:
        budget.spend(2**40, "the second", file="f", item="w")
    words = "the second would take 1,024.0 GiB besides the 1.0 MiB before it", "3.0 MiB stored", "(max_expansion)"
    assert all(word in str(caught.value) for word in words)
    assert (caught.value.file, caught.value.item) == ("f", "w")


def test_what_is_stored_may_become_known_later() -> None:
    budget = Budget(MAX_EXPANSION, 0)
    budget.add(FREE)
    budget.spend(MAX_EXPANSION * FREE, "it")
    budget.renewed().spend(MAX_EXPANSION * FREE, "it once more")


@pytest.mark.parametrize("times", [0, -1, 1.5, True, None, "64"])
def test_a_factor_is_a_whole_number(times: Any) -> None:
    with pytest.raises(ParameterError, match="whole number"):
        Budget(times, 0)


# -- what a file holds -----------------------------------------------------------------------------


def test_holes_are_not_held(tmp_path: Path) -> None:
    path = hole(tmp_path / "file", 2**40, b"a" * 100_000)
    for buffering in (0, -1):
        with open(path, "rb", buffering) as file:
            assert file.read(3) == b"aaa"
            assert 100_000 <= held_bytes(file, 2**40) <= MIB
            assert file.tell() == 3
            assert file.read(99_998) == b"a" * 99_997 + b"\0"
    assert 100_000 <= held_at(str(path)) <= MIB


def test_data_behind_a_hole_is_held(tmp_path: Path) -> None:
    path = hole(tmp_path / "file", 2**30)
    with path.open("r+b") as file:
        file.seek(2**29)
        file.write(b"a" * MIB)
    assert MIB <= held_at(str(path)) <= 2 * MIB


def test_a_file_without_holes_is_held_whole(tmp_path: Path) -> None:
    for size in (0, 1, 4097, 3 * MIB):
        path = tmp_path / str(size)
        path.write_bytes(b"a" * size)
        assert held_at(str(path)) == size


def test_storage_that_does_not_tell_holds_everything() -> None:
    assert held_bytes(io.BytesIO(b"abc"), 3) == 3
    assert held_bytes(object(), 2**40) == 2**40


def test_blocks_that_are_not_allocated_yet_are_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZFS reports one block for what it was given a moment ago, and a file system that compresses fewer than it has."""
    path = tmp_path / "file"
    path.write_bytes(b"a" * MIB)
    monkeypatch.setattr(budget, "allocated_bytes", lambda facts: 512)
    assert held_at(str(path)) == MIB


def test_systems_that_know_no_holes_hold_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hole(tmp_path / "file", MIB)
    monkeypatch.setattr(budget, "allocated_bytes", lambda facts: None)
    assert held_at(str(path)) == MIB
    monkeypatch.setattr(budget, "allocated_bytes", lambda facts: 0)
    monkeypatch.delattr(os, "SEEK_DATA")
    assert held_at(str(path)) == MIB


def test_what_is_no_file_holds_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # which would wait to be opened
    assert [held_at(str(tmp_path / name)) for name in ("pipe", "missing", "a\0b", ".")] == [0] * 4


# -- what is read whole ----------------------------------------------------------------------------


def stored(path: Path, size: int, data: bytes) -> StoredFile:
    file = hole(path, size, data).open("rb")
    return StoredFile("a file", size, file, access_to(file))


def test_files_that_are_read_whole_may_be_small_or_held(tmp_path: Path) -> None:
    stored(tmp_path / "small", FREE_WHOLE, b"").check_whole(FREE_WHOLE)
    stored(tmp_path / "held", FREE_WHOLE + 1, bytes(FREE_WHOLE // MAX_EXPANSION + 4096)).check_whole(FREE_WHOLE + 1)
    with pytest.raises(ContainerError, match="the rest are holes"):
        stored(tmp_path / "large", FREE_WHOLE + 1, b"").check_whole(FREE_WHOLE + 1)
    for length, words in (FREE_WHOLE, "does not begin"), (FREE_WHOLE + 1, "tensors explain"):
        with pytest.raises(ContainerError, match=words):
            BareHeader.read(stored(tmp_path / words, 2 * FREE_WHOLE, length.to_bytes(8, "little")))
