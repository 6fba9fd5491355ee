"""Errors in the words of the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamxf.cli.words import in_terminal_words

from cli.command import Run


@pytest.mark.parametrize(
    ("python", "terminal"),
    [
        ("leave keys= out if you know", "leave --key out if you know"),
        ("keys[0]: this is the SigningKey", "--key: this is the SigningKey"),
        ("pass require='encrypted' (or 'bound')", "pass --require encrypted (or 'bound')"),
        ("unless they say allow_unsigned=True", "unless they say --allow-unsigned"),
        (
            "Pass rank= for one, expect_save_id= or merge_ranks=True",
            "Pass --rank for one, --expect-save-id or --merge-ranks",
        ),
        ("allow to replace it (overwrite)", "allow to replace it (--overwrite)"),
        ("what in_place is for", "what in_place is for"),
        (
            "streamxf.verify says what is wrong, streamxf.salvage reads",
            "streamxf verify says what is wrong, streamxf salvage reads",
        ),
        (
            "see streamxf.salvage(path, keys=keys, without_metadata=True)",
            "see streamxf salvage PATH TARGET --without-metadata",
        ),
        (
            "choose items by only= or prefix=, or allow to leave objects out (skip_objects)",
            "choose items by --only or --prefix, or allow to leave objects out (--skip-objects)",
        ),
        (
            "pass the signer's VerifyKey in trust=. What takes keys= alone gets both in it: "
            "keys=KeyRing([...], trust=...)",
            "pass the signer's public key by --trust.",
        ),
        ("streamxf.floatzip/1", "streamxf.floatzip/1"),
        ("http://host/?list-type=2&prefix=x%2F", "http://host/?list-type=2&prefix=x%2F"),
    ],
)
def test_arguments_become_options(python: str, terminal: str):
    assert in_terminal_words(python) == terminal


def test_a_load_that_fails_names_commands(run: Run, plain: Path, encrypted: Path, key_file: Path):
    done = run("diff", encrypted, plain, "--key", f"file:{key_file}")
    assert done.code == 1
    assert "leave --key out" in done.err
    assert "keys=" not in done.err
    (plain / ".metadata").unlink()
    assert f"see streamxf salvage {plain} TARGET --without-metadata" in run("inspect", plain).err


def test_reports_name_commands_too(run: Run, plain: Path):
    (data,) = plain.glob("*.distcp")
    stored = bytearray(data.read_bytes())
    stored[len(stored) // 2] ^= 1
    data.write_bytes(stored)
    done = run("verify", plain)
    assert done.code == 1
    assert "load the rest with streamxf salvage" in " ".join(done.out.split())


def test_what_is_salvaged_replaces_nothing(run: Run, plain: Path, tmp_path: Path):
    assert run("salvage", plain, tmp_path / "rescued").code == 0
    done = run("salvage", plain, tmp_path / "rescued")
    assert done.code == 2
    assert done.err.strip().endswith("name another target")


def test_diff_says_how_one_of_two_is_opened(run: Run, plain: Path, encrypted: Path, key_file: Path):
    assert "--plain-a or --plain-b" in run("diff", encrypted, plain, "--key", f"file:{key_file}").err
    assert not run("diff", encrypted, plain, "--key", f"file:{key_file}", "--plain-b").err
