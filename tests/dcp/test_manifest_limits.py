"""The requirement "nobody exhausts memory": a large manifest is parsed only after its tag was found right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf import Key
from streamxf.dcp.metadata import manifest as manifest_module
from streamxf.dcp.metadata.limits import MAX_LOOSE_MANIFEST, MAX_PACKAGE_TEXT, MAX_PACKAGES
from streamxf.dcp.metadata.manifest import FileFacts, Manifest, append_trailer, split
from streamxf.errors import AuthenticationError, KeyMissingError, MetadataError

from .helpers import KEY, OTHER_KEY, assert_same, data_key_of, load, index_of, refused, retagged, save

FACTS = FileFacts(1, "0" * 32, "crc32c:00000000")
MANY = {f"{at:0120d}": FACTS for at in range(MAX_LOOSE_MANIFEST // 200)}
HEAD = Manifest("0" * 32, None, None, {"streamxf": "1", "torch": "2"}, {})


@pytest.fixture
def saved(checkpoint: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint)
    return checkpoint


def pickled(path: Path) -> bytes:
    return bytes(split((path / ".metadata").read_bytes()).pickled)


def unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manifest, "parse", lambda _: pytest.fail("the manifest was parsed"))


def test_a_large_manifest_is_not_parsed_before_its_tag_is_right(
    saved: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = index_of(saved)
    large = replace(manifest, files=manifest.files | MANY)
    assert len(large.pack()) > MAX_LOOSE_MANIFEST
    forged = append_trailer(pickled(saved), large, None)
    (saved / ".metadata").write_bytes(forged)
    with monkeypatch.context() as patch:
        unparsed(patch)
        for keys, kind in ((KEY, AuthenticationError), (OTHER_KEY, KeyMissingError), (None, KeyMissingError)):
            with refused(kind):
                load(state, saved, keys)
        for keys, kind in ((KEY, AuthenticationError), (OTHER_KEY, KeyMissingError)):
            with refused(kind):
                streamxf.rekey(saved, keys, Key(bytes(range(7, 39))))
        assert [reader.id for reader in streamxf.recipients(saved).whole] == [KEY.id]


def test_a_large_manifest_without_a_key_is_refused_before_it_is_parsed(
    saved: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = append_trailer(pickled(saved), replace(HEAD, files=MANY), None)
    (saved / ".metadata").write_bytes(data)
    unparsed(monkeypatch)
    with refused(streamxf.errors.PolicyError, "not encrypted"):
        load(state, saved, KEY)


def test_a_large_index_of_the_writer_loads_and_changes_its_recipients(saved: Path, state: dict[str, Any]) -> None:
    manifest = index_of(saved)
    large = replace(manifest, files=MANY | manifest.files)
    (saved / ".metadata").write_bytes(retagged(saved, pickled(saved), large))
    assert_same(load(state, saved), state)
    streamxf.rekey(saved, KEY, OTHER_KEY)
    assert_same(load(state, saved, OTHER_KEY), state)
    assert index_of(saved).files == large.files


@pytest.mark.parametrize("text", ['"', "\\", '"},"key":null,"packages":{', "\u20ac"])
def test_names_in_a_large_manifest_do_not_pass_for_its_key(text: str) -> None:
    name = text + "x"
    for made in (
        replace(HEAD, files={**MANY, f"z{name}": FACTS}),
        replace(HEAD, packages={**HEAD.packages, name: name}, files=MANY),
    ):
        for key in (None, "streamxf.encrypt/1#dek=A&w=B"):
            data = manifest_module.append_trailer(b"", replace(made, key=key), None)
            assert split(data).key == key


@pytest.mark.parametrize("compact", [True, False], ids=["the key first", "with spaces"])
def test_a_large_index_of_another_layout_is_refused_even_under_a_right_tag(
    saved: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch, compact: bool
) -> None:
    manifest = index_of(saved)
    content = json.loads(replace(manifest, files=manifest.files | MANY).pack())
    if compact:
        text = json.dumps(dict(reversed(content.items())), separators=(",", ":")).encode()
    else:
        text = json.dumps(content, sort_keys=True).encode()
    monkeypatch.setattr(Manifest, "pack", lambda _: text)
    data = append_trailer(pickled(saved), manifest, data_key_of(saved))
    monkeypatch.undo()
    (saved / ".metadata").write_bytes(data)
    with refused(MetadataError, "not laid out"):
        load(state, saved)


def test_the_key_that_was_found_is_the_one_of_the_manifest(saved: Path, state: dict[str, Any]) -> None:
    """A second member that only looks like the key, in an object that stands behind it."""
    manifest = index_of(saved)
    text = replace(manifest, files=manifest.files | MANY).pack()
    at = text.rindex(b'},"key":')
    twice = text[:at] + b'},"key":null,"packages":{}' + text[at + 1 :]
    body = pickled(saved) + twice + len(twice).to_bytes(4, "little")
    data_key = data_key_of(saved)
    data = body + manifest_module._tag(memoryview(body), data_key) + manifest_module.METADATA_MAGIC
    assert split(data).key == manifest.key
    (saved / ".metadata").write_bytes(data)
    with refused(MetadataError, "twice"):
        load(state, saved)


@pytest.mark.parametrize(
    "more",
    [
        {f"p{at}": "1" for at in range(MAX_PACKAGES - 1)},
        {"p" * (MAX_PACKAGE_TEXT + 1): "1"},
        {"p": "1" * (MAX_PACKAGE_TEXT + 1)},
    ],
    ids=["too many", "a long name", "a long version"],
)
def test_packages_are_limited(more: dict[str, str]) -> None:
    with pytest.raises(MetadataError, match="packages"):
        Manifest.parse(replace(HEAD, packages=HEAD.packages | more).pack())


def test_as_many_packages_as_are_allowed() -> None:
    more = {f"{at:0{MAX_PACKAGE_TEXT}d}": "1" * MAX_PACKAGE_TEXT for at in range(MAX_PACKAGES - 2)}
    made = replace(HEAD, packages=HEAD.packages | more, files=MANY)
    assert Manifest.parse(made.pack()) == made
    assert split(append_trailer(b"", made, None)).key is None
