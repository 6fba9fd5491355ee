"""Descriptors: well-formed text goes round, everything else is a DescriptorError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.descriptor import Descriptor, check_name
from streamxf.errors import DescriptorError

parts = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
names = st.lists(parts, min_size=2, max_size=4).map(".".join)
keys = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
values = st.from_regex(r"[A-Za-z0-9._~:-]{0,12}", fullmatch=True)
parameters = st.dictionaries(keys, values, max_size=4).map(lambda found: tuple(sorted(found.items())))


@given(name=names, version=st.integers(1, 65535), bound=parameters, fragment=parameters)
def test_round_trip(name, version, bound, fragment):
    made = Descriptor(name, version, bound, fragment)
    assert Descriptor.parse(str(made)) == made
    assert Descriptor.parse(made.bound) == Descriptor(name, version, bound)


@given(text=st.one_of(st.text(max_size=60), st.text(alphabet="ab.1/?#&=:+-_~\n\x00", max_size=30)))
def test_any_text_is_a_descriptor_or_a_descriptor_error(text):
    try:
        parsed = Descriptor.parse(text)
    except DescriptorError:
        return
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a.b/1.0",
        "a.b/-1",
        "a.b/\u0661",  # a digit elsewhere
        ".a/1",
        "a.b /1",
        "a.b/1\n",
        "a.b/1#",
        "a.b/1?#k=v",
        "a.b/1?=v",
        "a.b/1?k=v&",
        "a.b/1?w=1&w=2",
        "a.b/1#w=1&w=2",
        "streamxf.encrypt/1#dek=1&dek=2",
        "a.b/1?l=v&k=v",
        "a.b/1?k_=v&k=v",
        "a.b/1?K=v",
        "a.b/1?k=a b",
        "a.b/1?k=a/b",
        "a.b/1?k=v#k=v#k=v",
        "a.b/1?k=" + "v" * (1024 - 7),
        "a.b/1#k=" + "v" * (32768 - 1),
    ],
)
def test_refused(text):
    """More of them are among the vectors."""
    with pytest.raises(DescriptorError):
        Descriptor.parse(text)


def test_only_wrapped_keys_repeat():
    assert Descriptor.parse("streamxf.encrypt/1#w=1&w=2").fragment == (("w", "1"), ("w", "2"))


def test_only_what_is_bound_is_sorted():
    assert Descriptor.parse("a.b/1?k=1&l=0#l=1&k=2") == Descriptor(
        "a.b", 1, (("k", "1"), ("l", "0")), (("l", "1"), ("k", "2"))
    )


def test_lengths_up_to_the_limits_pass():
    assert len(Descriptor.parse("a.b/1?k=" + "v" * (1024 - 8)).bound) == 1024
    assert Descriptor.parse("a.b/1#k=" + "v" * (32768 - 2)).fragment
    assert check_name("a." + "b" * 62)


def test_messages_stay_short():
    with pytest.raises(DescriptorError) as caught:
        Descriptor.parse("x" * 4000 + "/1")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("key", "value"), [("K", "v"), ("k", "a b"), ("k", "a&b"), ("k", "é")])
def test_what_cannot_stand_in_a_descriptor_is_not_written(key, value):
    with pytest.raises(DescriptorError):
        str(Descriptor("a.b", 1, ((key, value),)))
