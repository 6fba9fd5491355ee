"""Objects that need no class go a short way past torch's unpickler: the same comes of them, and nothing else may go."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch._weights_only_unpickler import Unpickler

from streamxf.dcp.objects.plain import MAX_PLAIN, renew_plain
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.objects.vet_values import MAX_DEPTH
from streamxf.errors import PolicyError


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, 2)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def saved_pickle(data: bytes) -> bytes:
    """A file of ``torch.save`` with any pickle."""
    file = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(file)
    writer.write_record("data.pkl", data, len(data))
    writer.write_end_of_file()
    return file.getvalue()


def loaded(file: bytes, *, weights_only: bool = True) -> Any:
    return torch.load(io.BytesIO(file), weights_only=weights_only)


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats())
TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates, too
KEYS = st.one_of(TEXTS, NUMBERS)
PLAIN = st.recursive(
    st.one_of(NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=6).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
        inner.map(lambda one: [one, (one, one)]),  # what is shared stays shared
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_any_plain_object_comes_back_as_torch_loads_it(value: Any) -> None:
    """Compared as pickles: bit for bit, in the same order, with the same things shared."""
    file = saved(value)
    renewed = loaded(Objects().renew(file, len(file)), weights_only=False)
    assert pickled(renewed) == pickled(loaded(file)) == pickled(loaded(file, weights_only=False))


TYPICAL: list[Any] = [
    *(0.25, -0.0, float("nan"), 17, -1, 2**31, -(2**63), True, None, "", "text", "\ud800"),
    *((), (0.9, 0.999), [], [1, 2, 3], list(range(3000)), ["ab" * 2] * 9),
    *({}, {"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1], 5: None}),
]


@pytest.mark.parametrize("value", TYPICAL, ids=lambda value: ascii(value)[:30])
def test_what_an_optimizer_has_goes_the_short_way(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(value)
    with monkeypatch.context() as patch:
        patch.setattr(Unpickler, "load", lambda *_, **__: pytest.fail("torch was asked"))
        patch.setattr(torch, "save", lambda *_, **__: pytest.fail("torch was asked"))
        renewed = Objects().renew(file, len(file))
    assert renewed != file
    for weights_only in (True, False):
        assert pickled(torch.load(io.BytesIO(renewed), weights_only=weights_only)) == pickled(value)


def test_a_list_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append(value)
    renewed = renew_plain(pickled(value))
    assert renewed is not None
    found = loaded(renewed)
    assert found[1] is found


class Ran(Exception):
    """Raised by a pickle that was let in."""


def run() -> None:
    raise Ran


class Hostile:
    def __reduce__(self) -> Any:
        return run, ()


def nested(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth - 1):
        value = (value,)
    return value


LIST, END = b"\x80\x02]q\x00", b"."
OTHERS = {
    "a class": pickled(Hostile()),
    "a class that torch allows": pickled(OrderedDict(a=1)),
    "a class that nobody calls": b"\x80\x02ctorch\nSize\nq\x00.",
    "bytes": pickled(b"\0\xff"),
    "a set": pickled({1}),
    "a storage": b"\x80\x02X\x01\x00\x00\x000Q.",
    "a large integer": pickled(2**80),
    "an integer that is longer than it need be": b"\x80\x02\x8a\x02\x01\x00.",
    "an integer of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a text of 4 GiB": b"\x80\x02X\xff\xff\xff\xff.",
    "a tuple for a key": pickled({(1, 2): 3}),
    "protocol 3": pickle.dumps([1], 3),
    "protocol 4": pickle.dumps([1, "text"], 4),
    "an opcode of protocol 4": b"\x80\x02\x8c\x01a.",
    "bytes of protocol 3": b"\x80\x02C\x01a.",
    "no memo where there is one": b"\x80\x02].",
    "a place in the memo far away": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a place in the memo that is empty": b"\x80\x02h\x05.",
    "a list that is filled by pieces": LIST + b"K\x01aK\x02a" + END,
    "a list that is filled twice": LIST + b"(K\x01K\x02e(K\x03K\x04e" + END,
    "a key that comes twice": b"\x80\x02}q\x00(K\x01K\x02K\x01K\x03u.",
    "a number that is filled": b"\x80\x02K\x01K\x02a.",
    "a stack with more than one thing on it": b"\x80\x02K\x01K\x02.",
    "a mark that is left": b"\x80\x02(K\x01.",
    "nothing": b"\x80\x02.",
    "no end": b"\x80\x02K\x01",
    "something behind the end": pickled([1]) + b"\0",
    "another pickle behind the end": pickled([1]) + pickled(Hostile()),
    "no pickle": b"",
    "a float that is cut": b"\x80\x02G\x00\x00.",
    "tuples that are too deep": pickled(nested(MAX_DEPTH + 1)),
    "lists that are too deep": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "a tuple that doubles forty times": b"\x80\x02)" + b"".join(
        b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(40)
    ) + b".",
    "a text that is large": pickled("a" * MAX_PLAIN),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_all_else_goes_the_long_way(what: str) -> None:
    assert renew_plain(OTHERS[what]) is None


def test_what_goes_the_long_way_is_judged_there() -> None:
    for data in (OTHERS["a class"], OTHERS["tuples that are too deep"], OTHERS["protocol 4"]):
        file = saved_pickle(data)
        with pytest.raises(PolicyError):
            Objects().renew(file, len(file))
    for what in ("bytes", "a set", "a large integer", "a list that is filled by pieces", "a key that comes twice"):
        file = saved_pickle(OTHERS[what])
        assert loaded(Objects().renew(file, len(file)), weights_only=False) == pickle.loads(OTHERS[what])


@st.composite
def altered(draw: Callable[..., Any]) -> bytes:
    """A plain pickle in which bytes were changed, left out or put in; often into what is an opcode."""
    data = bytearray(pickled(draw(PLAIN)))
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
def test_what_goes_the_short_way_is_what_the_long_way_lets_pass(data: bytes) -> None:
    renewed = renew_plain(data)
    if renewed is not None:
        assert pickled(loaded(renewed, weights_only=False)) == pickled(loaded(saved_pickle(data))) == data
