"""Every error says where it happened, and survives the pickles by which DCP sends it between ranks."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from streamxf import errors
from streamxf.errors import StreamxfError, located

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, StreamxfError)]


def test_all_classes_are_found():
    assert len(CLASSES) >= 18


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
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


def test_places_are_filled_in_from_within():
    with pytest.raises(errors.BlockError) as caught, located(file="outer", item="item"):
        with located(file="inner"):
            raise errors.BlockError("oh", block=0)
    assert (caught.value.file, caught.value.item, caught.value.block) == ("inner", "item", 0)


def test_parameter_errors_are_value_errors():
    for cls in (errors.ParameterError, errors.ChainError, errors.DescriptorError):
        assert issubclass(cls, ValueError)
    assert issubclass(errors.ChecksumError, errors.CodecError)
    assert issubclass(errors.BlockError, errors.ContainerError)
