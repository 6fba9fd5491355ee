"""``streamxf verify``."""

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf import Encrypt, PrivateKey, SigningKey
from streamxf.keys import Key
from streamxf.keys.file import write_key
from tests.cli.command import Run
from tests.cli.conftest import flip_bit


def test_a_whole_checkpoint(run: Run, plain: Path):
    done = run.exits(0, "verify", plain)
    assert done.out.startswith("OK: no damage found\n1 data file, ")
    assert done.err == ""


def test_a_packed_file_is_whole_without_reservation(run: Run, tmp_path: Path):
    torch.save({"weight": torch.arange(1000.0), "step": 7, "names": ["a", "b"]}, tmp_path / "model.pt")
    assert run("pack", tmp_path / "model.pt", tmp_path / "packed", "--chain", "zstd").code == 0
    assert run("verify", tmp_path / "packed").out.startswith("OK: no damage found\n1 data file, ")
    assert run("verify", tmp_path / "packed", "--json").json["unchecked"] == []


def test_what_was_skipped_is_in_the_first_line(run: Run, tmp_path: Path):
    save({"weight": torch.ones(10), "step": 7}, storage_writer=StockWriter(tmp_path / "stock"))
    done = run.exits(0, "verify", tmp_path / "stock", err="")
    assert done.out.splitlines()[0] == (
        "OK: no damage found (2 checks skipped: the digest of the metadata, which only streamxf's "
        "writer makes; whether 2 items not bound to their places were exchanged)"
    )


def test_damage_names_the_item_and_exits_with_1(run: Run, plain: Path):
    flip_bit(plain)
    done = run.exits(1, "verify", plain)
    assert done.out.startswith("DAMAGED in 1 place\n")
    assert "item layer." in done.out
    assert run.exits(1, "verify", plain, "--json").json["damaged"][0]["item"].startswith("layer.")


def test_without_its_key_it_says_what_was_not_checked(
    run: Run, encrypted: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
):
    def unchecked(*key: str) -> str:
        done = run("verify", encrypted, "--json", *key)
        assert (done.code, done.json["ok"]) == (0, True)
        return " ".join(done.json["unchecked"])

    assert "need a key" in unchecked()
    assert "need a key" not in unchecked("--key", f"file:{key_file}")
    monkeypatch.setenv("STREAMXF_KEYS", f"file:{key_file}")
    assert "need a key" not in unchecked()


def test_a_key_behind_a_passphrase(run: Run, encrypted: Path, key: Key, monkeypatch: pytest.MonkeyPatch):
    protected = encrypted.parent / "protected.key"
    write_key(protected, key, "correct horse")
    assert "STREAMXF_PASSPHRASE" in run.exits(2, "verify", encrypted, "--key", f"file:{protected}").err
    monkeypatch.setenv("STREAMXF_PASSPHRASE", "correct horse")
    assert run("verify", encrypted, "--key", f"file:{protected}").code == 0


@pytest.mark.parametrize("prefix", ["", "file:", "aws-kms:", "env:"])
def test_a_key_as_an_argument_is_refused_and_not_shown(run: Run, encrypted: Path, key: Key, prefix: str):
    secret = key.reveal().hex()
    done = run.exits(2, "verify", encrypted, "--key", f"{prefix}{secret}")
    assert secret not in done.out + done.err


def test_several_paths_have_one_report(run: Run, plain: Path, tmp_path: Path):
    other = tmp_path / "other"
    save({"weight": torch.ones(10), "step": 7}, storage_writer=StockWriter(other))
    done = run("verify", plain, other, "--json")
    assert (done.code, done.json["paths"], done.json["files"]) == (0, [str(plain), str(other)], 2)
    flip_bit(plain)
    assert f"damaged: {plain}/" in run.exits(1, "verify", plain, other).out
    assert "there is no file or folder" in run.exits(2, "verify", plain, tmp_path / "gone").err


@pytest.mark.parametrize("sealed", [False, True])
def test_whose_signature_was_checked(run: Run, tmp_path: Path, sealed: bool):
    """Of a checkpoint, in clear or encrypted, and of an encrypted file."""
    reader, signer, path = PrivateKey.generate(), SigningKey.generate(), tmp_path / "signed"
    write_key(tmp_path / "reader.key", reader)
    write_key(tmp_path / "signer.pub", signer.verify_key)
    chain = [Encrypt(reader.public, signer=signer)] if sealed else []
    writer = streamxf.FileSystemWriter(path, _extensions=chain, **({} if sealed else {"signer": signer}))
    save({"weight": torch.ones(10)}, storage_writer=writer)
    with streamxf.open(tmp_path / "a.sxf", "wb", chain=[Encrypt(reader.public, signer=signer)]) as file:
        file.write(b"text")
    key, trust = ["--key", f"file:{tmp_path / 'reader.key'}"], ["--trust", f"file:{tmp_path / 'signer.pub'}"]
    for place in (path, tmp_path / "a.sxf", *([tmp_path] if sealed else [])):
        opens = key if sealed or place != path else []
        trusted = run.exits(0, "verify", place, *opens, *trust)
        assert trusted.out.startswith("OK: no damage found\n")
        assert trusted.out.splitlines().count(f"signed by {signer.id}, whom you trust") == 1
        assert run.exits(0, "verify", place, *opens, *trust, "--json").json["signed_by"] == [signer.id]
        done = run.exits(0, "verify", place, *opens, *(["--allow-unsigned"] if opens else []))
        assert "which need a trusted signer)\n" in done.out
        assert signer.id not in done.out
