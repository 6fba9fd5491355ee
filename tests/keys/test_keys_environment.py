"""Keys in environment variables; what such a variable holds is never shown."""

import pytest

import streamxf
from streamxf.errors import KeyMissingError, ParameterError, WrongKeyError
from streamxf.keys import Key, KeyRing, PrivateKey, SigningKey, read_environment
from streamxf.keys.file import PassphraseCost, protect_key
from streamxf.keys.ring import format_key

SECRET = bytes(range(101, 133))
KEY = Key(SECRET)
NAME = "STREAMXF_TEST_KEY"


@pytest.fixture
def variable(monkeypatch):
    return lambda value: monkeypatch.setenv(NAME, value)


@pytest.mark.parametrize("key", [KEY, PrivateKey(SECRET), PrivateKey(SECRET).public, SigningKey(SECRET)], ids=repr)
def test_there_and_back(key, variable):
    variable(format_key(key))
    assert read_environment(NAME) == key


def test_other_forms(variable):
    for text in (SECRET.hex(), f"\n# a comment\n{SECRET.hex()}\n"):
        variable(text)
        assert read_environment(NAME) == KEY
    variable(protect_key(KEY, "horse", PassphraseCost(8, 1, 1)))
    assert read_environment(NAME, "horse") == KEY
    with pytest.raises(KeyMissingError, match="passphrase"):
        read_environment(NAME)
    with pytest.raises(WrongKeyError):
        read_environment(NAME, "cow")


def test_as_a_location(variable):
    variable(SECRET.hex())
    assert tuple(KeyRing.of(f"env:{NAME}")) == (KEY,)
    assert streamxf.decode(streamxf.encode(b"data", [streamxf.Encrypt(f"env:{NAME}")]), keys=KEY) == b"data"
    variable(format_key(SigningKey(SECRET)))
    with pytest.raises(ParameterError, match="pass it as signer="):
        KeyRing.of(f"env:{NAME}")


def test_one_that_is_not_set(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(KeyMissingError, match=f"{NAME} should hold a key, and is not set"):
        KeyRing.of(f"env:{NAME}")


@pytest.mark.parametrize("value", ["", "hunter2", SECRET.hex()[:-1], "\udcff" * 64, format_key(KEY)[:-1], "x" * 2**17])
def test_what_it_holds_is_not_shown(value, monkeypatch):
    monkeypatch.setattr("os.environ", {NAME: value})
    with pytest.raises(ParameterError, match=NAME) as caught:
        read_environment(NAME)
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize("name", ["abcdef" * 11, "abcdef" * 10 + "abc"])
def test_a_key_in_place_of_a_name_is_not_shown(name):
    with pytest.raises(KeyMissingError, match="this environment variable should hold a key"):
        KeyRing.of(f"env:{name}")


def test_long_names(monkeypatch):
    monkeypatch.setenv("A" * 200, SECRET.hex())
    assert read_environment("A" * 200) == KEY


@pytest.mark.parametrize("name", ["", "A=B", "1A", SECRET.hex(), "A B", format_key(KEY), "Ä"])
def test_names_that_are_none_are_not_shown(name):
    with pytest.raises(ParameterError, match="not the name of an environment variable") as caught:
        KeyRing.of(f"env:{name}")
    assert len(name) < 4 or name not in str(caught.value)
