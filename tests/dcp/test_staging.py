"""Tensors of an accelerator: copies that come late, and buffers that must not be filled again too early."""

import gc
import io
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf import Checksum, Codec, ZStandard, engine
from streamxf.chain import Chain, StreamCoder
from streamxf.checkpoint import sources
from streamxf.checkpoint.sources import RING_BYTES, SMALL, Copy, DeviceMemory, DeviceSource, Ring, Staging, source_of
from streamxf.errors import UnsupportedError
from streamxf.pipeline import Pipeline
from streamxf.storage.reading import FileSlice
from streamxf.stream.container import BlockReader, read_header, stream_info
from streamxf.stream.encoder import ByteSource, ContainerEncoder, Encoded, MemorySource
from streamxf.stream.reader import StreamReader
from tests.failing import fails_with
from tests.late_copies import POISON, LateCopies, PoisonedRing, pretend
from tests.polling import SECONDS

from .helpers import assert_same, error_of, load, save

BLOCK = 1 << 16


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateCopies:
    made = LateCopies()
    pretend(monkeypatch, made)
    return made


def test_a_checkpoint_through_late_copies(checkpoint: Path, late: LateCopies) -> None:
    generator = torch.Generator().manual_seed(3)
    state: dict[str, Any] = {
        f"{number}.{size}": torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        for number, size in enumerate([SMALL - 1, SMALL, BLOCK - 800, BLOCK, 5 * BLOCK + 3, 40 * BLOCK, 3 * BLOCK])
    }
    state["gaps"] = torch.randn(300, 700, generator=generator)[:, ::2]
    state["bf16"] = torch.randn(2**18, generator=generator).to(torch.bfloat16)
    save(state, checkpoint, block_size=BLOCK)
    assert late.begun == 8  # all but the smallest
    assert late.made > 50
    assert late.buffers <= 2 * engine.shared().workers + 2
    late.begun = late.made = 0
    assert_same(load(state, checkpoint), state)
    assert late.begun == 9  # a target without elements before it is the same to a device
    assert late.made > 50


@dataclass(frozen=True)
class Keeps(Codec):
    """Returns its block as it is, and so lets borrowed memory through to the file."""

    name: ClassVar[str] = "toy.keeps"

    def encode(self, block: memoryview, info: Any) -> Any:
        return np.frombuffer(block, np.uint8)  # another object over the same memory

    def decode(self, block: memoryview, info: Any) -> memoryview:
        return block


def source_over(data: bytes, copies: Any, count: int = 2) -> DeviceSource:
    """Bytes that can only be copied, into the buffers of a ring of its own."""

    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    ring = PoisonedRing(lambda: copies.memory(BLOCK), count)
    return DeviceSource(flat, copies, lambda length: ring)


def stored(codec: Codec, *sources: ByteSource) -> list[bytes]:
    """A container for each source; the blocks of all of them go through one pipeline."""
    pipeline: Pipeline[tuple[int, Encoded]] = Pipeline()
    encoders = [ContainerEncoder(Chain([codec]), block_log2=16) for _ in sources]
    made = [b""] * len(sources)

    def encode(number: int, job: Callable[[], Encoded]) -> tuple[int, Encoded]:
        return number, job()

    def write(blocks: Iterable[tuple[int, Encoded]]) -> None:
        for number, block in blocks:
            made[number] += b"".join(encoders[number].framed(block))
            block.release()

    for number, (encoder, source) in enumerate(zip(encoders, sources, strict=True)):
        for job, size in encoder.jobs(source):
            write(pipeline.submit(partial(encode, number, job), size))
    write(pipeline.results())
    return made


def decoded(container: bytes, codec: Codec) -> bytes:
    source = FileSlice(io.BytesIO(container))
    header = read_header(source)
    return StreamReader(BlockReader(source, header, StreamCoder(Chain([codec]), stream_info(header)))).read()


SIZES = st.one_of(st.integers(0, 300), st.integers(BLOCK - 3, BLOCK + 3), st.integers(3 * BLOCK - 3, 3 * BLOCK + 3))


@given(sizes=st.lists(st.tuples(st.booleans(), SIZES), max_size=5), count=st.integers(2, 4))
@settings(max_examples=40)
def test_copied_and_borrowed_memory_in_any_order(sizes: list[tuple[bool, int]], count: int) -> None:
    copies = LateCopies()
    data = [bytes((number * 7 + at) % 251 for at in range(size)) for number, (_, size) in enumerate(sizes)]
    made = [
        source_over(each, copies, count) if copied else MemorySource(memoryview(each))
        for (copied, _), each in zip(sizes, data, strict=True)
    ]
    assert [decoded(container, Checksum()) for container in stored(Checksum(), *made)] == data
    assert copies.buffers <= count * len(sizes)


def test_a_codec_that_returns_its_block_keeps_no_borrowed_memory() -> None:
    data = bytes(range(256)) * (BLOCK // 32)
    (written,) = stored(Keeps(), source_over(data, LateCopies()))
    for start in range(0, len(data), BLOCK):
        assert data[start : start + BLOCK] in written
    assert bytes([POISON]) * 64 not in written


def test_copies_and_codecs_run_at_the_same_time() -> None:
    """While one block is waited for, the next one's copy begins."""
    begun = threading.Semaphore(0)

    class Overlapping(LateCopies):
        def copy(self, copies: Iterable[Copy], tensor: torch.Tensor) -> Callable[[], None]:
            is_first, wait = not self.begun, super().copy(copies, tensor)
            self.begun += 1

            def wait_for_the_next() -> None:
                assert begun.acquire(timeout=SECONDS)
                wait()

            if is_first:
                return wait_for_the_next
            begun.release()
            return wait

    data = bytes(8 * BLOCK)
    (written,) = stored(ZStandard(), source_over(data, Overlapping(), 3))
    assert decoded(written, ZStandard()) == data


@pytest.mark.parametrize("last", [5, 10_000], ids=["once", "from then on"])
@pytest.mark.parametrize("where", ["begun", "awaited"])
@pytest.mark.parametrize("loading", [False, True], ids=["save", "load"])
def test_a_copy_that_fails_fails_all_and_nothing_hangs(
    checkpoint: Path, late: LateCopies, last: int, where: str, loading: bool
) -> None:
    """Every buffer is lost to it, where no copy works any more."""
    state = {str(number): torch.zeros(60 * BLOCK, dtype=torch.uint8) for number in range(3)}
    save(state, checkpoint, block_size=BLOCK)
    made = 0
    original = late.copy

    def fail() -> None:
        nonlocal made
        made += 1
        if 5 <= made <= last:
            raise RuntimeError("the device is gone")

    def copy(copies: Iterable[Copy], tensor: torch.Tensor) -> Callable[[], None]:
        if where == "begun":
            fail()
        wait = original(copies, tensor)

        def fail_at_last() -> None:
            fail()
            wait()

        return fail_at_last if where == "awaited" else wait

    late.copy = copy  # type: ignore[method-assign]
    if loading:
        error = error_of(lambda: load(state, checkpoint))
    else:
        error = error_of(lambda: save(state, checkpoint.with_name("other"), block_size=BLOCK, thread_count=2))
        assert not list(checkpoint.with_name("other").iterdir())
    assert isinstance(error, RuntimeError)
    assert "the device is gone" in str(error)
    late.copy = original  # type: ignore[method-assign]
    assert_same(load(state, checkpoint), state)


def test_blocks_that_nobody_encodes_give_their_buffers_back() -> None:
    copies = LateCopies()
    source = source_over(bytes(8 * BLOCK), copies, 2)
    for start in range(0, 8 * BLOCK, BLOCK):
        source.load(start, start + BLOCK)
    assert copies.buffers == 8  # each was lost, since its copy may be on its way
    ring = source._ring(BLOCK)
    first, second = ring.take(), ring.take()
    assert first is not second


def test_a_block_that_cannot_be_decoded_gives_its_buffer_back() -> None:
    copies = LateCopies()
    ring = Ring(lambda: copies.memory(BLOCK), 1)
    memory = DeviceMemory(torch.zeros(BLOCK, dtype=torch.uint8), copies, lambda _: ring)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="damaged"):
        memory.fill(fails_with(ValueError, "damaged"), BLOCK, slice(0, BLOCK), 0)
    assert ring.take(patient=False) is not None


def test_all_saves_and_loads_share_what_is_pinned(checkpoint: Path, late: LateCopies) -> None:
    state = {str(number): torch.zeros(40 * BLOCK, dtype=torch.uint8) for number in range(6)}
    kept = Staging()._ring(late, BLOCK)  # type: ignore[arg-type]  # while no save is under way, too
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(save, state, checkpoint / str(number), thread_count=4) for number in range(3)]:
            done.result(300)
    assert 0 < late.buffers <= 2 * engine.shared().workers + 2
    del kept
    gc.collect()
    assert not sources._rings
    made = Staging()
    count = RING_BYTES >> 24
    taken = [made._ring(late, 1 << 24).take(patient=False) for _ in range(count + 1)]  # type: ignore[arg-type]
    assert [None if each is None else each.nbytes for each in taken] == [1 << 24] * count + [None]


def test_a_load_needs_no_buffer_that_a_save_has(checkpoint: Path, late: LateCopies) -> None:
    """Its workers would wait for blocks that wait for a worker."""
    state = {str(number): torch.randn(40 * BLOCK) for number in range(6)}
    save(state, checkpoint)
    made = Staging()
    ring = made._ring(late, 1 << 20)  # type: ignore[arg-type]
    taken = []
    while (buffer := ring.take(patient=False)) is not None:
        taken.append(buffer)
    before = late.buffers
    assert_same(load(state, checkpoint), state)
    assert late.buffers == before


def test_small_tensors_and_other_devices_do_not_go_this_way() -> None:
    for device in ("cpu", "meta"):
        assert not isinstance(source_of(torch.zeros(4 * SMALL, device=device), Staging()), DeviceSource)


def test_a_tensor_without_data_is_refused(checkpoint: Path) -> None:
    error = error_of(lambda: save({"layer.w": torch.zeros(3, device="meta")}, checkpoint))
    assert isinstance(error, UnsupportedError)
    assert "no data to save" in str(error)
    assert error.item == "layer.w"
