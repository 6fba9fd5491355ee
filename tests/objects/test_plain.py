"""Plain objects are complete after the check: what comes of them is what torch would make, and torch is not asked."""

import io
import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from streamxf.errors import ObjectError, PolicyError, UnsupportedError
from streamxf.torchsave import writing
from streamxf.torchsave.archive import NotSavedByTorch
from streamxf.torchsave.check import Check, Maker, numbers_in
from streamxf.torchsave.objects import Objects
from tests.archives import saved

from .pickles import archive


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, 2)


def loaded(file: bytes, *, weights_only: bool = True) -> Any:
    with torch.serialization.safe_globals([bytes]):  # which torch forgot
        return torch.load(io.BytesIO(file), weights_only=weights_only)


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats())
TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates, too
KEYS = st.one_of(TEXTS, NUMBERS)
OTHERS = st.one_of(
    st.binary(max_size=8),
    st.binary(max_size=8).map(bytearray),
    st.complex_numbers(),
    st.sets(st.integers(0, 9)),
    st.lists(st.integers(0, 3)).map(Counter),
)
PLAIN = st.recursive(
    st.one_of(NUMBERS, TEXTS, OTHERS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=6).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
        inner.map(lambda one: [one, (one, one)]),  # what is shared stays shared
        st.dictionaries(TEXTS, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_any_plain_object_comes_back_as_torch_loads_it(value: Any) -> None:
    """Compared as pickles: bit for bit, in the same order, with the same things shared."""
    file = saved(value)
    renewed = loaded(Objects().renew(file, len(file)), weights_only=False)
    assert pickled(renewed) == pickled(loaded(file)) == pickled(loaded(file, weights_only=False))


NUMBER = [b"N", b"\x88", b"\x89", b"K\x07", b"M\x01\x02", b"J\xff\xff\xff\xff", b"G" + bytes(8)]
SHAPE = [b")", b"]", b"(", b"t", b"e", b"a", b"\x85", b"\x86", b"\x87", b"q\x05", b"q\x00"]
OPCODES = st.one_of(st.sampled_from(NUMBER), st.sampled_from(SHAPE))
NO_NUMBER = [b"h\x00", b"}", b"2", b"0", b"X\x01\0\0\0a", b"\x8a\x01\x05", b"cos\nsystem\n", b"R"]
OTHER = st.sampled_from([*NO_NUMBER, b".", b"K", b"G"])


@given(st.lists(OPCODES, max_size=14), st.lists(OTHER, max_size=1), st.integers(0, 14))
@example([b"(", b"]", b"K\x07", b"a", b"t"], [], 0)
@example([b"N"], [b"."], 0)
@example([b"N", b"(", b"e"], [], 0)
def test_what_needs_no_check_is_what_a_check_lets_pass(opcodes: list[bytes], other: list[bytes], at: int) -> None:
    opcodes[at:at] = other
    data = b"\x80\x02" + b"".join(opcodes) + b"."
    if (found := numbers_in(data)) is not None:
        check = Check(data, {}, len(data))
        assert pickled(check.load()) == pickled(found[0])
        assert check.at_end
    assert found is None or not set(other).intersection(NO_NUMBER)


@pytest.mark.parametrize("value", [0.25, -1, 2**31 - 1, (0.9, (1, None)), [True, [1.5]]], ids=str)
def test_numbers_need_no_check(value: Any) -> None:
    assert numbers_in(pickled(value)) == (value,)
    assert numbers_in(pickled([value] + [0] * 2048)) is None


TYPICAL: list[Any] = [
    *(0.25, -0.0, float("nan"), 17, -1, 2**31, -(2**63), True, None, "", "text", "\ud800"),
    *((), (0.9, 0.999), [], [1, 2, 3], list(range(3000)), ["ab" * 2] * 9),
    *({}, {"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1], 5: None}),
]


@pytest.mark.parametrize("value", TYPICAL, ids=lambda value: ascii(value)[:30])
def test_torch_is_not_asked_for_what_an_optimizer_has(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(value)
    with monkeypatch.context() as patch:
        patch.setattr(Maker, "load", lambda *_, **__: pytest.fail("another unpickler was asked"))
        assert pickled(Objects().load(file, len(file))) == pickled(value)
    renewed = Objects().renew(file, len(file))
    for weights_only in (True, False):
        assert pickled(torch.load(io.BytesIO(renewed), weights_only=weights_only)) == pickled(value)


def test_a_list_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append(value)
    for found in (Objects().load(saved(value), 1000), loaded(Objects().renew(saved(value), 1000))):
        assert found[1] is found


def nested(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth - 1):
        value = (value,)
    return value


LIST, END = b"\x80\x02]q\x00", b"."
TWICE = b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(40))
LOADS: dict[str, bytes] = {
    "an integer that is longer than it need be": b"\x80\x02\x8a\x02\x01\x00.",
    "no memo where there is one": b"\x80\x02].",
    "places in the memo that are left out": b"\x80\x02]r\xff\x03\0\0.",
    "a list that is filled by pieces": LIST + b"K\x01aK\x02a" + END,
    "a list that is filled twice": LIST + b"(K\x01K\x02e(K\x03K\x04e" + END,
    "a key that comes twice": b"\x80\x02}q\x00(K\x01K\x02K\x01K\x03u.",
    "a stack with more than one thing on it": b"\x80\x02K\x01K\x02.",
    "a mark that is left": b"\x80\x02(K\x01.",
    "something behind the end": pickled([1]) + b"\0",
    "another pickle behind the end": pickled([1]) + pickled(print),
    "text of Python 2": b"\x80\x02U\x02ab.",
    "a class that nobody calls": b"\x80\x02ctorch\nSize\nq\x00.",
    "a class that is plain, and nobody calls": b"\x80\x02ccollections\nCounter\nq\x00.",
    "a large integer": pickled(2**80),
    "a tuple for a key": pickled({(1, 2): 3}),
    "tuples in tuples": pickled(nested(200)),
    "an OrderedDict with an attribute": b"\x80\x02ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00aK\x01sb.",
}


@pytest.mark.parametrize("what", LOADS)
def test_an_unusual_pickle_that_torch_takes(what: str) -> None:
    found = Objects().load(archive(LOADS[what]), 1000)
    assert pickled(found) == pickled(loaded(archive(LOADS[what])))


def test_a_tuple_that_doubles_forty_times_takes_little() -> None:
    """As long as nobody hashes or compares it."""
    found = Objects().load(archive(b"\x80\x02)" + TWICE + b"."), 1000)
    for _ in range(40):
        assert found[0] is found[1]
        found = found[0]
    assert found == ()


REFUSED: dict[str, bytes] = {
    "an integer of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a text of 4 GiB": b"\x80\x02X\xff\xff\xff\xff.",
    "protocol 3": pickle.dumps([b"a"], 3),
    "protocol 4": pickle.dumps([1, "text"], 4),
    "an opcode of protocol 4": b"\x80\x02\x8c\x01a.",
    "a frame that ends within an opcode": b"\x80\x05\x95\x06\0\0\0\0\0\0\0C\x02\x02xMy\x94..",
    "a bytearray of protocol 5": pickle.dumps(bytearray(b"a"), 5),
    "a place in the memo far away": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a place in the memo that is empty": b"\x80\x02h\x05.",
    "a number that is filled": b"\x80\x02K\x01K\x02a.",
    "nothing": b"\x80\x02.",
    "no end": b"\x80\x02K\x01",
    "no pickle": b"",
    "a float that is cut": b"\x80\x02G\x00\x00.",
    "a storage": b"\x80\x02X\x01\x00\x00\x000Q.",
    "a set that is made without being filled": b"\x80\x02cbuiltins\nset\n](K\x01e\x85\x81.",
    "an instance attribute in the place of a method": b"\x80\x02ccollections\nOrderedDict\n)R}"
    b"X\x04\x00\x00\x00copyK\x01sb.",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_torch_save_does_not_write_is_refused(what: str) -> None:
    with pytest.raises(PolicyError):
        Objects().load(archive(REFUSED[what]), 1000)


def test_lists_that_are_too_deep_to_be_serialized_again() -> None:
    data = b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b"."
    assert type(Objects().load(archive(data), 10**6)) is list
    with pytest.raises(ObjectError, match="RecursionError"):
        Objects().renew(archive(data), 10**6)


NUMBERS_OF_NUMPY = st.lists(st.integers(0, 3), max_size=3).map(lambda found: [np.array(found), np.float64(0.5), found])


@st.composite
def altered(draw: Callable[..., Any]) -> bytes:
    """A plain pickle in which bytes were changed, left out or put in; often into what is an opcode."""
    data = bytearray(pickle.dumps(draw(st.one_of(PLAIN, NUMBERS_OF_NUMPY)), draw(st.sampled_from((2, 2, 2, 3, 4)))))
    code = st.one_of(
        st.sampled_from(b"().NKMGJXRQbcsutaeqhrj]}\x80\x81\x85\x86\x87\x88\x89\x8a\x8b"), st.integers(0, 255)
    )
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(2, len(data) - 1)) if len(data) > 3 else 2
        match draw(st.sampled_from(["change", "insert", "remove", "repeat"])):
            case "change":
                data[at] = draw(code)
            case "insert":
                data.insert(at, draw(code))
            case "remove":
                del data[at]
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 8))]
        assume(len(data) > 3)
    return bytes(data)


@given(altered())
@example(b"\x80\x02G" + struct.pack(">d", 0.25) + b".")
@example(b"\x80\x02ccollections\nCounter\nq\x00}\x85RK\x01K\x02s.")
@example(b"\x80\x02ccollections\nOrderedDict\nq\x00)R(h\x00Nu.")
@example(b"\x80\x05\x95\x06\0\0\0\0\0\0\0C\x02\x02xMy\x94..")
def test_c_reads_in_a_pickle_what_was_checked(data: bytes) -> None:
    """Or what it makes would not be what was found to be harmless."""
    check = Check(data, {"data.pkl": len(data)}, len(data))
    try:
        made = check.load()
    except (NotSavedByTorch, RecursionError):
        return
    assume(not check.unknown)
    try:
        again = Maker(data, check).load()
    except (pickle.UnpicklingError, ValueError, TypeError):
        assume(False)
    with suppress(RecursionError, pickle.PicklingError, TypeError, AttributeError):  # something stands for a value
        shown = pickled(made)
        assert b"streamxf" in shown or shown == pickled(again)


def test_a_file_has_a_greatest_size() -> None:
    with pytest.raises(UnsupportedError, match="the limit is"):
        writing.archive(b"", [2**47, 2**47], None)
    assert writing.archive(b"", [2**47], None)
