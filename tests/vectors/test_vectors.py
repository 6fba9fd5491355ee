"""Plain files that were made once: what they hold, or why they are refused, here and by the second decoder."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make
import pytest
from described import keyring_of, reference_keys_of
from floatzip_forge import features
from forge import take_apart
from recipes.vector import digest_of
from reference_decoder import FormatError, decode_plain_file, decode_plain_file_in_order
from samples import OneWay

import streamxf
from streamxf import errors
from streamxf.errors import StreamxfError

FOLDER = Path(__file__).parent / "v1" / "plain"
VECTORS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MADE = {vector.name: vector for vector in make.vectors("plain")}
FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
BLOCK = 1 << 16

# What streamxf raises for each layer of README.md: exactly one of these, no base class of them.
CLASSES: dict[str, tuple[type[StreamxfError], ...]] = {
    "prefix": (errors.ContainerError,),
    "header": (errors.ContainerError,),
    "identity": (errors.ContainerError,),
    "chain": (errors.ContainerError, errors.ChainError),
    "descriptor": (errors.DescriptorError, errors.ParameterError),
    "unknown-codec": (errors.UnknownCodecError,),
    "policy": (errors.PolicyError,),
    "fragment": (errors.DescriptorError,),
    "key-missing": (errors.KeyMissingError,),
    "key-wrong": (errors.WrongKeyError,),
    "signature": (errors.AuthenticationError,),
    "seal": (errors.AuthenticationError,),
    "block": (errors.BlockError, errors.ContainerError),
    "tag": (errors.AuthenticationError,),
    "codec:zstd": (errors.CodecError,),
    "codec:lz4": (errors.CodecError,),
    "codec:floatzip": (errors.CodecError,),
    "codec:checksum": (errors.ChecksumError, errors.CodecError),
    "codec:encrypt": (errors.CodecError,),
    "size": (errors.CodecError, errors.ContainerError),
    "index": (errors.ContainerError, errors.BlockError),
    "footer": (errors.ContainerError,),
    "trailing": (errors.ContainerError,),
}


def named(wanted: Callable[[dict[str, Any]], bool]) -> pytest.MarkDecorator:
    """Run a test with each vector for which `wanted` holds."""
    return pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if wanted(vector)])


HOLDING = named(lambda vector: "holds" in vector)
FAILING = named(lambda vector: "fails" in vector)
ALL = named(lambda vector: True)


def file_of(name: str) -> bytes:
    return (FOLDER / f"{name}.bin").read_bytes()


# -- what is recorded --------------------------------------------------------------------------------------------------


@ALL
def test_the_files_are_those_that_were_recorded(name):
    assert hashlib.sha256(file_of(name)).hexdigest() == VECTORS[name]["file_sha256"]


def test_every_file_is_described_and_every_description_made():
    assert {path.stem for path in FOLDER.glob("*.bin")} == set(VECTORS) == set(MADE)
    assert len(make.vectors("plain")) == len(MADE)


@ALL
def test_anybody_can_make_again_what_is_described(name):
    described = MADE[name].described(file_of(name))
    assert described == VECTORS[name]


def test_every_layer_has_a_vector_and_every_vector_a_layer():
    named = {vector[key] for vector in VECTORS.values() for key in ("fails", "fails_in_order") if key in vector}
    assert named == set(CLASSES)


def test_the_folder_is_small():
    files = [path for path in FOLDER.parents[1].rglob("*") if path.suffix in (".bin", ".json")]
    assert sum(path.stat().st_size for path in files) < 2 << 20


# -- streamxf ----------------------------------------------------------------------------------------------------------


def read_all(source: Any, keys: Any) -> tuple[bytes, StreamxfError | None]:
    """All that comes out of a source before its end or an error, read block by block; and the error."""
    out = b""
    try:
        with streamxf.open(source, keys=keys) as file:
            while data := file.read(BLOCK):
                out += data
    except StreamxfError as error:
        return out, error
    return out, None


@HOLDING
def test_streamxf_reads_them(name):
    vector = VECTORS[name]
    with streamxf.open(FOLDER / f"{name}.bin", keys=keyring_of(vector)) as file:
        data = file.read()
    assert digest_of(data) == vector["holds"]
    for source in (io.BytesIO(file_of(name)), OneWay(file_of(name)), OneWay(file_of(name), step=7)):
        assert read_all(source, keyring_of(vector)) == (data, None)


@FAILING
def test_streamxf_refuses_them(name):
    vector = VECTORS[name]
    out, error = read_all(io.BytesIO(file_of(name)), keyring_of(vector))
    assert type(error) in CLASSES[vector["fails"]], repr(error)
    with pytest.raises(type(error)):
        streamxf.decode(file_of(name), keys=keyring_of(vector))
    released = read_all(OneWay(file_of(name)), keyring_of(vector))[0]
    assert released.startswith(out)


@FAILING
def test_streamxf_refuses_them_in_order_and_releases_no_more_than_it_may(name):
    vector = VECTORS[name]
    out, error = read_all(OneWay(file_of(name)), keyring_of(vector))
    assert type(error) in CLASSES[vector.get("fails_in_order", vector["fails"])], repr(error)
    assert digest_of(out) == vector["released"]


# -- the second decoder ------------------------------------------------------------------------------------------------


@HOLDING
def test_the_second_decoder_reads_them(name):
    vector = VECTORS[name]
    found = decode_plain_file(file_of(name), key=reference_keys_of(vector))
    assert digest_of(found.payload) == vector["holds"]
    assert found.chain == vector["chain"]
    assert b"".join(decode_plain_file_in_order(file_of(name), key=reference_keys_of(vector))) == found.payload


@FAILING
def test_the_second_decoder_refuses_them_by_the_same_layer(name):
    vector = VECTORS[name]
    with pytest.raises(FormatError) as whole:
        decode_plain_file(file_of(name), key=reference_keys_of(vector))
    assert whole.value.layer == vector["fails"], str(whole.value)

    out = b""
    with pytest.raises(FormatError) as in_order:
        for part in decode_plain_file_in_order(file_of(name), key=reference_keys_of(vector)):
            out += part
    assert in_order.value.layer == vector.get("fails_in_order", vector["fails"]), str(in_order.value)
    assert digest_of(out) == vector["released"]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_those_of_floatzip_meet_all_that_its_page_tells():
    seen = set()
    for name, vector in VECTORS.items():
        if "holds" in vector and vector["chain"] == ["streamxf.floatzip/1"]:
            for _, stored in take_apart(file_of(name)).blocks:
                seen |= features(stored)
    assert seen == {
        *("stored", "width 1", "width 2", "width 4", "width 8", "turned", "unturned", "phase", "lane 1", "lane 2"),
        *("lane 4", "raw", "zstd", "packed", "exceptions", "levelled", "levels of rows", "levels of columns"),
    }


def test_the_worked_example_of_the_format():
    rows = re.findall(
        r"^\| (\d+) \| `([0-9a-f ]+)` \|", FORMAT.read_text().partition("## A worked example")[2], re.MULTILINE
    )
    example = b""
    for at, digits in rows:
        assert len(example) == int(at)
        example += bytes.fromhex(digits)
    assert len(example) == 142
    assert streamxf.decode(example) == b"abc"
    assert decode_plain_file(example).payload == b"abc"
