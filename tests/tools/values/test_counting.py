"""All tensors of a checkpoint, counted in one pass."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf import engine
from streamxf.checkpoint.reading import Box
from streamxf.errors import BlockError, CodecError, KeyMissingError
from streamxf.tools.values import statistics
from streamxf.tools.values.statistics import Statistics, ValueCounter
from tests.progress.recorder import Recorder
from tests.tools.elements import Memory, dtype_name, elements_of


def whole_of(tensor: torch.Tensor) -> Statistics:
    counter = ValueCounter()
    counter.add(elements_of(tensor), dtype_name(tensor))
    return counter.result()


def test_every_tensor_and_nothing_else():
    state = {
        "w": torch.randn(2, 3 * 2**20, dtype=torch.float32),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(7),
        "bits": torch.zeros(3, dtype=torch.bits8),
        "step": 4,
    }
    source, bar = Memory(state), Recorder()
    found, unread, _ = statistics.statistics_of(source, bar)
    assert not unread
    assert list(found) == ["w", "empty", "scalar", "bits"]
    assert found["bits"] is None
    assert found["empty"] is not None
    assert (found["empty"].elements, found["empty"].all_zero, found["empty"].min) == (0, False, None)
    assert found["scalar"] is not None
    assert (found["scalar"].min, found["scalar"].max) == (7, 7)
    whole = whole_of(state["w"])
    assert found["w"] is not None
    assert (found["w"].elements, found["w"].min, found["w"].max) == (whole.elements, whole.min, whole.max)
    assert found["w"].mean == pytest.approx(whole.mean)
    assert found["w"].std == pytest.approx(whole.std)
    assert source.largest <= statistics.BOX_BYTES
    assert bar.expected == bar.done == sum(state[name].nbytes for name in ("w", "empty", "scalar"))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 64), st.integers(0, 64))
def test_however_small_boxes_are_and_whoever_counts_them(sizes: list[int], limit: int, inline: int):
    state = {str(number): torch.randn(size) for number, size in enumerate(sizes)}
    source = Memory(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "BOX_BYTES", limit)
        patch.setattr(statistics, "_INLINE", inline)
        found, *_ = statistics.statistics_of(source)
    for name, tensor in state.items():
        whole, parts = whole_of(tensor), found[name]
        assert parts is not None
        assert (parts.elements, parts.min, parts.max, parts.zeros) == (
            whole.elements,
            whole.min,
            whole.max,
            whole.zeros,
        )
        if whole.mean is not None:
            assert parts.mean == pytest.approx(whole.mean, abs=1e-12)
            assert parts.std == pytest.approx(whole.std, abs=1e-12)


class Broken(Memory):
    """Is damaged behind some boxes."""

    read = 0

    def jobs(self, box: Any, out: Any) -> Any:
        self.read += 1
        if self.read > 5:
            raise BlockError("torn")
        return super().jobs(box, out)


def test_damage_ends_a_tensor_and_leaves_nothing_running():
    source = Broken({"w": torch.randn(8 * 2**20)})
    assert statistics.statistics_of(source) == ({"w": None}, {"w": "BlockError: torn"}, {})
    assert engine.shared().budget.bytes == 0


class OnlySome(Memory):
    """Some tensors cannot be read, for whatever reason."""

    def jobs(self, box: Any, out: Any) -> Any:
        errors = {"3": BlockError("torn"), "5": OSError(5, "Input/output error"), "6": CodecError("a codec's own")}
        if error := errors.get(box.item.name):
            raise error
        return super().jobs(box, out)


def test_the_others_are_counted():
    state = {str(number): torch.randn(number * 10_000) for number in range(9)}
    source, bar = OnlySome(state), Recorder()
    found, unread, _ = statistics.statistics_of(source, bar)
    assert list(found) == list(state)
    assert {name: text.partition(": ")[0] for name, text in unread.items()} == {
        "3": "BlockError", "5": "OSError", "6": "CodecError"
    }  # fmt: skip
    for name, tensor in state.items():
        each = found[name]
        assert (None if each is None else each.elements) == (None if name in unread else len(tensor))
    assert bar.expected == bar.done


def test_a_missing_key_is_no_tensors_own_reason():
    class Locked(Memory):
        def jobs(self, box: Any, out: Any) -> Any:
            raise KeyMissingError("none given")

    with pytest.raises(KeyMissingError):
        statistics.statistics_of(Locked({"w": torch.ones(3), "v": torch.ones(3)}))


def test_what_is_in_flight_is_bounded():
    source = Memory({"w": torch.zeros(48 * 2**20, dtype=torch.uint8).view(torch.float32)})
    budget = engine.shared().budget
    budget.peak_jobs = budget.peak_bytes = 0
    statistics.statistics_of(source)
    assert 0 < budget.peak_bytes <= engine.MAX_BYTES_IN_FLIGHT


def test_small_tensors_are_not_read_far_ahead(monkeypatch: pytest.MonkeyPatch):
    """An array takes memory besides its elements."""
    monkeypatch.setattr("streamxf.checkpoint.reading.BOX_BYTES", 4096)
    source, taken = Memory({str(number): torch.tensor(number) for number in range(100)}), 0

    def boxes() -> Iterator[Box]:
        nonlocal taken
        for item in source.stored.values():
            taken += 1
            yield from Box.of(item)  # type: ignore[arg-type]

    for number, array in enumerate(source.read_boxes(boxes())):
        assert array == number
        assert taken <= number + 9
