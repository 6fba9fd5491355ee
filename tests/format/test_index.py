"""The index: what is packed is parsed; whatever else stands there is refused, here and by the reference decoder alike.

tests/vectors has a file for each way to break a rule; here they are broken in any way.
"""

import copy
import itertools
import json
import math
import re
import struct
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

import streamxf.format.index
from streamxf.errors import MetadataError
from streamxf.format import limits
from streamxf.format.bare import CRC_BYTES, pieces_of
from streamxf.format.digests import Digests
from streamxf.format.index import File, Index
from streamxf.format.items import ITEMSIZES, Chunk, Item, ObjectItem, Place, TensorItem
from streamxf.format.run import RunFacts
from streamxf.format.table import ItemTable, StoredChunks
from tests.forge import Band, MetadataParts, encode, frame_of, pack_columns, pack_index, unpack_columns
from tests.reference_codecs import Refused
from tests.reference_decoder import Sections, parse_json, parse_root, unzstd_root

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ids = st.binary(min_size=16, max_size=16)
paths = st.lists(st.one_of(texts, st.integers(0, 2**20 - 1)), min_size=1, max_size=4).map(tuple)
codecs = st.sampled_from(
    ["streamxf.zstd/1", "streamxf.zstd/1#level=3", "streamxf.checksum/1?algorithm=sha256", "acme.x/7"]
)


plain = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=12)
rules = st.recursive(
    plain | st.booleans() | st.integers(0, 2**53 - 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=4,
)
runs = st.builds(
    RunFacts,
    ids.map(bytes.hex),
    plain.filter(lambda name: name not in ("", ".", "..") and "/" not in name),
    st.integers(0, 2**53 - 1),
    st.integers(0, 2**48).map(lambda milliseconds: milliseconds / 1000),
    st.dictionaries(plain, rules, max_size=3),
    st.dictionaries(plain, st.floats(allow_nan=False), max_size=3),
)


@st.composite
def indices(draw: st.DrawFn) -> Index:
    transforms = tuple(draw(st.lists(st.just("stream.zstd/1"), max_size=1)))
    keyed = draw(st.booleans())
    own = st.lists(codecs, max_size=3).map(lambda found: (*found, *["streamxf.encrypt/1"] * keyed))
    chains = tuple(draw(st.lists(own, min_size=1, max_size=3, unique=True)))
    writers = draw(st.dictionaries(ids, st.binary(min_size=40, max_size=40), min_size=1, max_size=3))
    files = {}
    for number in range(draw(st.integers(1, 3))):
        writer = draw(st.sampled_from(sorted(writers)))
        size, key = draw(st.integers(2**20, 2**53 - 1)), writers[writer] if keyed else None
        files[f"{number}/{draw(st.sampled_from('abc'))}"] = File(size, writer, key)
    signed = draw(st.booleans())
    first = st.integers(0, 2**53 - 1) if signed else st.none()
    used = set[int]()

    def place(chain: tuple[str, ...], size: int | None = None) -> Place:
        descriptors = (*(f"!{text}" for text in transforms), *chain)
        name = draw(st.sampled_from(sorted(files)))
        most = files[name].size if chain else min(files[name].size, 2**22)
        size = draw(st.integers(0, most)) if size is None else size
        at = draw(st.integers(0, files[name].size - size))
        if chain:
            used.add(number := draw(st.integers(0, 2**53 - 1).filter(lambda number: number not in used)))
            return Place(name, at, size, descriptors, draw(first), number)
        count = CRC_BYTES * pieces_of(size)
        return Place(name, at, size, descriptors, draw(first), crcs=draw(st.binary(min_size=count, max_size=count)))

    def tensor(name: str) -> TensorItem:
        rows, chain = draw(st.lists(st.integers(1, 9), max_size=4)), draw(st.sampled_from(chains))
        width, dtype = draw(st.integers(0, 3)), draw(st.sampled_from(sorted(ITEMSIZES)))
        chunks = []
        for number, count in enumerate(rows):
            framed = bool(transforms) or draw(st.booleans())
            size = None if framed or chain else count * width * ITEMSIZES[dtype]
            chunks.append(Chunk((sum(rows[:number]), 0), (count, width), place(chain, size), framed))
        properties = draw(st.dictionaries(texts, st.one_of(st.booleans(), texts), max_size=2))
        path = draw(st.none() | paths)
        return TensorItem(name, dtype, (sum(rows), width), tuple(chunks), path, properties)

    items: dict[str, Item] = {}
    for name in draw(st.lists(names, unique=True, max_size=4)):
        made = place(draw(st.sampled_from(chains)))
        items[name] = tensor(name) if draw(st.booleans()) else ObjectItem(name, made, draw(st.none() | paths))
    rank = draw(st.none() | st.integers(0, 2**31 - 2))
    return Index(
        draw(ids).hex(),
        rank,
        transforms,
        chains,
        files,
        dict(sorted(items.items())),
        Digests.of(draw(st.binary(max_size=200).map(lambda data: data[: len(data) // 32 * 32]))) if signed else None,
        tuple(draw(st.lists(texts, max_size=2))),
        draw(st.dictionaries(texts, texts, max_size=2)),
        draw(st.dictionaries(texts, st.recursive(st.booleans() | texts, st.lists, max_leaves=4), max_size=2)),
        draw(st.none() | runs) if rank is None else None,
    )


Packed = tuple[bytes, bytes]


def parse(packed: Packed) -> Index:
    root, parts = packed
    return Index.parse(memoryview(root), lambda at, size: parts[at : at + size], len(parts))


@given(index=indices())
def test_round_trip(index: Index) -> None:
    packed = index.pack()
    parsed = parse(packed)
    assert parsed == index
    assert list(parsed.items) == sorted(index.items)
    assert parsed.pack() == packed
    assert refusal_by_reference(packed) is None


@given(index=indices(), step=st.integers(1, 3))
def test_a_large_index_gives_the_same(index: Index, step: int) -> None:
    """In bands of few items, and parts of few chunks; items are read when they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamxf.format.index, "_ROWS", step)
        patch.setattr(streamxf.format.index, "_ITEMS", 1)
        patch.setattr(streamxf.format.index, "_SMALL", -1)
        packed = index.pack()
        parsed = parse(packed)
    assert isinstance(parsed.items, ItemTable)
    assert dict(parsed.items) == index.items
    assert len(parsed.items) == len(index.items)
    assert all(name in parsed.items for name in index.items)
    assert "\U0010ffff" * 13 not in parsed.items
    assert parsed.items.whole() == index.items
    parsed.items.check()
    assert refusal_by_reference(packed) is None


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A shape, and boxes that tile it: a grid, or what comes of cutting boxes in two."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    boxes = [((0,) * len(shape), shape)]
    if draw(st.booleans()):
        cuts = [sorted(draw(st.sets(st.integers(1, size), max_size=4)) | {0, size}) for size in shape]
        spans = [[*itertools.pairwise(places)] for places in cuts]
        chosen = product(*spans)
        return shape, [(tuple(b for b, _ in each), tuple(e - b for b, e in each)) for each in chosen]
    for _ in range(draw(st.integers(0, 12))):
        offset, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[axis]))
        lower, upper, moved = list(sizes), list(sizes), list(offset)
        lower[axis], upper[axis], moved[axis] = at, sizes[axis] - at, offset[axis] + at
        if 0 not in lower and 0 not in upper:
            boxes += [(offset, tuple(lower)), (tuple(moved), tuple(upper))]
        else:
            boxes.append((offset, sizes))
    return shape, sorted(boxes)


@given(tensor=cut_tensors(), step=st.integers(1, 5), data=st.data())
def test_a_box_finds_the_chunks_that_reach_into_it(tensor: Any, step: int, data: st.DataObject) -> None:
    shape, boxes = tensor
    index = parse(of(TEXT))
    place = Place(next(iter(index.files)), 0, 1, index.chains[0])
    chunks = (Chunk(*box, place._replace(number=n), False) for n, box in enumerate(boxes))
    item = TensorItem("w", "uint8", shape, tuple(chunks))
    spans = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    box = [begin for begin, _ in spans], [end - begin for begin, end in spans]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamxf.format.index, "_ROWS", step)
        patch.setattr(streamxf.format.index, "_SMALL", -1)
        found = parse(replace(index, items={"w": item}).pack()).items["w"]
        assert isinstance(found, TensorItem)
        assert isinstance(found.chunks, StoredChunks)
        assert found.overlapping([box]) == item.overlapping([box])
        assert len(found.chunks) == len(boxes)
        assert [found.chunks[number] for number in range(len(boxes))] == [*item.chunks]
    assert found == item


# -- changed ---------------------------------------------------------------------------------------------------------


def refusal_by_reference(packed: Packed) -> str | None:
    """Why the reference decoder refuses an index; it is given keys that fit."""
    root, parts = packed
    try:
        content = parse_json(unzstd_root(root, "index"))
        lines, rank, signed = [], None, False
        if isinstance(content, dict):
            rank = content.get("rank")
            rank = rank if isinstance(rank, int) and not isinstance(rank, bool) else None
            chains, signed = content.get("chains"), "digests" in content
            found = [each for each in chains if isinstance(each, list)] if isinstance(chains, list) else []
            keyed = any(str(text).startswith("streamxf.encrypt/") for each in found for text in each)
            lines = [f"dek={'0' * 64}&w=a:{'0' * 16}:AAAA", ""] if keyed else []
        parse_root(content, rank, Sections(b"", b"", parts, b"", root, lines), signed)
    except Refused as error:
        return str(error)
    return None


def refusal(packed: Packed) -> str | None:
    try:
        [*(parse(packed).digests or ())]
    except MetadataError as error:
        return str(error)
    return None


EXAMPLE: dict[str, Any] = {
    "save_id": "0" * 32,
    "rank": None,
    "transforms": [],
    "chains": [["streamxf.zstd/1#level=3", "streamxf.encrypt/1"]],
    "files": [
        {"path": "a/b", "size": 1000, "writer": "1" * 32, "key": "0" * 80},
        {"path": "c", "size": 70, "writer": "2" * 32, "key": "c" * 80},
    ],
    "items": {
        "weight": {
            "dtype": "float32",
            "shape": [4, 3],
            "chunks": [
                {"file": 0, "at": 0, "bytes": 500, "number": 0, "offset": [0, 0], "shape": [2, 3], "framed": True},
                {"file": 1, "at": 7, "bytes": 63, "number": 0, "offset": [2, 0], "shape": [2, 3]},
            ],
            "properties": {"requires_grad": True},
            "path": ["model", 0],
        },
        "step": {"file": 0, "at": 500, "bytes": 500, "number": 1, "path": ["step"]},
    },
    "modules": ["acme.x=acme==1"],
    "packages": {"streamxf": "1"},
    "extra": {"a": [{"tuple": [1, None]}]},
    "run": {
        "run": "3" * 32,
        "name": "step-7",
        "step": 7,
        "time": 1_700_000_000_123,
        "rules": {"last": 3, "steps": [1, 2]},
        "metrics": {"loss": "3fd0000000000000", "score": "fff0000000000000"},
    },
}
SIGNED = json.loads(json.dumps(EXAMPLE).replace('"bytes"', '"digest": 1, "bytes"')) | {"digests": ["c" * 64] * 3}
BARE = json.loads(re.sub(r'"number": \d, ', "", json.dumps(EXAMPLE))) | {"chains": [[]]}
for _each in BARE["files"]:
    del _each["key"]
for _each in (*BARE["items"]["weight"]["chunks"], BARE["items"]["step"]):
    _each["crc32c"] = "0123abcd"
BARE["items"]["weight"]["chunks"][1]["bytes"] = 24  # raw, and the other is framed
OWN = copy.deepcopy(EXAMPLE) | {"rank": 7}  # with a part of its tensor
del OWN["run"]
OWN["items"]["weight"]["shape"] = [6, 3]
OWN["items"]["weight"]["chunks"][1]["offset"] = [3, 0]


values = st.one_of(
    st.sampled_from(
        [
            *(None, True, False, 0, 1, 2, 3, 4, 2**20, 2**63, "", "a", "..", "a/b", "0" * 32, "a" * 64, [], {}),
            *([0], [0, 0], [2, 3], [4, 3], ["streamxf.zstd/1"], ["streamxf.encrypt/1"], ["stream.zstd/1"], {"a": 1}),
            *("0.5", "nan", "1e-05", "1_0.0", "Infinity", ".", "a\n", "\x80", 2**53 - 1, 2**53),
        ]
    ).map(copy.deepcopy),
    st.recursive(st.none() | st.booleans() | st.integers(0, 2**64) | texts, st.lists, max_leaves=4),
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(*path, step) for step in steps] + [
        each for step in steps for each in places_in(value[step], (*path, step))
    ]


def changed(data: st.DataObject, content: Any) -> None:
    """A few values are replaced, dropped, added or moved."""
    for _ in range(data.draw(st.integers(1, 2))):
        all_places = places_in(content)
        assume(all_places)
        *path, last = data.draw(st.sampled_from(all_places))
        inner: Any = content
        for step in path:
            inner = inner[step]
        match data.draw(st.sampled_from(["replace", "drop", "add", "copy"])):
            case "replace":
                inner[last] = data.draw(values)
            case "drop":
                del inner[last]
            case "add" if isinstance(inner, dict):
                names = ["framed", "digest", "crc32c", "path", "dtype", "number", "x", "", "_x", "_\ud800"]
                inner[data.draw(st.sampled_from(names))] = data.draw(values)
            case "add":
                inner.insert(last, data.draw(values))
            case _:
                *source, end = data.draw(st.sampled_from(all_places))
                found: Any = content
                try:
                    for step in source:
                        found = found[step]
                    inner[last] = copy.deepcopy(found[end])
                except (KeyError, IndexError, TypeError):
                    assume(False)


def judged_alike(packed: Packed) -> None:
    own, reference = refusal(packed), refusal_by_reference(packed)
    assert (own is None) == (reference is None), (own, reference)


@given(start=st.sampled_from([EXAMPLE, SIGNED, BARE]), data=st.data())
def test_any_change_is_judged_alike(start: dict[str, Any], data: st.DataObject) -> None:
    index = copy.deepcopy(start)
    changed(data, index)
    try:
        packed = pack_index(index)
    except (AttributeError, LookupError, ValueError, TypeError, OverflowError):
        assume(False)  # what columns cannot say
    judged_alike(packed)


@given(start=st.sampled_from([EXAMPLE, SIGNED, BARE]), data=st.data())
def test_any_change_of_the_root_is_judged_alike(start: dict[str, Any], data: st.DataObject) -> None:
    root, parts = encode(start)
    changed(data, root)
    judged_alike((frame_of(json.dumps(root).encode("ascii")), b"".join(parts)))


def large_refusal(packed: Packed, *, backwards: bool = False) -> str | None:
    """As `refusal`, where items are checked as columns; `backwards`, the last part of each band is read first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamxf.format.index, "_SMALL", -1)
        try:
            index = parse(packed)
            items = index.items
            assert isinstance(items, ItemTable)
            assert index.digests is None or all(len(some) % 32 == 0 for some in index.digests)
            for number, band in enumerate(items.parts.bands if backwards else ()):
                for place in reversed(range(len(band.parts))):
                    items.parts.part(number, place)
            items.check()
        except MetadataError as error:
            return str(error)
    return None


def changed_column(data: st.DataObject, columns: Any) -> None:
    number = data.draw(st.sampled_from(sorted(columns)))
    values = columns[number]
    match data.draw(st.sampled_from(["value", "value", "drop", "add", "move"])):
        case "value" if values and isinstance(values, list):
            at = data.draw(st.integers(0, len(values) - 1))
            near = st.integers(max(values[at] - 2, 0), values[at] + 2)
            values[at] = data.draw(near | st.sampled_from([*values, 2**32, 2**53 - 1, 2**53, 2**63]))
        case "value" if values:
            at = data.draw(st.integers(0, len(values) - 1))
            columns[number] = values[:at] + data.draw(st.binary(min_size=1, max_size=1)) + values[at + 1 :]
        case "drop":
            columns[number] = values[:-1]
        case "add":
            columns[number] = values + (values[-1:] or ([0] if isinstance(values, list) else b"a"))
        case "move":
            columns[data.draw(st.integers(0, 255))] = columns.pop(number)


@given(start=st.sampled_from([EXAMPLE, SIGNED, BARE, OWN]), cut=st.booleans(), data=st.data())
def test_any_change_of_a_part_is_judged_alike(start: dict[str, Any], cut: bool, data: st.DataObject) -> None:
    """Of its columns or its bytes, with right digests: when read at once, as columns, and by the reference decoder."""
    made = [Band(sorted(start["items"]), (0, 1) if cut else (0,))]
    parts = MetadataParts(b"", *encoded(start, made))
    raw = parts.raw_parts()
    number = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        columns = unpack_columns(raw[number])
        changed_column(data, columns)
        _, _, rows, chunks = struct.unpack_from("<4sIII", raw[number])
        rows, chunks = (max(each + data.draw(st.sampled_from([0, 0, 0, 1, -1])), 0) for each in (rows, chunks))
        altered = pack_columns(dict(sorted(columns.items())), rows, chunks)
    else:
        altered = bytearray(raw[number])
        for _ in range(data.draw(st.integers(1, 2))):
            altered[data.draw(st.integers(0, len(altered) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    packed = parts.with_part(number, bytes(altered)).stored()
    judged_alike(packed)
    for backwards in (False, True):
        found = large_refusal(packed, backwards=backwards)
        assert (found is None) == (refusal(packed) is None), refusal(packed)


@pytest.mark.parametrize("number", [0, 1])
def test_equal_values_of_another_width_are_equal(number: int) -> None:
    parts = MetadataParts(b"", *encoded(EXAMPLE, [Band(sorted(EXAMPLE["items"]), (0, 1))]))
    raw = parts.raw_parts()[1:][number]  # behind that of files
    altered = pack_columns(unpack_columns(raw), *struct.unpack_from("<4sIII", raw)[2:], width=8)
    assert altered != raw
    packed = parts.with_part(1 + number, altered).stored()
    assert refusal_by_reference(packed) is refusal(packed) is large_refusal(packed) is None
    assert parse(packed) == parse(parts.stored())


def encoded(index: dict[str, Any], made: list[Band]) -> tuple[bytes, bytes, bytes]:
    root, parts = pack_index(index, made)
    return root, b"", parts


def test_the_examples_are_right() -> None:
    for example in (EXAMPLE, SIGNED, BARE, OWN):
        packed = pack_index(example)
        assert refusal(packed) is refusal_by_reference(packed) is None


# -- JSON and frame --------------------------------------------------------------------------------------------------

TEXT = json.dumps(encode(EXAMPLE)[0]).encode()
PARTS = b"".join(encode(EXAMPLE)[1])


def of(text: bytes) -> Packed:
    return frame_of(text), PARTS


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\t", b"\r"])
def test_blanks_do_not_matter(blank: bytes) -> None:
    spaced = TEXT.replace(b",", blank + b"," + blank).replace(b'":', b'"' + blank + b":")
    assert parse(of(spaced)) == parse(of(TEXT))


@pytest.mark.parametrize(
    "number",
    [b"-0", b"-1", b"1.0", b"1e2", b"1E2", b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b"0x1", b"1" * 5000],
)
@pytest.mark.parametrize("blank", [b"", b" "])
def test_numbers_that_are_none(number: bytes, blank: bytes) -> None:
    for old in (b'"from": 0', b'"tuple": [1', b'"step": 7'):
        assert old in TEXT
        changed = TEXT.replace(old, old[:-1].rstrip() + blank + number, 1)
        assert refusal(of(changed)) is not None
        assert refusal_by_reference(of(changed)) is not None


def test_a_minus_in_a_name_is_no_number() -> None:
    changed = TEXT.replace(b'"acme.x=acme==1"', b'"a:-1,-0,[-7"')
    assert refusal(of(changed)) is None


@given(data=st.data())
def test_any_change_of_the_text_is_judged_alike(data: st.DataObject) -> None:
    text = bytearray(TEXT)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        stop = min(len(text), at + data.draw(st.integers(0, 3)))
        text[at:stop] = data.draw(
            st.one_of(st.binary(max_size=2), st.sampled_from([b'"', b"{", b"}", b"-", b".0", b"\\u"]))
        )
    judged_alike(of(bytes(text)))


@pytest.mark.parametrize("more", [0, -1])
def test_a_part_has_a_greatest_size(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = of(TEXT)
    sizes = {part["bytes"]: part["raw"] for band in json.loads(TEXT)["items"] for part in band["parts"]}
    largest = max(sizes.values()) + more
    monkeypatch.setattr(limits, "MAX_PART", largest)
    if more:
        assert "the size of a part" in (refusal(packed) or "")
    else:
        assert parse(packed).items


def test_what_is_too_compressible_is_stored_less_compressed() -> None:
    """Many equal items, without numbers, are packed so."""
    index = parse(pack_index(BARE))
    step = index.items["step"]
    assert isinstance(step, ObjectItem)
    items: dict[str, Item] = {f"{number:06}": replace(step, name=f"{number:06}", path=None) for number in range(40_000)}
    packed = replace(index, items=items).pack()
    assert parse(packed).items.keys() == items.keys()


@pytest.mark.parametrize("zeros", [0, 2**20 - 800, 2**20, 2**22 + 9])
def test_what_any_level_makes_too_little_of_is_stored_as_it_is(zeros: int) -> None:
    index = replace(parse(of(TEXT)), extra={"x": "", "zeros": "0" * zeros})
    text = zstandard.ZstdDecompressor().decompress(index.pack()[0])
    for filling in {0, max(0, 2**23 - len(text))}:  # the end of a block
        made = replace(index, extra={"x": "x" * filling, "zeros": "0" * zeros})
        packed = made.pack()
        assert parse(packed).extra == made.extra
        assert refusal_by_reference(packed) is None


@pytest.mark.parametrize("grid", [(1024,), (32, 32), (8, 16, 8), (4, 4, 4, 16), (2,) * 10])
def test_tensors_that_are_all_cut_alike_are_read(grid: tuple[int, ...]) -> None:
    index = parse(of(TEXT))
    place, numbers = Place(next(iter(index.files)), 0, 1, index.chains[0]), itertools.count()
    items: dict[str, Item] = {}
    for name in "abcde":
        places = ((at, place._replace(number=next(numbers))) for at in product(*map(range, grid)))
        chunks = tuple(Chunk(at, (1,) * len(grid), stored, False) for at, stored in places)
        items[name] = TensorItem(name, "uint8", grid, chunks)
    packed = replace(index, items=items).pack()
    assert dict(parse(packed).items) == items


def test_what_a_part_cannot_hold_is_not_packed() -> None:
    index = parse(of(TEXT))
    step = index.items["step"]
    for made in (replace(step, name="a" * 4097), replace(step, path=("a" * 2**22,))):
        with pytest.raises(MetadataError):
            replace(index, items={made.name: made}).pack()
    long = replace(step, name="a" * 4096, path=("a" * 2**21,))
    assert parse(replace(index, items={long.name: long}).pack()).items == {long.name: long}


STEPS = ("", ",", '","', '"', "\\", "a b", "\x7f", "\x1f", "é", "]}", 0, 7)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_paths_of_steps_that_look_like_what_is_between_them(length: int) -> None:
    index = parse(pack_index(BARE))  # whose items have no numbers
    paths = [*product(STEPS, repeat=length), ("",) * 256]
    items = {
        f"{number:04}": replace(index.items["step"], name=f"{number:04}", path=p) for number, p in enumerate(paths)
    }
    packed = replace(index, items=items).pack()
    assert {name: item.path for name, item in parse(packed).items.items()} == {n: i.path for n, i in items.items()}


def test_chunks_of_many_dimensions_are_cut_into_more_parts() -> None:
    index = parse(of(TEXT))
    place, count = Place(next(iter(index.files)), 0, 1, index.chains[0]), 9000
    chunks = (Chunk((at,) + (0,) * 63, (1,) * 64, place._replace(number=at), False) for at in range(count))
    item = TensorItem("w", "uint8", (count,) + (1,) * 63, tuple(chunks))
    assert dict(parse(replace(index, items={"w": item}).pack()).items) == {"w": item}


def test_a_number_of_items_that_no_memory_has_room_for() -> None:
    root = encode(EXAMPLE)[0]
    root["items"][0]["items"] = 2**48
    packed = of(json.dumps(root).encode())
    assert refusal(packed) is not None
    assert large_refusal(packed) is not None


@pytest.mark.parametrize("depth", [127, 128, 900, 5000])
def test_depth(depth: int) -> None:
    root = encode(EXAMPLE | {"extra": {"a": None}})[0]
    text = json.dumps(root).replace('"a": null', '"a": ' + "[" * depth + "]" * depth)
    packed = of(text.encode())
    assert (refusal(packed) is None) == (depth == 127) == (refusal_by_reference(packed) is None)


# -- runs ------------------------------------------------------------------------------------------------------------

FACTS = RunFacts("3" * 32, "step-7", 7, 1.5)


def packed_with(facts: RunFacts) -> dict[str, Any]:
    """What is stored of `facts`."""
    found = parse(replace(parse(pack_index(EXAMPLE)), run=facts).pack()).run
    assert found is not None
    return found.to_json()


def test_metrics_that_are_not_finite_are_stored() -> None:
    facts = replace(FACTS, metrics={"inf": math.inf, "-inf": -math.inf})
    assert packed_with(facts)["metrics"] == {"inf": "7ff0000000000000", "-inf": "fff0000000000000"}


@pytest.mark.parametrize("bits", ["7ff8000000000000", "fff8000000000000", "7ff0000000000001", "7fffffffffffffff"])
def test_every_nan_is_stored_as_one(bits: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    assert packed_with(replace(FACTS, metrics={"nan": number}))["metrics"] == {"nan": "7ff8000000000000"}


def test_times_are_stored_in_milliseconds() -> None:
    assert packed_with(replace(FACTS, time=1_700_000_000.0004))["time"] == 1_700_000_000_000


def test_tuples_and_numbers_of_other_kinds_are_stored() -> None:
    facts = replace(FACTS, rules={"steps": (1, 2)}, metrics={"loss": 1, "score": np.float32(0.5)})
    stored = packed_with(facts)
    assert stored["rules"] == {"steps": [1, 2]}
    assert stored["metrics"] == {"loss": "3ff0000000000000", "score": "3fe0000000000000"}


@pytest.mark.parametrize(
    "changes",
    [
        *({"run": "3" * 31}, {"name": "a/b"}, {"name": "a" * 256}, {"name": "\ud800"}, {"step": -1}, {"step": 2**53}),
        *({"step": 1.5}, {"time": -1.0}, {"time": math.nan}, {"time": math.inf}, {"time": None}),
        *({"rules": {"max_age": 1.5}}, {"rules": {"last": None}}, {"rules": {"keep": object()}}),
        *({"metrics": {"loss": 10**400}}, {"metrics": {"loss": "high"}}, {"metrics": {"a\n": 1.0}}),
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_what_readers_would_refuse_is_not_packed(changes: dict[str, Any]) -> None:
    index = parse(pack_index(EXAMPLE))
    with pytest.raises(MetadataError):
        replace(index, run=replace(FACTS, **changes)).pack()


def test_rules_that_lead_in_a_circle_are_not_packed() -> None:
    rules: dict[str, Any] = {}
    rules["again"] = rules
    with pytest.raises(MetadataError):
        replace(FACTS, rules=rules).to_json()


def test_a_rank_says_nothing_of_a_run() -> None:
    index = replace(parse(pack_index(EXAMPLE)), rank=0)
    with pytest.raises(MetadataError, match="single rank"):
        index.pack()


def test_a_band_whose_last_name_is_below_its_first() -> None:
    """Names are found by those of bands: that before it would be missed."""
    files, chain = {"a": File(9, bytes(16))}, ("streamxf.zstd/1",)
    packed = []
    for at, name in enumerate(("step", "weight")):
        items: dict[str, Item] = {name: ObjectItem(name, Place("a", at, 1, chain, None, at), None)}
        root, parts = Index("0" * 32, None, (), (chain,), files, items).pack()
        packed.append((json.loads(zstandard.ZstdDecompressor().decompress(root)), parts))
    (content, parts), (other, more) = packed
    parts += more[sum(part["bytes"] for part in other["files"]) :]
    for last in ("weight", "ight"):
        content["items"] = [content["items"][0], {**other["items"][0], "last": last}]
        made = memoryview(frame_of(json.dumps(content).encode()))
        if last == "weight":
            found = Index.parse(made, lambda at, size: parts[at : at + size], len(parts))
            assert [*found.items] == ["step", "weight"]
        else:
            with pytest.raises(MetadataError):
                Index.parse(made, lambda at, size: parts[at : at + size], len(parts))
