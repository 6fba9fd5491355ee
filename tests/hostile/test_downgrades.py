"""Weaker things in the place of what is encrypted: whole checkpoints, single items, files. No key is needed to make
them, and a reader that was given one takes none of them.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

import streamxf
from streamxf import Checksum, Encrypt, ZStandard
from streamxf.errors import IdentityError, PolicyError, StreamxfError
from tests.dcp.helpers import KEY, full_chain, load, save
from tests.forge import prefix_of, split_metadata, take_apart, take_container_apart
from tests.samples import encode

from .rows import Row
from .targets import Checkpoint, PlainFile, content, small_state

ROW = "downgrade"

TEXT = b"some text"
REQUIRE = pytest.mark.parametrize("require", ["published", "bound", "encrypted"])
WEAKER = [[ZStandard(), Checksum()], [Checksum("sha256")], [], [TorchZStandard()]]


def stock(path: Path, chain: list[Any]) -> None:
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(path, _extensions=chain or None))


def attached(path: Path, chain: list[Any]) -> None:
    dcp.save(small_state(), storage_writer=streamxf.attach(dcp.FileSystemWriter(path), chain))


def own(path: Path, chain: list[Any]) -> None:
    save(small_state(), path, chain)


@REQUIRE
@pytest.mark.parametrize("write", [own, attached, stock])
@pytest.mark.parametrize("chain", WEAKER, ids=range(len(WEAKER)))
def test_a_checkpoint_rebuilt_without_encryption(
    row: Row, checkpoint: Path, write: Any, chain: list[Any], require: Any
) -> None:
    """Of the same names and values, whoever wrote it, and whatever stands behind its pickle."""
    write(checkpoint, chain)
    file = checkpoint / ".metadata"
    whole = file.read_bytes()
    save(small_state(), checkpoint.parent / "keyed")
    keyed = split_metadata((checkpoint.parent / "keyed" / ".metadata").read_bytes())
    if write is own:
        parts = split_metadata(whole)
        index = parts.index | {"files": [file | {"key": "00" * 40} for file in parts.index["files"]]}
        forms = [whole, parts.pickled, parts.change(keys=keyed.keys).pack()]
        forms += [parts.change(index=index, keys=keys).pack() for keys in (b"", keyed.keys)]
    else:
        index = keyed.index | {"chain": [], "items": {}, "files": []}
        forms = [whole, keyed.change(pickled=whole).pack()]
        forms += [keyed.change(pickled=whole, index=index, keys=keys).pack() for keys in (b"", keyed.keys)]
    for data in forms:
        file.write_bytes(data)
        error = row.refuse(len(data), load, small_state(), checkpoint, KEY, require=require)
        if data is whole:
            assert isinstance(error, PolicyError)
            assert "not encrypted" in str(error) or "does not end in an index" in str(error)


def test_metadata_without_an_index_is_not_even_unpickled(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpickled: list[object] = []
    own(tmp_path / "unkeyed", [Checksum()])
    own(tmp_path / "stripped", full_chain())
    file = tmp_path / "stripped" / ".metadata"
    file.write_bytes(split_metadata(file.read_bytes()).pickled)
    attached(tmp_path / "attached", full_chain())
    stock(tmp_path / "stock", full_chain())
    monkeypatch.setattr("streamxf.checkpoint.metadata.read_stock", lambda *args: unpickled.append(args))
    for path in tmp_path.iterdir():
        row.refuse(path.name, load, small_state(), path, KEY, kind=PolicyError)
    assert not unpickled


def bare(container: bytes, chain: bytes, payload: bytes) -> bytes:
    """An unkeyed container with the identity, the salt and even the size of a keyed one."""
    parts = take_container_apart(container)
    made = parts.change(chain=chain, flags=parts.flags & ~1, seal=b"", blocks=((True, payload),), raw_size=len(payload))
    filling = len(container) - len(made.container())
    assert filling >= 0
    padded = payload + bytes(filling)
    return made.change(blocks=((True, padded),), raw_size=len(padded)).container()


@pytest.mark.parametrize("writer", ["own", "attached"])
def test_an_unkeyed_container_of_the_same_identity(row: Row, tmp_path: Path, writer: str) -> None:
    """For any of the items, in metadata that gives the item any chain."""
    target = Checkpoint(tmp_path / "checkpoint", writer=writer)
    containers = list(target.containers())
    for container in containers:
        made = bare(container.intact, b"", b"")
        row.refuse(container.name, container.load, made, kind=IdentityError)
    # and under metadata that the attacker altered to match, item by item, which needs a key where there is an index
    for chosen in product((False, True), repeat=len(containers)) if writer == "attached" else ():
        if not any(chosen):
            continue
        for chain in ([], ["streamxf.checksum/1"], ["streamxf.zstd/1"]):
            data = target.data
            weak = {container.name for container, swap in zip(containers, chosen, strict=True) if swap}
            for container in containers:
                if container.name in weak:
                    start, stop = target.places[container.name]
                    header = b"\n".join(text.encode() for text in reversed(chain))
                    data = data[:start] + bare(container.intact, header, b"x" * 8) + data[stop:]
            with target.told(lambda info, chain=chain: replace(info, transform_descriptors=chain), *weak):
                error = row.refuse((chosen, chain), target.with_data, data)
            assert isinstance(error, PolicyError) or not chain


@REQUIRE
def test_what_an_item_lacks_is_named_by_the_word_that_relaxes_it(row: Row, tmp_path: Path, require: Any) -> None:
    attached(tmp_path / "bound", full_chain())
    stock(tmp_path / "encrypted", full_chain())
    right = content(small_state())
    for strength, accepted in (("bound", ("bound", "encrypted")), ("encrypted", ("encrypted",))):
        path = tmp_path / strength
        if require in accepted:
            assert row.refuse_or_equal(strength, right, loaded, path, require) is None
        else:
            assert strength in str(row.refuse(strength, loaded, path, require, kind=PolicyError))


def loaded(path: Path, require: Any) -> Any:
    return content(load(small_state(), path, KEY, require=require))


def test_a_plain_file_without_encryption(row: Row) -> None:
    for pipe in (False, True):
        keyed = PlainFile(TEXT, full_chain(), pipe=pipe)
        for chain in ((), [ZStandard()], [Checksum()], [ZStandard(), Checksum()]):
            weaker = take_apart(encode(TEXT, chain))
            row.refuse(chain, keyed.load, weaker.pack(), kind=PolicyError)
            prefixed = weaker.change(prefix=keyed.parts.prefix).pack()
            row.refuse(chain, keyed.load, prefixed, kind=StreamxfError)
        stripped = keyed.parts.change(chain=b"streamxf.zstd/1\nstreamxf.checksum/1", flags=0, seal=b"")
        row.refuse("stripped", keyed.load, stripped.pack(), kind=StreamxfError)
        bare_file = stripped.change(prefix=prefix_of(), tail=b"").pack()
        row.refuse("stripped of its keys", keyed.load, bare_file, kind=PolicyError)


def test_encryption_under_a_key_that_the_attacker_drew(row: Row, tmp_path: Path) -> None:
    """Encrypted, bound and published, and all of it under another key: whole, and with the id of the right one."""
    mine = streamxf.Key(bytes(range(200, 232)))
    save(small_state(), tmp_path / "whole", [ZStandard(), Checksum(), Encrypt(mine)])
    row.refuse("whole", load, small_state(), tmp_path / "whole", kind=StreamxfError)
    file = tmp_path / "whole" / ".metadata"
    parts = split_metadata(file.read_bytes())
    file.write_bytes(parts.change(keys=parts.keys.replace(mine.id.encode(), KEY.id.encode())).pack())
    row.refuse("named", load, small_state(), tmp_path / "whole", kind=StreamxfError)
    named = encode(TEXT, [Encrypt(mine)])
    file_parts = take_apart(named)
    prefix = prefix_of(file_parts.prefix[16:-4].replace(mine.id.encode(), KEY.id.encode()))
    row.refuse("file", streamxf.decode, file_parts.change(prefix=prefix).pack(), keys=KEY)
