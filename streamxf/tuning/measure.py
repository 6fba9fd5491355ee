"""Chains timed on the blocks of a sample: one thread, no I/O, and every block has to come back bit for bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from streamxf.chain import Chain
from streamxf.errors import CodecError, located
from streamxf.progress import Progress
from streamxf.tuning.bench import Bare, Bench, Clock, Coding
from streamxf.tuning.sample import Sample

REPEATS = 3
MIN_SECONDS = 1e-9  # no clock is finer, and a rate needs something to divide by


@dataclass(frozen=True)
class Measured:
    """What one chain does to the whole source, by what it did to the sample.

    Attributes
    ----------
    chain : Chain
    payload_bytes : float
        What the blocks take when encoded, without the containers around them.
    encode_seconds, decode_seconds : float
        By one thread.
    """

    chain: Chain
    payload_bytes: float
    encode_seconds: float
    decode_seconds: float


class _Best:
    """The shortest times for one block."""

    def __init__(self) -> None:
        self.stored = 0
        self.encode = self.decode = float("inf")

    def add(self, stored: int, encode: float, decode: float) -> None:
        self.stored = stored
        self.encode = min(self.encode, max(encode, MIN_SECONDS))
        self.decode = min(self.decode, max(decode, MIN_SECONDS))


def measure(
    chains: Sequence[Chain],
    blocks: Sequence[Sample],
    clock: Clock = time.perf_counter,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> list[Measured]:
    """Time chains on blocks.

    The chains take turns, so that a machine that slows down meanwhile does so for all of them; of each block the
    shortest time counts. Each turn goes through all blocks, because then they come from memory, as in a save, and not
    from the cache.

    Parameters
    ----------
    chains : sequence of Chain
    blocks : sequence of Sample
        At least one, and none of them empty.
    clock : callable
        Gives seconds.
    repeats : int
    progress : Progress, optional
        Is told of the bytes of blocks, each as often as it is coded.

    Raises
    ------
    CodecError
        If a codec fails, or a block does not come back as it was.
    """
    benches = [Coding(chain, blocks, clock) if len(chain) else Bare(clock) for chain in chains]
    best = [[_Best() for _ in blocks] for _ in chains]
    sampled = sum(len(block.data) for block in blocks)
    if progress is not None:
        progress.expect(repeats * len(chains) * sampled)
    for chain, bench in zip(chains, benches, strict=True):
        _checked_run(chain, bench, blocks[0], 0)  # makes contexts and scratch memory, which is not timed
    for _ in range(repeats):
        for chain, bench, times in zip(chains, benches, best, strict=True):
            for number, block in enumerate(blocks):
                times[number].add(*_checked_run(chain, bench, block, number))
            if progress is not None:
                progress.advance(sampled)
    return [_whole(chain, blocks, times) for chain, times in zip(chains, best, strict=True)]


def _checked_run(chain: Chain, bench: Bench, block: Sample, number: int) -> tuple[int, float, float]:
    with located(item=block.part.name):
        result = bench.run(block, number)
        if bench.out(block) != block.data:
            raise CodecError(f"the chain {str(chain)!r} does not give back what it was given; do not save with it")
    return result


def _whole(chain: Chain, blocks: Sequence[Sample], times: list[_Best]) -> Measured:
    each = [(block.weight / len(block.data), best) for block, best in zip(blocks, times, strict=True)]
    return Measured(
        chain,
        sum(factor * best.stored for factor, best in each),
        sum(factor * best.encode for factor, best in each),
        sum(factor * best.decode for factor, best in each),
    )
