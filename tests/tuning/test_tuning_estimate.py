"""From measurements to estimates, and the choice among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf import LZ4, Checksum, Codec, Encrypt, FloatZip, ZStandard
from streamxf.chain import Chain
from streamxf.stream.encoder import ContainerEncoder, MemorySource
from streamxf.tuning.estimate import CLOSE, Estimate, Measured, choose, estimate, overhead, reason
from streamxf.tuning.sample import Part, identity_of

GB = 10**9


def made(chain: str, stored: int, encode: float, *, bandwidth: float = GB, workers: int = 2) -> Estimate:
    """An estimate for a gigabyte; `encode` is in seconds, by all workers."""
    return Estimate(chain, GB, stored, GB / (encode * workers), GB / (encode * workers) * 2, workers, bandwidth)


def test_the_slower_of_coding_and_storage_counts() -> None:
    part = Part("w", (GB // 2,), 2)
    found = estimate(Measured(Chain([LZ4()]), 0.6 * GB, 2.0, 0.5), [part], 1.0 * GB, 4)
    containers = overhead(Chain([LZ4()]), [part])
    assert found.stored_bytes == 600_000_000 + containers
    assert found.ratio == pytest.approx(0.6, abs=1e-4)
    assert (found.encode_bytes_per_second, found.decode_bytes_per_second) == (GB / 2, GB / 0.5)
    assert (found.encode_seconds, found.decode_seconds) == (0.5, 0.125)
    assert found.transfer_seconds == pytest.approx(0.6, abs=1e-4)
    assert found.save_seconds == found.load_seconds == found.transfer_seconds
    fast = estimate(Measured(Chain([LZ4()]), 0.6 * GB, 2.0, 0.5), [part], 100.0 * GB, 4)
    assert (fast.save_seconds, fast.load_seconds) == (0.5, 0.125)


def test_workers_do_not_share_what_torch_save_does() -> None:
    part = Part("w", (GB // 2,), 2)
    found = estimate(Measured(Chain(), GB, 0.25, 0.05), [part], 100.0 * GB, 4)
    assert (found.label, found.workers, found.save_seconds, found.stored_bytes) == ("no chain", 1, 0.25, GB)


def test_the_choice_goes_by_the_save_then_by_the_size() -> None:
    slow = made("small", 500_000_000, 2.0)
    fast = made("fast", 900_000_000, 0.3)
    close = made("close", 800_000_000, 0.9 * CLOSE - 0.001)
    assert choose([slow, fast]) == 1
    assert choose([slow, fast, close]) == 2
    assert choose([slow, fast, made("not close", 800_000_000, 0.9 * CLOSE + 0.001)]) == 1
    assert choose([fast, fast]) == 0
    assert choose([made("slower", 900_000_000, 0.91), fast]) == 1


candidates = st.lists(
    st.tuples(st.integers(1, 2 * GB), st.floats(0.001, 100)), min_size=1, max_size=8, unique_by=(lambda pair: pair[0])
)


@given(candidates=candidates, bandwidth=st.floats(1, 1e15))
def test_the_choice_is_never_beaten(candidates: list[tuple[int, float]], bandwidth: float) -> None:
    estimates = [made(str(number), *pair, bandwidth=bandwidth) for number, pair in enumerate(candidates)]
    best = estimates[choose(estimates)]
    for each in estimates:
        assert best.save_seconds <= CLOSE * each.save_seconds
        if each.stored_bytes < best.stored_bytes:
            assert each.save_seconds > CLOSE * min(other.save_seconds for other in estimates)


@given(candidates=candidates)
def test_slow_storage_takes_about_the_smallest_and_fast_storage_the_fastest(
    candidates: list[tuple[int, float]],
) -> None:
    slow = [made(str(number), *pair, bandwidth=0.001) for number, pair in enumerate(candidates)]
    assert slow[choose(slow)].stored_bytes == min(each.stored_bytes for each in slow)
    fast = [made(str(number), *pair, bandwidth=1e15) for number, pair in enumerate(candidates)]
    assert fast[choose(fast)].encode_seconds <= CLOSE * min(each.encode_seconds for each in fast)


def test_the_reason_names_the_limit() -> None:
    small, fast = made("floatzip", 500_000_000, 0.2), made("lz4:level=0", 900_000_000, 0.1)
    text = reason([small, fast], 0)
    assert text == ("storage is the limit: writing 476.8 MiB takes 0.5 s, while 2 workers need 0.2 s to encode")
    quick = [made("floatzip", 500_000_000, 0.2, bandwidth=1e12), made("lz4:level=0", 900_000_000, 0.1, bandwidth=1e12)]
    assert reason(quick, 1).startswith("coding is the limit: 2 workers need 0.1 s to encode, while writing 858.3 MiB")
    plain = made("", GB, 0.1, workers=1)
    assert reason([plain], 0).startswith("storage is the limit: writing 953.7 MiB takes 1 s, while 1 worker needs")
    close = [made("a", 500_000_000, 1.0), made("b", 900_000_000, 0.96)]
    assert reason(close, 0).endswith("; b would save in 0.96 s, which is about the same, and store 858.3 MiB")


CHAINS = [
    [LZ4()],
    [ZStandard(9), Checksum("sha256")],
    [FloatZip(), Checksum(), Encrypt(bytes(range(32)))],
]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_the_overhead_is_what_a_writer_adds(chain: list[Codec], size: int) -> None:
    identity = identity_of("model.läyer.weight", "uint8", (128,), (size,), (128 + size,))
    codecs = Chain(chain)
    encoder = ContainerEncoder(codecs, identity=identity, published=True)
    encoded = 0
    for job, _ in encoder.jobs(MemorySource(memoryview(bytes(size)))):
        block = job()
        encoder.framed(block)
        encoded += len(block.payload)
    part = Part("w", (size,), 1, identity)
    assert encoder.stored_size == encoded + overhead(codecs, [part])


def test_many_streams_add_up() -> None:
    part = Part("w", (300_000,), 4, identity_of("w", "float32", (0,), (300_000,), (300_000,)))
    chain = Chain([LZ4()])
    assert overhead(chain, [part] * 7) == 7 * overhead(chain, [part])
    assert overhead(Chain(), [part] * 7) == 0
