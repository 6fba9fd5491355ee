"""What a save and a load would take by each chain, and the `Recommendation` that follows.

Chains are timed on the blocks of a sample, there and back: one thread, no I/O, and every block has to come back bit for
bit. A run encodes block `number` and decodes it into `out`; it returns the stored bytes, and the seconds for each way.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import crc32c

from streamxf.buffers import Scratch, flat_view, write_all
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import StreamInfo
from streamxf.errors import CodecError, located
from streamxf.format.container import entry_size, pack_head, parse_head, stage_limit
from streamxf.format.header import Header
from streamxf.format.limits import BLOCK_HEAD_BYTES, DEFAULT_BLOCK_LOG2, FOOTER_BYTES, SALT_BYTES
from streamxf.progress import Progress, Share
from streamxf.stream.encoder import encoding_facts
from streamxf.tuning.sample import BLOCK_BYTES, Part, Sample
from streamxf.wording import many, rate_text, size_text

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
        begin = perf_counter()
        while True:
            share = Share.announced(progress, _STEP)
            file.seek(written % _MAX_FILE)
            write_all(file, noise)
            share.finish()
            os.fsync(file.fileno())
            written += _STEP
            taken = perf_counter() - begin
            if taken >= seconds or written >= _MAX_BYTES:
                return written / taken


CLOSE = 1.05  # saves within this factor of the fastest count as equally fast: timings are no better than that

FIGURES = ("stored_bytes", "encode_bytes_per_second", "decode_bytes_per_second", "save_seconds", "load_seconds")


@dataclass(frozen=True)
class Estimate:
    """What one chain would cost.

    - `chain`: its text form, which `Chain.parse` reads; empty for no chain.
    - `raw_bytes`: bytes of the source's tensors, or of the file.
    - `stored_bytes`: what they would take in storage, containers included; `ratio`, for each raw byte.
    - `encode_bytes_per_second`, `decode_bytes_per_second`: raw bytes that one worker codes.
    - `workers`: how many of them share the coding. Without a chain it is one: the CRC is computed by the thread that
      writes.
    - `bandwidth`: of the storage, in bytes per second.

    `save_seconds` and `load_seconds` are those of the whole: coding overlaps writing and reading, so the slower counts.
    """

    chain: str
    raw_bytes: int
    stored_bytes: int
    encode_bytes_per_second: float
    decode_bytes_per_second: float
    workers: int
    bandwidth: float

    @property
    def label(self) -> str:
        return self.chain or "no chain"

    @property
    def ratio(self) -> float:
        return self.stored_bytes / self.raw_bytes

    @property
    def encode_seconds(self) -> float:
        return self.raw_bytes / (self.encode_bytes_per_second * self.workers)

    @property
    def decode_seconds(self) -> float:
        return self.raw_bytes / (self.decode_bytes_per_second * self.workers)

    @property
    def transfer_seconds(self) -> float:
        return self.stored_bytes / self.bandwidth

    @property
    def save_seconds(self) -> float:
        return max(self.encode_seconds, self.transfer_seconds)

    @property
    def load_seconds(self) -> float:
        return max(self.decode_seconds, self.transfer_seconds)


def estimate(measured: Measured, parts: Sequence[Part], bandwidth: float, workers: int) -> Estimate:
    """What a save and a load of all `parts` would take; not all of them are empty."""
    raw_bytes = sum(part.nbytes for part in parts)
    return Estimate(
        str(measured.chain),
        raw_bytes,
        round(measured.payload_bytes) + overhead(measured.chain, parts),
        raw_bytes / measured.encode_seconds,
        raw_bytes / measured.decode_seconds,
        workers if len(measured.chain) else 1,
        bandwidth,
    )


def overhead(chain: Chain, parts: Sequence[Part]) -> int:
    """The bytes of the containers around the encoded blocks of `parts`: headers, block heads, tables and footers."""
    if not len(chain):
        return 0
    hashed = chain.encryption is not None and chain.encryption.hashed
    header = Header(DEFAULT_BLOCK_LOG2, chain.bound, bytes(SALT_BYTES), hashed=hashed)
    identities = sum(len(part.identity.pack()) for part in parts if part.identity is not None)
    blocks = sum(max(1, -(-part.nbytes // BLOCK_BYTES)) for part in parts)
    return len(parts) * (header.size + FOOTER_BYTES) + identities + blocks * (BLOCK_HEAD_BYTES + entry_size(header))


def choose(figures: Sequence[Any]) -> int:
    """The number of the one to recommend: of those whose save is about as fast as the fastest, the smallest. Each has
    `save_seconds` and `stored_bytes`.
    """
    limit = CLOSE * min(each.save_seconds for each in figures)
    close = [number for number, each in enumerate(figures) if each.save_seconds <= limit]
    return min(close, key=lambda number: (figures[number].stored_bytes, figures[number].save_seconds, number))


def reason(estimates: Sequence[Estimate], chosen: int) -> str:
    """Why `choose` took that one, in words and figures."""
    best = estimates[chosen]
    coding = f"{many(best.workers, 'worker')} need{'s' * (best.workers == 1)} {best.encode_seconds:.3g} s to encode"
    transfer = f"writing {size_text(best.stored_bytes)} takes {best.transfer_seconds:.3g} s"
    if best.transfer_seconds >= best.encode_seconds:
        text = f"storage is the limit: {transfer}, while {coding}"
    else:
        text = f"coding is the limit: {coding}, while {transfer}"
    fastest = min(estimates, key=lambda each: each.save_seconds)
    if fastest.save_seconds < best.save_seconds:
        text += (
            f"; {fastest.label} would save in {fastest.save_seconds:.3g} s, which is about the same, and store "
            f"{size_text(fastest.stored_bytes)}"
        )
    return text


@dataclass(frozen=True)
class Recommendation:
    """The result of `streamxf.tune`. ``str()`` is a table for a terminal.

    - `chain`: the candidate to use: ``FileSystemWriter(path, chain=recommendation.chain)``.
    - `estimates`: one for each candidate, in the order in which they were given.
    - `raw_bytes`, `sampled_bytes`: of the source's tensors, or of the file, and what the chains were measured on.
    - `bandwidth`: of the storage, in bytes per second.
    - `workers`: threads that share the coding.
    - `reason`: why this chain, in words and figures.
    """

    chain: Chain
    estimates: tuple[Estimate, ...]
    raw_bytes: int
    sampled_bytes: int
    bandwidth: float
    workers: int
    reason: str

    def to_dict(self) -> dict[str, int | float | str]:
        """Everything in a flat dictionary, for experiment trackers and JSON; the keys name the units."""
        names = ("reason", "raw_bytes", "sampled_bytes", "workers")
        found: dict[str, int | float | str] = {name: getattr(self, name) for name in names}
        found |= {"chain": str(self.chain), "bandwidth_bytes_per_second": self.bandwidth}
        for each in self.estimates:
            found |= {f"{name}/{each.label}": getattr(each, name) for name in FIGURES}
            found[f"stored_per_raw_byte/{each.label}"] = each.ratio
        return found

    def __str__(self) -> str:
        rows = [("  chain", "stored", "of raw", "encode", "decode", "save", "load")]
        for each in self.estimates:
            mark = "*" if each.chain == str(self.chain) else " "
            rates = rate_text(each.encode_bytes_per_second), rate_text(each.decode_bytes_per_second)
            times = f"{each.save_seconds:,.3f} s", f"{each.load_seconds:,.3f} s"
            rows.append((f"{mark} {each.label}", size_text(each.stored_bytes), f"{each.ratio:.3f}", *rates, *times))
        first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = ("  ".join([label.ljust(first), *map(str.rjust, cells, widths)]) for label, *cells in rows)
        title = (
            f"{size_text(self.raw_bytes)} to storage of {rate_text(self.bandwidth)}, coded by "
            f"{many(self.workers, 'worker')}; measured on {size_text(self.sampled_bytes)}"
        )
        return "\n".join([title, *lines, f"* because {self.reason}"])
