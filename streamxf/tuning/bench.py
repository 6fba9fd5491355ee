"""One block, there and back: what streamxf does to it on save and load, timed."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Sequence

import torch

from streamxf.buffers import Scratch, flat_view
from streamxf.chain import Chain
from streamxf.codec import StreamInfo
from streamxf.coder import StreamCoder, stage_limit
from streamxf.container.blocks import check_payload, pack_head, parse_head
from streamxf.container.header import Header
from streamxf.container.limits import DEFAULT_BLOCK_LOG2, SALT_BYTES
from streamxf.tuning.sample import Block

Clock = Callable[[], float]


class Bench(abc.ABC):
    """Memory and states for one chain.

    Parameters
    ----------
    clock : callable
        Gives seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._out = memoryview(bytearray(1 << DEFAULT_BLOCK_LOG2))

    def out(self, block: Block) -> memoryview:
        """Where a block is decoded."""
        return self._out[: len(block.data)]

    @abc.abstractmethod
    def run(self, block: Block, number: int) -> tuple[int, float, float]:
        """Encode block `number` and decode it to `out`; returns its stored bytes, and the seconds for each way."""


class Coding(Bench):
    """A chain with codecs, and the container's CRC around it."""

    def __init__(self, chain: Chain, blocks: Sequence[Block], clock: Clock) -> None:
        super().__init__(clock)
        renewed = chain.renew()
        header = Header(DEFAULT_BLOCK_LOG2, chain.bound, os.urandom(SALT_BYTES))
        self._digest = header.digest
        self._limit = stage_limit(header.block_size)
        facts = (header.block_size, header.salt, header.digest)
        self._coders = [
            StreamCoder(renewed, StreamInfo(*facts, block.item, block.dtype, block.row)) for block in blocks
        ]
        self._encoding, self._decoding = Scratch(), Scratch()

    def run(self, block: Block, number: int) -> tuple[int, float, float]:
        coder = self._coders[number]
        data, out = flat_view(block.data), self.out(block)
        out[:] = bytes(len(out))  # a codec that writes nothing must not find the right bytes there
        begin = self._clock()
        payload = coder.encode(data, 0, True, self._encoding)
        head = pack_head(self._digest, 0, True, payload)
        encode = self._clock() - begin
        begin = self._clock()
        check_payload(parse_head(head, 0, self._limit), self._digest, 0, payload)
        coder.decode(payload, 0, True, self._decoding, out)
        return len(payload), encode, self._clock() - begin


class Plain(Bench):
    """A save without a chain: ``torch.save`` runs its CRC-32 over a tensor, and a load copies it."""

    def run(self, block: Block, number: int) -> tuple[int, float, float]:
        out = self.out(block)
        target: object = _Nowhere()
        writer = torch._C.PyTorchFileWriter(target, True, 64)  # type: ignore[call-overload]
        begin = self._clock()
        writer.write_record("data/0", block.data, len(block.data))
        encode = self._clock() - begin
        begin = self._clock()
        out[:] = block.data
        return len(block.data), encode, self._clock() - begin


class _Nowhere:
    """A file that keeps nothing."""

    def __init__(self) -> None:
        self._position = 0

    def write(self, data: memoryview) -> int:
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """There is nothing to flush."""
