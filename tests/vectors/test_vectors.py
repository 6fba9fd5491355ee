"""Files that were written once must decode to the recorded bytes for ever, here and by the second decoder."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import make
import pytest
from floatzip_forge import features
from forge import take_apart
from reference_decoder import decode_plain_file
from samples import OneWay

import streamxf

FOLDER = Path(__file__).parent / "v1"
VECTORS = json.loads((FOLDER / "vectors.json").read_text())
FORMAT = Path(__file__).parents[2] / "docs" / "format.md"


@pytest.fixture(params=VECTORS, ids=lambda vector: vector["file"])
def vector(request):
    return request.param


def key_of(vector) -> bytes | None:
    return bytes.fromhex(vector["key"]) if vector["key"] else None


def test_the_files_are_those_that_were_recorded(vector):
    data = (FOLDER / vector["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == vector["file_sha256"]


def test_streamxf_reads_them(vector):
    with streamxf.open(FOLDER / vector["file"], keys=key_of(vector)) as file:
        data = file.read()
    assert len(data) == vector["size"]
    assert hashlib.sha256(data).hexdigest() == vector["sha256"]
    with streamxf.open(OneWay((FOLDER / vector["file"]).read_bytes()), keys=key_of(vector)) as file:
        assert file.read() == data


def test_the_second_decoder_reads_them(vector):
    found = decode_plain_file((FOLDER / vector["file"]).read_bytes(), key=key_of(vector))
    assert hashlib.sha256(found.payload).hexdigest() == vector["sha256"]
    assert found.chain == vector["chain"]


def test_anybody_can_make_again_what_they_hold(vector):
    data = {f"{name}.bin": data for name, _, data, _ in make.VECTORS}[vector["file"]]
    assert hashlib.sha256(data).hexdigest() == vector["sha256"]


def test_those_of_floatzip_meet_all_that_its_page_tells():
    seen = set()
    for vector in VECTORS:
        if vector["chain"] == ["streamxf.floatzip/1"]:
            for _, stored in take_apart((FOLDER / vector["file"]).read_bytes()).blocks:
                seen |= features(stored)
    assert seen == {
        *("stored", "width 1", "width 2", "width 4", "width 8", "turned", "unturned", "phase", "lane 1", "lane 2"),
        *("lane 4", "raw", "zstd", "packed", "exceptions", "levelled", "levels of rows", "levels of columns"),
    }


def test_every_file_is_listed():
    assert {path.name for path in FOLDER.glob("*.bin")} == {vector["file"] for vector in VECTORS}
    assert len(VECTORS) >= 30


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
