"""Where objects differ."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.tools.diff.difference import Incomparable, difference_of

NAN = float("nan")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)

SAME = [
    *[({"a": 1, "b": 2}, OrderedDict(b=2, a=1)), ([NAN, {"x": NAN}], [NAN, {"x": NAN}])],
    *[(torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])), (np.float64(3), np.float64(3))],
    *[(np.array([1, 2]), np.array([1, 2])), (torch.float32, torch.float32), (torch.Size([2]), torch.Size([2]))],
    ({1, 2}, {2, 1}),
]
OTHER = [
    ({"a": {"lr": 0.1}}, {"a": {"lr": 0.2}}, "['a']['lr']: 0.1 became 0.2"),
    ({"a": 1, "c": 2, "d": 3}, {"a": 1}, "'c' is gone, and 1 more"),
    ({"a": 1}, {"a": 1, "b": 2}, "'b' is new"),
    ([1, [2, 3]], [1, [2, 4]], "[1][1]: 3 became 4"),
    ([1], [1, 2], "length 1 became 2"),
    (1, 1.0, "int became float"),
    (True, 1, "bool became int"),
    ((1,), [1], "tuple became list"),
    ("x\n", "y", "'x\\n' became 'y'"),
    ({"t": torch.zeros(2)}, {"t": torch.ones(2)}, "['t']: a tensor has other values"),
    (torch.zeros(2), torch.zeros(3), "a tensor of float32 [2] became one of float32 [3]"),
    (np.zeros(2), np.ones(2), "an array has other values"),
    (np.zeros(2), np.zeros(2, np.float32), "an array of float64 [2] became one of float32 [2]"),
    (None, 0, "NoneType became int"),
]


@given(PLAIN)
def test_an_object_is_the_same_as_itself(value):
    assert difference_of(value, value) is None


@given(PLAIN, PLAIN)
def test_either_way_round_gives_the_same_verdict(one, other):
    assert (difference_of(one, other) is None) == (difference_of(other, one) is None)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same(one, other):
    assert difference_of(one, other) is None


@pytest.mark.parametrize(("one", "other", "text"), OTHER)
def test_the_place_of_the_first_difference(one, other, text):
    assert difference_of(one, other) == text


class Opaque:
    pass


def test_what_does_not_say_when_it_is_equal():
    with pytest.raises(Incomparable, match="Opaque"):
        difference_of({"x": Opaque()}, {"x": Opaque()})


def test_what_is_nested_too_deeply():
    def nest() -> list[object]:
        made: list[object] = []
        for _ in range(100_000):
            made = [made]
        return made

    with pytest.raises(Incomparable, match="too deeply"):
        difference_of(nest(), nest())


def test_arrays_of_objects_are_not_guessed_at():
    with pytest.raises(Incomparable, match="array of objects"):
        difference_of(np.array([None]), np.array([None]))


def shared(leaf: object) -> list[object]:
    """A trillion places in forty lists."""
    made = [leaf]
    for _ in range(40):
        made = [made, made]
    return made


def inside_itself() -> list[object]:
    made: list[object] = []
    made.append({"again": made})
    return made


def test_what_is_shared_is_compared_once():
    assert difference_of(shared(1), shared(1)) is None
    assert (difference_of(shared(1), shared(2)) or "").endswith("...: 1 became 2")
    assert difference_of(inside_itself(), inside_itself()) is None


def grid(seed: int, lists: int = 500, length: int = 500) -> list[list[int]]:
    """Lists that share their parts, each in another order than those of another seed: nearly every pair is new."""
    leaves: list[list[int]] = [[0] * length for _ in range(lists)]
    return [[leaves[(place * seed + number) % lists] for place in range(length)] for number in range(lists)]


def test_pairs_of_shared_parts_come_to_an_end():
    """A megabyte of references that make a quarter of a billion comparisons."""
    with pytest.raises(Incomparable, match="shared so often"):
        difference_of(grid(1), grid(3))
    assert difference_of(grid(1, 50, 50), grid(3, 50, 50)) is None
    text = "x" * 10**6
    with pytest.raises(Incomparable, match="shared so often"):
        difference_of([text] * 10**6, [f"{text[:-1]}x"] * 10**6)
    assert difference_of(["adam"] * 10**5, ["adam"] * 10**5) is None


def test_long_keys_are_not_said_again_and_again():
    one: object = 1
    other: object = 2
    for _ in range(200):
        one, other = {"k" * 10**6: one}, {"k" * 10**6: other}
    assert len(difference_of(one, other) or "") < 200


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.ones(3, device="meta"),
        torch.ones((), dtype=torch.uint8).expand(2**40),
    ],
)
def test_tensors_in_objects_that_have_no_plain_values(tensor):
    with pytest.raises(Incomparable, match="it has a tensor"):
        difference_of([tensor], [tensor])


def test_conjugates_are_compared_by_their_values():
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert difference_of([value.conj()], [value.conj().resolve_conj()]) is None
    assert difference_of([value.conj()], [value]) == "[0]: a tensor has other values"
    assert difference_of([value.conj().imag], [-value.imag]) is None
