"""Descriptors stripped, altered and reordered: in the metadata, in the headers, in both, whoever vouches for them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import LZ4, Checksum, Key, ZStandard
from streamxf.errors import AuthenticationError, IdentityError, MetadataError
from streamxf.format.sections import Sections, pack_keys
from streamxf.keys.envelope import DataKey, Envelope, Vouchers
from tests.dcp import helpers
from tests.forge import pack_index, prefix_of, split_metadata, take_container_apart

from .rows import Row
from .targets import Checkpoint, Container, PlainFile, content, keys_for

ROW = "strip, alter, reorder descriptors"

THREE = [ZStandard(), LZ4(), Checksum()]
UNKEYED = [LZ4(), Checksum()]


def three() -> dict[str, Any]:
    return {"a": torch.zeros(5), "b": torch.ones(5), "o": "one"}


def alter_chain(path: Path, change: Callable[[list[str]], Any]) -> None:
    """Give the index another chain, for which a holder of the key vouches."""
    helpers.rewrite_index(path, lambda index: index.update(chains=[change(index["chains"][0])]))


def orders(count: int) -> list[tuple[int, ...]]:
    """Every order of every subset, and the same with one that stands twice; without the one that is right."""
    subsets = [order for size in range(count + 1) for order in permutations(range(count), size)]
    twice = [(*order, again) for order in subsets for again in order]
    return [order for order in subsets + twice if order != tuple(range(count))]


def test_every_subset_and_order_that_is_vouched_for(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    helpers.save(three(), checkpoint, chain)
    whole = (checkpoint / ".metadata").read_bytes()
    for order in orders(len(chain)):
        alter_chain(checkpoint, lambda texts, order=order: [texts[number] for number in order])
        # by comparing chains, before anything is decoded: another chain may make something of the blocks, too
        row.refuse(order, helpers.load, three(), checkpoint, keys_for(chain), kind=(IdentityError, MetadataError))
        (checkpoint / ".metadata").write_bytes(whole)
    helpers.assert_same(helpers.load(three(), checkpoint, keys_for(chain)), three())


def test_every_subset_and_order_under_a_digest_that_anyone_can_make(row: Row, checkpoint: Path) -> None:
    helpers.save(three(), checkpoint)
    file = checkpoint / ".metadata"
    whole = file.read_bytes()
    parts = split_metadata(whole)
    for order in orders(3):
        index = parts.index | {"chains": [[parts.index["chains"][0][number] for number in order]]}
        open_index = index | {"files": [{n: v for n, v in file.items() if n != "key"} for file in index["files"]]}
        made = [
            parts.change(index=index),
            parts.change(index=index, keys=b""),
            parts.change(index=open_index, keys=b""),
        ]
        for data in (*(each.pack() for each in made), parts.pickled):
            file.write_bytes(data)
            for options in ({}, {"require": "bound"}, {"require": "encrypted"}):
                row.refuse((order, options), helpers.load, three(), checkpoint, **options)
    file.write_bytes(whole)
    helpers.assert_same(helpers.load(three(), checkpoint), three())


@pytest.mark.parametrize("keyed", [True, False])
def test_every_subset_and_order_where_nothing_vouches_for_the_metadata(row: Row, tmp_path: Path, keyed: bool) -> None:
    """An attached writer's checkpoint: in the metadata alone, in the headers alone, and in both."""
    target = Checkpoint(tmp_path / "attached", writer="attached", keyed=keyed, chain=THREE if not keyed else None)
    texts = target.descriptors
    for order in orders(3):
        chosen = [texts[number] for number in order]

        def change(info: Any, chosen: list[str] = chosen) -> Any:
            return replace(info, transform_descriptors=chosen)

        headers = b"\n".join(text.partition("#")[0].encode() for text in reversed(chosen))
        with target.told(change):
            row.refuse(order, target.with_data, target.data, kind=IdentityError if order else MetadataError)
        for container in target.containers():
            made = rechained(container, headers)
            row.refuse(order, container.load, made)
            if keyed:  # without a key, whoever rewrites the checkpoint is its writer
                with target.told(change):
                    row.refuse(order, container.load, made)
        target.restore()


def rechained(container: Container, chain: bytes) -> bytes:
    parts = take_container_apart(container.intact)
    flags = parts.flags & ~1 | (b"streamxf.encrypt" in chain)
    return parts.change(chain=chain, flags=flags, seal=parts.seal if flags & 1 else b"").container()


def test_every_subset_and_order_in_plain_files(row: Row) -> None:
    for pipe in (False, True):
        file = PlainFile(b"some text", helpers.full_chain(), pipe=pipe)
        container = file.container()
        texts = file.parts.chain.split(b"\n")
        for order in orders(3):
            made = rechained(container, b"\n".join(texts[number] for number in order))
            row.refuse(order, container.load, made)
            row.refuse(order, file.load, prefix_of() + made)


@pytest.mark.parametrize("empty", [None, []])
def test_stripped_descriptors(row: Row, checkpoint: Path, chain: list[Any], empty: Any) -> None:
    """In metadata that has no index."""
    writer = streamxf.attach(dcp.FileSystemWriter(checkpoint, sync_files=False), chain)
    dcp.save(three(), storage_writer=writer)

    def strip(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = empty

    helpers.rewrite_pickle(checkpoint, strip)
    options = {"require": "bound"} if keys_for(chain) else {}
    error = row.refuse(empty, helpers.load, three(), checkpoint, keys_for(chain), kind=MetadataError, **options)
    assert "descriptors were removed" in str(error)


def test_a_stripped_index(row: Row, checkpoint: Path, chain: list[Any]) -> None:
    helpers.save(three(), checkpoint, chain)
    file = checkpoint / ".metadata"
    file.write_bytes(split_metadata(file.read_bytes()).pickled)
    reason = "the file was cut or altered" if keys_for(chain) else "it was removed"
    assert reason in str(row.refuse("no index", helpers.load, three(), checkpoint, keys_for(chain)))
    if keys_for(chain):
        for require in ("bound", "encrypted"):
            error = row.refuse(
                require, helpers.load, three(), checkpoint, helpers.KEY, require=require, kind=MetadataError
            )
            assert "it was removed" in str(error)


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
    helpers.save(three(), checkpoint, chain)
    alter_chain(checkpoint, ALTERED[how])
    error = row.refuse(how, helpers.load, three(), checkpoint, keys_for(chain))
    assert not isinstance(error, AuthenticationError), "a holder of the key vouched for it"


def test_an_altered_level_does_no_harm(row: Row, checkpoint: Path) -> None:
    """A fragment holds what matters to encoding only."""
    helpers.save(three(), checkpoint)
    alter_chain(checkpoint, lambda texts: [text.replace("level=3", "level=4") for text in texts])
    right = content(three())
    assert row.refuse_or_equal("level", right, lambda: content(helpers.load(three(), checkpoint))) is None


def with_data_key(path: Path, data_key: DataKey, key: Key, vouching: DataKey | None = None) -> bytes:
    """The metadata of a checkpoint, which says that everything is encrypted under another data key."""
    parts = split_metadata((path / ".metadata").read_bytes())
    wrapped = str(Envelope.seal(data_key, [key]))
    digest = Sections(memoryview(parts.packed_index), memoryview(b"")).digest
    vouchers = str(Vouchers.make(digest, wrapped, vouching or data_key, [key]))
    return parts.change(keys=pack_keys(wrapped, vouchers)).pack()


def test_another_data_key(row: Row, checkpoint: Path) -> None:
    """Wrapped for the same user's key, so it opens, but the containers were not sealed under it."""
    helpers.save(three(), checkpoint)
    (checkpoint / ".metadata").write_bytes(with_data_key(checkpoint, DataKey.draw(), helpers.KEY))
    error = row.refuse("data key", helpers.load, three(), checkpoint, kind=AuthenticationError)
    assert "seal does not match" in str(error)


def test_metadata_that_was_vouched_for_without_the_key(row: Row, checkpoint: Path) -> None:
    """By someone who has another key, or drew a data key, or once had the right data key, or has no key at all."""
    helpers.save(three(), checkpoint)
    mine, drawn, once = Key.generate(), DataKey.draw(), helpers.data_key_of(checkpoint)
    assert once is not None
    parts = split_metadata((checkpoint / ".metadata").read_bytes())
    wrapped, vouchers = parts.keys.split(b"\n")
    index = parts.index | {"items": {"a": parts.index["items"]["a"]}}
    digest = Sections(memoryview(pack_index(index)[0]), memoryview(b"")).digest
    forged = str(Vouchers.make(digest, wrapped.decode(), once, [mine])).encode()
    for number, data in enumerate(
        [
            with_data_key(checkpoint, drawn, mine),
            with_data_key(checkpoint, drawn, mine).replace(mine.id.encode(), helpers.KEY.id.encode()),
            with_data_key(checkpoint, once, helpers.KEY, drawn),
            parts.change(index=index).pack(),
            parts.change(index=index, keys=wrapped + b"\n" + forged).pack(),
            parts.change(
                index=index, keys=wrapped + b"\n" + forged.replace(mine.id.encode(), helpers.KEY.id.encode())
            ).pack(),
            parts.change(index=index, keys=b"").pack(),
            parts.change(keys=vouchers + b"\n" + wrapped).pack(),
        ]
    ):
        (checkpoint / ".metadata").write_bytes(data)
        row.refuse(number, helpers.load, three(), checkpoint)
