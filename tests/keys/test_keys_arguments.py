"""What `keys=`, `trust=` and `signer=` take, and how they say what was meant where they do not."""

import pickle
import warnings
from pathlib import Path

import pytest

import streamxf
from streamxf import Encrypt
from streamxf.errors import KeyFileError, KeyMissingError, ParameterError, PolicyError
from streamxf.keys import Key, KeyRing, PrivateKey, SigningKey, read_key, write_key

KEY = Key(bytes(range(97, 129)))
PAIR = PrivateKey(bytes(range(112, 144)), "hpke-x25519")
SIGNER = SigningKey(bytes(range(115, 147)))
TRUSTED = SIGNER.verify_key
OTHER = SigningKey(bytes(range(111, 143)))
OTHER_PAIR = PrivateKey(bytes(range(113, 145)), "hpke-x25519")
DATA = b"data"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder, with a file for each kind of key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    named = {"a.key": KEY, "team.key": PAIR, "team.pub": PAIR.public, "tr.sign": SIGNER, "tr.pub": TRUSTED}
    for name, key in named.items():
        write_key(name, key)
    return tmp_path


def message(action, kind: type[Exception] = ParameterError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


# -- trust= and signer= ----------------------------------------------------------------------------


def test_trust_and_signer_take_locations_and_paths(monkeypatch):
    monkeypatch.setenv("TRAINER", Path("tr.pub").read_text())
    for signer in (SIGNER, "file:tr.sign", Path("tr.sign")):
        stored = streamxf.encode(DATA, [Encrypt("file:team.pub", signer=signer)])
        for trust in (TRUSTED, "file:tr.pub", "env:TRAINER", Path("tr.pub"), [OTHER.verify_key, "file:tr.pub"]):
            for ring in (KeyRing("file:team.key", trust=trust), KeyRing.of(PAIR, trust)):
                assert ring.trust[-1] == TRUSTED
                assert streamxf.decode(stored, keys=ring) == DATA


def test_all_that_takes_trust_and_signer_takes_locations(state_saved):
    path = state_saved
    assert streamxf.rekey(path, keys="file:a.key", recipients=Path("team.pub"), signer="file:tr.sign") == (".metadata",)
    asked = {"keys": "file:team.key", "trust": "file:tr.pub"}
    assert streamxf.recipients(path, **asked).signers == (SIGNER.id,)
    assert streamxf.add_recipient(path, recipients="file:a.key", signer=Path("tr.sign"), **asked) == (".metadata",)
    assert streamxf.remove_recipient(path, recipient="file:team.pub", **asked) == (".metadata",)
    assert [one.id for one in streamxf.recipients(path, keys="file:a.key", trust="file:tr.pub").whole] == [KEY.id]
    other = bytes(range(204, 236))
    streamxf.add_recipient(path, keys=KEY, recipients=other)
    assert streamxf.remove_recipient(path, keys=KEY, recipient=other) == (".metadata",)
    for wrong in ("ab:c", KEY.reveal().hex(), "fil:a.key", 7):
        said = message(lambda wrong=wrong: streamxf.remove_recipient(path, keys=KEY, recipient=wrong))
        assert KEY.reveal().hex() not in said
    assert "pass it as trust=" in message(lambda: streamxf.remove_recipient(path, keys=KEY, recipient="file:tr.pub"))


def test_nothing_to_change_needs_no_old_key(state_saved):
    assert streamxf.rekey(state_saved, keys=Key.generate(), recipients="file:a.key") == ()
    with pytest.raises(KeyMissingError):
        streamxf.rekey(state_saved, keys=Key.generate(), recipients=Key.generate())


@pytest.fixture
def state_saved(folder: Path) -> str:
    """A checkpoint for KEY."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    writer = streamxf.FileSystemWriter(folder / "saved", _extensions=[Encrypt(KEY, signer=SIGNER)])
    dcp.save({"weight": torch.ones(3)}, storage_writer=writer)
    return str(folder / "saved")


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        (SIGNER, f"this is the SigningKey {SIGNER.id}; trust= takes a location that leads to a VerifyKey"),
        ("file:tr.sign", "'file:tr.sign' holds the SigningKey"),
        (KEY, f"this is the Key {KEY.id}; trust= takes"),
        ("file:team.pub", f"'file:team.pub' holds the PublicKey {PAIR.id}; trust= takes"),
        (True, "not bool"),
        (7, "not int"),
        (TRUSTED.data, "not bytes"),
        (bytearray(32), "not bytearray"),
        ([TRUSTED, SIGNER], r"trust[1]: this is the SigningKey"),
        ([TRUSTED, b"x"], "trust[1]: trust= takes a location that leads to a VerifyKey"),
        (["file:tr.pub", "tr.pub"], "trust[1]: did you mean 'file:tr.pub'?"),
    ],
)
def test_who_cannot_be_trusted(trust, words):
    for make in (lambda: KeyRing(KEY, trust=trust), lambda: KeyRing.of([KEY], trust)):
        said = message(make)
        assert words in said
        assert repr(SIGNER.reveal()) not in said


@pytest.mark.parametrize(
    ("signer", "words"),
    [
        (TRUSTED, "signer= takes a location that leads to a SigningKey"),
        ("file:tr.pub", "signer= takes a location that leads to a SigningKey"),
        ("file:a.key", "signer= takes a location that leads to a SigningKey"),
        (True, "not bool"),
        (SIGNER.reveal(), "not bytes"),
    ],
)
def test_who_cannot_sign(signer, words):
    assert words in message(lambda: Encrypt(KEY, signer=signer))


def test_allow_unsigned_is_no_word():
    assert "True or False, not str" in message(lambda: KeyRing(KEY, allow_unsigned="no"))


# -- keys= -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", ["file:a.key", KEY, KEY.reveal(), bytearray(KEY.reveal()), Path("a.key")])
def test_a_ring_of_one_key(one):
    assert tuple(KeyRing(one)) == tuple(KeyRing.of(one)) == tuple(KeyRing([one])) == (KEY,)
    assert streamxf.decode(streamxf.encode(DATA, [Encrypt(one)]), keys=one) == DATA


def test_a_ring_is_not_taken_apart_unnoticed():
    ring = KeyRing(KEY, trust=TRUSTED)
    assert "has its own trust=" in message(lambda: KeyRing(ring))
    assert tuple(KeyRing([*ring])) == (KEY,)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([KEY, "file:tr.pub"], "keys[1]: 'file:tr.pub' holds the VerifyKey"),
        (TRUSTED, "which opens nothing; pass it as trust="),
        ([SIGNER], "keys[0]: this is the SigningKey"),
        ([KEY, b"short"], "keys[1]: a key is 32 bytes long"),
        ([KEY, 7], "keys[1]"),
        (7, "keys= takes a key"),
        (True, "keys= takes a key"),
    ],
)
def test_what_is_no_key(keys, words):
    for make in (KeyRing, KeyRing.of):
        assert words in message(lambda make=make: make(keys))


def test_errors_of_a_list_keep_their_kind():
    assert message(lambda: KeyRing([KEY, "env:NO_SUCH_KEY"]), KeyMissingError).startswith("keys[1]: ")
    assert message(lambda: KeyRing(["file:no.key", KEY]), KeyFileError).startswith("keys[0]: ")
    assert message(lambda: Encrypt([KEY, "tr.pub:x"])).startswith("recipients[1]: ")


# -- what was meant --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fil:a.key", "a key is 32 bytes, not a string; a string is a location: 'file:PATH'"),
        ("a.key", "did you mean 'file:a.key'?"),
        ("streamxf-secret:aeskw:x:y", "this is a key itself"),
        ("streamxf-protected:aeskw:x:y", "this is a key itself"),
    ],
)
def test_guesses(text, words):
    said = message(lambda: KeyRing(text))
    assert words in said
    assert "none of file, env, aws-kms" in said


@pytest.mark.parametrize(
    "text",
    [
        *(KEY.reveal().hex(), KEY.reveal().hex()[:16], KEY.reveal().hex()[:16] + ":x", "ab:cd:ef"),
        *("YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=", "seventeen-letters:x", "a_b:c", "pass word:x", "no.such.key"),
        *("", "a\0b"),
    ],
)
def test_what_may_be_a_key_is_not_shown(text):
    Path("YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=").touch()
    Path(KEY.reveal().hex()).touch()
    said = message(lambda: KeyRing(text))
    assert not text or text not in said
    first = text.partition(":")[0]
    assert len(first) < 3 or first not in said


def test_paths_of_key_files():
    assert tuple(KeyRing("file:~/a.key")) == (KEY,)
    assert "names no file" in message(lambda: KeyRing("file:"), KeyFileError)
    assert "a single colon" in message(lambda: KeyRing("file://a.key"), KeyFileError)
    assert tuple(KeyRing(f"file://{Path('a.key').resolve()}")) == (KEY,)
    for wrong in (lambda: read_key("file:a.key"), lambda: KeyRing(Path("file:a.key"))):
        assert "takes a path, without 'file:'" in message(wrong, KeyFileError)
    assert "without" not in message(lambda: read_key("no.key"), KeyFileError)


def test_a_key_in_the_place_of_a_path_is_not_shown():
    text = Path("a.key").read_text().strip().splitlines()[-1]
    assert text.startswith("streamxf-secret:")
    said = message(lambda: KeyRing(f"file:{text}"), KeyFileError)
    assert "comes a key itself" in said
    assert text.rpartition(":")[2] not in said


# -- who wrote -------------------------------------------------------------------------------------


def warned(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    assert all(one.category is UserWarning for one in caught)
    return [str(one.message) for one in caught]


def test_a_warning_where_nothing_will_show_who_wrote():
    (said,) = warned(lambda: streamxf.encode(DATA, [Encrypt([PAIR.public, OTHER_PAIR.public])]))
    assert "there is no signer" in said
    codec = Encrypt(PAIR.public, signer=SIGNER)
    assert not warned(lambda: [Encrypt([PAIR.public, KEY]), Encrypt(PAIR.public, signer=SIGNER), codec.renew()])
    with pytest.warns(UserWarning, match="who wrote"):
        codec = Encrypt(PAIR.public)
    assert not warned(lambda: [codec.renew(), pickle.loads(pickle.dumps(codec)), codec.get_descriptor()])
    assert not warned(lambda: Encrypt(KeyRing(PAIR.public, allow_unsigned=True)))
    assert not warned(lambda: streamxf.encode(DATA, "zstd+encrypt", keys=KeyRing(PAIR.public, allow_unsigned=True)))


def test_rekey_does_not_warn_of_what_it_was_told(state_saved):
    assert not warned(lambda: streamxf.rekey(state_saved, keys=KEY, recipients=PAIR.public, allow_unsigned=True))


def test_errors_say_how_a_signature_comes_about():
    with pytest.warns(UserWarning, match="who wrote"):
        unsigned = streamxf.encode(DATA, [Encrypt(PAIR.public)])
    said = message(lambda: streamxf.decode(unsigned, keys=PAIR), PolicyError)
    assert "it is not signed, and anyone who has the public key can have written it" in said
    assert "have it saved with a signer, or accept it so (allow_unsigned)" in said
    assert "A KeyRing holds" in said
    assert "trust no signer" not in said
    strange = streamxf.encode(DATA, [Encrypt([PAIR.public, KEY], signer=OTHER)])
    said = message(lambda: streamxf.decode(strange, keys=PAIR), PolicyError)
    assert f"it is signed by {OTHER.id}" in said
    assert "pass the signer's public key (trust)" in said
    assert "trust no signer" not in said
    said = message(lambda: streamxf.decode(strange, keys=KeyRing(KEY, trust=TRUSTED)), PolicyError)
    assert f"or trust no signer: the key {KEY.id} vouches for the contents" in said


def test_a_public_key_is_told_what_reads():
    stored = streamxf.encode(DATA, [Encrypt(PAIR.public, signer=SIGNER)])
    said = message(lambda: streamxf.decode(stored, keys=KeyRing("file:team.pub", trust=TRUSTED)), KeyMissingError)
    assert f"needs the PrivateKey of {PAIR.id}" in said
    assert "Pass the right key" in message(lambda: streamxf.decode(stored, keys=KEY), KeyMissingError)
