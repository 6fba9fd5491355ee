"""What a save holds in memory is bounded by blocks and pieces, however large the tensors are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamxf import engine
from streamxf.dcp.tensors.framing import frame_of
from streamxf.dcp.tensors.payload import PIECE_BYTES, Payload

from .helpers import assert_same, load, save

MIB = 2**20


@pytest.mark.parametrize("threads", [1, 4])
def test_blocks_in_flight_are_bounded(checkpoint: Path, threads: int) -> None:
    state = {str(number): torch.randint(0, 9, (6 * MIB,), dtype=torch.int32) for number in range(3)}
    shared = engine.shared()
    shared.budget.reset_peak()
    save(state, checkpoint, thread_count=threads)
    # one job of each stream is always let in, so that streams cannot block each other
    assert 1 < shared.budget.peak_jobs <= 2 * shared.workers + 2 + (threads - 1)
    assert shared.budget.peak_bytes <= engine.MAX_BYTES_IN_FLIGHT + threads * MIB
    assert (shared.budget.jobs, shared.budget.bytes) == (0, 0)
    shared.budget.reset_peak()
    assert_same(load(state, checkpoint), state)
    assert 1 < shared.budget.peak_jobs <= 2 * shared.workers + 2
    assert (shared.budget.jobs, shared.budget.bytes) == (0, 0)


VIEWS = {
    "transposed halves": lambda: torch.empty(4096, 8192, dtype=torch.int16)[:, ::2].t(),
    "rows of a wider one": lambda: torch.empty(1000, 30_000)[:, :25_000],
    "expanded": lambda: torch.empty(1, 1).expand(9000, 3000),
    "one long dimension": lambda: torch.empty(30 * MIB)[::2],
    "one row": lambda: torch.empty(1, 30 * MIB)[:, ::2],
    "many dimensions": lambda: torch.empty(2, 2, 2, 16 * MIB)[..., ::2],
    "narrow": lambda: torch.empty(16 * MIB, 2)[:, :1],
    "narrow, with an empty row in it": lambda: torch.empty(16 * MIB, 3)[:, 1:1],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_copied_in_small_pieces(view: str) -> None:
    tensor = VIEWS[view]()
    payload = Payload.of(tensor)
    storage = payload.shell.untyped_storage()
    total = 0
    for piece in payload.pieces(storage):
        assert len(piece) <= PIECE_BYTES
        total += len(piece)
    assert total == tensor.numel() * tensor.element_size() == storage.nbytes()


def test_a_dense_tensor_is_not_copied() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    wide = torch.arange(100.0)
    for tensor in (matrix, matrix.t(), wide[10:30], wide[10:30].view(4, 5).t()):
        payload = Payload.of(tensor)
        (piece,) = payload.pieces(payload.shell.untyped_storage())
        tensor[(0,) * tensor.ndim] += 1  # shows through, if the piece is the tensor's own memory
        held = torch.frombuffer(piece, dtype=torch.float32)
        assert held[0] == tensor[(0,) * tensor.ndim]


def test_a_shell_of_a_view_takes_no_memory_worth_mentioning() -> None:
    """Its pages are never touched, so only the address space is taken."""
    tensor = torch.empty(1).expand(2**36)
    payload = Payload.of(tensor[:16])
    assert payload.shell.untyped_storage().nbytes() == 64
    first = next(iter(Payload.of(torch.empty(1).expand(2**28)).pieces(payload.shell.untyped_storage())))
    assert len(first) <= PIECE_BYTES


def test_shells_take_no_memory_even_where_torch_fills_what_it_gives() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        before = _peak_mib(lambda: None)
        after = _peak_mib(lambda: frame_of(torch.float32, (128 * MIB,), (1,), False))
        assert after - before < 64, "the frame of a tensor of 512 MiB needs its shape, not its memory"
    finally:
        torch.use_deterministic_algorithms(False)


def _peak_mib(action: Callable[[], object]) -> float:
    """The process's peak of resident memory while `action` runs, in MiB. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    action()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
