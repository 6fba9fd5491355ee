"""What a checkpoint's objects need: found out for all of them at once, on a save and before a load."""

import collections
import dataclasses
import datetime
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Encrypt, FloatZip
from streamxf.errors import KeyMissingError, PolicyError
from streamxf.torchsave.objects import Objects
from tests.archives import saved
from tests.dcp.helpers import KEY, Xor, load, refused, save
from tests.objects.test_policy import Colour, Hostile, Plain, Point

STATE = {
    "step": 3,
    "lr": (np.float64(1.5), "cfoo\nbar\n"),
    "when": (datetime.datetime(2024, 1, 2), Point(1)),
    "point": (Point(2),),
    "queue": (collections.deque([1]),),
    "long": 2**2040,
    "function": (os.getcwd,),
    "tensor": torch.ones(3),
}
NAMES = {
    "collections.deque": ("queue",),
    "datetime.datetime": ("when",),
    f"{Point.__module__}.Point": ("point", "when"),
    "posix.getcwd": ("function",),
}


def quiet_save(state: dict[str, Any], path: Path, *args: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, path, *args)


def test_all_items_at_once(checkpoint: Path) -> None:
    quiet_save(STATE, checkpoint)
    found = streamxf.unsafe_globals(checkpoint, keys=KEY)
    assert found.names == NAMES
    assert not found.refused
    assert all(name in str(found) for name in NAMES)


def test_nothing_to_name(checkpoint: Path) -> None:
    save({"step": 3, "lr": (np.float64(1),)}, checkpoint)
    found = streamxf.unsafe_globals(str(checkpoint), keys=KEY)
    assert not found
    assert str(found) == "nothing"


def test_what_it_names_is_enough(checkpoint: Path) -> None:
    state = {"a": (Point(1),), "b": (Colour.RED, Plain(2))}
    quiet_save(state, checkpoint)
    named = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (Point, Colour, Plain)}
    found = streamxf.unsafe_globals(checkpoint, keys=KEY)
    assert set(found.names) == set(named)
    assert load(dict.fromkeys(state), checkpoint, safe_globals=list(named.values())) == state


def test_nothing_is_unpickled(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet_save({"evil": Hostile(), "point": (Point(1),)}, checkpoint)
    for module, name in ((torch, "load"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("unpickled"))
    assert f"{Hostile.__module__}.run" in streamxf.unsafe_globals(checkpoint, keys=KEY).names


def test_with_keys_and_over_fsspec(checkpoint: Path) -> None:
    quiet_save(STATE, checkpoint, [FloatZip(), Encrypt(KEY)])
    with refused(KeyMissingError):
        streamxf.unsafe_globals(checkpoint)
    assert streamxf.unsafe_globals(checkpoint, keys=KEY).names == NAMES
    assert streamxf.unsafe_globals(f"file://{checkpoint}", keys=KEY).names == NAMES


def test_what_torchs_writer_saved(checkpoint: Path) -> None:
    dcp.save(STATE, storage_writer=dcp.FileSystemWriter(checkpoint, _extensions=[Xor()], sync_files=False))
    registry = streamxf.Registry()
    registry.register(Xor)
    assert streamxf.unsafe_globals(checkpoint, codecs=registry).names == NAMES


def test_metadata_of_single_ranks(checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = streamxf.FileSystemWriter(checkpoint, sync_files=False)
        dcp.save(STATE, storage_writer=writer, use_collectives=False)
    assert (checkpoint / "__0.metadata").exists()
    assert streamxf.unsafe_globals(checkpoint).names == NAMES


def test_the_process_list_counts(checkpoint: Path) -> None:
    quiet_save({"p": (Point(1),)}, checkpoint)
    with torch.serialization.safe_globals([Point]):
        assert not streamxf.unsafe_globals(checkpoint, keys=KEY)


# -- what a save says ----------------------------------------------------------------------------


def test_a_save_warns_once(checkpoint: Path) -> None:
    writer = streamxf.FileSystemWriter(checkpoint, sync_files=False)
    with pytest.warns(UserWarning, match="readers will refuse") as caught:
        dcp.save(STATE, storage_writer=writer)
    (text,) = [str(one.message) for one in caught if "readers will refuse" in str(one.message)]
    assert "function, point, queue, when" in text
    assert f"safe_globals=[{', '.join(sorted(NAMES))}]" in text
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "readers will refuse")
        dcp.save(STATE, storage_writer=writer)
        with pytest.raises((UserWarning, dcp.api.CheckpointException), match="readers will refuse"):
            dcp.save({**STATE, "more": (Colour.RED,)}, storage_writer=writer)


@pytest.mark.parametrize(
    "value",
    [3, "cfoo\nbar\n", b"cfoo\nbar\n", np.arange(3), torch.Size([1]), collections.OrderedDict(a=torch.ones(2)), {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_a_save_of_what_loads_says_nothing(checkpoint: Path, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "readers will refuse")
        save({"value": (value,)}, checkpoint)


def test_objects_whose_opcodes_are_many_are_passed_over(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.torchsave.check.MAX_LOOKED_AT", 100)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "readers will refuse")
        save({"value": (Point(1), "x" * 100)}, checkpoint)


# -- what the errors of a load say ---------------------------------------------------------------


class Made:
    """A function is allowed, and the class of what it makes is not."""

    def __init__(self) -> None:
        self.x = 1

    def __reduce__(self) -> Any:
        return Factory, (), {"x": 1}


def Factory() -> Made:
    return Made()


def test_the_class_of_what_a_function_makes_has_to_be_allowed_too() -> None:
    with refused(PolicyError, f"it fills what {__name__}.Factory gives, a {__name__}.Made"):
        Objects(safe_globals=[Factory]).renew(saved(Made()), 1000)
    Objects(safe_globals=[Factory, Made]).renew(saved(Made()), 1000)


def test_more_than_five_names_are_counted() -> None:
    classes = [dataclasses.make_dataclass(f"C{n}", [], namespace={"__module__": __name__}) for n in range(8)]
    for kind in classes:
        globals()[kind.__name__] = kind
    with refused(PolicyError, f"{__name__}.C4 and 3 more", "streamxf.unsafe_globals"):
        Objects().renew(saved([kind() for kind in classes]), 1000)


class Items(list[int]):
    """Filled item by item."""


class Table(dict[str, int]):
    """Filled key by key."""


@pytest.mark.parametrize("value", [Items([1]), Table(a=1)], ids=lambda value: type(value).__name__)
def test_subclasses_of_list_and_dict_load_once_they_are_named(value: Any) -> None:
    with refused(PolicyError, f"it needs {__name__}.{type(value).__name__}"):
        Objects().load(saved(value), 1000)
    found = Objects(safe_globals=[type(value)]).load(saved(value), 1000)
    assert (type(found), found) == (type(value), value)
