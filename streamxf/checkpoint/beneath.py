"""`Beneath`: the blocks of a shard in an earlier save, from which those that are stored now may be differences.

A block comes from a copy in memory, or from where the earlier save is stored, and counts only if it has the tag that it
had when it was saved: a wrong one is never used, and its block is stored whole.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from streamxf.buffers import Scratch, scratches
from streamxf.chain import Chain, StreamCoder
from streamxf.checkpoint.memory import TAG_BYTES, Key, Known, SaveMemory
from streamxf.codec import BlockInfo, StreamInfo
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import StreamxfError
from streamxf.format.header import Identity
from streamxf.format.items import Place
from streamxf.keys.envelope import DataKey
from streamxf.storage.reading import StoredFile
from streamxf.stream.container import BlockReader, read_header, stream_info
from streamxf.stream.encoder import Load, encoding_facts

_BLOCK = -3  # a block's place in scratch memory; the steps of a chain count from 0
_PAYS = 0.9  # of the bytes that the base has for a block
_OWN = 256  # bytes of header, table and index
_LOOKED_AT = 128 * 1024  # bytes that stand for a block


class Beneath:
    """The blocks of a shard in an earlier save.

    - `known`: what is known of the shard.
    - `chain`: what its blocks passed; `secrets` gives the data key of a file, if it encrypts.
    - `open_file`: gives the files of the earlier save.
    - `digest`, `places`, `digests`: H of the container, it and what is beneath it, and what a signed index has of them.
    """

    def __init__(
        self,
        memory: SaveMemory,
        key: Key,
        known: Known,
        chain: Chain,
        secrets: Callable[[str], bytes],
        open_file: Callable[[str], StoredFile],
    ) -> None:
        self._memory, self._key, self._known, self._chain = memory, key, known, chain
        self._secrets, self._open_file = secrets, open_file
        place = known.chunk.place
        self.digest, self.places = known.digest, ((place.file, place.at, place.size), *place.beneath)
        self.digests, self._opening = b"", threading.Lock()
        self._blocks: BlockReader | None = None
        self._kept: tuple[int, memoryview, Scratch] | None = None  # the block that was looked at

    def take(self, index: int, tag: bytes, data: memoryview, scratch: Scratch) -> memoryview | None:
        """The block beneath one that has this tag, in `scratch` or anywhere; None if it cannot be had."""
        wanted = self._tag_of(index)
        if hmac.compare_digest(tag, wanted):
            return data  # it is the same
        if self._kept is not None and self._kept[0] == index:
            return self._kept[1]
        if (copy := self._memory.copies.take((self._key, index), wanted)) is not None:
            return memoryview(copy)
        out = scratch.take(_BLOCK, len(data))
        with suppress(StreamxfError, OSError):
            with self._opening:
                self._blocks = self._blocks or self._open(self._known.chunk.place)
            self._blocks.decode(index, out)
            return out if hmac.compare_digest(self._memory.tag(out), wanted) else None
        return None

    def give(self, index: int, tag: bytes, data: memoryview, beneath: memoryview | None) -> None:
        """Say that a block is done, so that a copy of what the next save builds on can be held."""
        if beneath is not None and not hmac.compare_digest(tag, self._tag_of(index)):
            kept = (tag, data) if self._memory.increments else (self._tag_of(index), beneath)
            self._memory.copies.put((self._key, index), *kept, beneath)
        if self._kept is not None and self._kept[0] == index:
            scratches.give(self._kept[2])
            self._kept = None

    def _tag_of(self, index: int) -> bytes:
        return self._known.tags[TAG_BYTES * index :][:TAG_BYTES]

    def pays(self, part: Identity, index: int, load: Load, size: int, block_size: int) -> bool:
        """Whether the beginning of a block is stored in clearly fewer bytes than the base has for as much."""
        scratch = scratches.take()
        try:
            data = load.take(partial(scratch.take, _BLOCK - 1))
            if (beneath := self.take(index, b"", data, scratch)) is None:
                return False
            some = min(size, _LOOKED_AT)
            about = StreamInfo(block_size, b"", b"", *encoding_facts(part)), partial(scratch.take, 0), scratch
            info = BlockInfo(index, False, 2 * block_size, None, *about, lambda: beneath[:some])
            made = len(memoryview(self._chain.codecs[0].encode(data[:some], info))) * size / some
            if pays := made + _OWN < _PAYS * size * self.places[-1][2] / max(1, part.size):
                self._kept = index, beneath, scratch
            else:
                self._memory.copies.put((self._key, index), self._tag_of(index), beneath, beneath)
            return pays
        finally:
            if load.release is not None:
                load.release()
            if self._kept is None:
                scratches.give(scratch)

    def _open(self, place: Place) -> BlockReader:
        file = self._open_file(place.file)
        source = file.slice(place.at, place.size)
        header = read_header(source)
        info, chain = stream_info(header), self._chain
        if chain.encryption is not None:
            chain = chain.sharing(Encrypt.reading(DataKey(self._secrets(place.file))))
        state = chain.unseal(info, header.seal)
        blocks = BlockReader(source, header, StreamCoder(chain, info, state))
        if place.beneath:
            blocks.beneath = self._open(place.lower), file.name
        return blocks
