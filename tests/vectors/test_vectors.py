"""Files that were made once: what they hold, or which rule they break, in streamxf and in the reference decoder."""

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import errors
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import StreamxfError
from streamxf.format.items import TensorItem
from streamxf.format.tiling import NotTiled
from streamxf.keys import Key, PrivateKey, PublicKey, SigningKey, VerifyKey
from streamxf.keys.file import read_key
from streamxf.storage.reading import FileSlice
from streamxf.stream.container import read_header
from tests.floatzip_forge import features
from tests.forge import take_apart
from tests.lots import in_lots
from tests.reference_codecs import Refused
from tests.samples import OneWay
from tests.vectors.described import READERS, SUBJECTS, V1, Entry, bytes_of, keyring_of, profile_of, unpack, vectors
from tests.vectors.key_files import read_key_file

PAGES = Path(__file__).parents[2] / "docs" / "format"

# What streamxf raises for each rule: exactly one of these, no base class of them. Where a rule is of files and of an
# index, the second is MetadataError; where the reference decoder names a rule, streamxf may meet a neighbour first.
CLASSES: dict[str, tuple[type[StreamxfError], ...]] = {
    **dict.fromkeys(["header", "identity", "footer", "seal", "C2", "C4"], (errors.ContainerError,)),
    "prefix": (errors.ContainerError, errors.UnsupportedError),
    "block": (errors.BlockError,),
    **dict.fromkeys(["C13", "M18"], (errors.BlockError, errors.IdentityError, errors.MetadataError)),
    **dict.fromkeys(["C15", "V1", "V2", "V3", "V5", "V6"], (errors.ContainerError,)),
    **dict.fromkeys(["C7", "C8", "C10"], (errors.BlockError, errors.ContainerError)),
    **dict.fromkeys(["index", "M1", "M2", "M4", "M6", "M10", "M16", "M17", "M19"], (errors.MetadataError,)),
    **dict.fromkeys(["M13", "M14", "N1", "N2", "N5", "N7"], (errors.MetadataError,)),
    "trailer": (errors.MetadataError, errors.UnsupportedError),
    "descriptor": (errors.DescriptorError, errors.ContainerError, errors.MetadataError),
    "C1": (errors.ContainerError, errors.ChainError, errors.MetadataError),
    "C3": (errors.AuthenticationError,),
    "C5": (errors.ContainerError, errors.MetadataError),
    "C6": (errors.ContainerError, errors.MetadataError),
    "C9": (errors.CodecError, errors.ContainerError),
    "C17": (errors.IdentityError, errors.UnsupportedError),
    "difference": (errors.CodecError, errors.ChecksumError),
    "M20": (errors.MetadataError, errors.IdentityError),
    "C16": (errors.ContainerError, errors.MetadataError),
    "P1": (errors.ContainerError, errors.DescriptorError),
    "M3": (errors.MetadataError, errors.ContainerError),
    "M7": (errors.MetadataError,),
    "M9": (errors.MetadataError, errors.WrongKeyError),
    "M8": (errors.IdentityError, errors.MetadataError),
    "M5": (errors.MetadataError, NotTiled),
    "M12": (errors.MetadataError,),
    "B1": (errors.MetadataError,),
    "B2": (errors.BlockError,),
    "D1": (errors.MetadataError,),
    "D2": (errors.DescriptorError, errors.ParameterError, errors.ContainerError),
    "D3": (errors.DescriptorError,),
    "D4": (errors.UnknownCodecError,),
    "D5": (errors.ContainerError, errors.MetadataError, errors.UnknownCodecError),
    "D6": (errors.ChainError,),
    "zstd": (errors.CodecError, errors.MetadataError, errors.ParameterError),
    "lz4": (errors.CodecError, errors.ParameterError),
    "checksum": (errors.ChecksumError, errors.CodecError),
    "encrypt": (errors.AuthenticationError, errors.CodecError),
    **dict.fromkeys(["floatzip", "Z1", "Z2", "Z3", "Z4"], (errors.CodecError,)),
    "K1": (errors.DescriptorError, errors.ContainerError),
    "K3": (errors.KeyMissingError, errors.WrongKeyError),
    "K4": (errors.DescriptorError, errors.AuthenticationError),
    "K5": (errors.AuthenticationError,),
    "K6": (errors.PolicyError, errors.AuthenticationError, errors.ParameterError),
    "K7": (errors.PolicyError,),
    "K8": (errors.PolicyError,),
    "F1": (errors.MetadataError, errors.UnsupportedError),
    "F2": (errors.MetadataError, errors.ContainerError, errors.IdentityError),
    "F3": (errors.MetadataError, errors.IdentityError),
    **dict.fromkeys(["key file", "K9"], (errors.KeyFileError,)),
    "K10": (errors.KeyFileError, errors.WrongKeyError, errors.KeyMissingError),
}

# Rules that no file can break by itself, each with where they are tested.
ELSEWHERE = {
    "V4": "what a reader hands out; tests/format",
    "C11": "what n is: a table of another length breaks C10",
    "C12": "shown by C10-trailing-itself: the table says where the container ends",
    "C14": "shown by C9-C14-raw-size: which rule a wrong size breaks then is that of the last block",
    "P2": "an order of checks; tests/stream",
    "M11": "of readers that nest",
    "N3": "an order of checks, and M12; tests/checkpoint",
    **dict.fromkeys(["N4", "N6"], "what a note is good for; tests/manager"),
    **dict.fromkeys(["R1", "R2", "R3", "R4", "R5"], "an order of checks; tests/checkpoint"),
    "F4": "shown by the vectors of stock: which streams they have",
    "K2": "shown by K3-x25519-other-info and K3-mlkem768-x25519-other-info: what does not open is passed over",
    "K11": "shown by protected-nfc and K10-nfd",
}


def of(outcome: str, *subjects: str) -> Any:
    """Run a test with each vector of some subjects that has an outcome."""
    found = [(subject, name) for subject in subjects for name, entry in vectors(subject).items() if outcome in entry]
    return in_lots("subject, name", found)


def digest_of(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def refused(action: Callable[[], object], rule: str) -> StreamxfError:
    """The error by which streamxf refuses a file that breaks a rule."""
    with pytest.raises(StreamxfError) as caught:
        action()
    assert type(caught.value) in CLASSES[rule], repr(caught.value)
    return caught.value


def refused_by_reference(action: Callable[[], object], rule: str) -> None:
    with pytest.raises(Refused) as caught:
        action()
    assert caught.value.rule == rule, str(caught.value)


# -- in both ---------------------------------------------------------------------------------------------------------


def reads_of(entry: Entry, subject: str, folder: Path) -> list[Callable[[], Any]]:
    """How a vector is read by streamxf, and by the reference decoder."""
    stored = unpack(entry, folder) if subject == "checkpoint" else bytes_of(entry["file"])
    return [lambda read=read: read(entry, stored) for read in READERS[subject]]


@of("holds", "plain", "container", "checkpoint", "note", "value")
def test_what_it_holds(subject: str, name: str, tmp_path: Path) -> None:
    entry = vectors(subject)[name]
    for read in reads_of(entry, subject, tmp_path):
        if subject == "checkpoint":
            check_content(read(), entry["holds"])
        else:
            assert (read() if subject in ("note", "value") else digest_of(read())) == entry["holds"]


@of("breaks", "plain", "container", "checkpoint", "note", "value")
def test_which_rule_it_breaks(subject: str, name: str, tmp_path: Path) -> None:
    entry = vectors(subject)[name]
    by_streamxf, by_reference = reads_of(entry, subject, tmp_path)
    refused(by_streamxf, entry["breaks"])
    refused_by_reference(by_reference, entry["breaks"])


def test_bytes_with_notes() -> None:
    """Those on the page for implementers are those of vectors."""
    page = (PAGES / "implementing.md").read_text()
    shown = [
        bytes.fromhex("".join(re.findall(r"^[0-9a-f]{2}(?: [0-9a-f]{2})*", block, re.MULTILINE)))
        for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    ]
    metadata = bytes_of(vectors("checkpoint")["eight-bytes"]["files"][".metadata"])
    assert shown == [bytes_of(vectors("container")["tensor"]["file"]), metadata[-104:]]


def test_vectors_that_the_page_names() -> None:
    names = {name for subject in SUBJECTS for name in vectors(subject)}
    table = (PAGES / "implementing.md").read_text().partition("## What languages")[2].partition("## Bytes")[0]
    rows = re.findall(r"^\|.*\|(.*)\|$", table, re.MULTILINE)[2:]
    assert {name for row in rows for name in re.findall("`(.*?)`", row)} - names == set()


def test_how_many_there_are_is_what_the_page_on_security_says() -> None:
    count = sum(len(vectors(subject)) for subject in SUBJECTS)
    assert f"the {count:,} vectors in `tests/vectors/v1`" in (PAGES.parent / "security.md").read_text()


# -- plain files -----------------------------------------------------------------------------------------------------


@of("holds", "plain")
def test_plain_files_in_a_pipe(subject: str, name: str) -> None:
    entry = vectors(subject)[name]
    for pipe in (OneWay(data := bytes_of(entry["file"])), OneWay(data, step=7)):
        if entry.get("trust"):
            with pytest.raises(errors.PolicyError):
                READERS[subject][0](entry, pipe)
        else:
            assert digest_of(READERS[subject][0](entry, pipe)) == entry["holds"]


@of("breaks", "plain")
def test_plain_files_that_are_refused_in_other_ways(subject: str, name: str) -> None:
    entry = vectors(subject)[name]
    data = bytes_of(entry["file"])
    with pytest.raises(StreamxfError):
        streamxf.decode(data, keys=keyring_of(entry))
    for step in (1 << 30, 7) if entry["breaks"] != "C13" else ():  # a pipe's reader need not compare digests
        with pytest.raises(StreamxfError):
            READERS[subject][0](entry, OneWay(data, step))


# -- checkpoints -----------------------------------------------------------------------------------------------------


def check_content(found: dict[str, Any], expected: Entry) -> None:
    assert list(found) == list(expected)
    for name, content in found.items():
        wanted = expected[name]
        if "value" in wanted:
            data, text = content
            assert digest_of(data) | {"value": text} == wanted
        elif "loads" in wanted:
            assert torch.load(io.BytesIO(content), weights_only=True) == wanted["loads"]
        elif isinstance(content, bytes):
            assert digest_of(content) == wanted
        else:
            assert len(content) == len(wanted["chunks"])
            for stream, chunk in zip(content, wanted["chunks"], strict=True):
                usual = {"size": chunk.get("size"), "sha256": chunk.get("sha256")}
                assert (digest_of(elements_of(stream)) if "elements" in chunk else digest_of(stream)) == chunk.get(
                    "elements", usual
                )


def elements_of(stream: bytes) -> bytes:
    tensor = torch.load(io.BytesIO(stream), weights_only=True).contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@of("run", "checkpoint")
def test_runs(subject: str, name: str, tmp_path: Path) -> None:
    entry = vectors(subject)[name]
    with Checkpoint(unpack(entry, tmp_path), keys=keyring_of(entry)) as checkpoint:
        index = checkpoint.metadata[0].index
    assert index is not None
    assert index.run is not None
    wanted = entry["run"]
    assert index.run.time == wanted["time"] / 1000
    assert index.run.to_json() | {"time": 0} == wanted | {"time": 0}


@of("breaks", "checkpoint")
def test_checkpoints_that_dcp_does_not_load(subject: str, name: str, tmp_path: Path) -> None:
    entry = vectors(subject)[name]
    unpack(entry, tmp_path)
    try:
        options: dict[str, Any] = {"keys": keyring_of(entry)}
        with Checkpoint(tmp_path, **options, rank=entry.get("rank")) as checkpoint:
            items = dict(checkpoint.stored)
    except StreamxfError:
        return  # by `test_which_rule_it_breaks`
    target = {name: torch.zeros(item.shape) if isinstance(item, TensorItem) else None for name, item in items.items()}
    reader = streamxf.FileSystemReader(tmp_path, **options)
    with pytest.raises((StreamxfError, dcp.api.CheckpointException)):
        dcp.load(target, storage_reader=reader, no_dist=True)


# -- key files -------------------------------------------------------------------------------------------------------

_KINDS = {"aeskw": (Key, None), **dict.fromkeys(["ed25519", "ed25519+mldsa65"], (SigningKey, VerifyKey))}


def key_file(entry: Entry, folder: Path) -> Path:
    path = folder / "key"
    path.write_text(entry["text"])
    path.chmod(0o600)
    return path


@of("holds", "key")
def test_key_files(subject: str, name: str, tmp_path: Path) -> None:
    entry = vectors(subject)[name]
    wanted = entry["holds"]
    found = read_key(key_file(entry, tmp_path), entry.get("passphrase"))
    secret, public = _KINDS.get(wanted["kind"], (PrivateKey, PublicKey))
    if wanted["what"] == "public":
        assert isinstance(found, VerifyKey | PublicKey)
        assert type(found) is public
        assert found.data.hex() == wanted["key"]
    else:
        assert isinstance(found, Key | PrivateKey | SigningKey)
        assert type(found) is secret
        assert found.reveal().hex() == wanted["key"]
    assert found.kind == wanted["kind"]
    described = wanted["what"], wanted["kind"], bytes.fromhex(wanted["key"])
    assert read_key_file(entry["text"].encode(), entry.get("passphrase")) == described


@of("breaks", "key")
def test_key_files_that_are_refused(subject: str, name: str, tmp_path: Path) -> None:
    entry = vectors(subject)[name]
    path = key_file(entry, tmp_path)
    refused(lambda: read_key(path, entry.get("passphrase")), entry["breaks"])
    refused_by_reference(lambda: read_key_file(entry["text"].encode(), entry.get("passphrase")), entry["breaks"])


# -- the vectors themselves ------------------------------------------------------------------------------------------


def test_each_rule_has_a_vector_that_breaks_it() -> None:
    pages = [PAGES.with_suffix(".md"), *PAGES.glob("*.md")]
    rules = {rule for page in pages for rule in re.findall(r"^- \*\*([A-Z]\d+)\.\*\*", page.read_text(), re.MULTILINE)}
    broken = {entry["breaks"] for subject in SUBJECTS for entry in vectors(subject).values() if "breaks" in entry}
    assert len(rules) > 45
    assert rules - broken == set(ELSEWHERE)
    assert broken == set(CLASSES)


def test_every_file_is_described() -> None:
    """No file is left over, and none is missing."""
    files = {str(path.relative_to(V1)) for path in V1.rglob("*") if path.is_file() and path.suffix != ".json"}
    entries = [entry for subject in SUBJECTS for entry in vectors(subject).values()]
    named = [file for entry in entries for file in [entry.get("file", {}), *entry.get("files", {}).values()]]
    assert {file["path"] for file in named if "path" in file} == files
    assert sum(path.stat().st_size for path in V1.rglob("*") if path.is_file()) < 13 << 18


def test_each_has_its_profile() -> None:
    for subject in SUBJECTS:
        for name, entry in vectors(subject).items():
            assert entry.get("profile") == profile_of(subject, entry), f"{name}: python -m tests.vectors.make adds it"


def test_names_are_unique() -> None:
    for subject in SUBJECTS:
        assert len(vectors(subject)) == (V1 / f"{subject}.json").read_text().count('{"name": ')


def test_those_of_floatzip_use_all_that_its_page_specifies() -> None:
    seen: set[str] = set()
    for entry in vectors("plain").values():
        if "holds" in entry and "keys" not in entry:
            data = bytes_of(entry["file"])
            source = FileSlice(io.BytesIO(data), 20)
            if read_header(source).chain == ("streamxf.floatzip/1",):
                for _, stored in take_apart(data).blocks:
                    seen |= features(stored)
    assert seen == {
        *("stored", "width 1", "width 2", "width 4", "width 8", "turned", "unturned", "phase", "lane 1", "lane 2"),
        *("lane 4", "raw", "zstd", "packed", "fixed", "exceptions", "levelled", "levels of rows", "levels of columns"),
    }
