"""Descriptors stripped, altered and put in another order: in the metadata, in the headers, in both, under any tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp.helpers import KEY, assert_same, full_chain, load, rewrite_metadata, save
from forge import join_metadata, prefix_of, split_metadata, take_container_apart
from streamxf.dcp.metadata.manifest import append_trailer, split

import streamxf
from streamxf import LZ4, Checksum, Encrypt, Key, ZStandard
from streamxf.descriptor import Descriptor
from streamxf.errors import AuthenticationError, IdentityError, MetadataError
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope

from .rows import Row
from .targets import Checkpoint, Container, PlainFile, content

ROW = "strip, alter, reorder descriptors"
MEBIBYTES = 16

THREE = [ZStandard(), LZ4(), Checksum()]
CHAINS = {"full chain": full_chain, "unkeyed": lambda: list(THREE)}


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest) -> list[Any]:
    return CHAINS[request.param]()


def keys_for(chain: list[Any]) -> Key | None:
    return KEY if any(isinstance(codec, Encrypt) for codec in chain) else None


def three() -> dict[str, Any]:
    return {"a": torch.zeros(5), "b": torch.ones(5), "o": "one"}


def alter_descriptors(path: Path, change: Callable[[list[str]], list[str] | None]) -> None:
    def on_metadata(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = change(list(info.transform_descriptors))

    rewrite_metadata(path, on_metadata)


def orders(count: int) -> list[tuple[int, ...]]:
    """Every order of every subset, and the same with one that stands twice; without the one that is right."""
    subsets = [order for size in range(count + 1) for order in permutations(range(count), size)]
    twice = [(*order, again) for order in subsets for again in order]
    return [order for order in subsets + twice if order != tuple(range(count))]


def test_every_subset_and_order_under_a_tag_that_matches(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    save(three(), checkpoint, chain)
    whole = (checkpoint / ".metadata").read_bytes()
    for order in orders(len(chain)):
        alter_descriptors(checkpoint, lambda texts, order=order: [texts[number] for number in order])
        # by comparing chains, before anything is decoded: another chain may make something of the blocks, too
        kind = IdentityError if order else MetadataError
        row.refuse(order, load, three(), checkpoint, keys_for(chain), kind=kind)
        (checkpoint / ".metadata").write_bytes(whole)
    assert_same(load(three(), checkpoint, keys_for(chain)), three())


def test_every_subset_and_order_under_a_digest_that_anybody_can_make(row: Row, checkpoint: Path) -> None:
    save(three(), checkpoint)
    whole = (checkpoint / ".metadata").read_bytes()
    for order in orders(3):
        alter_descriptors(checkpoint, lambda texts, order=order: [texts[number] for number in order])
        pickled, manifest = split_metadata((checkpoint / ".metadata").read_bytes())
        for data in (join_metadata(pickled, manifest), join_metadata(pickled, manifest | {"key": None}), pickled):
            (checkpoint / ".metadata").write_bytes(data)
            for options in ({}, {"require": "bound"}, {"require": "encrypted"}):
                row.refuse((order, options), load, three(), checkpoint, **options)
        (checkpoint / ".metadata").write_bytes(whole)


@pytest.mark.parametrize("keyed", [True, False])
def test_every_subset_and_order_where_nobody_vouches_for_the_metadata(row: Row, tmp_path: Path, keyed: bool) -> None:
    """An attached writer's checkpoint: in the metadata alone, in the headers alone, and in both."""
    target = Checkpoint(tmp_path / "attached", writer="attached", keyed=keyed, chain=THREE if not keyed else None)
    kept = target._reader.storage_data
    texts = next(iter(kept.values())).transform_descriptors
    for order in orders(3):
        chosen = [texts[number] for number in order]
        altered = {index: replace(info, transform_descriptors=chosen) for index, info in kept.items()}
        headers = b"\n".join(text.partition("#")[0].encode() for text in reversed(chosen))
        target._reader.storage_data = altered
        row.refuse(order, target.with_data, target.data, kind=IdentityError if order else MetadataError)
        for container in target.containers():
            made = rechained(container, headers)
            target._reader.storage_data = kept
            row.refuse(order, container.load, made)
            target._reader.storage_data = altered
            if keyed:  # without a key, whoever rewrites the checkpoint is its writer
                row.refuse(order, container.load, made)
        target._reader.storage_data = kept
        target.restore()


def rechained(container: Container, chain: bytes) -> bytes:
    parts = take_container_apart(container.intact)
    flags = parts.flags & ~1 | (b"streamxf.encrypt" in chain)
    return parts.change(chain=chain, flags=flags, seal=parts.seal if flags & 1 else b"").container()


def test_every_subset_and_order_in_plain_files(row: Row) -> None:
    for pipe in (False, True):
        file = PlainFile(b"some text", full_chain(), pipe=pipe)
        container = file.container()
        texts = file.parts.chain.split(b"\n")
        for order in orders(3):
            made = rechained(container, b"\n".join(texts[number] for number in order))
            row.refuse(order, container.load, made)
            row.refuse(order, file.load, prefix_of(b"") + made)


@pytest.mark.parametrize("empty", [None, []])
def test_stripped_descriptors(row: Row, checkpoint: Path, chain: list[Any], empty: Any) -> None:
    save(three(), checkpoint, chain)
    alter_descriptors(checkpoint, lambda _: empty)
    error = row.refuse(empty, load, three(), checkpoint, keys_for(chain), kind=MetadataError)
    assert "descriptors were removed" in str(error)


def test_a_stripped_trailer(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    save(three(), checkpoint, chain)
    file = checkpoint / ".metadata"
    file.write_bytes(bytes(split(file.read_bytes()).pickled))
    reason = "the file was cut or altered" if keys_for(chain) else "trailer was removed"
    assert reason in str(row.refuse("no trailer", load, three(), checkpoint, keys_for(chain)))
    if keys_for(chain):
        for require in ("bound", "encrypted"):
            error = row.refuse(require, load, three(), checkpoint, KEY, require=require, kind=MetadataError)
            assert "trailer was removed" in str(error)


ALTERED = {
    "another algorithm": lambda texts: [
        text.replace("streamxf.checksum/1", "streamxf.checksum/1?algorithm=sha256") for text in texts
    ],
    "another codec": lambda texts: [text.replace("streamxf.zstd/1", "streamxf.lz4/1") for text in texts],
    "another version": lambda texts: [text.replace("zstd/1", "zstd/2") for text in texts],
    "a parameter before the fragment": lambda texts: [text.replace("zstd/1#", "zstd/1?level=3#") for text in texts],
    "an unknown parameter": lambda texts: [text.replace("checksum/1", "checksum/1?size=3") for text in texts],
    "a huge number": lambda texts: [text.replace("level=3", "level=" + "9" * 30) for text in texts],
    "a long one": lambda texts: [texts[0] + "x" * 70_000, *texts[1:]],
    "many": lambda texts: texts + ["streamxf.checksum/1"] * 100,
    "no text": lambda texts: [7, *texts[1:]],
    "foreign in the end": lambda texts: [*texts, "stream.zstd/1"],
    "foreign in front": lambda texts: ["stream.zstd/1", *texts],
    "nothing": lambda texts: [""],
}


@pytest.mark.parametrize("how", ALTERED)
def test_altered_descriptors(row: Row, checkpoint: Path, chain: list[Any], how: str) -> None:
    save(three(), checkpoint, chain)
    alter_descriptors(checkpoint, ALTERED[how])
    error = row.refuse(how, load, three(), checkpoint, keys_for(chain))
    assert not isinstance(error, AuthenticationError), "the tag was made to match"


def test_an_altered_level_does_no_harm(row: Row, checkpoint: Path) -> None:
    """A fragment holds what matters to encoding only."""
    save(three(), checkpoint)
    alter_descriptors(checkpoint, lambda texts: [text.replace("level=3", "level=4") for text in texts])
    right = content(three())
    assert row.refuse_or_equal("level", right, lambda: content(load(three(), checkpoint))) is None


def test_another_data_key_for_an_item(row: Row, checkpoint: Path) -> None:
    """Wrapped for the same user's key, so it opens, but the containers were not sealed under it."""
    save(three(), checkpoint)
    other = str(Descriptor("streamxf.encrypt", 1, (), Envelope.seal(DataKey.draw(), [KEY]).fragment))
    alter_descriptors(
        checkpoint, lambda texts: [other if text.startswith("streamxf.encrypt") else text for text in texts]
    )
    error = row.refuse("data key", load, three(), checkpoint, kind=AuthenticationError)
    assert "seal does not match" in str(error)


def test_metadata_that_was_tagged_without_the_key(row: Row, checkpoint: Path) -> None:
    save(three(), checkpoint)
    file = checkpoint / ".metadata"
    parts = split(file.read_bytes())
    assert parts.manifest is not None
    pickled = bytes(parts.pickled)
    for manifest, made_with in (
        (parts.manifest, None),
        (parts.manifest, DataKey.draw()),
        (replace(parts.manifest, key=None), None),
        (replace(parts.manifest, key=Encrypt(streamxf.Key.generate()).get_descriptor()), None),
    ):
        file.write_bytes(append_trailer(pickled, manifest, made_with))
        row.refuse("tag", load, three(), checkpoint)
