"""Where locations lead: the entry points of other packages, and everything that can be wrong with them."""

import sys
import types
from importlib.metadata import EntryPoint

import pytest

import streamxf
from streamxf.errors import KeyFileError, KeyMissingError, ParameterError
from streamxf.keys import Key, KeyRing
from streamxf.keys import ring as location

KEY = Key(bytes(range(108, 140)))


def fail(rest):
    raise KeyMissingError(f"nothing at {rest}")


@pytest.fixture
def claim(monkeypatch):
    """Registers an entry point whose module is this fixture's."""
    module = types.ModuleType("acme_test_keys")
    module.open_key = lambda rest: KEY if rest == "team/a" else fail(rest)
    module.open_text = lambda rest: KEY.reveal()
    module.table = {}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points: list[EntryPoint] = []
    monkeypatch.setattr(location, "entry_points", lambda **wanted: [each for each in points if each.matches(**wanted)])

    def add(name: str, value: str = "acme_test_keys:open_key", group: str = "streamxf.key_providers") -> None:
        points.append(EntryPoint(name, value, group))

    return add


def test_a_place_of_another_package(claim):
    claim("acme")
    assert list(location.key_schemes()) == ["file", "env", "aws-kms", "acme"]
    assert tuple(KeyRing.of("acme:team/a")) == (KEY,)
    assert streamxf.decode(streamxf.encode(b"x", [streamxf.Encrypt("acme:team/a")]), keys=["acme:team/a"]) == b"x"
    with pytest.raises(KeyMissingError, match="nothing at team/b:c"):
        KeyRing.of("acme:team/b:c")


def test_nothing_is_imported_that_is_not_named(claim):
    claim("acme", "no_such_module:open_key")
    assert "acme" in location.key_schemes()
    with pytest.raises(KeyFileError):
        KeyRing.of("file:/no/such/file")


@pytest.mark.parametrize("text", ["vault:x", "vault", "", ":", "FILE:x", "0" * 64, "streamxf-secret:aeskw:x:y"])
def test_unknown_places_are_listed_and_the_text_is_not_shown(text, claim):
    claim("acme")
    with pytest.raises(ParameterError, match="none of file, env, aws-kms, acme") as caught:
        KeyRing.of(text)
    assert len(text) < 2 or text not in str(caught.value)


def test_the_group_is_what_counts(claim):
    claim("acme", group="streamxf.codecs")
    with pytest.raises(ParameterError, match="begins with none of"):
        KeyRing.of("acme:team/a")


@pytest.mark.parametrize("value", ["no_such_module:open_key", "acme_test_keys:missing", "acme_test_keys:open_key.more"])
def test_what_cannot_be_imported(value, claim):
    claim("acme", value)
    with pytest.raises(ParameterError, match=f"{value}.*cannot be imported"):
        KeyRing.of("acme:team/a")


def test_two_packages_that_claim_one_place(claim):
    claim("acme")
    claim("acme")  # one package that is seen twice on sys.path
    assert tuple(KeyRing.of("acme:team/a")) == (KEY,)
    claim("acme", "other_package:open_key")
    with pytest.raises(ParameterError, match="acme_test_keys:open_key, other_package:open_key; uninstall all but one"):
        KeyRing.of("acme:team/a")


def test_nobody_takes_the_places_of_streamxf(claim):
    for name in ("file", "env", "aws-kms"):
        claim(name)
    assert list(location.key_schemes()) == ["file", "env", "aws-kms"]
    with pytest.raises(KeyFileError):
        KeyRing.of("file:team/a")


def test_wrong_types(claim):
    claim("text", "acme_test_keys:open_text")
    with pytest.raises(ParameterError, match="returned a bytes, not a KeyProvider") as caught:
        KeyRing.of("text:x")
    assert repr(KEY.reveal()) not in str(caught.value)
    claim("table", "acme_test_keys:table")
    with pytest.raises(ParameterError, match="not a callable"):
        KeyRing.of("table:x")
