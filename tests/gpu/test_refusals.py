"""Memory that is not to be had, on either side; damage; and what is left when a save or load is over."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.checkpoint import sources
from streamxf.checkpoint.sources import RING_BYTES, CudaCopies
from tests.altered import flip
from tests.dcp.helpers import OTHER_KEY, blank, data_files, error_of

from .helpers import MIB, assert_kept, chain, load, load_into, reader, save, weights


@contextmanager
def full(device: torch.device) -> Iterator[None]:
    """As if nothing more could be allocated on a device."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    hoard = []
    try:
        for size in (MIB, 1024, 512):  # what is reserved and free
            while True:
                try:
                    hoard.append(torch.empty(size, dtype=torch.uint8, device=device))
                except torch.OutOfMemoryError:
                    break
        yield
    finally:
        hoard.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_device_that_is_full(gpu: torch.device, checkpoint: Path) -> None:
    """Neither side allocates on it, where tensors have no gaps."""
    state = {"w": weights(40, gpu), "b": weights(0.01, gpu), "t": weights(9, gpu).float()}
    target = blank(state)
    with full(gpu):
        save(state, checkpoint, thread_count=2)
        load_into(target, checkpoint)
    assert_kept(target, state)


def test_a_device_that_is_too_full(gpu: torch.device, checkpoint: Path) -> None:
    """Gaps need memory there; without it the error is the device's, and nothing is published."""
    state = {"gaps": weights(40, gpu)[:, ::3], "w": weights(9, gpu)}
    save(state, checkpoint)
    rows, columns = state["gaps"].shape
    wide = {"gaps": torch.zeros(columns, rows, device=gpu).t(), "w": torch.zeros_like(state["w"])}
    other = checkpoint.with_name("other")
    with full(gpu):
        for action in (lambda: save(state, other, thread_count=2), lambda: load_into(wide, checkpoint)):
            try:
                action()
            except CheckpointException as error:
                (failure,) = [each for each, _ in error.failures.values()]
                assert isinstance(failure, torch.OutOfMemoryError), failure
                if action.__code__.co_names[0] == "save":
                    assert not [*other.glob("*")]
    assert_kept(load(state, checkpoint), state)
    load_into(wide, checkpoint)
    assert_kept({"": wide["gaps"]}, {"": state["gaps"].float()})


def test_no_pinned_memory(device: torch.device, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other memory takes its place."""
    made = torch.empty

    def empty(*arguments: Any, **options: Any) -> torch.Tensor:
        if options.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory")
        return made(*arguments, **options)

    state = {"w": weights(40, device), "gaps": weights(9, device)[:, ::2]}
    monkeypatch.setattr(torch, "empty", empty)
    assert CudaCopies.memory(MIB).nbytes == MIB
    save(state, checkpoint, thread_count=2)
    assert_kept(load(state, checkpoint), state)


def test_no_memory_at_all(device: torch.device, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {str(number): weights(9, device) for number in range(4)}
    save(state, checkpoint)
    target = blank(state)
    other = checkpoint.with_name("other")

    def none(*arguments: Any) -> torch.Tensor:
        raise MemoryError("no more")

    monkeypatch.setattr(type(sources.COPIES[device.type](device)), "memory", staticmethod(none))
    for action in (lambda: save(state, other, thread_count=2), lambda: load_into(target, checkpoint)):
        assert isinstance(error_of(action), MemoryError)
    assert not [*other.glob("*")]


def test_what_is_damaged(device: torch.device, checkpoint: Path) -> None:
    state = {"a": weights(9, device), "b": weights(9, device)}
    save(state, checkpoint)
    target = blank(state)
    (file,) = data_files(checkpoint)
    flip(file, file.stat().st_size // 4)  # in a block of the first item
    for _ in range(3):
        error = error_of(lambda: load_into(target, checkpoint))
        assert isinstance(error, streamxf.StreamxfError)
        assert error.block is not None
    with pytest.raises(BaseException, match="key"):
        torch.distributed.checkpoint.load(target, storage_reader=streamxf.FileSystemReader(checkpoint, keys=OTHER_KEY))
    save(state, checkpoint)
    assert_kept(load(state, checkpoint), state)


def test_pinned_memory_is_bounded_and_given_back(gpu: torch.device, checkpoint: Path) -> None:
    state = {str(number): weights(30, gpu) for number in range(6)}
    gc.collect()
    torch.cuda.synchronize()
    known = torch.cuda.host_memory_stats()
    name = next(name for name in ("active_bytes", "allocated_bytes") if f"{name}.peak" in known)  # as torch calls it
    before = known[f"{name}.current"]
    torch.cuda.reset_peak_host_memory_stats()
    for threads in (1, 8):
        save(state, checkpoint, thread_count=threads, _extensions=chain())
        assert_kept(load(state, checkpoint), state)
    torch.cuda.synchronize()
    torch.empty(1, pin_memory=True)  # torch then looks which copies are over
    stats = torch.cuda.host_memory_stats()
    assert 0 < stats[f"{name}.peak"] - before <= RING_BYTES
    gc.collect()
    assert not sources._rings


def test_rings_go_with_their_last_user(device: torch.device, checkpoint: Path) -> None:
    gc.collect()
    state = {"w": weights(20, device)}
    save(state, checkpoint)
    load(state, checkpoint)
    assert not sources._rings
    with streamxf.CheckpointWriter(checkpoint.with_name("other")) as made:
        made["w"] = state["w"]
        assert len(sources._rings) == 1
    assert not sources._rings
    assert reader(checkpoint) is not None
