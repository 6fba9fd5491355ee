"""What a save holds in memory is bounded by blocks and pieces, however large the tensors are."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamxf import Checksum, engine
from streamxf.torchsave.writing import frame_of

from .helpers import assert_same, load, save

MIB = 2**20


@pytest.mark.parametrize("threads", [1, 4])
def test_blocks_in_flight_are_bounded(checkpoint: Path, threads: int) -> None:
    state = {str(number): torch.randint(0, 9, (6 * MIB,), dtype=torch.int32) for number in range(3)}
    shared = engine.shared()
    shared.budget.peak_jobs = shared.budget.peak_bytes = 0
    save(state, checkpoint, thread_count=threads)
    # one job of each stream is always let in, so that streams cannot block each other
    assert 1 < shared.budget.peak_jobs <= 2 * shared.workers + 2 + (threads - 1)
    assert shared.budget.peak_bytes <= engine.MAX_BYTES_IN_FLIGHT + threads * MIB
    assert (shared.budget.jobs, shared.budget.bytes) == (0, 0)
    shared.budget.peak_jobs = shared.budget.peak_bytes = 0
    assert_same(load(state, checkpoint), state)
    assert 1 < shared.budget.peak_jobs <= 2 * shared.workers + 2
    assert (shared.budget.jobs, shared.budget.bytes) == (0, 0)


VIEWS = {
    "transposed halves": lambda: torch.empty(8192, 16384, dtype=torch.int16)[:, ::2].t(),
    "rows of a wider one": lambda: torch.empty(2000, 30_000)[:, :25_000],
    "expanded": lambda: torch.empty(1, 1).expand(9000, 6000),
    "one long dimension": lambda: torch.empty(64 * MIB)[::2],
    "one row": lambda: torch.empty(1, 64 * MIB)[:, ::2],
    "narrow": lambda: torch.empty(32 * MIB, 2)[:, :1],
    "contiguous": lambda: torch.empty(32 * MIB),
}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize("view", VIEWS)
def test_a_tensor_is_never_copied_whole(big_folder: Path, view: str) -> None:
    """At least 128 MiB, of which blocks are copied while they are encoded."""
    tensor = VIEWS[view]()
    tensor.untyped_storage()[0] = 0  # has memory from here on
    assert tensor.nbytes >= 128 * MIB
    save({"warm": torch.zeros(4 * MIB)}, big_folder, [Checksum()])
    for page in range(0, tensor.untyped_storage().nbytes(), 4096):
        tensor.untyped_storage()[page] = 0
    before = _peak_mib(lambda: None)
    after = _peak_mib(lambda: save({"t": tensor}, big_folder, [Checksum()]))
    assert after - before < 64


def test_frames_take_no_memory_even_where_torch_fills_what_it_gives() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        before = _peak_mib(lambda: None)
        after = _peak_mib(lambda: frame_of("float32", (128 * MIB,)))
        assert after - before < 64, "the frame of a tensor of 512 MiB needs its shape, not its memory"
    finally:
        torch.use_deterministic_algorithms(False)


def _peak_mib(action: Callable[[], object]) -> float:
    """The process's peak of resident memory while `action` runs, in MiB. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    action()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
