"""Every error says where it happened, and survives the pickles by which DCP sends it between ranks."""

import copy
import inspect
import pickle
import traceback
from itertools import product

import pytest

from streamxf import errors
from streamxf.errors import StreamxfError, located
from tests.lots import in_lots

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, StreamxfError)]


def test_all_classes_are_found():
    assert len(CLASSES) >= 18


@in_lots("cls, protocol", product(CLASSES, range(pickle.HIGHEST_PROTOCOL + 1)))
def test_pickle_round_trip(cls, protocol):
    error = cls("what happened", file="a/b.distcp", item="layer.0", block=0)
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.deepcopy(error)):
        assert type(again) is cls
        assert (again.message, again.file, again.item, again.block) == ("what happened", "a/b.distcp", "layer.0", 0)
        assert str(again) == str(error)
        assert again.args == error.args


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "oh"),
        ({"block": 0}, "oh [block 0]"),
        ({"item": ""}, "oh [item ]"),
        ({"file": "f", "item": "i", "block": 3}, "oh [file f, item i, block 3]"),
    ],
)
def test_text(place, text):
    assert str(StreamxfError("oh", **place)) == text


@pytest.mark.parametrize("cls", CLASSES)
def test_nothing_in_it_ends_a_line_or_steers_a_terminal(cls):
    name = "w\n\x1b[2J\u202e\udc80\r"
    error = cls(f"the item {name} is damaged", file=f"{name}/__0_0.distcp", item=name)
    error.message = f"while {name} was read: {error.message}"
    again = pickle.loads(pickle.dumps(error))
    for text in (str(error), repr(error), str(again), "".join(traceback.format_exception_only(error)).rstrip("\n")):
        assert text.isprintable()
        assert r"w\n\x1b[2J\u202e\udc80\r" in text.replace("\\\\", "\\")
    assert (error.file, error.item) == (f"{name}/__0_0.distcp", name)  # the name itself, for a program that looks it up


def test_places_are_filled_in_from_within():
    with pytest.raises(errors.BlockError) as caught, located(file="outer", item="item"):
        with located(file="inner"):
            raise errors.BlockError("oh", block=0)
    assert (caught.value.file, caught.value.item, caught.value.block) == ("inner", "item", 0)


class Closed(Exception):
    """Takes no attributes."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Hidden(Exception):
    @property
    def __notes__(self):
        raise RuntimeError("nobody may read these")


def noted(notes: object) -> Exception:
    error = ValueError("oh")
    error.__notes__ = notes
    return error


@pytest.mark.parametrize(
    ("error", "notes"),
    [
        *[(noted([]), []), (noted(["while eggs were fried"]), ["while eggs were fried"])],
        *[(noted([1, None, "its own"]), ["its own"]), (noted(None), []), (noted(("its", "own")), ["its", "own"])],
        *[(noted("text"), [*"text"]), (Closed("oh"), None), (Hidden("oh"), None)],
    ],
    ids=str,
)
def test_anyones_error_is_raised_and_has_a_place_if_it_takes_one(error: Exception, notes: list[str] | None):
    with pytest.raises(type(error)) as caught, located(file="f", doing="writing"):
        with located(file="f", item="i\n", doing="writing"):
            raise error
    assert caught.value is error
    assert errors.notes_of(error) == ([] if notes is None else [*notes, r"while writing item i\n of file f"])


def test_an_error_that_is_raised_again_elsewhere_has_both_places():
    error = OSError("oh")
    for name in ("first", "second"):
        with pytest.raises(OSError, match="oh"), located(file=name, doing="reading"):
            raise error
    assert errors.notes_of(error) == ["while reading file first", "while reading file second"]


def test_a_class_that_does_not_call_its_base_has_a_place():
    class Own(StreamxfError):
        def __init__(self) -> None:
            """Makes nothing of what the base class has."""

    with pytest.raises(Own) as caught, located(file="f", item="i"):
        raise Own
    assert str(caught.value) == " [file f, item i]"


def test_parameter_errors_are_value_errors():
    for cls in (errors.ParameterError, errors.ChainError, errors.DescriptorError):
        assert issubclass(cls, ValueError)
    assert issubclass(errors.ChecksumError, errors.CodecError)
    assert issubclass(errors.BlockError, errors.ContainerError)
