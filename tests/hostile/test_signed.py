"""Signed checkpoints that are not encrypted: what someone can do who may write all of their files, and has no key that
signs. All CRCs, digests and lengths are right again; a reader that trusts the signer takes none of it.
"""

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.errors import (
    AuthenticationError,
    ContainerError,
    IdentityError,
    MetadataError,
    ParameterError,
    PolicyError,
)
from streamxf.keys import KeyRing, SigningKey, VerifyKey
from tests.altered import bit_flips
from tests.dcp.helpers import KEY
from tests.forge import MetadataParts, Places, split_metadata
from tests.reference_codecs import Refused
from tests.reference_decoder import load as load_by_reference
from tests.reference_keys import Reader
from tests.sealing import b64url, index_digest, signature

from .rows import Row
from .targets import small_state

ROW = "signed, not encrypted"
KINDS = "ed25519", "ed25519+mldsa65"
SIGNERS = {kind: SigningKey(bytes(range(7, 39)), kind) for kind in KINDS}
CHAINS: dict[str, Any] = {"raw": "raw", "none": "", "zstd": "zstd", "mixed": {"*": "zstd", "b": "raw"}}
Files = dict[str, bytes]


def values(number: int) -> dict[str, np.ndarray[Any, Any]]:
    """Two tensors of one shape, and one of another."""
    made = np.arange(number, number + 40, dtype="f4")
    return {"a": made, "b": made[::-1].copy(), "c": np.full((3, 2), number, "i8")}


def saved(path: Path, chain: Any, number: int, signer: SigningKey | None) -> Files:
    with streamxf.CheckpointWriter(path, chain=chain, signer=signer, stock=False) as writer:
        for name, value in values(number).items():
            writer[name] = value
        writer["o"] = [number]
    return {file.name: file.read_bytes() for file in path.iterdir()}


class Target:
    """A checkpoint, and another one by the same signer."""

    def __init__(self, folder: Path, chain: str, kind: str) -> None:
        self.signer = SIGNERS[kind]
        self.folder, self.number = folder, 0
        self.files, self.other = (saved(folder / f"made{n}", CHAINS[chain], n, self.signer) for n in (1, 2))
        self.unsigned = saved(folder / "unsigned", CHAINS[chain], 1, None)
        self.parts, self.parts_of_other = (split_metadata(each[".metadata"]) for each in (self.files, self.other))
        (self.data,) = self.files.keys() - {".metadata"}
        (self.data_of_other,) = self.other.keys() - {".metadata"}

    def put(self, files: Files) -> Path:
        self.number += 1
        path = self.folder / f"attack{self.number}"
        path.mkdir()
        for name, data in files.items():
            (path / name).write_bytes(data)
        return path

    def load(self, files: Files, trust: VerifyKey | None = None) -> list[bytes]:
        """All that it holds; whether the reference decoder refuses it, too, is compared."""
        path, key = self.put(files), trust or self.signer.verify_key
        try:
            with streamxf.Checkpoint(path, trust=key, framework="numpy") as checkpoint:
                found = [checkpoint[name].read().tobytes() for name in "abc"] + [repr(checkpoint["o"].read()).encode()]
        except streamxf.StreamxfError:
            with pytest.raises(Refused):
                load_by_reference(path, Reader((), [key.data]))
            raise
        load_by_reference(path, Reader((), [key.data]))
        return found

    def with_metadata(self, parts: MetadataParts, data: bytes | None = None) -> Files:
        return {self.data: self.files[self.data] if data is None else data, ".metadata": parts.pack()}

    def with_index(self, change: Callable[[Any], object], **fields: Any) -> Files:
        """The index is another; the signature is as it was, unless `fields` say more."""
        index = split_metadata(self.files[".metadata"]).index
        change(index)
        return self.with_metadata(self.parts.change(index=index, **fields))

    @property
    def places(self) -> list[dict[str, Any]]:
        return places(self.parts.index)


def places(index: Any) -> list[dict[str, Any]]:
    return [place for item in index["items"].values() for place in item.get("chunks", [item])]


@pytest.fixture(params=CHAINS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    made = Target(tmp_path, request.param, "ed25519")
    assert made.load(made.files) == [each.tobytes() for each in values(1).values()] + [b"[1]"]
    return made


def test_every_bit_of_the_data(row: Row, target: Target) -> None:
    """With the CRCs of its container right again, and those of a bare item in an index that nobody signed."""
    data = target.files[target.data]
    for place in target.places:
        stored = data[place["at"] : place["at"] + place["bytes"]]
        for number, altered in row.share(enumerate(bit_flips(stored)), 5):
            made = Places.of(stored).mend(altered) if "number" in place else altered
            whole = data[: place["at"]] + made + data[place["at"] + place["bytes"] :]
            if made != stored:
                row.refuse(number, target.load, {**target.files, target.data: whole})


def test_every_bit_of_the_metadata(row: Row, target: Target) -> None:
    parts = target.parts
    root, stored = parts.stored()
    for number, altered in row.share(enumerate(bit_flips(root + stored + parts.keys)), 5):
        made = altered[: len(root)], altered[len(root) : len(root + stored)], altered[len(root + stored) :]
        files = target.with_metadata(parts.change(index=made[0], parts=made[1], keys=made[2]))
        row.refuse(number, target.load, files)


def stripped(target: Target) -> Iterator[tuple[str, Files]]:
    """Signature, digests, or what says that there are some."""

    def unsign(index: Any) -> None:
        index.pop("digests", None)
        for place in places(index):
            place.pop("digest", None)

    keys = target.parts.keys
    yield "the signature", target.with_metadata(target.parts.change(keys=b""))
    yield "the signature's bytes", target.with_metadata(target.parts.change(keys=keys[: keys.rindex(b":") + 1]))
    yield "digests", target.with_index(unsign)
    yield "both", target.with_index(unsign, keys=b"")
    yield "some digests", target.with_index(lambda index: index["digests"].pop())
    yield "all digests, but not their columns", target.with_index(lambda index: index.update(digests=[]))
    yield "the kind", target.with_metadata(target.parts.change(keys=re.sub(rb"sig=[^:]+:", b"sig=", keys)))
    yield "to a kind that nobody knows", target.with_metadata(target.parts.change(keys=keys.replace(b"sig=", b"sig=x")))
    yield "unsigned metadata", target.unsigned


def exchanged(target: Target) -> Iterator[tuple[str, Files]]:
    """Items of one checkpoint, or parts of two."""
    data, (a, b, *_) = target.files[target.data], target.places
    cut = [data[each["at"] : each["at"] + each["bytes"]] for each in (a, b)]
    if len(cut[0]) == len(cut[1]):
        made = data.replace(cut[0], b"\0" * len(cut[0])).replace(cut[1], cut[0]).replace(b"\0" * len(cut[0]), cut[1])
        yield "two items in the data", {**target.files, target.data: made}

    def swap(*members: str) -> Callable[[Any], None]:
        def change(index: Any) -> None:
            one, two = places(index)[:2]
            for member in members:
                if member in one and member in two:
                    one[member], two[member] = two[member], one[member]

        return change

    yield "two digests", target.with_index(swap("digest"))
    yield "two items in the index", target.with_index(swap("digest", "at", "bytes", "number", "crc32c"))
    yield "two digests in their part", target.with_index(lambda index: index["digests"].reverse())
    theirs = target.other[target.data_of_other]
    yield "the data of two checkpoints", {**target.files, target.data: theirs}
    renamed = lambda index: index["files"][0].update(path=target.data)  # noqa: E731
    index = split_metadata(target.other[".metadata"]).index
    renamed(index)
    for keys in (target.parts.keys, target.parts_of_other.keys):
        made = target.parts_of_other.change(index=index, keys=keys)
        yield "the index of the other, over its data", target.with_metadata(made, theirs)
        yield "the index of the other", target.with_metadata(made)
    yield "the signature of the other", target.with_metadata(target.parts.change(keys=target.parts_of_other.keys))
    mixed = lambda index: index.update(digests=target.parts_of_other.index["digests"])  # noqa: E731
    yield "the digests of the other", target.with_index(mixed)


@pytest.mark.parametrize("attack", [stripped, exchanged])
def test_what_was_stripped_or_exchanged(row: Row, target: Target, attack: Any) -> None:
    for name, files in attack(target):
        row.refuse(name, target.load, files)


@pytest.mark.parametrize("kind", KINDS)
def test_weaker_signatures(row: Row, tmp_path: Path, kind: str) -> None:
    """By strangers, of half a kind, or for something else."""
    target = Target(tmp_path, "zstd", kind)
    root, line = target.parts.packed_index, target.parts.keys.decode().strip()
    digest = index_digest(root)
    _, key_id, data = line.removeprefix("sig=").split(":")
    signed = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
    altered = bytes([signed[0] ^ 1]) + signed[1:]
    stranger = SigningKey(bytes(range(50, 82)), kind)
    strangers = stranger.sign(stranger.statement(digest))
    half = VerifyKey(target.signer.verify_key.data[:32])
    made = {
        "a stranger's": f"sig={kind}:{stranger.id}:{b64url(strangers)}",
        "a stranger's under the signer's name": f"sig={kind}:{key_id}:{b64url(strangers)}",
        "another kind's": f"sig=ed25519x:{key_id}:{data}",
        "for the digest alone": f"sig={kind}:{key_id}:{b64url(target.signer.sign(digest))}",
        "for another index": f"sig={kind}:{key_id}:{b64url(target.signer.sign(target.signer.statement(bytes(32))))}",
        "zeros": f"sig={kind}:{key_id}:{b64url(bytes(len(signed)))}",
        "beside a right one of another signer": f"sig={kind}:{key_id}:{b64url(altered)}&{signature(digest)}",
    }
    if kind != "ed25519":
        made |= {
            "half of it": f"sig=ed25519:{half.id}:{b64url(signed[:64])}",
            "half of it under its name": f"sig=ed25519:{key_id}:{b64url(signed[:64])}",
            "half a stranger's": f"sig={kind}:{key_id}:{b64url(signed[:64] + strangers[64:])}",
            "the other half a stranger's": f"sig={kind}:{key_id}:{b64url(strangers[:64] + signed[64:])}",
            "halves exchanged": f"sig={kind}:{key_id}:{b64url(signed[64:] + signed[:64])}",
        }
    for name, text in made.items():
        files = target.with_metadata(target.parts.change(keys=f"\n{text}".encode()))
        row.refuse(name, target.load, files)
        if "half of it" in name:  # who trusts the Ed25519 key alone is not deceived either
            row.refuse(name, target.load, files, half)


def test_checkpoints_by_others_in_its_place(row: Row, tmp_path: Path) -> None:
    """By torch's own writer, encrypted, or a plain file: none that one whom the reader trusts has signed."""
    target, key = Target(tmp_path, "raw", "ed25519"), SIGNERS["ed25519"].verify_key
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(tmp_path / "stock"))
    row.refuse("stock", lambda: streamxf.Checkpoint(tmp_path / "stock", trust=key), kind=PolicyError)
    row.refuse("stock, verified", streamxf.verify, tmp_path / "stock", trust=key, kind=PolicyError)
    with streamxf.CheckpointWriter(tmp_path / "keyed", recipients=KEY) as writer:
        writer["a"] = values(1)["a"]
    row.refuse("encrypted, unsigned", lambda: streamxf.Checkpoint(tmp_path / "keyed", trust=key), kind=PolicyError)
    plain = tmp_path / "plain"
    plain.write_bytes(streamxf.encode(b"data", "zstd"))
    row.refuse("plain, verified", streamxf.verify, plain, trust=key, kind=PolicyError)
    row.refuse("plain", streamxf.decode, plain.read_bytes(), keys=KeyRing(trust=key), kind=PolicyError)
    row.refuse("for keys", lambda: streamxf.Checkpoint(target.put(target.files), keys=KEY), kind=PolicyError)


def test_other_formats_in_its_place(row: Row, tmp_path: Path) -> None:
    """Where keys or trusted signers are named, nothing is converted that can have neither."""
    key = SIGNERS["ed25519"].verify_key
    saved(tmp_path / "made", "zstd", 1, None)
    streamxf.unpack(tmp_path / "made", tmp_path / "model.safetensors", skip_objects=True)
    streamxf.unpack(tmp_path / "made", tmp_path / "model.pt")
    streamxf.unpack(tmp_path / "made", tmp_path / "folder", skip_objects=True)
    for source in (tmp_path / "model.safetensors", tmp_path / "model.pt", tmp_path / "folder"):
        for options in ({"trust": key}, {"keys": KEY}, {"keys": KEY, "trust": key}):
            for tool in (streamxf.pack, streamxf.unpack):
                what = f"{tool.__name__} {source.name}, {[*options]}"
                row.refuse(what, tool, source, tmp_path / "new", **options, kind=PolicyError)
            if "trust" in options and source.suffix:
                row.refuse(f"diff {what}", streamxf.diff, source, source, **options, kind=PolicyError)
                row.refuse(f"inspect {what}", streamxf.inspect, source, **options, kind=PolicyError)
    assert not (tmp_path / "new").exists()


def test_signers_that_a_registry_trusts(row: Row, tmp_path: Path) -> None:
    """Also where it has no keys; torch's own readers and attached ones cannot know what was signed."""
    path, ring = tmp_path / "made", KeyRing(trust=SIGNERS["ed25519"].verify_key)
    registry = streamxf.Registry(keys=ring)
    state = {"a": torch.zeros(40)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain="zstd"))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"))
    for name in (path, tmp_path / "stock"):
        row.refuse("a checkpoint", lambda name=name: streamxf.Checkpoint(name, codecs=registry), kind=PolicyError)
        row.refuse("verified", streamxf.verify, name, codecs=registry, kind=PolicyError)
        for reader in (streamxf.FileSystemReader, streamxf.FsspecReader, dcp.FileSystemReader):
            with pytest.raises(CheckpointException, match="signers are trusted"):
                dcp.load(state, storage_reader=reader(name, _extension_registry=registry))
    with pytest.raises(ParameterError, match="does not see the index"):
        streamxf.attach(dcp.FileSystemReader(path), keys=ring)


def test_data_files_without_metadata(row: Row, tmp_path: Path) -> None:
    """The metadata has the signature, so without it nothing is signed; only who trusts nobody can vouch for them."""
    key = SIGNERS["ed25519"].verify_key
    saved(tmp_path / "made", "zstd", 1, SIGNERS["ed25519"])
    (tmp_path / "made" / ".metadata").unlink()
    how: Any = {"trust": key, "without_metadata": True, "kind": PolicyError}
    row.refuse("loaded", streamxf.load_intact, tmp_path / "made", **how)
    row.refuse("salvaged", streamxf.salvage, tmp_path / "made", tmp_path / "new", **how)
    assert streamxf.load_intact(tmp_path / "made", without_metadata=True).state_dict.keys() == {*"abco"}


def test_errors_say_what_it_is(target: Target) -> None:
    for files, kind, text in (
        (target.unsigned, PolicyError, "not signed"),
        (dict(stripped(target))["the signature"], PolicyError, "not signed"),
        (dict(stripped(target))["digests"], AuthenticationError, "not for these contents"),
        (target.files | {target.data: target.other[target.data_of_other]}, (IdentityError, ContainerError), ""),
    ):
        with pytest.raises(kind, match=text):
            target.load(files)
    with (
        pytest.raises(MetadataError, match="the signature was removed"),
        streamxf.Checkpoint(target.put(dict(stripped(target))["the signature"])),
    ):
        """Without trust, it is damaged at least."""
