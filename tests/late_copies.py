"""A stand-in for an accelerator: tensors of the CPU, copied as late as the code that asks for copies allows."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from streamxf.checkpoint import sources
from streamxf.checkpoint.sources import Copy, Ring, _nothing

POISON = 0xEE


class LateCopies:
    """Copies that are made only when somebody waits for them; until then the target holds poison."""

    def __init__(self) -> None:
        self.begun = 0
        self.made = 0
        self.buffers = 0
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def memory(self, size: int) -> torch.Tensor:
        self.buffers += 1
        return torch.full((size,), POISON, dtype=torch.uint8)

    def begin(self) -> None:
        self.begun += 1

    def copy(self, copies: Iterable[Copy], tensor: torch.Tensor) -> Callable[[], None]:
        pairs = [*copies]
        with torch.inference_mode():
            for _, target in pairs:
                target.copy_(torch.empty_like(target).view(torch.uint8).fill_(POISON).view(target.dtype))

        own = threading.RLock()

        def wait() -> None:
            with own:
                if pairs:
                    with torch.inference_mode():
                        for source, target in pairs:
                            target.copy_(source)
                    pairs.clear()
                    self._waiting.remove(wait)
                    with self._lock:
                        self.made += 1

        self._waiting.append(wait)
        return wait

    def end(self) -> None:
        for wait in [*self._waiting]:
            wait()

    def wait(self) -> None:
        self.end()


class PoisonedRing(Ring):
    """Spoils each buffer as soon as nothing copies from it, so that whoever still reads it is found out."""

    def give(self, buffer: torch.Tensor | None, wait: Callable[[], None] | None = None) -> None:
        if buffer is not None and wait is None:
            buffer.numpy().fill(POISON)
        super().give(buffer, wait or _nothing)


def pretend(monkeypatch: pytest.MonkeyPatch, copies: Any) -> None:
    """Take tensors of the CPU for those of a device with these copies."""
    monkeypatch.setitem(sources.COPIES, "cpu", lambda device: copies)
    monkeypatch.setattr(sources, "Ring", PoisonedRing)
