"""``streamxf keygen``, ``rekey`` and ``recipients``."""

import stat
from pathlib import Path

import pytest
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf import keys
from streamxf.keys import Key
from tests.cli.command import Run
from tests.cli.conftest import STATE


def recipients_of(run: Run, path: Path, *options: object) -> list[str]:
    done = run.exits(0, "recipients", path, "--json", *options)
    return [recipient["id"] for recipient in done.json["whole"]]


# -- keygen ----------------------------------------------------------------------------------------


def test_a_secret_key_is_written_for_its_owner_only_and_never_shown(run: Run, tmp_path: Path):
    file = tmp_path / "new.key"
    done = run("keygen", file)
    key = keys.read_key(file)
    assert done.code == 0
    assert isinstance(key, Key)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key.id in done.out
    secret = file.read_text().rpartition(":")[2].strip()
    assert secret not in done.out + done.err
    assert secret not in run("keygen", tmp_path / "other.key", "--json").out


@pytest.mark.parametrize(
    ("kind", "secret", "public"),
    [
        ("hybrid", keys.PrivateKey, keys.PublicKey),
        ("x25519", keys.PrivateKey, keys.PublicKey),
        ("signing", keys.SigningKey, keys.VerifyKey),
    ],
)
def test_a_pair_goes_into_two_files(run: Run, tmp_path: Path, kind: str, secret: type, public: type):
    done = run.exits(0, "keygen", tmp_path / "team.key", "--kind", kind, "--json")
    whole, half = keys.read_key(done.json["secret"]), keys.read_key(done.json["public"])
    assert done.json["public"] == str(tmp_path / "team.pub")
    assert isinstance(whole, secret)
    assert isinstance(half, public)
    assert whole.id == half.id == done.json["id"]


def test_the_place_of_the_public_half_can_be_chosen(run: Run, tmp_path: Path):
    assert run("keygen", tmp_path / "a", "--kind", "hybrid", "--public", tmp_path / "b").code == 0
    assert isinstance(keys.read_key(tmp_path / "b"), keys.PublicKey)


def test_no_file_is_overwritten_and_none_half_made(run: Run, tmp_path: Path):
    (tmp_path / "team.pub").write_text("something")
    assert "never overwritten" in run.exits(2, "keygen", tmp_path / "team.key", "--kind", "hybrid").err
    assert [path.name for path in tmp_path.iterdir()] == ["team.pub"]
    assert (tmp_path / "team.pub").read_text() == "something"


def test_if_the_public_half_cannot_be_written_the_secret_one_goes(run: Run, tmp_path: Path):
    done = run("keygen", tmp_path / "team.key", "--kind", "hybrid", "--public", tmp_path / "no folder" / "team.pub")
    assert done.code == 2
    assert not list(tmp_path.iterdir())


def test_a_passphrase(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run("keygen", tmp_path / "a.key", "--passphrase").code == 2
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("STREAMXF_PASSPHRASE", "four random words here")
    assert run("keygen", tmp_path / "a.key", "--passphrase").code == 0
    assert keys.read_key(tmp_path / "a.key", "four random words here").id
    with pytest.raises(streamxf.errors.KeyMissingError):
        keys.read_key(tmp_path / "a.key")


@pytest.mark.parametrize("arguments", [["file:a.key"], ["a.pub", "--kind", "signing"], ["a.key", "--kind", "rsa"]])
def test_what_keygen_cannot_do(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]):
    monkeypatch.chdir(tmp_path)
    done = run("keygen", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert not list(tmp_path.iterdir())


# -- rekey and recipients --------------------------------------------------------------------------


def test_another_key(run: Run, encrypted: Path, key_file: Path, tmp_path: Path):
    run("keygen", tmp_path / "new.key")
    new = keys.read_key(tmp_path / "new.key").id
    before = {file.name: file.read_bytes() for file in encrypted.glob("*.distcp")}
    done = run("rekey", encrypted, "--key", f"file:{key_file}", "--recipient", f"file:{tmp_path / 'new.key'}")
    assert (done.code, done.out) == (0, "rewritten: .metadata\n")
    assert {file.name: file.read_bytes() for file in encrypted.glob("*.distcp")} == before
    assert recipients_of(run, encrypted) == [new]
    assert run("verify", encrypted, "--key", f"file:{tmp_path / 'new.key'}").code == 0
    run.exits(2, "verify", encrypted, "--key", f"file:{key_file}")
    again = run(
        "rekey", encrypted, "--key", f"file:{tmp_path / 'new.key'}", "--recipient", f"file:{tmp_path / 'new.key'}"
    )
    assert (again.code, again.out) == (0, "nothing changed: it is already for these keys alone\n")


def test_a_recipient_comes_and_goes(run: Run, encrypted: Path, key: Key, key_file: Path, tmp_path: Path):
    run("keygen", tmp_path / "second.key")
    second = f"file:{tmp_path / 'second.key'}"
    other = keys.read_key(tmp_path / "second.key").id
    opens = f"file:{key_file}"
    added = run.exits(0, "recipients", encrypted, "--key", opens, "--add", second)
    assert f"recipient {other} (aeskw)" in added.out
    assert "authenticated" in added.out
    assert recipients_of(run, encrypted) == [key.id, other]
    assert recipients_of(run, encrypted, "--key", opens, "--remove", other) == [key.id]
    assert recipients_of(run, encrypted, "--key", opens, "--add", second, "--remove", opens, "--key", second) == [other]


@pytest.mark.parametrize("entry", ["00", "0123456789ABCDEF", "team.key"])
def test_what_is_no_recipient(run: Run, encrypted: Path, key_file: Path, entry: str):
    done = run.exits(2, "recipients", encrypted, "--key", f"file:{key_file}", "--remove", entry)
    assert "id has 16 hexadecimal digits" in done.err
    assert entry not in done.err, "it may be a key"


def test_the_last_recipient_stays(run: Run, encrypted: Path, key: Key, key_file: Path):
    done = run.exits(2, "recipients", encrypted, "--key", f"file:{key_file}", "--remove", key.id)
    assert "last recipient" in done.err
    assert recipients_of(run, encrypted) == [key.id]


def test_who_signed_is_a_claim_until_the_signer_is_trusted(run: Run, tmp_path: Path):
    run("keygen", tmp_path / "team.key", "--kind", "x25519")
    run("keygen", tmp_path / "trainer.sign", "--kind", "signing")
    chain = [
        streamxf.ZStandard(),
        streamxf.Encrypt(f"file:{tmp_path / 'team.pub'}", signer=f"file:{tmp_path / 'trainer.sign'}"),
    ]
    save(dict(STATE), storage_writer=streamxf.FileSystemWriter(tmp_path / "signed", _extensions=chain))
    opens = ["--key", f"file:{tmp_path / 'team.key'}", "--trust", f"file:{tmp_path / 'trainer.pub'}"]
    assert "claims to be signed by" in run("recipients", tmp_path / "signed").out
    assert "\nsigned by" in run("recipients", tmp_path / "signed", *opens).out
    assert run("recipients", tmp_path / "signed", *opens[:2]).code == 1
