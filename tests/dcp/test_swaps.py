"""Items, files, descriptors and saves in each other's places.

They are caught by identity, seal, chain or manifest, even where the metadata's tag matches.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import streamxf
from streamxf import Checksum, Encrypt, Key, ZStandard
from streamxf.container.header import Identity, Kind
from streamxf.dcp import metadata as metadata_file
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.framing import save_tensor
from streamxf.dcp.manifest import append_trailer, split
from streamxf.dcp.output import OutputFile
from streamxf.descriptor import Descriptor
from streamxf.errors import AuthenticationError, IdentityError, MetadataError, StreamxfError
from streamxf.keys import KeyRing
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope
from streamxf.meter import Meter

from .helpers import (
    KEY,
    assert_same,
    data_files,
    error_of,
    full_chain,
    load,
    manifest_of,
    refused,
    rewrite_metadata,
    save,
)

CHAINS = {"full chain": full_chain, "unkeyed": lambda: [ZStandard(), Checksum()]}


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest) -> list[Any]:
    return CHAINS[request.param]()


def keys_for(chain: list[Any]) -> Key | None:
    return KEY if len(chain) == 3 else None


def three() -> dict[str, Any]:
    return {"a": torch.zeros(5), "b": torch.ones(5), "c": torch.full((5,), 2.0), "o": "one", "p": "two"}


# -- items ---------------------------------------------------------------------------------------


def test_every_pair_of_items(checkpoint: Path, chain: list[Any]) -> None:
    """Each item's entry is replaced by each other's, or exchanged with it, under a tag that matches."""
    state = three()
    save(state, checkpoint, chain)
    whole = (checkpoint / ".metadata").read_bytes()
    tried = 0
    for one, other in permutations(state, 2):
        for exchange in (True, False):

            def change(metadata: Any, one: str = one, other: str = other, exchange: bool = exchange) -> None:
                index = {key.fqn: key for key in metadata.storage_data}
                places = dict(metadata.storage_data)
                metadata.storage_data[index[one]] = places[index[other]]
                if exchange:
                    metadata.storage_data[index[other]] = places[index[one]]

            rewrite_metadata(checkpoint, change)
            with refused(IdentityError, "swapped"):
                load(state, checkpoint, keys_for(chain))
            (checkpoint / ".metadata").write_bytes(whole)
            tried += 1
    assert tried == 40
    assert_same(load(state, checkpoint, keys_for(chain)), state)


def test_shards_of_one_tensor(checkpoint: Path, chain: list[Any]) -> None:
    """Two shards differ in their offset only."""
    halves = [torch.zeros(4, 3), torch.ones(4, 3)]
    save_shards(checkpoint, halves, chain)
    wanted = torch.cat(halves)
    assert_same(load({"w": wanted}, checkpoint, keys_for(chain)), {"w": wanted})

    def change(metadata: Any) -> None:
        (one, first), (other, second) = metadata.storage_data.items()
        metadata.storage_data = {one: second, other: first}

    rewrite_metadata(checkpoint, change)
    with refused(IdentityError, "swapped"):
        load({"w": wanted}, checkpoint, keys_for(chain))


def save_shards(path: Path, shards: list[torch.Tensor], chain: list[Any]) -> None:
    """What a save by several ranks does, one after the other in this process: each has a shard of `w` along dim 0."""

    size = torch.Size([sum(len(shard) for shard in shards), *shards[0].shape[1:]])
    writers, plans, planners = [], [], []
    start = 0
    for rank, shard in enumerate(shards):
        writer = streamxf.FileSystemWriter(path, _extensions=chain, sync_files=False)
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
        offsets = torch.Size([start] + [0] * (shard.ndim - 1))
        data = TensorWriteData(
            ChunkStorageMetadata(offsets, shard.shape), TensorProperties.create_from_tensor(shard), size
        )
        item = WriteItem(MetadataIndex("w", offsets, rank), WriteItemType.SHARD, tensor_data=data)
        plans.append(writer.prepare_local_plan(SavePlan([item], planner_data={})))
        planner = dcp.DefaultSavePlanner()
        planner.resolve_data = lambda _, shard=shard: shard  # type: ignore[method-assign]
        writers.append(writer)
        planners.append(planner)
        start += len(shard)
    leader = dcp.DefaultSavePlanner()
    leader.set_up_planner({}, None, True)
    plans, metadata = leader.create_global_plan(plans)
    results = [
        writer.write_data(plan, planner).wait() for writer, plan, planner in zip(writers, plans, planners, strict=True)
    ]
    writers[0].finish(metadata, results)


# -- files ---------------------------------------------------------------------------------------


def test_files_of_two_saves_with_one_key(tmp_path: Path, chain: list[Any]) -> None:
    """The same items, the same sizes, another save: a mixture of the two must not load."""
    plain = [codec for codec in chain if not isinstance(codec, ZStandard)]  # so that sizes do not depend on values
    for name, value in (("old", 1.0), ("new", 2.0)):
        save({"w": torch.full((50,), value)}, tmp_path / name, plain)
    (old,), (new,) = data_files(tmp_path / "old"), data_files(tmp_path / "new")
    assert old.stat().st_size == new.stat().st_size
    shutil.copyfile(old, new)
    with refused(IdentityError, "another process or save"):
        load({"w": torch.zeros(50)}, tmp_path / "new", keys_for(chain))


def test_metadata_of_another_save(tmp_path: Path, chain: list[Any]) -> None:
    for name in ("old", "new"):
        save(three(), tmp_path / name, chain)
    shutil.copyfile(tmp_path / "old" / ".metadata", tmp_path / "new" / ".metadata")
    with refused(MetadataError, "missing"):
        load(three(), tmp_path / "new", keys_for(chain))


def test_files_of_two_ranks(checkpoint: Path, chain: list[Any]) -> None:
    plain = [codec for codec in chain if not isinstance(codec, ZStandard)]
    halves = [torch.zeros(40, 3), torch.ones(40, 3)]
    save_shards(checkpoint, halves, plain)
    one, other = data_files(checkpoint)
    assert one.stat().st_size == other.stat().st_size
    first, second = one.read_bytes(), other.read_bytes()
    for left, right in ((second, first), (second, second), (first, first)):
        one.write_bytes(left)
        other.write_bytes(right)
        error = error_of(lambda: load({"w": torch.zeros(80, 3)}, checkpoint, keys_for(chain)))
        if (left, right) == (first, second):
            assert error is None
        else:
            assert isinstance(error, IdentityError)


def test_an_item_of_the_same_place_in_another_ranks_file(checkpoint: Path) -> None:
    """The right item, rightly placed and published, by a writer that did not write this file."""
    shards = [torch.zeros(40, 3), torch.ones(40, 3)]
    save_shards(checkpoint, shards, [Checksum()])
    (path, facts), *_ = sorted(manifest_of(checkpoint).files.items())

    file = checkpoint / path
    with file.open("wb") as raw:
        output = OutputFile(raw, Meter())
        identity = Identity(b"\7" * 16, Kind.TENSOR, (0, 0), "w")
        target = Extensions.of([Checksum()]).open(output, identity, published=True, dtype="float32")
        save_tensor(torch.full((40, 3), 9.0), target)
        target.close()
    assert file.stat().st_size == facts.size
    with refused(IdentityError, "another process or save"):
        load({"w": torch.zeros(80, 3)}, checkpoint, None)


def test_unpublished_and_unbound_items_in_a_published_checkpoint(tmp_path: Path) -> None:
    """What torch's own writer, or an attached one, made with the same codecs, in the place of a published item."""
    state = {"w": torch.zeros(30)}
    save(state, tmp_path / "own", [Checksum()])
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "stock", _extensions=[Checksum()]))
    dcp.save(state, storage_writer=streamxf.attach(dcp.FileSystemWriter(tmp_path / "attached"), [Checksum()]))
    (file,) = data_files(tmp_path / "own")

    for other, words in (("stock", "not bound"), ("attached", "another process or save")):
        (theirs,) = data_files(tmp_path / other)
        shutil.copyfile(theirs, file)
        metadata = tmp_path / "own" / ".metadata"
        manifest = manifest_of(tmp_path / "own")
        content = metadata_file.load(metadata.read_bytes(), KeyRing())
        vars(content).pop(metadata_file.MANIFEST_ATTRIBUTE)
        size = file.stat().st_size
        for info in content.storage_data.values():
            info.offset, info.length = 0, size
        files = {name: replace(facts, size=size) for name, facts in manifest.files.items()}
        metadata.write_bytes(metadata_file.dump(content, replace(manifest, files=files), None))
        with refused(IdentityError, words):
            load(state, tmp_path / "own", None)


# -- descriptors ---------------------------------------------------------------------------------


def alter_descriptors(path: Path, change: Callable[[list[str]], list[str] | None]) -> None:
    def on_metadata(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = change(list(info.transform_descriptors))

    rewrite_metadata(path, on_metadata)


def test_every_subset_and_order_of_the_descriptors(checkpoint: Path, chain: list[Any]) -> None:
    save(three(), checkpoint, chain)
    whole = (checkpoint / ".metadata").read_bytes()
    count = len(chain)
    orders = [
        order
        for size in range(count + 1)
        for chosen in combinations(range(count), size)
        for order in permutations(chosen)
    ]
    orders += [(*order, 0) for order in orders]
    for order in orders:
        alter_descriptors(checkpoint, lambda texts, order=order: [texts[number] for number in order])
        error = error_of(lambda: load(three(), checkpoint, keys_for(chain)))
        if order == tuple(range(count)):
            assert error is None
        else:
            assert isinstance(error, StreamxfError), order
            assert not isinstance(error, AuthenticationError), "the tag was made to match"
        (checkpoint / ".metadata").write_bytes(whole)


@pytest.mark.parametrize("empty", [None, []])
def test_stripped_descriptors(checkpoint: Path, chain: list[Any], empty: Any) -> None:
    save(three(), checkpoint, chain)
    alter_descriptors(checkpoint, lambda _: empty)
    with refused(MetadataError, "descriptors were removed"):
        load(three(), checkpoint, keys_for(chain))


def test_a_stripped_trailer(checkpoint: Path, chain: list[Any]) -> None:

    save(three(), checkpoint, chain)
    file = checkpoint / ".metadata"
    file.write_bytes(bytes(split(file.read_bytes()).pickled))
    reason = "the file was cut or altered" if keys_for(chain) else "trailer was removed"
    with refused(StreamxfError, reason):
        load(three(), checkpoint, keys_for(chain))
    if keys_for(chain):
        for require in ("bound", "encrypted"):
            with refused(MetadataError, "trailer was removed"):
                load(three(), checkpoint, KEY, require=require)


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
def test_altered_descriptors(checkpoint: Path, chain: list[Any], how: str) -> None:
    save(three(), checkpoint, chain)
    alter_descriptors(checkpoint, ALTERED[how])
    error = error_of(lambda: load(three(), checkpoint, keys_for(chain)))
    assert isinstance(error, StreamxfError), repr(error)
    assert not isinstance(error, AuthenticationError), "the tag was made to match"


def test_an_altered_level_does_no_harm(checkpoint: Path) -> None:
    """A fragment holds what matters to encoding only."""
    save(three(), checkpoint)
    alter_descriptors(checkpoint, lambda texts: [text.replace("level=3", "level=4") for text in texts])
    assert_same(load(three(), checkpoint), three())


def test_another_data_key_for_an_item(checkpoint: Path) -> None:
    """Wrapped for the same user's key, so it opens, but the containers were not sealed under it."""
    save(three(), checkpoint)
    other = str(Descriptor("streamxf.encrypt", 1, (), Envelope.seal(DataKey.draw(), [KEY]).fragment))
    alter_descriptors(
        checkpoint, lambda texts: [other if text.startswith("streamxf.encrypt") else text for text in texts]
    )
    with refused(AuthenticationError, "seal does not match"):
        load(three(), checkpoint)


def test_metadata_that_was_tagged_without_the_key(checkpoint: Path) -> None:

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
        error = error_of(lambda: load(three(), checkpoint))
        assert isinstance(error, StreamxfError), manifest
