"""Chains timed on the blocks of a sample, there and back: one thread, no I/O, and every block has to come back bit for
bit.

A run encodes block `number` and decodes it into `out`; it returns the stored bytes, and the seconds for each way. And
how many bytes a second a disk takes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import crc32c

from streamxf.buffers import Scratch, flat_view, write_all
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import StreamInfo
from streamxf.errors import CodecError, located
from streamxf.format.container import pack_head, parse_head, stage_limit
from streamxf.format.header import Header
from streamxf.format.limits import DEFAULT_BLOCK_LOG2, SALT_BYTES
from streamxf.progress import Progress, Share
from streamxf.stream.encoder import encoding_facts
from streamxf.tuning.sample import Sample

REPEATS = 3
MIN_SECONDS = 1e-9  # no clock is finer, and a rate needs something to divide by

Run = tuple[int, float, float]


class ChainRun:
    """A chain with codecs, and the container's CRC around it; without codecs, a save computes a CRC over the file, and
    a load copies it.
    """

    def __init__(self, chain: Chain, blocks: Sequence[Sample]) -> None:
        self.chain = chain
        renewed = chain.renew()
        header = Header(DEFAULT_BLOCK_LOG2, chain.bound, os.urandom(SALT_BYTES))
        self._digest = header.digest
        self._limit = stage_limit(header.block_size)
        facts = header.block_size, header.salt, header.digest
        self._coders = [
            StreamCoder(renewed, StreamInfo(*facts, *encoding_facts(block.part.identity))) for block in blocks
        ]
        self._encoding, self._decoding = Scratch(), Scratch()

    def run(self, block: Sample, number: int, out: memoryview) -> Run:
        coder, payload = self._coders[number], flat_view(block.data)
        out[:] = bytes(len(out))  # a codec that writes nothing must not find the right bytes there
        begin = perf_counter()
        if len(self.chain):
            payload = coder.encode(payload, 0, True, self._encoding)
            head = pack_head(self._digest, 0, True, payload)
        else:
            crc32c.crc32c(payload)
        encode = perf_counter() - begin
        begin = perf_counter()
        if len(self.chain):
            parse_head(head, 0, self._limit), pack_head(self._digest, 0, True, payload)
            coder.decode(payload, 0, True, self._decoding, out)
        else:
            out[:] = payload
        return len(payload), encode, perf_counter() - begin


@dataclass(frozen=True)
class Measured:
    """Figures of one chain for the whole source, extrapolated from the sample; seconds are those of one thread."""

    chain: Chain
    payload_bytes: float  # of the encoded blocks, without the containers around them
    encode_seconds: float
    decode_seconds: float


def measure(chains: Sequence[Chain], blocks: Sequence[Sample], progress: Progress | None = None) -> list[Measured]:
    """Time chains on blocks, of which there is at least one, and none is empty. Raises CodecError if a codec fails, or
    a block does not come back as it was.

    The chains take turns, so that a machine that slows down meanwhile does so for all of them; of each block the
    shortest time counts. Each turn goes through all blocks, because then they come from memory, as in a save, and not
    from the cache.
    """
    benches = [ChainRun(chain, blocks) for chain in chains]
    memory = memoryview(bytearray(max(len(block.data) for block in blocks)))
    sampled = sum(len(block.data) for block in blocks)
    share = Share.announced(progress, REPEATS * len(chains) * sampled)
    for bench in benches:
        _run(bench, blocks[0], 0, memory)  # makes contexts and scratch memory, which is not timed
    turns: list[list[list[Run]]] = [[] for _ in chains]
    for _ in range(REPEATS):
        for bench, done in zip(benches, turns, strict=True):
            done.append([_run(bench, block, number, memory) for number, block in enumerate(blocks)])
            share.advance(sampled)
    found = []
    for chain, done in zip(chains, turns, strict=True):
        stored = encode = decode = 0.0
        for block, *runs in zip(blocks, *done, strict=True):
            weight = block.weight / len(block.data)
            stored += weight * runs[-1][0]
            encode += weight * max(MIN_SECONDS, min(seconds for _, seconds, _ in runs))
            decode += weight * max(MIN_SECONDS, min(seconds for _, _, seconds in runs))
        found.append(Measured(chain, stored, encode, decode))
    return found


def _run(bench: ChainRun, block: Sample, number: int, memory: memoryview) -> Run:
    out = memory[: len(block.data)]
    with located(item=block.part.name):
        result = bench.run(block, number, out)
        if out != block.data:
            raise CodecError(f"the chain {str(bench.chain)!r} does not reproduce its input; do not save with it")
    return result


_STEP = 64 * 2**20
_MAX_FILE = 256 * 2**20
_MAX_BYTES = 4 * 2**30


def measure_bandwidth(folder: str, *, seconds: float = 2.0, progress: Progress | None = None) -> float:
    """Bytes per second that reach the disk of a folder, written by one thread.

    For about `seconds`, noise, which no file system compresses, is written over and over into a file of at most 256
    MiB. The file has no name, so it is gone with the process.
    """
    noise = flat_view(os.urandom(_STEP))
    written = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begin = time.perf_counter()
        while True:
            share = Share.announced(progress, _STEP)
            file.seek(written % _MAX_FILE)
            write_all(file, noise)
            share.finish()
            os.fsync(file.fileno())
            written += _STEP
            taken = time.perf_counter() - begin
            if taken >= seconds or written >= _MAX_BYTES:
                return written / taken
