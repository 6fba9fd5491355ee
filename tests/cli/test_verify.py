"""``streamxf verify``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command import Run
from cli.conftest import flip_bit
from streamxf.keys import Key
from streamxf.keys.file import write_key


def test_a_whole_checkpoint(run: Run, plain: Path):
    done = run("verify", plain)
    assert done.code == 0
    assert done.out.startswith("whole, as far as it could be checked\n")
    assert done.err == ""


def test_with_its_key(run: Run, encrypted: Path, key_file: Path):
    done = run("verify", encrypted, "--key", f"file:{key_file}", "--json")
    assert done.code == 0
    assert done.json["ok"]
    assert not any("for want of a key" in sentence for sentence in done.json["unchecked"])


def test_without_its_key_it_says_what_was_not_checked(run: Run, encrypted: Path):
    done = run("verify", encrypted, "--json")
    assert done.code == 0
    assert any("for want of a key" in sentence for sentence in done.json["unchecked"])


def test_damage_names_the_item_and_exits_with_1(run: Run, plain: Path):
    flip_bit(plain)
    done = run("verify", plain)
    assert done.code == 1
    assert done.out.startswith("DAMAGED in 1 place\n")
    assert "item layer." in done.out
    again = run("verify", plain, "--json")
    assert again.code == 1
    assert again.json["damaged"][0]["item"].startswith("layer.")


def test_a_key_from_the_environment(run: Run, encrypted: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STREAMXF_KEYS", f"file:{key_file}")
    assert not any("for want of a key" in sentence for sentence in run("verify", encrypted, "--json").json["unchecked"])


def test_a_key_behind_a_passphrase(run: Run, encrypted: Path, key: Key, monkeypatch: pytest.MonkeyPatch):
    protected = encrypted.parent / "protected.key"
    write_key(protected, key, "correct horse")
    refused = run("verify", encrypted, "--key", f"file:{protected}")
    assert refused.code == 2
    assert "STREAMXF_PASSPHRASE" in refused.err
    monkeypatch.setenv("STREAMXF_PASSPHRASE", "correct horse")
    assert run("verify", encrypted, "--key", f"file:{protected}").code == 0


@pytest.mark.parametrize("prefix", ["", "file:", "aws-kms:", "env:"])
def test_a_key_as_an_argument_is_refused_and_not_shown(run: Run, encrypted: Path, key: Key, prefix: str):
    secret = key.reveal().hex()
    done = run("verify", encrypted, "--key", f"{prefix}{secret}")
    assert done.code == 2
    assert secret not in done.out + done.err
