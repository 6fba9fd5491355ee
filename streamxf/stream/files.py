"""Whole plain files at a path or URL, for frameworks that write a checkpoint into one file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from typing_extensions import Buffer

from streamxf.buffers import Writable, flat_view
from streamxf.chain import Chain
from streamxf.errors import ContainerError, located
from streamxf.format.limits import PLAIN_MAGIC
from streamxf.keys import KeyRing
from streamxf.registry import CodecRegistry
from streamxf.storage.opening import open_storage
from streamxf.stream.plain import open as open_plain
from streamxf.stream.plain import read_file, unencrypted

TORCH_SAVED = b"PK\x03\x04", b"\x80"
"""How files of torch.save begin: those of today, and those from before torch 1.6."""


@contextmanager
def encoded(path: str | os.PathLike[str], chain: Chain) -> Iterator[tuple[IO[bytes], Any]]:
    """A file to write to, and the SHA-256 of what it becomes, known at the end. The whole file is under `path` when the
    block ends without an error, and otherwise what was there before.
    """
    storage = open_storage(path)
    if storage.near:
        storage.parent()[0].make_folder(durable=False)
    with storage.replacing() as target:
        digested = _Digested(target)
        with open_plain(cast("IO[bytes]", digested), "wb", chain=chain) as file:
            yield cast("IO[bytes]", file), digested.digest


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes that are stored there. Raises as `Storage.open`."""
    with open_storage(path).open() as file:
        yield file.raw


def decoded(
    raw: Any, chain: Chain, keys: KeyRing, path: str, begins: tuple[bytes, ...] = TORCH_SAVED, finish: Any = None
) -> Any:
    """A plain file to read from, or `raw` itself if it was saved without a chain, when it has one of these beginnings
    and `chain` does not encrypt. `finish` as in `read_file`. Raises as `streamxf.open`; errors name `path`.
    """
    with located(file=path):
        begin = raw.read(len(PLAIN_MAGIC))
        raw.seek(0)
        encrypts = chain.encryption is not None
        if begin == PLAIN_MAGIC:
            return read_file(raw, keys, CodecRegistry(), finish, path, encrypted=encrypts)
        if encrypts:
            raise unencrypted()
        if not begin.startswith(begins):
            raise ContainerError("the file begins neither as with a chain nor as without one: it was damaged")
    return raw


class _Digested:
    """Passes on what is written, and computes its SHA-256."""

    def __init__(self, raw: Writable) -> None:
        self._raw = raw
        self.digest = hashlib.sha256()

    def write(self, data: Buffer, /) -> int | None:
        count = self._raw.write(data)
        self.digest.update(flat_view(data)[: count or 0])
        return count
