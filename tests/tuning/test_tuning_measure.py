"""How chains are timed, by a clock that only a codec moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from streamxf import LZ4, Checksum, Codec, Encrypt, FloatZip, ZStandard
from streamxf.chain import Chain
from streamxf.codec import BlockInfo, StreamInfo
from streamxf.errors import CodecError
from streamxf.tuning.estimate import MIN_SECONDS, ChainRun, measure
from streamxf.tuning.sample import Part, Sample, identity_of


class FakeClock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


CLOCK = FakeClock()


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.tuning.estimate.perf_counter", CLOCK)


@dataclass(frozen=True)
class Timed(Codec):
    """Keeps every `keep`-th byte of zeros, and takes so many seconds of the fake clock."""

    name: ClassVar[str] = "test.timed"

    keep: int = 1
    encode_ms: int = 0
    decode_ms: int = 0
    warm_up_ms: int = 0

    def start(self, stream: StreamInfo) -> Any:
        return []

    def encode(self, block: memoryview, info: BlockInfo) -> bytes:
        CLOCK.now += (self.encode_ms if info.state else self.warm_up_ms or self.encode_ms) / 1000
        info.state.append(len(block))
        return len(block).to_bytes(4, "big") + bytes(len(block) // self.keep - 4)

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        CLOCK.now += self.decode_ms / 1000
        return bytes(int.from_bytes(block[:4], "big"))


def zeros(size: int = 1000, weight: float = 1000.0, item: str = "w") -> Sample:
    return sample(item, "float32", (size // 4,), bytes(size), weight)


def sample(item: str, dtype: str | None, shape: tuple[int, ...], data: bytes, weight: float) -> Sample:
    identity = identity_of(item, dtype, (0,) * len(shape), shape, shape) if dtype is not None else None
    return Sample(Part(item, shape, 1, identity), data, weight)


@pytest.mark.usefixtures("fake_clock")
def test_blocks_count_by_what_they_stand_for() -> None:
    chain = Chain([Timed(keep=4, encode_ms=10, decode_ms=20)])
    (found,) = measure([chain], [zeros(1000, weight=5000.0), zeros(2000, weight=3000.0)])
    assert found.chain is chain
    assert found.payload_bytes == pytest.approx((5000 + 3000) / 4)
    # a block of 1000 bytes takes as long as one of 2000, and they represent five and one and a half of their kind
    assert found.encode_seconds == pytest.approx(0.010 * (5 + 1.5))
    assert found.decode_seconds == pytest.approx(0.020 * (5 + 1.5))


@pytest.mark.usefixtures("fake_clock")
def test_the_first_run_is_not_counted() -> None:
    chain = Chain([Timed(encode_ms=10, warm_up_ms=5)])  # a first run that is faster would be the shortest
    (found,) = measure([chain], [zeros()])
    assert found.encode_seconds == pytest.approx(0.010)


def test_the_shortest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    lasts = iter([9.0, 3.0, 1.0, 2.0])  # the warm-up, and three repeats

    def run(bench: ChainRun, block: Sample, number: int, out: memoryview) -> tuple[int, float, float]:
        out[:] = block.data
        seconds = next(lasts)
        return 10, seconds, 10 * seconds

    monkeypatch.setattr(ChainRun, "run", run)
    (found,) = measure([Chain([LZ4()])], [zeros()])
    assert (found.encode_seconds, found.decode_seconds) == (1.0, 10.0)
    assert next(lasts, None) is None


def test_chains_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[str, int]] = []

    def run(bench: ChainRun, block: Sample, number: int, out: memoryview) -> tuple[int, float, float]:
        turns.append((str(bench.chain), number))
        out[:] = block.data
        return 10, 1.0, 1.0

    monkeypatch.setattr(ChainRun, "run", run)
    measure([Chain(), Chain([LZ4()])], [zeros(), zeros()])
    one = [("", 0), ("", 1), ("lz4:level=0", 0), ("lz4:level=0", 1)]
    assert turns == [("", 0), ("lz4:level=0", 0), *one, *one, *one]


def test_codecs_are_told_what_a_writer_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str | None, str | None, int | None, int]] = []

    def start(codec: LZ4, stream: StreamInfo) -> None:
        told.append((stream.item, stream.dtype, stream.row, stream.block_size))

    monkeypatch.setattr(LZ4, "start", start)
    measure([Chain([LZ4()])], [sample("layer.weight", "bfloat16", (2, 768), bytes(100), 1.0), zeros(item="w")])
    assert told == [("layer.weight", "bfloat16", 768, 2**20), ("w", "float32", None, 2**20)]


@pytest.mark.usefixtures("fake_clock")
def test_a_clock_that_is_too_coarse_divides_nothing_by_zero() -> None:
    (found,) = measure([Chain([Timed()])], [zeros(1000, weight=1000.0)])
    assert found.encode_seconds == found.decode_seconds == MIN_SECONDS


def test_no_chain_stores_what_it_gets() -> None:
    data = bytes(range(256)) * 16
    (found,) = measure([Chain()], [sample("w", None, (4096,), data, 8192.0)])
    assert found.payload_bytes == 8192.0
    assert found.decode_seconds > 0
    assert found.encode_seconds > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", None])
def test_real_chains_pass(dtype: str | None) -> None:
    data = bytes(value * value % 251 for value in range(70_000))
    blocks = [sample("w", dtype, (70_000,), data, 70_000.0), sample("v", dtype, (1,), b"\x00", 1.0)]
    chains = [
        Chain([ZStandard(1)]),
        Chain([FloatZip(), Checksum(), Encrypt(bytes(range(32)))]),
        Chain([LZ4(), Encrypt(bytes(range(32)))]),
    ]
    found = measure(chains, blocks)
    assert [each.chain for each in found] == chains
    assert all(each.payload_bytes > 0 for each in found)


@dataclass(frozen=True)
class Lossy(Codec):
    """Gives back zeros, whatever it was given."""

    name: ClassVar[str] = "test.lossy"

    def encode(self, block: memoryview, info: BlockInfo) -> bytes:
        return len(block).to_bytes(4, "big")

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        return bytes(int.from_bytes(block[:4], "big"))


@dataclass(frozen=True)
class Idle(Codec):
    """Decodes the first time only; then it returns its memory as it finds it, where the right bytes may still be."""

    name: ClassVar[str] = "test.idle"

    def start(self, stream: StreamInfo) -> Any:
        return []

    def encode(self, block: memoryview, info: BlockInfo) -> memoryview:
        return block

    def decode(self, block: memoryview, info: BlockInfo) -> memoryview:
        out = info.scratch(len(block))
        if not info.state:
            info.state.append("decoded")
            out[:] = block
        return out


@dataclass(frozen=True)
class Failing(Codec):
    """Cannot do it."""

    name: ClassVar[str] = "test.failing"

    def encode(self, block: memoryview, info: BlockInfo) -> bytes:
        raise ValueError("no idea how")

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        return bytes(block)


@pytest.mark.parametrize("codec", [Lossy(), Idle()])
def test_a_chain_that_loses_data_is_named(codec: Codec) -> None:
    block = sample("layer.weight", None, (1300,), b"not all zeros" * 100, 1000.0)
    with pytest.raises(CodecError, match="does not reproduce") as caught:
        measure([Chain([LZ4()]), Chain([codec])], [block])
    assert codec.name in str(caught.value)
    assert caught.value.item == "layer.weight"


def test_every_block_is_compared() -> None:
    with pytest.raises(CodecError, match="does not reproduce") as caught:
        measure([Chain([Lossy()])], [zeros(), zeros(), sample("layer.weight", None, (9,), b"not zeros", 1000.0)])
    assert caught.value.item == "layer.weight"


def test_a_codec_that_fails_is_named() -> None:
    with pytest.raises(CodecError, match=r"test\.failing.*no idea how") as caught:
        measure([Chain([Failing()])], [zeros(item="layer.bias")])
    assert caught.value.item == "layer.bias"
