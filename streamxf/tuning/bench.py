"""One block, there and back: what streamxf does to it on save and load, timed.

A run encodes block `number` and decodes it into `out`; it returns the stored bytes, and the seconds for each way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import crc32c

from streamxf.buffers import Scratch, flat_view
from streamxf.chain import Chain
from streamxf.codec import StreamInfo
from streamxf.coder import StreamCoder
from streamxf.format.container import check_payload, pack_head, parse_head, stage_limit
from streamxf.format.header import Header
from streamxf.format.limits import DEFAULT_BLOCK_LOG2, SALT_BYTES
from streamxf.stream.encoder import encoding_facts
from streamxf.tuning.sample import Sample

Clock = Callable[[], float]  # gives seconds


class ChainRun:
    """A chain with codecs, and the container's CRC around it."""

    def __init__(self, chain: Chain, blocks: Sequence[Sample], clock: Clock) -> None:
        self._clock = clock
        renewed = chain.renew()
        header = Header(DEFAULT_BLOCK_LOG2, chain.bound, os.urandom(SALT_BYTES))
        self._digest = header.digest
        self._limit = stage_limit(header.block_size)
        facts = header.block_size, header.salt, header.digest
        self._coders = [
            StreamCoder(renewed, StreamInfo(*facts, *encoding_facts(block.part.identity))) for block in blocks
        ]
        self._encoding, self._decoding = Scratch(), Scratch()

    def run(self, block: Sample, number: int, out: memoryview) -> tuple[int, float, float]:
        coder, data = self._coders[number], flat_view(block.data)
        out[:] = bytes(len(out))  # a codec that writes nothing must not find the right bytes there
        begin = self._clock()
        payload = coder.encode(data, 0, True, self._encoding)
        head = pack_head(self._digest, 0, True, payload)
        encode = self._clock() - begin
        begin = self._clock()
        check_payload(parse_head(head, 0, self._limit), self._digest, 0, payload)
        coder.decode(payload, 0, True, self._decoding, out)
        return len(payload), encode, self._clock() - begin


class PlainRun:
    """A save without a chain computes a CRC over the file, and a load copies it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run(self, block: Sample, number: int, out: memoryview) -> tuple[int, float, float]:
        begin = self._clock()
        crc32c.crc32c(block.data)
        encode = self._clock() - begin
        begin = self._clock()
        out[:] = block.data
        return len(block.data), encode, self._clock() - begin
