"""Metadata files that were made once: which save they are, or why they are refused, here and by the second decoder."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import make
import pytest
import torch
from described import keyring_of, reference_keys_of
from recipes.vector import digest_of
from reference_decoder import FormatError, split_metadata
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

import streamxf
from streamxf import errors
from streamxf.errors import StreamxfError

FOLDER = Path(__file__).parent / "v1" / "metadata"
VECTORS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MADE = {vector.name: vector for vector in make.vectors("metadata")}

# What streamxf raises for each layer of README.md: exactly one of these, no base class of them.
CLASSES: dict[str, tuple[type[StreamxfError], ...]] = {
    "trailer": (errors.MetadataError,),
    "manifest": (errors.MetadataError, errors.DescriptorError),
    "policy": (errors.PolicyError,),
    "fragment": (errors.DescriptorError,),
    "key-missing": (errors.KeyMissingError,),
    "key-wrong": (errors.WrongKeyError,),
    "signature": (errors.AuthenticationError,),
    "mac": (errors.AuthenticationError,),
    "digest": (errors.MetadataError,),
    "pickle": (errors.MetadataError,),
}

ALL = pytest.mark.parametrize("name", VECTORS)
HOLDING = pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if "holds" in vector])
FAILING = pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if "fails" in vector])


def file_of(name: str) -> bytes:
    return (FOLDER / f"{name}.bin").read_bytes()


def read(name: str, folder: Path) -> tuple[streamxf.FileSystemReader, Metadata]:
    """Put the file where the reader looks for it, and read it."""
    vector = VECTORS[name]
    rank = vector["rank"]
    (folder / (".metadata" if rank is None else f"__{rank}.metadata")).write_bytes(file_of(name))
    reader = streamxf.FileSystemReader(folder, keys=keyring_of(vector))
    return reader, reader.read_metadata() if rank is None else reader.read_metadata(rank=rank)


# -- what is recorded --------------------------------------------------------------------------------------------------


@ALL
def test_the_files_are_those_that_were_recorded(name):
    assert hashlib.sha256(file_of(name)).hexdigest() == VECTORS[name]["file_sha256"]


def test_every_file_is_described_and_every_description_made():
    assert {path.stem for path in FOLDER.glob("*.bin")} == set(VECTORS) == set(MADE)
    assert len(make.vectors("metadata")) == len(MADE)


@ALL
def test_anybody_can_make_again_what_is_described(name):
    described, made = VECTORS[name], MADE[name].described(file_of(name))
    assert {**made, "holds": None, "pickle": None} == {**described, "holds": None, "pickle": None}
    assert ("holds" in made) == ("holds" in described)


def test_every_layer_has_a_vector_and_every_vector_a_layer():
    assert {vector["fails"] for vector in VECTORS.values() if "fails" in vector} == set(CLASSES)


# -- streamxf ----------------------------------------------------------------------------------------------------------


@HOLDING
def test_streamxf_reads_them(name, tmp_path):
    reader, found = read(name, tmp_path)
    assert reader.save_id == VECTORS[name]["holds"]["save_id"]
    assert set(found.state_dict_metadata) == {"weight", "step"}
    assert found.state_dict_metadata["weight"].properties.dtype is torch.float32
    assert found.storage_data[MetadataIndex("step")].offset == 1800


@FAILING
def test_streamxf_refuses_them(name, tmp_path):
    reader, found = read(name, tmp_path)
    with pytest.raises(StreamxfError) as caught:
        found.state_dict_metadata  # noqa: B018
    assert type(caught.value) in CLASSES[VECTORS[name]["fails"]], repr(caught.value)
    assert caught.value.file == str(tmp_path / ".metadata")
    assert reader.save_id is None


# -- the second decoder ------------------------------------------------------------------------------------------------


@HOLDING
def test_the_second_decoder_reads_them(name):
    vector = VECTORS[name]
    pickled, manifest = split_metadata(file_of(name), key=reference_keys_of(vector), rank=vector["rank"])
    assert manifest is not None
    assert {"save_id": manifest["save_id"], "pickle": digest_of(pickled)} == vector["holds"]


@FAILING
def test_the_second_decoder_refuses_them_by_the_same_layer(name):
    """It unpickles nothing: where only a pickle's content is at fault, it may hand out the very pickle."""
    vector = VECTORS[name]
    given = {"key": reference_keys_of(vector), "rank": vector["rank"]}
    if "pickle" in vector:
        with contextlib.suppress(FormatError):
            assert digest_of(split_metadata(file_of(name), **given)[0]) == vector["pickle"]
            return
    with pytest.raises(FormatError) as caught:
        split_metadata(file_of(name), **given)
    assert caught.value.layer == vector["fails"], str(caught.value)
