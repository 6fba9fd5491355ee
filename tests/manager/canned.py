"""Checkpoints of a run, made by the thousand: a few small saves, whose metadata then says whatever a test wants."""

import functools
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.chain import Chain
from streamxf.checkpoint.access import Access
from streamxf.format.index import Index
from streamxf.format.names import GLOBAL
from streamxf.format.run import RunFacts
from streamxf.format.sections import Sections, Trailer, pack, pack_keys
from streamxf.manager.notes import Authority

DIFFERENT = 40  # saves, each with ids of its own
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Keying:
    """With what a job saves and reads."""

    name: str
    encrypt: streamxf.Encrypt | None = None

    @functools.cached_property
    def access(self) -> Access:
        return Access() if self.encrypt is None else Access.for_chain(Chain.of([self.encrypt]))

    @property
    def strict(self) -> bool:
        return self.encrypt is not None

    @property
    def reads(self) -> bool:
        return self.name != "signed"

    def authority(self) -> Authority:
        return Authority(self.access, self.encrypt)


@functools.cache
def keying(name: str) -> Keying:
    if name == "none":
        return Keying(name)
    if name == "signed":
        public = streamxf.PrivateKey.generate().public
        return Keying(name, streamxf.Encrypt(public, signer=streamxf.SigningKey.generate()))
    return Keying(name, streamxf.Encrypt(streamxf.Key.generate()))


class _Canned(NamedTuple):
    data: Files
    index: Index
    pickled: bytes
    encrypt: streamxf.Encrypt | None


@functools.cache
def _canned(name: str, number: int) -> _Canned:
    encrypt = keying(name).encrypt
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        writer = streamxf.FileSystemWriter(folder, chain=[encrypt] if encrypt is not None else None)
        save({"w": torch.arange(300.0) + number}, storage_writer=writer)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    metadata = files.pop(GLOBAL)
    trailer = Trailer.parse(metadata, len(metadata))
    assert trailer is not None
    assert writer._save is not None
    sections = trailer.split(metadata[-trailer.size :], read=lambda at, size: metadata[at : at + size])
    index = Index.parse(sections.root, sections.parts, sections.parts_size)
    return _Canned(files, index, sections.head(), writer._save.extensions.encryption)


def checkpoint(name: str, number: int, run: RunFacts | None) -> tuple[dict[str, bytes], str]:
    """The files of a save, and its id."""
    data, index, pickled, encrypt = _canned(name, number % DIFFERENT)
    (root, parts), keys = replace(index, run=run).pack(), b""
    if encrypt is not None:
        digest = Sections(memoryview(root), memoryview(b"")).digest
        keys = pack_keys(encrypt.wrapped, encrypt.vouch(digest))
    return {**data, GLOBAL: pack(pickled, parts, root, keys)}, index.save_id


def data_of(files: Files) -> str:
    """The path of the data file."""
    (found,) = (path for path in files if path.endswith(".distcp"))
    return found
