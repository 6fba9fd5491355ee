"""Files put in one step: what an error says, and what it leaves."""

import errno
import os
import re
from pathlib import Path
from unittest import mock
from uuid import uuid4

import fsspec
import pytest

import streamxf
from streamxf.storage import local
from streamxf.storage.opening import open_storage, storage_over


@pytest.mark.parametrize("held", [True, False])
def test_errors_name_the_whole_path(tmp_path: Path, held: bool) -> None:
    (tmp_path / "taken").mkdir()
    storage = open_storage(tmp_path)
    storage = storage.hold() if held else storage
    for act in (lambda: storage.put("taken", b"data"), lambda: storage.put("missing/name", b"data")):
        with pytest.raises(OSError, match=str(tmp_path)) as raised:
            act()
        assert "->" not in str(raised.value)
    assert os.listdir(tmp_path) == ["taken"]
    storage.let_go()


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    """The system's own error of a write has no name."""
    error = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch.object(local, "write_all", side_effect=error),
        pytest.raises(OSError, match=re.escape(str(tmp_path / "name"))),
    ):
        open_storage(tmp_path).put("name", b"data")
    assert os.listdir(tmp_path) == []


def test_names_come_to_the_disk_before_a_file_takes_its_place_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it refers to was written just now. A file that the user named is synced alone."""
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix, (tmp_path / "name").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    open_storage(tmp_path).put("name", b"data")
    assert synced == [(".tmp", False), ("", False), ("", True)]
    synced.clear()
    with streamxf.open(tmp_path / "name", "wb") as file:
        file.write(b"data")
    assert synced == [(".tmp", True)]


@pytest.mark.parametrize("kind", ["local", "elsewhere"])
def test_what_a_check_raises_comes_as_it_is(tmp_path: Path, kind: str) -> None:
    storage = open_storage(tmp_path if kind == "local" else f"memory://{uuid4().hex}")
    storage.put("name", b"old")

    def check() -> None:
        assert storage.read("name", 0, 9) == b"old"
        raise OSError("not now")

    with pytest.raises(OSError, match=r"^not now$"):
        storage.put("name", b"new", check=check)
    assert storage.names() == {"name": 3}
    assert storage.read("name", 0, 9) == b"old"


def test_a_new_version_may_be_read_by_no_more_than_the_old_one(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    for name, mode in (("private", 0o600), ("shared", 0o640)):
        storage.put(name, b"old")
        (tmp_path / name).chmod(mode)
        held = storage.hold()
        held.put(name, b"new", check=lambda: None)
        held.let_go()
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
        assert (tmp_path / name).read_bytes() == b"new"


def test_a_path_that_is_given_as_a_url_is_that_in_the_store() -> None:
    """Requests that name keys, such as those that remove many, know no protocol."""
    base = f"memory://{uuid4().hex}/run"
    storage = storage_over(fsspec.filesystem("memory"), base, base)
    assert storage.path == "/" + base.partition("://")[2]
    assert storage.label() == base
    storage.put("a", b"")
    assert storage.remove(["a"]) == {}
    assert storage.names() == {}
