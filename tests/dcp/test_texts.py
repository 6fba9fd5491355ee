"""Texts in a pickle are exchanged for others, and nothing else of it changes."""

from __future__ import annotations

import pickle
import pickletools
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import TensorProperties

from streamxf.dcp.rekey.texts import Outline
from streamxf.errors import MetadataError

PREFIX = "swap:"
PROTOCOLS = (2, 3, 4, 5)
PICKLERS: dict[str, Callable[..., bytes]] = {"C": pickle.dumps, "Python": pickle._dumps}  # type: ignore[attr-defined]

marked = st.sampled_from([PREFIX, PREFIX + "a", PREFIX + "ü", PREFIX + "b" * 252, PREFIX + "c" * 70_000])
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.binary(max_size=40)
    | st.text(max_size=10)
    | st.just("d" * 70_000)
    | st.just(b"e" * 70_000)
    | st.just(torch.Size([3, 4]))
    | st.just(torch.bfloat16)
)
hashable = marked | st.text(max_size=10) | st.integers()
contents = st.recursive(
    marked | plain,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(hashable, inner, max_size=5)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3).map(OrderedDict)
        | st.sets(hashable, max_size=4)
    ),
    max_leaves=20,
)


def other(text: str) -> str:
    """What is put in a text's place: one that is as long, shorter or longer, the same for the same."""
    chosen = random.Random(text)
    return PREFIX + chosen.choice(["", "x", "y" * 200, "z" * 300, text, "ß" * 40_000])


def outlined(pickled: bytes) -> tuple[Outline, dict[bytes, bytes]]:
    outline = Outline.of(pickled, PREFIX.encode())
    return outline, {text.data: other(text.data.decode()).encode() for text in outline.texts}


def operations(pickled: bytes, translate: Callable[[str], str] = str) -> list[tuple[str, Any]]:
    """All that a pickle says, but how long its texts and frames are."""
    found = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "FRAME":
            found.append(("FRAME", None))
        elif opcode.name.endswith("BINUNICODE") or opcode.name == "BINUNICODE8":
            found.append(("text", translate(argument) if argument.startswith(PREFIX) else argument))
        else:
            found.append((opcode.name, argument))
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("pickler", PICKLERS)
@settings(max_examples=30)
@given(content=contents)
def test_texts_are_exchanged_and_all_else_stays(pickler: str, protocol: int, content: Any) -> None:
    pickled = PICKLERS[pickler](content, protocol=protocol)
    outline, new = outlined(pickled)
    changed = outline.exchange(pickled, new)
    assert operations(changed) == operations(pickled, other)
    pickle.loads(changed)
    pickle._loads(changed)  # type: ignore[attr-defined]  # it alone checks where frames end
    assert [text.data for text in Outline.of(changed, PREFIX.encode()).texts] == [
        new[text.data] for text in outline.texts
    ]
    assert outline.exchange(pickled, {text: text for text in new}) == pickled


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_frames(protocol: int) -> None:
    content = [[PREFIX + str(number % 7), "filler" * 9, number, b"\x8c\x06swap:1"] for number in range(20_000)]
    pickled = pickle.dumps(content, protocol)
    outline, new = outlined(pickled)
    assert len(outline.texts) == 20_000  # made one by one, they are not shared
    assert len(outline.frames) > 5 or protocol < 4
    changed = outline.exchange(pickled, new)
    assert pickle._loads(changed) == [[other(first), *rest] for first, *rest in content]  # type: ignore[attr-defined]


def test_a_text_that_is_shared_stays_shared() -> None:
    text = PREFIX + "one"
    pickled = pickle.dumps([(text, number) for number in range(100)])
    outline, new = outlined(pickled)
    assert len(outline.texts) == 1
    loaded = pickle.loads(outline.exchange(pickled, new))
    assert len({id(first) for first, _ in loaded}) == 1


def test_texts_inside_of_other_texts_are_none() -> None:
    content = ["swap", " swap:a", b"swap:a", "X\x06\0\0\0swap:a", bytearray(b"swap:")]
    assert Outline.of(pickle.dumps(content, 5), PREFIX.encode()).texts == ()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_was_cut_or_continued(protocol: int) -> None:
    pickled = pickle.dumps({"swap:a": [torch.Size([2]), 1.5, 2**40, -1, TensorProperties(torch.int8), b"b"]}, protocol)
    Outline.of(pickled, b"swap:")
    for size in range(len(pickled)):
        with pytest.raises(MetadataError):
            Outline.of(pickled[:size], b"swap:")
    with pytest.raises(MetadataError, match="follows"):
        Outline.of(pickled + b".", b"swap:")


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps("swap:a", 0),
        pickle.dumps("swap:a", 1),
        b"\x80\x06N.",
        b"\x80\x02Vswap:a\n.",  # a text of protocol 0: to pass it over would leave it as it is
        b"\x80\x02S'swap:a'\n.",
        b"\x80\x04U\x06swap:a.",
        b"\x80\x02Pswap:a\n.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04X\xff\xff\xff\xffswap:a.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b"swap:a.",
    ],
)
def test_what_no_metadata_holds_is_refused(pickled: bytes) -> None:
    with pytest.raises(MetadataError):
        Outline.of(pickled, b"swap:")


def test_a_text_that_reaches_beyond_its_frame() -> None:
    pickled = b"\x80\x04\x95" + (4).to_bytes(8, "little") + b"\x8c\x06swap:a."
    with pytest.raises(MetadataError, match="frame"):
        Outline.of(pickled, b"swap:").exchange(pickled, {b"swap:a": b"swap:b"})
