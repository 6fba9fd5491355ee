"""`Case`, a codec under test with what a reader of its data would have; `Stream`, the codec at work on one stream; the
blocks that it is given; and how a property is said not to hold.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from streamxf.buffers import flat_view
from streamxf.cached import cached_property
from streamxf.codec import BlockInfo, Codec, CodecRegistry, StreamInfo
from streamxf.codecs.encrypt import Encrypt
from streamxf.descriptor import Descriptor
from streamxf.keys import KeyRing
from streamxf.reading import KeysLike
from streamxf.tools.check import require

BLOCK_SIZE = 1 << 16

Data = bytes | bytearray | memoryview


def difference(expected: Data, found: Data) -> str:
    """Where two runs of bytes part, in words short enough for a message of any data."""
    if len(expected) != len(found):
        return f"{len(found)} bytes where {len(expected)} belong"
    pairs = zip(expected, found, strict=True)
    place = next((index for index, (left, right) in enumerate(pairs) if left != right), None)
    if place is None:
        return "equal bytes"
    return f"byte {place} of {len(expected)} is {found[place]:#04x} where {expected[place]:#04x} belongs"


class Case:
    """A codec under test; parameters as for `check_codec`."""

    def __init__(
        self, codec: Codec, keys: KeysLike = None, *, examples: int | None = None, patience: float = 60.0
    ) -> None:
        if not isinstance(codec, Codec):
            raise TypeError(f"the conformance suite tests a streamxf.Codec, not {codec!r}")
        self.codec, self.keys = codec, KeyRing.of(keys)
        self.examples, self.patience = examples, patience

    def __str__(self) -> str:
        cls = type(self.codec)
        values = ((field.name, getattr(self.codec, field.name, None)) for field in cls.parameter_fields())
        # a key says nothing to whoever reads the name of a test
        shown = ", ".join(f"{name}={value!r}" for name, value in values if isinstance(value, int | str))
        return f"{cls.__name__}({shown})"

    @property
    def keyed(self) -> bool:
        """Whether the codec takes its key from the reader and not from its parameters."""
        return isinstance(self.codec, Encrypt)

    @cached_property
    def registry(self) -> CodecRegistry:
        """A registry that finds the codec by name: by its entry point, or else because it is registered here."""
        registry, cls = CodecRegistry(), type(self.codec)
        if registry.knows(cls.name):
            found = registry.find(cls.name)
            require(found is cls, f"the name {cls.name!r} finds {found.__module__}.{found.__qualname__}, another class")
        else:
            registry.register(cls)
        return registry

    def rebuild(self, descriptor: str) -> Codec:
        return self.registry.build(Descriptor.parse(descriptor), self.keys)

    def for_all(self, property: Callable[..., None], *strategies: SearchStrategy[Any]) -> None:
        """Run `property` on what hypothesis draws from `strategies`."""
        # deadline: a shared machine stalls; database: the examples of one codec say nothing about the next
        changes: dict[str, Any] = {"deadline": None, "database": None, "report_multiple_bugs": False}
        if self.examples is not None:
            changes["max_examples"] = self.examples
        settings(**changes, suppress_health_check=list(HealthCheck))(given(*strategies)(property))()


class Stream:
    """One stream through one codec; streams of different numbers have different salts and headers."""

    def __init__(self, codec: Codec, number: int = 0, block_size: int = BLOCK_SIZE) -> None:
        seed = number.to_bytes(8, "little")
        salt, header_digest = hashlib.sha256(b"salt" + seed).digest()[:16], hashlib.sha256(b"header" + seed).digest()
        self.limit = block_size + block_size // 16 + 1024  # E of docs/format.md
        # only a writer knows the dtype, so a codec that leans on it to decode fails
        self._writing = StreamInfo(block_size, salt, header_digest, "layer.weight", "bfloat16")
        self._reading = replace(self._writing, dtype=None)
        self._encoder = codec
        self._encode_state = codec.start(self._writing)
        self.read_with(codec)

    def read_with(self, codec: Codec) -> Stream:
        """Decode with another codec object from here on, as a reader does; returns the stream itself."""
        self._decoder = codec
        self._decode_state = codec.start(self._reading)
        return self

    def encode(self, block: Data, index: int = 0, last: bool = True, fill: int = 0xA5) -> memoryview:
        """Encode a block. The result is what the codec gave, not a copy."""
        info = BlockInfo(index, last, self.limit, self._encode_state, self._writing, _scratch(fill))
        return flat_view(self._encoder.encode(flat_view(block), info))

    def decode(
        self, stored: Data, index: int = 0, last: bool = True, fill: int = 0xA5, limit: int | None = None
    ) -> memoryview:
        """Decode a stored block; `limit` is by default what a codec that follows another one may return."""
        limit = self.limit if limit is None else limit
        info = BlockInfo(index, last, limit, self._decode_state, self._reading, _scratch(fill))
        return flat_view(self._decoder.decode(flat_view(stored), info))


def _scratch(fill: int) -> Callable[[int], memoryview]:
    """Scratch memory full of `fill`, and the same memory at every call for one block, as in a chain."""
    memory = bytearray()

    def take(size: int) -> memoryview:
        nonlocal memory
        if len(memory) < size:
            memory = bytearray([fill]) * size
        return memoryview(memory)[:size]

    return take


MAX_DRAWN = 2048
MEBIBYTE = 1 << 20


def blocks() -> st.SearchStrategy[bytes]:
    """Draw blocks: any bytes, constant and repetitive ones, floats, and a model's weights."""
    sizes = st.integers(0, MAX_DRAWN)
    repeated = st.builds(lambda unit, size: (unit * size)[:size], st.binary(min_size=1, max_size=16), sizes)
    return st.one_of(
        st.binary(max_size=256),
        st.builds(noise, sizes, st.integers(0, 2**32 - 1)),
        st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), sizes),
        repeated,
        st.lists(st.floats(width=32), max_size=64).map(lambda values: struct.pack(f"<{len(values)}f", *values)),
        st.builds(weights, sizes, st.integers(0, 2**32 - 1)),
    )


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def weights(size: int, seed: int = 0) -> bytes:
    """`size` bytes of normally distributed bfloat16 numbers, cut anywhere."""
    values = np.random.default_rng(seed).normal(0, 0.02, size // 2 + 1).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()[:size]


def contents(size: int) -> dict[str, bytes]:
    """Blocks of exactly `size` bytes, by what they hold."""
    return {
        "random": noise(size),
        "constant": bytes(size),
        "repetitive": (b"streamxf" * (size // 8 + 1))[:size],
        "float-like": weights(size),
    }


SMALL_SIZES = (0, 1, 2, 3, 4, 7, 8, 64, 255, 256, 1000)
EDGE_SIZES = (BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1)


def samples() -> list[bytes]:
    return [block for size in SMALL_SIZES for block in contents(size).values()]
