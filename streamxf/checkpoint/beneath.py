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
        self.digests = b""
        self._opening = threading.Lock()
        self._blocks: BlockReader | StreamxfError | OSError | None = None

    def take(self, index: int, tag: bytes, data: memoryview, scratch: Scratch) -> memoryview | None:
        """The block beneath one that has this tag, in `scratch` or anywhere; None if it cannot be had."""
        wanted = self._tag_of(index)
        if hmac.compare_digest(tag, wanted):
            return data  # it is the same
        if (copy := self._memory.copies.take((self._key, index), wanted)) is not None:
            return memoryview(copy)
        out = scratch.take(_BLOCK, len(data))
        with suppress(StreamxfError, OSError):
            self._opened().decode(index, out)
            return out if hmac.compare_digest(self._memory.tag(out), wanted) else None
        return None

    def give(self, index: int, tag: bytes, data: memoryview, beneath: memoryview | None) -> None:
        """Say that a block is done, so that a copy of what the next save builds on can be held."""
        if beneath is not None and not hmac.compare_digest(tag, self._tag_of(index)):
            self._keep(index, *((tag, data) if self._memory.increments else (self._tag_of(index), beneath)), beneath)

    def _keep(self, index: int, tag: bytes, block: memoryview, beneath: memoryview) -> None:
        own = beneath.obj if isinstance(beneath.obj, bytearray) else None
        self._memory.copies.put((self._key, index), tag, block, own)

    def _tag_of(self, index: int) -> bytes:
        return self._known.tags[TAG_BYTES * index :][:TAG_BYTES]

    def pays(self, part: Identity, index: int, load: Load, size: int, block_size: int) -> bool:
        """Whether a block is stored in clearly fewer bytes than if it were whole, as the base has it."""
        scratch = scratches.take()
        try:
            data = load.take(partial(scratch.take, _BLOCK - 1))
            if (beneath := self.take(index, b"", data, scratch)) is None:
                return False
            about = StreamInfo(block_size, b"", b"", *encoding_facts(part)), partial(scratch.take, 0), scratch
            info = BlockInfo(index, False, 2 * block_size, None, *about, lambda: beneath)
            made = len(memoryview(self._chain.codecs[0].encode(data, info)))
            self._keep(index, self._tag_of(index), beneath, beneath)
            return made + _OWN < _PAYS * size * self.places[-1][2] / max(1, part.size)
        finally:
            if load.release is not None:
                load.release()
            scratches.give(scratch)

    def _opened(self) -> BlockReader:
        with self._opening:
            if self._blocks is None:
                try:
                    self._blocks = self._open(self._known.chunk.place)
                except (StreamxfError, OSError) as error:
                    self._blocks = error
            if not isinstance(self._blocks, BlockReader):
                raise self._blocks
            return self._blocks

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
