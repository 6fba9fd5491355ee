"""Keys under a passphrase: there and back, every part of the line, the caps, and what counts as the same passphrase."""

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import KeyMissingError, ParameterError, UnsupportedError, WrongKeyError
from streamxf.keys import Key, PrivateKey, SigningKey, find_key, write_key
from streamxf.keys.file import DEFAULT_COST, PassphraseCost, normalise, open_protected, protect_key, read_line
from streamxf.keys.key import encode_b64url
from streamxf.keys.ring import format_key
from streamxf.lazy import aead, argon2
from tests.failing import fails_with
from tests.keys.frozen import PROTECTED_LINE

SECRET = bytes(range(90, 122))
KEY = Key(SECRET)
CHEAP = PassphraseCost(memory=8, passes=1, lanes=1)
LINE = protect_key(KEY, "correct horse", CHEAP)


@pytest.mark.parametrize(
    "key", [KEY, PrivateKey(SECRET), PrivateKey(SECRET, "hpke-x25519"), SigningKey(SECRET)], ids=repr
)
def test_there_and_back(key):
    line = protect_key(key, "correct horse", CHEAP)
    assert line != protect_key(key, "correct horse", CHEAP)
    assert line.startswith(f"streamxf-protected:{format_key(key).split(':')[1]}:{key.id}:argon2id:8.1.1:")
    again = read_line(line, "correct horse")
    assert again == key
    assert type(again) is type(key)


def test_the_default_is_what_rfc_9106_recommends_second():
    assert (DEFAULT_COST.memory, DEFAULT_COST.passes, DEFAULT_COST.lanes) == (64 * 1024, 3, 4)
    assert ":argon2id:65536.3.4:" in protect_key(KEY, "x")


def test_what_was_protected_once_opens_for_ever():
    """Recorded with the first version; files that exist depend on it."""
    assert open_protected(PROTECTED_LINE, "pässwörd") == KEY
    assert open_protected(PROTECTED_LINE, "pa\u0308sswo\u0308rd") == KEY


def test_where_argon2id_is_missing(monkeypatch):
    monkeypatch.setattr(argon2, "Argon2id", fails_with(UnsupportedAlgorithm, "this OpenSSL does not support argon2id"))
    for use in (lambda: protect_key(KEY, "correct horse"), lambda: open_protected(LINE, "correct horse")):
        with pytest.raises(UnsupportedError, match="no Argon2id"):
            use()


def test_a_passphrase_is_asked_for_where_one_protects_the_key(monkeypatch, tmp_path):
    write_key(tmp_path / "key", KEY, "correct horse")
    monkeypatch.setenv("LINE", LINE)
    assert [find_key(at, lambda: "correct horse") for at in (f"file:{tmp_path}/key", "env:LINE")] == [KEY, KEY]
    with pytest.raises(KeyMissingError, match="is not set"):
        find_key("env:NOT_SET", fails_with(AssertionError))


def test_wrong_and_missing_passphrases():
    for wrong in ("correct hors", "correct horse ", "Correct horse", " correct horse", "x"):
        with pytest.raises(WrongKeyError, match=f"does not open the key {KEY.id}"):
            open_protected(LINE, wrong)
    with pytest.raises(KeyMissingError, match=f"{KEY.id} is protected .*read_key\\(path, passphrase="):
        open_protected(LINE, None)


@pytest.mark.parametrize(
    "unusable",
    ["", "line\n", "nul\0", "tab\t", "\x7f", "\x85", "\ud800", "\u0378", "\uffff", "x" * 4097, "é" * 2049, b"bytes", 7],
    ids=range(13),
)
def test_passphrases_that_are_refused(unusable):
    for use in (lambda: protect_key(KEY, unusable, CHEAP), lambda: open_protected(LINE, unusable)):
        with pytest.raises(ParameterError, match="passphrase") as caught:
            use()
        assert not isinstance(unusable, str) or len(unusable) < 3 or unusable not in str(caught.value)


def test_a_passphrase_out_of_a_file_with_its_line_break():
    with pytest.raises(ParameterError, match="remove the line break"):
        open_protected(LINE, "correct horse\n")


def test_the_same_passphrase_in_other_code_points():
    assert normalise("A\u030a") == normalise("\u00c5") == normalise("\u212b") == "Å".encode()
    # compatible is not the same: what NFKC would fold stays apart
    assert len({normalise(text) for text in ("1", "\u00b9", "\uff11", "fi", "\ufb01", " ", "\u00a0")}) == 7
    assert normalise("x" * 4096) == b"x" * 4096


@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=20))
def test_normalising_again_changes_nothing(text):
    assert normalise(normalise(text).decode()) == normalise(text)


def change(part: int, value: str) -> str:
    parts = LINE.split(":")
    parts[part] = value
    return ":".join(parts)


@pytest.mark.parametrize(
    "cost",
    [
        *("0.1.1", "7.1.1", "8.0.1", "8.1.0", "15.1.2", "127.1.16"),
        *("1048577.1.1", "8.17.1", "136.1.17", "9999999.99.99", "99999999.1.1", "8.100.1", "8.1.100"),
        *("", "8.1", "8.1.1.1", "08.1.1", "8.01.1", "8.1.1 ", "+8.1.1", "8,1,1", "-8.1.1", "8.1.1e1", "\u0668.1.1"),
    ],
)
def test_costs_out_of_range_are_refused_before_anything_is_computed(cost, monkeypatch):
    monkeypatch.setattr(argon2, "Argon2id", fails_with(AssertionError, "Argon2id was called"))
    with pytest.raises(ParameterError, match="cost"):
        open_protected(change(4, cost), "correct horse")
    with pytest.raises(AssertionError, match="was called"):
        open_protected(LINE, "correct horse")


@pytest.mark.parametrize("cost", ["8.1.1", "1048576.16.16", "128.16.16", "16.1.2"])
def test_costs_at_the_limits(cost):
    assert str(PassphraseCost.parse(cost)) == cost


@pytest.mark.parametrize(
    "arguments", [(7, 1, 1), (2**20 + 1, 1, 1), (8, 0, 1), (8, 17, 1), (8, 1, 0), (8, 1, 17), (8.0, 1, 1)]
)
def test_costs_that_nobody_can_ask_for(arguments):
    with pytest.raises(ParameterError):
        PassphraseCost(*arguments)


@pytest.mark.parametrize(
    "line",
    [
        *(change(0, "streamxf-secret"), change(1, "hpke-none"), change(2, "0" * 15), change(2, KEY.id.upper())),
        *(change(2, "é" * 16), change(3, "scrypt"), change(5, ""), change(5, encode_b64url(bytes(15)))),
        *(change(5, encode_b64url(bytes(17))), change(5, "!" * 22), change(6, ""), change(6, encode_b64url(bytes(47)))),
        *(change(6, encode_b64url(bytes(49))), change(6, "é" * 64), LINE + ":", LINE.rpartition(":")[0]),
    ],
    ids=range(16),
)
def test_lines_that_are_damaged(line):
    with pytest.raises(ParameterError):
        open_protected(line, "correct horse")


@pytest.mark.parametrize(
    "line",
    [
        *[change(1, "hpke-x25519"), change(1, "ed25519"), change(2, "0" * 16), change(4, "9.1.1"), change(4, "8.2.1")],
        *[change(5, encode_b64url(bytes(16))), change(6, encode_b64url(bytes(48)))],
    ],
    ids=range(7),
)
def test_everything_in_the_line_is_authenticated(line):
    with pytest.raises(WrongKeyError):
        open_protected(line, "correct horse")


def test_what_is_sealed_must_be_the_key_that_the_line_names():
    """Somebody who knows the passphrase could seal another key; its id would not fit."""
    cost, salt = CHEAP, bytes(16)
    begin = f"streamxf-protected:aeskw:{'0' * 16}:argon2id:{cost}:{encode_b64url(salt)}:"
    sealed = aead.AESGCM(cost.stretch("x", salt)).encrypt(bytes(12), SECRET, begin.encode())
    with pytest.raises(ParameterError, match=f"its id is {KEY.id}"):
        open_protected(begin + encode_b64url(sealed), "x")
