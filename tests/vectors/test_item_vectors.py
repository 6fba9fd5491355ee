"""Containers of items that were made once, with what the metadata says of them: read or refused, by both decoders."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import make
import pytest
from described import keyring_of, reference_keys_of
from recipes.vector import digest_of
from reference_decoder import FormatError, Identity, decode_item
from test_vectors import CLASSES as PLAIN_CLASSES
from torch.distributed.checkpoint.metadata import MetadataIndex

import streamxf
from streamxf import errors
from streamxf.container.header import Kind
from streamxf.dcp.load.items import Expected, ItemOpener
from streamxf.dcp.metadata.manifest import Manifest
from streamxf.errors import StreamxfError
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.source import FileSlice

FOLDER = Path(__file__).parent / "v1" / "item"
VECTORS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MADE = {vector.name: vector for vector in make.vectors("item")}

# "mismatch" is a MetadataError where the metadata itself lost something: its trailer, or the item's descriptors.
CLASSES = {**PLAIN_CLASSES, "mismatch": (errors.IdentityError, errors.MetadataError)}

ALL = pytest.mark.parametrize("name", VECTORS)
HOLDING = pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if "holds" in vector])
FAILING = pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if "fails" in vector])


def file_of(name: str) -> bytes:
    return (FOLDER / f"{name}.bin").read_bytes()


def by_streamxf(name: str) -> bytes:
    """The item as streamxf's reader opens it, with the weakest demands that its checkpoint allows."""
    vector = VECTORS[name]
    place, ring = vector["place"], keyring_of(vector)
    published = place["writer"] is not None
    manifest = Manifest("0" * 32, None, None, {}, {}) if published else None
    require = ("published" if published else "bound") if vector["keys"] else None
    opener = ItemOpener(streamxf.Registry(keys=ring), require, manifest)
    index = MetadataIndex(place["name"], place["offset"] if place["kind"] == Kind.TENSOR else None)
    expected = Expected(index, Kind(place["kind"]), None, place["writer"])
    blocks = opener.open(FileSlice(io.BytesIO(file_of(name))), vector["descriptors"], expected)
    return StreamReader(blocks).read()


def by_page(name: str) -> bytes:
    vector = VECTORS[name]
    place = vector["place"]
    known = place["writer"] is not None
    writer = bytes.fromhex(place["writer"]) if known else b""
    identity = Identity(writer, place["kind"], tuple(place["offset"]), place["name"])
    keys = reference_keys_of(vector)
    given = {"descriptors": vector["descriptors"], "place": identity, "writer_known": known}
    return decode_item(file_of(name), key=keys, **given).payload


@ALL
def test_the_files_are_those_that_were_recorded(name):
    assert hashlib.sha256(file_of(name)).hexdigest() == VECTORS[name]["file_sha256"]


def test_every_file_is_described_and_every_description_made():
    assert {path.stem for path in FOLDER.glob("*.bin")} == set(VECTORS) == set(MADE)
    assert len(make.vectors("item")) == len(MADE)


@ALL
def test_anybody_can_make_again_what_is_described(name):
    assert MADE[name].described(file_of(name)) == VECTORS[name]


@HOLDING
def test_both_decoders_read_them(name):
    data = by_streamxf(name)
    assert digest_of(data) == VECTORS[name]["holds"]
    assert by_page(name) == data


@FAILING
def test_streamxf_refuses_them(name):
    with pytest.raises(StreamxfError) as caught:
        by_streamxf(name)
    assert type(caught.value) in CLASSES[VECTORS[name]["fails"]], repr(caught.value)


@FAILING
def test_the_second_decoder_refuses_them_by_the_same_layer(name):
    with pytest.raises(FormatError) as caught:
        by_page(name)
    assert caught.value.layer == VECTORS[name]["fails"], str(caught.value)
