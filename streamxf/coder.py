"""`StreamCoder`: a chain made ready for one stream, and one block's way through it.

On save a block passes the codecs front to back, on load back to front. All of that happens inside one worker, so that
the block stays in cache.
"""

from __future__ import annotations

import hmac
from functools import partial
from time import perf_counter
from typing import Any

from streamxf.buffers import Scratch, flat_view
from streamxf.chain import Chain
from streamxf.codec import BlockInfo, Codec, StreamInfo
from streamxf.descriptor import ENCRYPT
from streamxf.errors import AuthenticationError, CodecError, StreamxfError
from streamxf.format.container import stage_limit
from streamxf.report import Meter


class StreamCoder:
    """A chain made ready for one stream: encodes and decodes its blocks, from any thread. `encryption` is the result of
    `Codec.start` of the chain's `Encrypt`, if it was called already; `meter` counts the time of each codec.
    """

    def __init__(self, chain: Chain, stream: StreamInfo, encryption: Any = None, *, meter: Meter | None = None) -> None:
        self.stream = stream
        self._meter = meter
        self.stage_limit = stage_limit(stream.block_size)
        self._steps = [
            (codec, encryption if encryption is not None and codec.name == ENCRYPT else codec.start(stream))
            for codec in chain
        ]
        if meter is not None:
            meter.implementations.update(chain.implementations)

    @classmethod
    def open(cls, chain: Chain, stream: StreamInfo, seal: bytes | None, *, meter: Meter | None = None) -> StreamCoder:
        """Make the chain ready for a stream that is read, once the seal in its header has proved to be right.

        Raises AuthenticationError if the seal does not match the key, or one of the two is missing. No other codec has
        seen the stream then.
        """
        state = chain.encryption.start(stream) if chain.encryption is not None else None
        expected = state.seal if state is not None else None
        if (expected is None) != (seal is None) or not hmac.compare_digest(expected or b"", seal or b""):
            raise AuthenticationError(
                "the container's seal does not match: its header was altered, or it was sealed under another data key"
            )
        return cls(chain, stream, state, meter=meter)

    @property
    def seal(self) -> bytes | None:
        """The header's seal, 32 bytes, where the chain encrypts."""
        return next((state.seal for codec, state in self._steps if codec.name == ENCRYPT), None)

    def encode(self, block: memoryview, index: int, last: bool, scratch: Scratch) -> memoryview:
        """Pass one block through the chain, front to back. The result may lie in `scratch` or be `block` itself."""
        busy = self._meter.cell.busy if self._meter is not None else None
        for step, (codec, state) in enumerate(self._steps):
            take = partial(scratch.take, step)
            info = BlockInfo(index, last, self.stage_limit, state, self.stream, take, scratch)
            block = self._run(codec.encode, codec, block, info, busy)
        return block

    def decode(
        self, block: memoryview, index: int, last: bool, scratch: Scratch, out: memoryview | None = None
    ) -> memoryview:
        """Pass one stored block through the chain, back to front, into `out`, which is returned, and whose size the
        block must have. Without it the result may lie in `scratch`, and is at most a block long.
        """
        limit = self.stream.block_size if out is None else len(out)
        busy = self._meter.cell.busy if self._meter is not None else None
        for step in range(len(self._steps) - 1, -1, -1):
            codec, state = self._steps[step]
            final = step == 0
            take = partial(_take_out, out, scratch, step) if final and out is not None else partial(scratch.take, step)
            info = BlockInfo(index, last, limit if final else self.stage_limit, state, self.stream, take)
            block = self._run(codec.decode, codec, block, info, busy)
        if len(block) > limit or (out is not None and len(block) != limit):
            raise CodecError(
                f"block decodes to {len(block)} bytes where {limit} belong", block=index, item=self.stream.item
            )
        if out is not None and block is not out:
            out[:] = block
        return block if out is None else out

    def _run(
        self, step: Any, codec: Codec, block: memoryview, info: BlockInfo, busy: dict[str, float] | None
    ) -> memoryview:
        begin = perf_counter()
        try:
            result = flat_view(step(block, info))
        except StreamxfError as error:
            error.locate(block=info.index, item=self.stream.item)
            raise
        except Exception as error:
            raise CodecError(
                f"codec {codec.name} could not {step.__name__} a block: {type(error).__name__}: {error}",
                block=info.index,
                item=self.stream.item,
            ) from error
        if busy is not None:
            busy[codec.name] += perf_counter() - begin
        if len(result) > info.limit:
            raise CodecError(
                f"codec {codec.name} made {len(result)} bytes of a block in {step.__name__}; at most {info.limit} "
                "are allowed",
                block=info.index,
                item=self.stream.item,
            )
        return result


def _take_out(out: memoryview, scratch: Scratch, step: int, size: int) -> memoryview:
    return out if size == len(out) else scratch.take(step, size)
