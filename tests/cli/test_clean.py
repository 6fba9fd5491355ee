"""``streamxf clean``."""

import os
import time
from pathlib import Path

import pytest

from tests.cli.command import Run
from tests.cli.terminal import at_terminal

LEFTOVER = f"__0_7_{'a' * 32}.distcp"


@pytest.fixture
def littered(plain: Path) -> Path:
    """A checkpoint with a file beside it that a killed save left."""
    (plain / LEFTOVER).write_bytes(bytes(3 * 2**20))
    return plain


def test_a_dry_run_names_leftovers_and_removes_nothing(run: Run, littered: Path):
    for more in ([], ["--yes"]):
        done = run.exits(0, "clean", littered, "--dry-run", *more, err="")
        assert done.out == f"would remove 1 file, 3.0 MiB\nwould remove: {LEFTOVER}\n"
        assert (littered / LEFTOVER).exists()


def test_nothing_is_removed_unasked(run: Run, littered: Path):
    for arguments in ([], ["--json"]):
        assert "--yes" in run.exits(2, "clean", littered, *arguments).err
        assert (littered / LEFTOVER).exists()


def test_nobody_is_asked_about_what_is_no_checkpoint(run: Run, tmp_path: Path):
    (tmp_path / "s.pt").write_bytes(b"weights")
    done = run("clean", tmp_path / "s.pt")
    assert "not a checkpoint's folder" in done.err
    assert "--yes" not in done.err


def test_yes_removes_them(run: Run, littered: Path):
    done = run.exits(0, "clean", littered, "--yes", "--json")
    assert done.json["removed"] == [LEFTOVER]
    assert done.json["bytes"] == 3 * 2**20
    assert not (littered / LEFTOVER).exists()
    assert run("verify", littered).code == 0
    assert run("clean", littered, "--yes").out == "there is nothing to remove\n"


def test_what_is_young_stays(run: Run, littered: Path):
    assert run("clean", littered, "--yes", "--min-age", "2h", "--json").json["recent"] == [LEFTOVER]
    assert (littered / LEFTOVER).exists()
    old = time.time() - 3 * 3600
    os.utime(littered / LEFTOVER, (old, old))
    assert run("clean", littered, "--yes", "--min-age", "2h", "--json").json["removed"] == [LEFTOVER]


def test_what_cannot_be_removed_is_named(run: Run, littered: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "remove", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    done = run.exits(1, "clean", littered, "--yes")
    assert f"not removed: {LEFTOVER}: " in done.out
    assert done.err == ""


def test_where_a_checkpoint_is_not_whole_nothing_is_removed(run: Run, littered: Path):
    (data,) = (path for path in littered.glob("*.distcp") if path.name != LEFTOVER)
    data.unlink()
    assert "Nothing was removed" in run.exits(1, "clean", littered, "--yes").err
    assert (littered / LEFTOVER).exists()


def test_with_a_key(run: Run, encrypted: Path, key_file: Path):
    (encrypted / LEFTOVER).touch()
    assert run("clean", encrypted, "--yes", "--key", f"file:{key_file}", "--json").json["removed"] == [LEFTOVER]
    (metadata,) = encrypted.glob(".metadata")
    metadata.write_bytes(metadata.read_bytes()[:-1])
    assert run("clean", encrypted, "--yes", "--key", f"file:{key_file}").code == 1


@pytest.mark.parametrize(("typed", "stays"), [("y\n", False), ("n\n", True)])
def test_at_a_terminal_it_asks(littered: Path, typed: str, stays: bool):
    code, shown = at_terminal(["clean", littered], typed)
    assert code == 0
    assert LEFTOVER in shown
    assert "Remove it? [y/N]" in shown
    assert ("nothing was removed" in shown) == stays
    assert (littered / LEFTOVER).exists() == stays
