"""A `Progress` that notes what it is told, one that makes a call meanwhile, and state dicts whose bytes are known."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from streamxf.format.values import pack_name, pack_value
from streamxf.torchsave.writing import saved


class Recorder:
    """Notes what it is told. It holds a lock, so it cannot be pickled, as most that people write.

    Attributes
    ----------
    expected : int
        The sum of what there is to do.
    steps : list of int
        What was done, in the order in which it was told.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.expected = 0
        self.steps: list[int] = []

    def expect(self, count: int) -> None:
        assert count >= 0
        with self._lock:
            self.expected += count

    def advance(self, count: int) -> None:
        assert count > 0
        with self._lock:
            self.steps.append(count)
            assert self.done <= self.expected

    @property
    def done(self) -> int:
        return sum(self.steps)


class Meanwhile:
    """A `Progress` that makes a call when it is told first what there is to do, or when some bytes are done."""

    def __init__(self, call: Callable[[], object], after: int | None = None) -> None:
        self._call: Callable[[], object] | None = call
        self._left = after

    def expect(self, count: int) -> None:
        if self._left is None:
            self._make()

    def advance(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            if self._left <= 0:
                self._make()

    def _make(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class Stop(Exception):
    """What happens in the middle."""


def stop() -> None:
    raise Stop


def make_state() -> dict[str, Any]:
    """A tensor of many blocks, some of one, one of nothing, a transposed one, values, and an object."""
    generator = torch.Generator().manual_seed(1)
    return {
        "large": torch.randn(1_500_000, generator=generator),
        "small": {str(number): torch.randn(40, generator=generator).bfloat16() for number in range(30)},
        "empty": torch.zeros(0, 3),
        "turned": torch.randn(300, 200, generator=generator).t(),
        "number": 5,
        "list": ["an object"] * 9,
        "set": {"an object"},
    }


def raw_size(state: dict[str, Any], *, values: bool = True, prefix: str = "") -> int:
    """Bytes of its tensors' elements, and of its objects: `values` among them as their stream has them, with names, all
    others as files of ``torch.save``.
    """
    total = 0
    for key, value in state.items():
        if isinstance(value, dict):
            total += raw_size(value, values=values, prefix=f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            total += value.nbytes
        else:
            packed = pack_value(value) if values else None
            total += len(saved(value)) if packed is None else len(pack_name(prefix + key)) + len(packed)
    return total
