"""Chains timed on the blocks of a sample: one thread, no I/O, and every block has to come back bit for bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from streamxf.chain import Chain
from streamxf.errors import CodecError, located
from streamxf.progress import Progress
from streamxf.tuning.bench import ChainRun, Clock, PlainRun
from streamxf.tuning.sample import Sample

REPEATS = 3
MIN_SECONDS = 1e-9  # no clock is finer, and a rate needs something to divide by


@dataclass(frozen=True)
class Measured:
    """Figures of one chain for the whole source, extrapolated from the sample; seconds are those of one thread."""

    chain: Chain
    payload_bytes: float  # of the encoded blocks, without the containers around them
    encode_seconds: float
    decode_seconds: float


def measure(
    chains: Sequence[Chain],
    blocks: Sequence[Sample],
    clock: Clock = time.perf_counter,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> list[Measured]:
    """Time chains on blocks, of which there is at least one, and none is empty.

    The chains take turns, so that a machine that slows down meanwhile does so for all of them; of each block the
    shortest time counts. Each turn goes through all blocks, because then they come from memory, as in a save, and not
    from the cache.

    Raises
    ------
    CodecError
        If a codec fails, or a block does not come back as it was.
    """
    benches = [ChainRun(chain, blocks, clock) if len(chain) else PlainRun(clock) for chain in chains]
    memory = memoryview(bytearray(max(len(block.data) for block in blocks)))
    sampled = sum(len(block.data) for block in blocks)
    if progress is not None:
        progress.expect(repeats * len(chains) * sampled)
    for chain, bench in zip(chains, benches, strict=True):
        _run(chain, bench, blocks[0], 0, memory)  # makes contexts and scratch memory, which is not timed
    turns: list[list[list[tuple[int, float, float]]]] = [[] for _ in chains]
    for _ in range(repeats):
        for chain, bench, done in zip(chains, benches, turns, strict=True):
            done.append([_run(chain, bench, block, number, memory) for number, block in enumerate(blocks)])
            if progress is not None:
                progress.advance(sampled)
    return [_whole(chain, blocks, done) for chain, done in zip(chains, turns, strict=True)]


def _run(
    chain: Chain, bench: ChainRun | PlainRun, block: Sample, number: int, memory: memoryview
) -> tuple[int, float, float]:
    out = memory[: len(block.data)]
    with located(item=block.part.name):
        result = bench.run(block, number, out)
        if out != block.data:
            raise CodecError(f"the chain {str(chain)!r} does not reproduce its input; do not save with it")
    return result


def _whole(chain: Chain, blocks: Sequence[Sample], turns: list[list[tuple[int, float, float]]]) -> Measured:
    stored = encode = decode = 0.0
    for block, *runs in zip(blocks, *turns, strict=True):
        weight = block.weight / len(block.data)
        stored += weight * runs[-1][0]
        encode += weight * max(MIN_SECONDS, min(seconds for _, seconds, _ in runs))
        decode += weight * max(MIN_SECONDS, min(seconds for _, _, seconds in runs))
    return Measured(chain, stored, encode, decode)
