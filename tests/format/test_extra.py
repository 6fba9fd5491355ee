"""Plain data as the index has it: what goes in comes out, and nothing else goes in."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import MetadataError
from streamxf.format.values import from_json, to_json

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.binary(max_size=20),
)
keys = st.recursive(leaves, lambda inner: st.tuples(inner, inner), max_leaves=3)
plain = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1, 1.0 and True are three things."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@given(value=plain)
def test_round_trip(value: Any) -> None:
    text = json.dumps(to_json(value), allow_nan=False)
    assert same(from_json(json.loads(text, parse_float=refuse, parse_constant=refuse)), value)
    assert not [number for number in integers(to_json(value)) if not 0 <= number < 2**63]


def refuse(text: str) -> None:
    raise AssertionError(f"{text} does not belong in an index")


def integers(value: Any) -> list[int]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if type(value) is int else []
    return own + [number for each in inner for number in integers(each)]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": value}
    return value


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def test_the_deepest_that_is_written_is_read() -> None:
    assert depth_of(to_json(nested(32))) < 120
    with pytest.raises(MetadataError, match="too deep"):
        to_json(nested(33))


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63), float("nan"), float("inf"), object(), {1, 2}, 1j, "\ud800", range(3), [object()], {"a": {3}}],
    ids=lambda value: ascii(value).partition(" at 0x")[0],
)
def test_what_is_not_plain_data(value: object) -> None:
    with pytest.raises(MetadataError):
        to_json(value)


@pytest.mark.parametrize(
    "value",
    [
        *({}, {"tuple": [], "more": 1}, {"set": []}, {"tuple": 7}, {"bytes": "0"}, {"bytes": "xx"}, {"bytes": 7}),
        *({"dict": [[1]]}, {"dict": [[[], 1]]}, {"dict": 7}, {"number": "nan"}, {"number": "inf"}, {"number": "1e999"}),
        *({"number": "01"}, {"number": "-0"}, {"number": " 1"}, {"number": "1.50"}, {"number": "1" * 5000}),
        *({"number": 1}, [{"tuple": None}]),
    ],
    ids=ascii,
)
def test_what_to_json_never_gives(value: Any) -> None:
    with pytest.raises(MetadataError, match="extra data is malformed"):
        from_json(value)
