"""What errors and reports advise."""

from __future__ import annotations

from pathlib import Path

from cli.command import Run


def test_a_load_that_fails_names_commands(run: Run, plain: Path, encrypted: Path, key_file: Path):
    done = run("diff", encrypted, plain, "--key", f"file:{key_file}")
    assert done.code == 1
    assert "leave the keys out" in done.err
    assert "keys=" not in done.err
    (plain / ".metadata").unlink()
    assert "`streamxf salvage --without-metadata`" in run("inspect", plain).err


def test_reports_name_commands_too(run: Run, plain: Path):
    (data,) = plain.glob("*.distcp")
    stored = bytearray(data.read_bytes())
    stored[len(stored) // 2] ^= 1
    data.write_bytes(stored)
    done = run("verify", plain)
    assert done.code == 1
    assert "save the rest with `streamxf salvage`" in " ".join(done.out.split())


def test_what_is_salvaged_replaces_nothing(run: Run, plain: Path, tmp_path: Path):
    assert run("salvage", plain, tmp_path / "rescued").code == 0
    done = run("salvage", plain, tmp_path / "rescued")
    assert done.code == 2
    assert done.err.strip().endswith("name another target")


def test_diff_says_how_one_of_two_is_opened(run: Run, plain: Path, encrypted: Path, key_file: Path):
    assert "--plain-a or --plain-b" in run("diff", encrypted, plain, "--key", f"file:{key_file}").err
    assert not run("diff", encrypted, plain, "--key", f"file:{key_file}", "--plain-b").err
