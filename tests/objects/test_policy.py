"""Objects in checkpoints: what is loaded of them, and that nothing of the rest reaches the planner.

T2 of the threat model: whoever writes to the storage without a key cannot run code.
"""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import streamxf
from streamxf import Encrypt, ZStandard
from streamxf.errors import ForeignError, MetadataError, NotAllowedError, ObjectError, ParameterError, PolicyError
from streamxf.torchsave.objects import Objects
from tests.archives import saved
from tests.dcp.helpers import KEY, WRITERS, assert_same, data_files, load, load_with, refused, registry, save

from .pickles import archive

HINTS = ("safe_globals=[...]", "weights_only=False")


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = 1


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class Ran(Exception):
    """Raised by a hostile object that was let in."""


def run() -> None:
    raise Ran


class Hostile:
    def __reduce__(self) -> Any:
        return run, ()


@pytest.fixture(autouse=True)
def torchs_list_stays_as_it_was() -> Iterator[None]:
    before = set(torch.serialization.get_safe_globals())
    yield
    assert set(torch.serialization.get_safe_globals()) == before


# -- who writes and who reads --------------------------------------------------------------------

READERS = {
    "own": lambda path, **options: streamxf.FileSystemReader(path, registry(), **options),
    "fsspec": lambda path, **options: streamxf.FsspecReader(str(path), registry(), **options),
    "attached": lambda path, **options: streamxf.attach(dcp.FileSystemReader(path), codecs=registry(), **options),
}


class Watching(DefaultLoadPlanner):
    """Counts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[bytes] = []

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.given.append(value.getvalue())
        super().load_bytes(read_item, value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_hostile_object_runs_nothing_and_leaves_the_planner_alone(checkpoint: Path, writer: str, reader: str) -> None:
    dcp.save({"evil": Hostile()}, storage_writer=WRITERS[writer](checkpoint))
    target, planner = {"evil": "untouched"}, Watching()
    with refused(PolicyError, "evil", f"{__name__}.run", *HINTS):
        dcp.load(target, storage_reader=READERS[reader](checkpoint), planner=planner)
    assert target == {"evil": "untouched"}
    assert planner.given == []
    with refused(Ran if reader == "attached" else ForeignError):
        dcp.load(target, storage_reader=READERS[reader](checkpoint, weights_only=False))
    with refused(ObjectError, "Ran"):  # as the caller wants it
        dcp.load(target, storage_reader=READERS[reader](checkpoint, safe_globals=[run]))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_an_object_whose_class_is_named_loads(checkpoint: Path, writer: str, reader: str) -> None:
    state = {"point": Point(3), "step": 4, "empty": b""}
    dcp.save(state, storage_writer=WRITERS[writer](checkpoint))
    with refused(PolicyError, "item point", f"{__name__}.Point", *HINTS):
        load_with(state, READERS[reader](checkpoint))
    assert_same(load_with(state, READERS[reader](checkpoint, safe_globals=[Point])), state)
    assert_same(load_with(state, READERS[reader](checkpoint, weights_only=False)), state)


def test_the_error_names_the_file_too(checkpoint: Path) -> None:
    save({"evil": Hostile()}, checkpoint)
    (file,) = data_files(checkpoint)
    with refused(PolicyError, f"file {file}", "item evil"):
        load({"evil": None}, checkpoint)


def test_the_planner_never_sees_the_stored_bytes(checkpoint: Path) -> None:
    """What follows the pickle's end, or stands in records that nobody asks for, is gone."""

    class Marking(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return io.BytesIO(archive(b"\x80\x02K\x11.after the end", {"extra": b"marked"}))

    writer = streamxf.FileSystemWriter(checkpoint, _extensions=[], sync_files=False)
    dcp.save({"step": 0}, storage_writer=writer, planner=Marking())
    target, planner = {"step": 0}, Watching()
    dcp.load(target, storage_reader=streamxf.FileSystemReader(checkpoint), planner=planner)
    assert target == {"step": 17}
    (given,) = planner.given
    assert b"after the end" not in given
    assert b"marked" not in given


@pytest.mark.parametrize("reader", READERS)
def test_bytes_that_torch_save_did_not_write(checkpoint: Path, reader: str) -> None:
    class Own(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return io.BytesIO(pickle.dumps(5))

    class Reads(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            self.original_state_dict["n"] = pickle.load(value)

    dcp.save({"n": 0}, storage_writer=dcp.FileSystemWriter(checkpoint), planner=Own())
    target = {"n": 0}
    with refused(PolicyError, "torch.save", *HINTS):
        dcp.load(target, storage_reader=READERS[reader](checkpoint), planner=Reads())
    dcp.load(target, storage_reader=READERS[reader](checkpoint, weights_only=False), planner=Reads())
    assert target == {"n": 5}


def test_a_tensor_where_an_object_belongs(checkpoint: Path) -> None:
    with refused(MetadataError, "holds a tensor, the metadata says an object"):
        Objects().renew(saved(torch.ones(3)), 1)


def test_what_is_encrypted_is_no_exception(checkpoint: Path) -> None:
    save({"evil": Hostile()}, checkpoint, [Encrypt(KEY)])
    with refused(PolicyError, *HINTS):
        load({"evil": None}, checkpoint)


@pytest.mark.parametrize(
    "options",
    [
        *({"weights_only": 1}, {"weights_only": None}, {"safe_globals": "text"}, {"safe_globals": [3]}),
        *({"safe_globals": [("name", Point)]}, {"safe_globals": Point}),
        {"safe_globals": [Point], "weights_only": False},
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_arguments_that_mean_nothing(checkpoint: Path, reader: str, options: dict[str, Any]) -> None:
    with refused(ParameterError):
        READERS[reader](checkpoint, **options)


def test_attach_to_a_writer_takes_none_of_it(checkpoint: Path) -> None:
    for options in ({"weights_only": False}, {"safe_globals": [Point]}):
        with refused(ParameterError, "extensions="):
            streamxf.attach(dcp.FileSystemWriter(checkpoint), [ZStandard()], **options)


# -- what loads: the table in docs/guarantees.md --------------------------------------------------

FREE: dict[str, Any] = {
    "None, bool, int, float, complex": [None, True, 2**70, -1.5, 1 + 2j],
    "str, bytes, bytearray": ["ü", b"", b"\xff", bytearray(), bytearray(b"\0\xff")],
    "list, tuple, dict, set": ([1, [2]], (1, (2,)), {"a": {1: 2}}, {1, "b"}, set()),
    "OrderedDict, Counter": [collections.OrderedDict(a=1), collections.Counter("aab")],
    "torch.Size, torch.dtype, torch.device": [torch.Size([2]), torch.float32, torch.device("cpu")],
}
NAMED: dict[str, tuple[Any, list[Any]]] = {
    "frozenset": (frozenset({1}), [frozenset]),
    "range": (range(3), [range]),
    "slice": (slice(1, 2), [slice]),
    "datetime": (datetime.datetime(2024, 1, 2), [datetime.datetime]),
    "timedelta": (datetime.timedelta(3), [datetime.timedelta]),
    "Path": (pathlib.PurePosixPath("a/b"), [pathlib.PurePosixPath]),
    "Decimal": (decimal.Decimal("1.5"), [decimal.Decimal]),
    "Fraction": (fractions.Fraction(1, 3), [fractions.Fraction]),
    "enum": (Colour.RED, [Colour]),
    "dataclass": (Point(1), [Point]),
    "own class": (Plain(1), [Plain]),
    "Namespace": (argparse.Namespace(a=1), [argparse.Namespace]),
    "deque": (collections.deque([1]), [collections.deque]),
    "defaultdict": (collections.defaultdict(list, a=[1]), [collections.defaultdict, list]),
}


@pytest.mark.parametrize("kind", FREE)
def test_what_loads_at_once(checkpoint: Path, kind: str) -> None:
    state = {"value": (FREE[kind],)}  # a tuple stays one item
    save(state, checkpoint)
    assert_same(load({"value": None}, checkpoint), state)


@pytest.mark.parametrize("kind", NAMED)
def test_what_has_to_be_named(checkpoint: Path, kind: str) -> None:
    value, names = NAMED[kind]
    save({"value": (value,)}, checkpoint)
    with refused(PolicyError, names[0].__qualname__, *HINTS):
        load({"value": None}, checkpoint)
    assert_same(load({"value": None}, checkpoint, safe_globals=names), {"value": (value,)})


NUMPY = [np.array(["a", "bc"]), np.zeros(2, "M8[s]"), np.void(b"ab")]


@pytest.mark.parametrize("value", NUMPY, ids=lambda value: f"{type(value).__name__}-{value.dtype.kind}")
def test_numpy_that_is_not_numbers_has_to_be_named(checkpoint: Path, value: Any) -> None:
    core = np._core.multiarray
    save({"value": (value,)}, checkpoint)
    with refused(PolicyError, "NumPy dtype that is not one of numbers", *HINTS):
        load({"value": None}, checkpoint)
    names = [core.scalar, core._reconstruct, np.ndarray, np.dtype, type(value.dtype)]
    (found,) = load({"value": None}, checkpoint, safe_globals=names)["value"]
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)


def test_integers_of_any_length(checkpoint: Path) -> None:
    state = {"fits": 2**2039 - 1, "long": 2**2040}
    save(state, checkpoint)
    assert_same(load(dict.fromkeys(state, 0), checkpoint), state)


class Tagged(torch.Tensor):
    """A subclass without anything of its own."""


@pytest.mark.parametrize("writer", ["own", "stock"])
def test_tensors_of_a_subclass(checkpoint: Path, writer: str) -> None:
    """Torch refuses them without a name, whatever `weights_only` says of objects."""
    dcp.save({"t": torch.arange(6.0).as_subclass(Tagged)}, storage_writer=WRITERS[writer](checkpoint))
    for options in ({}, {"weights_only": False}):
        with refused(PolicyError, "item t", f"{__name__}.Tagged", "safe_globals=[...]"):
            load({"t": torch.zeros(6)}, checkpoint, None, **options)
    assert_same(load({"t": torch.zeros(6)}, checkpoint, None, safe_globals=[Tagged]), {"t": torch.arange(6.0)})


def test_tensors_inside_of_objects(checkpoint: Path) -> None:
    state = {
        "tensors": (
            *(torch.arange(6).view(2, 3).t(), torch.ones(3, 1).expand(3, 4), torch.zeros(10)[5:], torch.empty(0, 2)),
            *(torch.randn(3, dtype=torch.complex64).conj(), torch.zeros(2, dtype=torch.uint16)),
            torch.nn.Parameter(torch.ones(2)),
        )
    }
    save(state, checkpoint)
    assert_same(load(state, checkpoint), state)


def test_equal_objects_stay_separate(checkpoint: Path) -> None:
    state = {"a": ([1],), "b": ([1],)}
    save(state, checkpoint)
    found = load(state, checkpoint)
    found["a"][0].append(2)
    assert found["b"] == ([1],)


# -- one list for the whole process --------------------------------------------------------------


def test_what_the_process_allows_stays_allowed(checkpoint: Path) -> None:
    """Torch's context manager would take the class off, which was there before."""
    save({"p": (Point(1),)}, checkpoint)
    torch.serialization.add_safe_globals([Point])
    try:
        assert_same(load({"p": None}, checkpoint), {"p": (Point(1),)})
        assert_same(load({"p": None}, checkpoint, safe_globals=[Point]), {"p": (Point(1),)})
        assert Point in torch.serialization.get_safe_globals()
    finally:
        remaining = [entry for entry in torch.serialization.get_safe_globals() if entry is not Point]
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(remaining)


ASKED: list[Any] = []


class Asking:
    """Looks around while it is made."""

    def __reduce__(self) -> Any:
        return asked, ()


def asked() -> int:
    def other_reader() -> None:
        try:
            ASKED.append(Objects(safe_globals=[asked]).load(saved((Point(1),)), 1))
        except PolicyError as error:
            ASKED.append(type(error))

    ASKED.append(set(torch.serialization.get_safe_globals()))
    other = threading.Thread(target=other_reader)
    other.start()
    other.join()
    return 1


def test_a_reader_in_another_thread_sees_nothing_of_it() -> None:
    """It is refused, as it would have been alone; and a ``torch.load`` there finds nothing on torch's list."""
    ASKED.clear()
    before = set(torch.serialization.get_safe_globals())
    assert Objects(safe_globals=[asked, Point]).load(saved([Asking(), Point(1), b""]), 1) == [1, Point(1), b""]
    assert [before, NotAllowedError] == ASKED
