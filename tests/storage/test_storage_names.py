"""What a listing of a checkpoint's folder tells: names, and the sizes of the files that matter."""

from pathlib import Path

import fsspec
import pytest

from streamxf.storage.opening import open_storage
from tests.failing import fails_with


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for size, name in enumerate("abc"):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("c")
    (tmp_path / "nowhere").symlink_to("gone")
    return tmp_path


def test_every_size_is_told_unless_few_are_wanted(folder: Path) -> None:
    sizes = {"a": 0, "b": 1, "c": 2, "link": None, "nowhere": None}
    storage, nothing = open_storage(folder), open_storage(folder / "not there")
    assert storage.names() == sizes
    wanted = ["b", "link", "folder", "not there"]
    assert storage.names(wanted) == {**sizes, "a": None, "c": None, "folder": None}
    assert storage.names([]) == dict.fromkeys(sizes)
    assert nothing.names() == {}
    assert nothing.names(["a"]) == {}


def test_a_folder_that_may_not_be_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.scandir", fails_with(PermissionError, 13, "may not be listed"))
    assert open_storage(folder).names(["b", "link", "folder", "not there"]) == {"b": 1, "link": None, "folder": None}


def test_the_sizes_of_an_object_store_come_with_its_names() -> None:
    memory = fsspec.filesystem("memory")
    for size, name in enumerate("abc"):
        memory.pipe_file(f"/listing/{name}", bytes(size))
    assert open_storage("memory://listing").names(["b"]) == {"a": 0, "b": 1, "c": 2}
