"""T2: instances that are read in one step are those that their opcodes make one by one; nothing else is accepted."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from streamxf.dcp.metadata.machine import Machine
from streamxf.dcp.metadata.records import Layout
from streamxf.dcp.metadata.unpickle import load_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from dcp.test_machine import metadata
from streamxf.dcp.metadata import records, unpickle
from streamxf.errors import MetadataError

NEVER = 10**9
SHAPES = [(7,), (300, 2), (2**33, 1), (2, 3, 4), (70_000, 1, 2, 3), (1,) * 7]


@contextmanager
def learning(after: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "LEARN_AFTER", after)
        yield


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many instances are read in one step."""
    hits = [0]
    real = Layout.values

    def values(self: Layout, groups: Any) -> Any:
        found = real(self, groups)
        hits[0] += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "values", values)
        yield hits


def many(tensors: int = 12, *, chunks: int | None = 3, shared: bool = False) -> Metadata:
    """Metadata of `tensors` tensors of all sorts, and some objects.

    Parameters
    ----------
    chunks : int or None
        Of each tensor; None for one more in each than in the one before.
    shared : bool
        Whether the places have the offsets of the chunks, and not equal ones.
    """
    items: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    descriptors = ["a/1", "b/2"]
    for number in range(tensors):
        shape = SHAPES[number % len(SHAPES)]
        count = number + 1 if chunks is None else chunks
        offsets = [torch.Size([part * shape[0], *[0] * (len(shape) - 1)] if shape else []) for part in range(count)]
        parts = [ChunkStorageMetadata(offset, torch.Size(shape)) for offset in offsets]
        properties = TensorProperties(dtype=torch.bfloat16, requires_grad=number % 2 == 0)
        items[f"t{number}"] = TensorStorageMetadata(properties, torch.Size(shape), parts)
        for part, offset in enumerate(offsets):
            index = MetadataIndex(f"t{number}" if part else f"{'t'}{number}", tuple(offset), part)
            if shared:
                object.__setattr__(index, "offset", offset)
            places[index] = _StorageInfo("file", 2**20 * number * part, 2**28, descriptors if number % 3 else None)
        items[f"o{number}"] = BytesStorageMetadata()
        places[MetadataIndex(f"o{number}")] = _StorageInfo("file", 2**40 + number, number)
    return Metadata(items, {name: (name,) for name in items}, places)


def machine(data: bytes) -> Machine:
    fill = {cls: partial(unpickle._fill, cls, []) for cls in unpickle._FILLERS}
    return Machine(data, unpickle._find, fill, {MetadataIndex: unpickle._hash_of_index})


def outcome(data: bytes, after: int) -> Any:
    """What a pickle is read as, with all that the machine has memorised and charged; or why it is refused."""
    with learning(after):
        reader = machine(data)
        try:
            found, end = reader.run()
        except MetadataError as error:
            return str(error)
        return repr(found), end, reader._charge, [described(entry) for entry in reader.memo]


def described(entry: Any) -> str:
    fields = getattr(entry, "__dict__", None)
    return f"{type(entry).__name__} {fields if fields is not None and not isinstance(entry, type) else entry!r}"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("chunks", [1, 3, 8, 40])
def test_nothing_tells_both_ways_apart(chunks: int, protocol: int, shared: bool) -> None:
    pickled = pickle.dumps(many(chunks=chunks, shared=shared), protocol)
    with counted() as hits:
        one_by_one = outcome(pickled, NEVER)
        assert hits == [0]
        in_one_step = outcome(pickled, 1)
    assert hits[0] > 25
    assert in_one_step == one_by_one
    with learning(1):
        assert load_metadata(memoryview(pickled)) == pickle.loads(pickled)


@given(content=metadata())
@settings(deadline=None, max_examples=60)
def test_any_metadata_is_read_alike(content: Metadata) -> None:
    pickled = pickle.dumps(content)
    assert outcome(pickled, 1) == outcome(pickled, NEVER)


def test_what_is_altered_is_read_or_refused_alike() -> None:
    """Bytes exchanged, doubled, left out, at every place behind the first instances of each kind."""
    pickled = pickle.dumps(many(3, chunks=2, shared=True), 4)
    choose = random.Random(7)
    accepted = refused = 0
    opcodes = b")\x81\x94}(ubt\x85\x86\x87RhjKMJ\x8a]aeN\x88\x89.\x93\x8c"
    with counted() as hits:
        for at in range(11, len(pickled)):
            other = choose.choice((choose.randbytes(1), bytes([choose.choice(opcodes)]), pickled[at : at + 1] * 2, b""))
            altered = pickled[:at] + other + pickled[at + 1 :]
            found = outcome(altered, 1)
            assert found == outcome(altered, NEVER), (at, other)
            refused += isinstance(found, str)
            accepted += not isinstance(found, str)
    assert accepted > 50
    assert refused > 500
    assert hits[0] > 2000


def test_objects_of_one_step_can_be_fetched_later() -> None:
    """Each place in the memo holds what it would hold, so whatever a pickle fetches from there is the same."""
    pickled = pickle.dumps(many(4, chunks=2, shared=True), 4)
    size = len(machine_memo(pickled))
    assert 256 > size > 150
    wanted = b"h" + bytes([0])
    starts = [at for at in range(len(pickled)) if pickled.startswith(b"h", at)][5:]
    random.Random(3).shuffle(starts)
    for at in starts[:12]:
        for place in range(0, size, 3):
            altered = pickled[: at + 1] + bytes([place]) + pickled[at + len(wanted) :]
            assert outcome(altered, 1) == outcome(altered, NEVER)


def machine_memo(pickled: bytes) -> list[Any]:
    reader = machine(pickled)
    reader.run()
    return reader.memo


@pytest.mark.parametrize(
    "change",
    [
        lambda index, place: object.__setattr__(index, "fqn", 7),
        lambda index, place: object.__setattr__(index, "offset", (1, 2)),
        lambda index, place: object.__setattr__(index, "index", "7"),
        lambda index, place: setattr(place, "offset", -1),
        lambda index, place: setattr(place, "length", 2**63),
        lambda index, place: setattr(place, "relative_path", 7),
        lambda index, place: setattr(place, "transform_descriptors", ["x" * 10**6]),
        lambda index, place: setattr(place, "transform_descriptors", ["x"] * 17),
        lambda index, place: setattr(place, "transform_descriptors", "x/1"),
    ],
)
def test_types_and_limits_hold_for_the_last_of_many(change: Callable[[Any, Any], None]) -> None:
    content = many(100, chunks=1, shared=True)
    index, place = list(content.storage_data.items())[-2]
    change(index, place)
    pickled = pickle.dumps(content)
    with counted() as hits:
        found = outcome(pickled, records.LEARN_AFTER)
    assert hits[0] > 100
    assert isinstance(found, str)
    assert found == outcome(pickled, NEVER)


def test_what_was_too_much_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table for each byte uses up what the pickle may be charged; of the instances behind it, not all fit."""
    stopped = [0]
    pay_early = Machine._pay_early

    def counting(self: Machine, charge: int) -> None:
        stopped[0] += self._charge + charge > self._charge_to
        pay_early(self, charge)

    monkeypatch.setattr(Machine, "_pay_early", counting)
    first, second = many(12, chunks=2, shared=True), many(12, chunks=2, shared=True)
    for index in second.storage_data:
        object.__setattr__(index, "fqn", f"{index.fqn}'")  # so that hashes differ
    pickled = pickle.dumps([first, b"here", second], 4)
    before, after = pickled.split(b"C\x04here")
    before = before[:2] + before[11:]  # without its frame, whose length would be wrong
    results = []
    for tables in range(13_600, 13_800, 5):
        altered = before + b"](" + b"}" * tables + b"e" + after
        found = outcome(altered, 1)
        assert found == outcome(altered, NEVER)
        results.append(type(found))
    assert str in results
    assert tuple in results
    assert stopped[0] > 1, "charged at once it was too much, and opcode by opcode it was not"


def test_depth_is_the_same() -> None:
    for depth in range(56, 66):
        inner = pickle.dumps(many(3, chunks=2), 4)[2:-1]
        body = inner[9:] if inner[:1] == b"\x95" else inner
        pickled = b"\x80\x04" + b"(" * depth + body + b"t" * depth + b"."
        assert outcome(pickled, 1) == outcome(pickled, NEVER)


def test_few_expressions_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = Layout.__init__

    def init(self: Layout, *arguments: Any) -> None:
        made.append(self)
        real(self, *arguments)

    monkeypatch.setattr(Layout, "__init__", init)
    with learning(1):
        machine(pickle.dumps(many(30, chunks=None))).run()
    assert records.MAX_LAYOUTS < len(made) <= records.MAX_LAYOUTS * len(unpickle._FILLERS)
    made.clear()
    machine(pickle.dumps(many(3))).run()
    assert not made  # for a small checkpoint it would take longer than it saves


def test_shapes_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_SHAPES", 3)
    pickled = pickle.dumps(many(40))
    assert outcome(pickled, 1) == outcome(pickled, NEVER)
