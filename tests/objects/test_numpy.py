"""NumPy's numbers and ``io.BytesIO`` inside of objects load by default; nothing else of NumPy does.

T2 of the threat model: NumPy's ``scalar`` unpickles what it is given for a dtype of objects, which would run code.
"""

import io
import os
import pickle
import random
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamxf.errors import PolicyError
from streamxf.torchsave.calls import PLAIN
from streamxf.torchsave.check import Check, Maker, chosen, needs, quick_needs
from streamxf.torchsave.objects import Objects
from tests.archives import saved
from tests.dcp.helpers import load, refused, save

from .pickles import archive, call, number, text

CODES = "?bhilqBHILQefdgFDG"


def renewed(value: Any) -> Any:
    """What a planner gets of a saved object."""
    return torch.load(io.BytesIO(Objects().renew(saved(value), 1000)), weights_only=False)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", CODES)
def test_numbers_of_every_kind(code: str, order: str) -> None:
    dtype = np.dtype(code).newbyteorder(order)
    array = np.arange(6).reshape(2, 3).astype(dtype)
    shapes = [array, np.asfortranarray(array), array[0, 0], array[:0], array[1:, 1], np.array(array[0, 1]), array.T]
    found = renewed((*shapes, dtype))
    assert found[-1] == dtype
    for value, got in zip(shapes, found, strict=False):
        had = pickle.loads(pickle.dumps(value, 2))  # small arrays come back in the machine's byte order
        assert np.array_equal(had, value)
        assert type(got) is type(had)
        assert got.dtype == had.dtype
        assert got.shape == had.shape
        assert got.flags.f_contiguous == had.flags.f_contiguous
        assert np.array_equal(got, had)


def test_special_values_keep_their_bits() -> None:
    values = np.array([np.nan, -0.0, np.inf, 5e-324])
    assert renewed(values).tobytes() == values.tobytes()
    assert renewed(list(values))[1].tobytes() == values[1].tobytes()


def test_states_of_random_generators(checkpoint: Path) -> None:
    state = {
        "numpy": (np.random.get_state(),),
        "numpy, by name": (np.random.get_state(legacy=False),),
        "generator": (np.random.default_rng(0).bit_generator.state,),
        "python": (random.getstate(),),
    }
    save(state, checkpoint)
    found = load(dict.fromkeys(state), checkpoint)
    for name, value in state.items():
        assert repr(found[name]) == repr(value)
    np.random.set_state(found["numpy"][0])


def test_a_scheduler_that_computes_with_numpy(checkpoint: Path) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: np.cos(epoch / 10.0))
    scheduler.step()
    state = {"groups": optimizer.state_dict()["param_groups"], "scheduler": scheduler.state_dict()}
    assert type(state["groups"][0]["lr"]) is np.float64
    save(state, checkpoint)
    found = load({"groups": state["groups"], "scheduler": scheduler.state_dict()}, checkpoint)
    assert found == state
    assert type(found["groups"][0]["lr"]) is np.float64


def test_names_of_numpy_1() -> None:
    data = pickle.dumps((np.float64(2), np.arange(3)), 2).replace(b"numpy._core.", b"numpy.core.")
    assert b"numpy.core.multiarray\nscalar" in data
    found = torch.load(io.BytesIO(Objects().renew(archive(data), 1000)), weights_only=False)
    assert found[0] == 2
    assert np.array_equal(found[1], np.arange(3))


def test_files_in_memory() -> None:
    """As older training loops keep their losses."""
    first, empty = io.BytesIO(saved({"step": 3})), io.BytesIO()
    first.seek(2)
    assert first.__dict__ == {}, "it has one once it was asked for, as by DCP, which asks whether it is Stateful"
    found, nothing, again = renewed([first, empty, first])
    assert type(found) is io.BytesIO
    assert again is found
    assert (found.getvalue(), found.tell()) == (first.getvalue(), 2)
    assert nothing.getvalue() == b""


class Doubled:
    """A class of the caller's that works with an array as it is made."""

    def __init__(self, values: Any) -> None:
        self.values = np.concatenate([values, values])

    def __reduce__(self) -> Any:
        return Doubled, (self.values[: len(self.values) // 2],)


def test_classes_of_the_caller_get_arrays() -> None:
    data = Objects(safe_globals=[Doubled]).renew(saved(Doubled(np.arange(2))), 1000)
    found = torch.load(io.BytesIO(data), weights_only=False)
    assert type(found.values) is np.ndarray
    assert list(found.values) == [0, 1, 0, 1]


def test_who_names_numpys_own_gets_them() -> None:
    core = np._core.multiarray
    names = [core.scalar, core._reconstruct, np.ndarray, np.dtype, np.dtypes.Float64DType, np.dtypes.StrDType]
    data = Objects(safe_globals=names).renew(saved([np.float64(1), np.array(["ab"])]), 1000)
    assert torch.load(io.BytesIO(data), weights_only=False) == [1.0, np.array(["ab"])]


EVERY = [
    *(np.zeros(2, code) for code in "?bhilqpBHILQPefdgFDG"),
    *(np.zeros(2, code) for code in ("S3", "U3", "V4", "M8[D]", "m8[s]", "O", [("a", "i4"), ("b", "U2")])),
    *(np.array(each) for each in ("ab", b"ab", [1, "a", None])),
    np.array(["ab"], np.dtypes.StringDType()),
    np.array([], "U3"),
    np.ma.masked_array([1, 2], [0, 1]),
    np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
]
VALUES = [*EVERY, *(each[0] for each in EVERY if each.ndim and each.size), *(each.dtype for each in EVERY)]


def test_what_a_reader_refuses_by_default_the_save_names() -> None:
    """And with all that is named, it loads."""
    for value in VALUES:
        data = saved(value)
        names, reason = quick_needs(memoryview(data))
        assert (names, reason) == needs(data)
        assert not reason, repr(value)
        if names:
            with refused(PolicyError, "safe_globals=[...]"):
                Objects().renew(data, 1000)
        else:
            Objects().renew(data, 1000)
        classes = [getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
        found = torch.load(io.BytesIO(Objects(safe_globals=classes).renew(data, 1000)), weights_only=False)
        again = pickle.loads(pickle.dumps(value, 2))  # which makes int64 of longlong
        assert (type(found), repr(found)) == (type(again), repr(again))


def test_a_save_warns_of_strings_in_arrays(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"by default: names. They need .*numpy.dtypes.StrDType"):
        save({"names": np.array(["a", "b"]), "numbers": np.arange(3)}, tmp_path, [])


def test_who_names_some_of_numpys_own_is_told_of_the_others() -> None:
    with refused(PolicyError, "it needs numpy.dtype", "safe_globals=[...]"):
        Objects(safe_globals=[np._core.multiarray.scalar]).renew(saved(np.float64(1)), 1000)


# -- what is refused -----------------------------------------------------------------------------

CORE = "numpy._core.multiarray."
OLD = "numpy.core.multiarray."
RAN: list[str] = []


def raw(data: bytes) -> bytes:
    return call("_codecs.encode", text(data.decode("latin1")) + text("latin1"))


def dtype(code: str = "f8", flags: bytes = b"\x89\x88", state: bytes | None = None) -> bytes:
    return call("numpy.dtype", text(code) + flags) + dtype_state() + b"b"


def dtype_state(version: int = 3, order: str = "<", rest: bytes = b"NNN", last: tuple[int, ...] = (-1, -1, 0)) -> bytes:
    return b"(" + number(version) + text(order) + rest + b"".join(map(number, last)) + b"t"


def array(size: bytes = number(1), kind: bytes | None = None, data: bytes = raw(b"\0" * 8), head: bytes = b"") -> bytes:
    begin = head or call(CORE + "_reconstruct", b"cnumpy\nndarray\n" + number(0) + b"\x85" + raw(b"b"))
    return begin + b"(" + number(1) + b"(" + size + b"t" + (kind or dtype()) + b"\x89" + data + b"tb"


BARE = call("numpy.dtype", text("f8") + b"\x89\x88")
NEW = b"c_io\nBytesIO\n)\x81"
BEGUN = call(CORE + "_reconstruct", b"cnumpy\nndarray\n" + number(0) + b"\x85" + raw(b"b"))
RECONSTRUCT = (CORE + "_reconstruct").replace(".multiarray.", ".multiarray\n").encode()
HOSTILE = raw(pickle.dumps([1], 0))
BAD_CODES = [
    *("O", "O8", "|O", "V8", "U2", "S2", "M8", "m8[s]"),
    *("i4,O", "(2,)f8", "f8,f8", "3f8"),
    *("f8 ", "f8\n", "", "i3", "?"),
]
REFUSED: dict[str, bytes] = {
    **{f"dtype {code!r}": dtype(code) for code in BAD_CODES},
    **{
        f"{name} of a dtype {code!r}": call(name, dtype(code) + HOSTILE)
        for code in ("O", "O8")
        for name in (CORE + "scalar", OLD + "scalar")
    },
    "dtype that shares memory": call("numpy.dtype", text("f8") + b"\x89\x89") + dtype_state() + b"b",
    "dtype that is aligned": call("numpy.dtype", text("f8") + b"\x88\x88") + dtype_state() + b"b",
    "dtype of a list of fields": call("numpy.dtype", b"]" + text("a") + text("O") + b"\x86a\x89\x88"),
    "dtype of a class": call("numpy.dtype", b"cbuiltins\nset\n\x89\x88"),
    "dtype of bytes": call("numpy.dtype", raw(b"f8") + b"\x89\x88"),
    "dtype of one argument": call("numpy.dtype", text("f8")),
    "dtype with metadata": call("numpy.dtype", text("f8") + b"\x89\x88}"),
    "new dtype of objects": b"cnumpy\ndtype\n(" + text("O8") + b"\x89\x88t\x81",
    "class of a dtype": b"cnumpy.dtypes\nObjectDType\n)R",
    "class of a dtype of numbers": b"cnumpy.dtypes\nFloat64DType\n)R",
    "state of another version": BARE + dtype_state(version=4) + b"b",
    "state with a subarray": BARE + dtype_state(rest=dtype() + number(2) + b"\x85\x86" + b"NN") + b"b",
    "state with fields": BARE
    + dtype_state(rest=b"N" + text("a") + b"\x85}" + text("a") + dtype() + b"K\x00\x86s")
    + b"b",
    "state with names only": BARE + dtype_state(rest=b"N" + text("a") + b"\x85N") + b"b",
    "state of another size": BARE + dtype_state(last=(16, -1, 0)) + b"b",
    "state of another alignment": BARE + dtype_state(last=(-1, 1, 0)) + b"b",
    "state with the flags of objects": BARE + dtype_state(last=(-1, -1, 63)) + b"b",
    "state with another byte order": BARE + dtype_state(order="O") + b"b",
    "state with more": BARE + dtype_state(last=(-1, -1, 0, 0)) + b"b",
    "state that is a dict": BARE + b"}" + b"b",
    "state given twice": dtype() + dtype_state(order=">") + b"b",
    "scalar of too many bytes": call(CORE + "scalar", dtype() + raw(b"\0" * 17)),
    "scalar of too few bytes": call(CORE + "scalar", dtype() + raw(b"\0" * 7)),
    "scalar of a text": call(CORE + "scalar", dtype() + text("12345678")),
    "scalar of a dtype without a state": call(CORE + "scalar", BARE + raw(b"\0" * 8)),
    "scalar of a class": call(CORE + "scalar", b"cnumpy\ndtype\n" + raw(b"\0" * 8)),
    "scalar of nothing": call(CORE + "scalar", dtype()),
    "scalar that is filled": call(CORE + "scalar", dtype() + raw(b"\0" * 8)) + b"(t" + b"b",
    "array made directly": call("numpy.ndarray", number(2**40) + b"\x85"),
    "new array made directly": b"cnumpy\nndarray\n(" + number(2**40) + b"\x85t\x81",
    "array of a size": call(CORE + "_reconstruct", b"cnumpy\nndarray\n" + number(2**40) + b"\x85" + raw(b"b")),
    "array of another kind": call(CORE + "_reconstruct", b"cnumpy\nndarray\n" + number(0) + b"\x85" + raw(b"O")),
    "array whose kind is a text": call(CORE + "_reconstruct", b"cnumpy\nndarray\n" + number(0) + b"\x85" + text("b")),
    "array of another class": call(CORE + "_reconstruct", b"cbuiltins\nset\n" + number(0) + b"\x85" + raw(b"b")),
    "array of objects": array(kind=dtype("O8"), data=b"]K\x01a"),
    "array with a list": array(data=b"]K\x01a"),
    "array with too many elements": array(number(2**40)),
    "array with a shape that overflows": array(number(2**32) + number(2**32)),
    "array with too few elements": array(number(0)),
    "array with a negative size": array(number(-1)),
    "array with a size that is no number": array(b"\x88"),
    "array of too many dimensions": array(number(1) * 65),
    "array with a dtype that is a text": array(kind=text("f8")),
    "array with a dtype without a state": array(kind=BARE),
    "array filled twice": array(head=array()),
    "array with an order that is no bool": b"".join(
        [BEGUN, b"(", number(1), number(1), b"\x85", dtype(), b"N", raw(b"\0" * 8), b"tb"]
    ),
    "array filled through a tensor's function": call(
        "torch._tensor._rebuild_from_type_v2",
        b"c" + RECONSTRUCT + b"\ncnumpy\nndarray\n(cnumpy\nndarray\n" + number(0) + b"\x85" + raw(b"b") + b"t}",
    ),
    "array made a tensor": call(
        "torch._utils._rebuild_device_tensor_from_numpy", array() + b"ctorch\nfloat64\n" + text("cpu") + b"\x89"
    ),
    "file of a size": b"c_io\nBytesIO\n" + number(9) + b"\x85\x81",
    "file with contents at once": b"c_io\nBytesIO\n" + raw(b"ab") + b"\x85R",
    "file with attributes": NEW + b"(" + raw(b"ab") + number(0) + b"}" + text("a") + b"Nstb",
    "file with a text": NEW + b"(" + text("ab") + number(0) + b"Ntb",
    "file at a far position": NEW + b"(" + raw(b"ab") + number(2**62) + b"Ntb",
    "file at a negative position": NEW + b"(" + raw(b"ab") + number(-1) + b"Ntb",
    "file filled twice": NEW + (b"(" + raw(b"ab") + number(0) + b"Ntb") * 2,
}


def test_what_the_attacks_are_made_of_is_in_order() -> None:
    """Unaltered they load, so that each attack is refused for what is altered."""
    for good in (
        dtype(),
        array(),
        call(CORE + "scalar", dtype() + raw(b"\0" * 8)),
        NEW + b"(" + raw(b"ab") + b"K\x00Ntb",
    ):
        Objects().renew(archive(b"\x80\x02" + good + b"."), 1000)


@pytest.mark.parametrize("how", REFUSED)
def test_a_pickle_of_numpy_that_is_refused(how: str) -> None:
    data = b"\x80\x02" + REFUSED[how] + b"."
    with refused(PolicyError, "the object was not loaded: it", "weights_only=False"):
        Objects().renew(archive(data), 1000)


@pytest.mark.parametrize("how", [how for how in REFUSED if "of a dtype 'O" in how])
def test_without_the_check_a_scalar_runs_nothing_either(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's own function would unpickle what it is given."""
    data = b"\x80\x02" + REFUSED[how].replace(b"numpy.core", b"numpy._core") + b"."
    check = Check(data, {}, 1000)
    check.names = dict.fromkeys(PLAIN)
    monkeypatch.setattr(pickle, "loads", RAN.append)
    with pytest.raises((ValueError, TypeError)):
        Maker(data, check).load()
    assert RAN == []


def test_one_array_many_times_over_is_out_of_proportion() -> None:
    """Each takes the same megabyte of the pickle, and would be written out for itself."""
    body = raw(b"\0" * 2**20) + b"q\x01" + dtype("u1") + b"q\x02"
    begin = b"(" + number(1) + b"(" + number(2**20) + b"t"
    one = BEGUN + begin + b"h\x02\x89h\x01tb"
    data = b"\x80\x02(" + body + one * 100 + b"t."
    with refused(PolicyError, "out of proportion"):
        Objects().renew(archive(data), 1000)


def test_what_is_chosen() -> None:
    core = np._core.multiarray.scalar
    with torch.serialization.safe_globals([core, (os.getcwd, "a.name")]):
        assert chosen() == {"numpy._core.multiarray.scalar": core, "a.name": os.getcwd}
    assert chosen() == {}


def test_what_torch_allows_by_itself_is_not_chosen() -> None:
    """From version 2.14 on it allows Python's exceptions, for instance."""
    with torch.serialization.safe_globals([ValueError, traceback.FrameSummary, set]):
        assert chosen() == {"builtins.set": set}


def test_numbers_alone_do_not_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.sparse, "check_sparse_tensor_invariants", lambda *_: pytest.fail("torch was asked"))
    assert Objects().load(saved([np.float64(1), {1}, b"a"]), 1000) == [1.0, {1}, b"a"]
