"""A large index that threads share, and that processes and copies take along."""

import copy
import gc
import itertools
import json
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import zstandard

import streamxf
from streamxf.errors import MetadataError
from streamxf.format import table as module
from streamxf.format.header import Kind
from streamxf.format.index import File, Index
from streamxf.format.items import Chunk, Item, Place, TensorItem
from streamxf.format.table import ItemTable
from tests.dcp.helpers import KEY, save
from tests.forge import MetadataParts, frame_of, pack_columns, unpack_columns
from tests.forked import status_of_child

PATH = f"__0_0_{'0' * 32}.distcp"
NAMES = "abcdefgh"
CHAIN = ("streamxf.lz4/1?level=0",)


def made_of(names: str) -> dict[str, TensorItem]:
    """Tensors of 64 chunks, each of which is cut in its own way."""
    numbers = itertools.count()
    made = {}
    for step, name in enumerate(names, 1):
        places = [Place(PATH, 0, 1, CHAIN, None, next(numbers)) for _ in range(64)]
        chunks = tuple(Chunk((row * step, 0), (step, 6), place, False) for row, place in enumerate(places))
        made[name] = TensorItem(name, "float32", (64 * step, 6), chunks)
    return made


def packed(items: dict[str, TensorItem], rows: int = 8) -> tuple[bytes, bytes]:
    """Each item is a band, of parts of so many chunks."""
    index = Index("ab" * 16, None, (), (CHAIN,), {PATH: File(1, bytes(16))}, {**items})
    with patch("streamxf.format.index._ROWS", rows), patch("streamxf.format.index._ITEMS", 1):
        return index.pack()


def read(root: bytes, parts: bytes) -> ItemTable:
    items = Index.parse(memoryview(root), lambda at, size: parts[at : at + size], len(parts), lazy=True).items
    assert isinstance(items, ItemTable)
    return items


@pytest.fixture
def little_room() -> Iterator[None]:
    """Room for a few parts, and threads that change places wherever they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with patch.object(module, "_REMEMBERED", (0, 0)):
        yield
    sys.setswitchinterval(interval)


def ask(table: ItemTable, made: dict[str, TensorItem], seed: int, times: int) -> None:
    draw = random.Random(seed)
    for _ in range(times):
        name = draw.choice(NAMES)
        item, wanted = table[name], made[name]
        assert isinstance(item, TensorItem)
        step = item.shape[0] // 64
        row = draw.randrange(56)
        found = item.overlapping([((row * step, 0), (8 * step, 6))])
        assert found == [(number, wanted.chunks[number][:2]) for number in range(row, row + 8)]
        assert item.chunks[row] == wanted.chunks[row]
        assert item.path is None
        if not draw.randrange(8):
            assert tuple(item.chunks) == wanted.chunks


@pytest.mark.usefixtures("little_room")
def test_threads_share_it() -> None:
    made = made_of(NAMES)
    table = read(*packed(made))
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, table, made, seed, 40) for seed in range(6)]
        for each in asked:
            each.result()
    assert 1 <= len(table.parts._known) < 64


def test_to_go_through_all_bands_takes_time_in_proportion() -> None:
    names = [chr(0x4E00 + number) for number in range(300)]
    table = read(*packed(made_of(names)))  # type: ignore[arg-type]
    with patch.object(module.ItemParts, "_taken", autospec=True, side_effect=module.ItemParts._taken) as counted:
        assert [*table] == names
        assert sum(len(item.chunks) for item in table.values()) == 64 * len(names)
    assert counted.call_count == len(names), "each part once"


def test_all_items_one_by_one() -> None:
    made = made_of(NAMES)
    table = read(*packed(made))
    assert {item.name: item for item in table.each()} == made
    assert [*table.each()] == [*made.values()] == [*table.whole().values()]


def test_items_one_by_one_are_compared_before_the_first() -> None:
    one = replace(made_of("a")["a"], name="b")
    with pytest.raises(MetadataError, match="one writer and number"):
        next(read(*packed({**made_of("a"), "b": one})).each())


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
@pytest.mark.usefixtures("little_room")
def test_a_fork_and_a_copy_go_on_while_threads_read() -> None:
    made = made_of(NAMES)
    table = read(*packed(made))
    ask(table, made, 0, 1)  # imports what NumPy imports late: a module that a fork finds half imported stays locked
    stop = threading.Event()

    def reading() -> None:
        while not stop.is_set():
            ask(table, made, 1, 1)

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(reading) for _ in range(2)]
        try:
            for seed in range(5):
                assert status_of_child(lambda seed=seed: ask(table, made, seed, 3)) == 0  # type: ignore[misc]
                ask(copy.deepcopy(table), made, seed, 3)
        finally:
            stop.set()
        for each in threads:
            each.result()


def forgery() -> MetadataParts:
    root, parts = packed(made_of("a"))
    return MetadataParts(b"", root, parts=parts)


def test_two_threads_that_begin_with_different_parts_of_a_forged_band() -> None:
    """Neither has found a part to compare with: whoever is the second to tell of the band's items compares."""
    parts = forgery()
    raw = parts.raw_parts()
    columns = unpack_columns(raw[2])  # behind that of files and the first
    columns[module.col.SHAPE.id] = [65, 6]
    forged = parts.with_part(2, pack_columns(columns, 1, 8)).stored()
    table = read(*forged)
    check_chunks, met = module.ItemRules.check_chunks, threading.Barrier(2)

    def both(rules: module.ItemRules, part: module.IndexPart) -> None:
        met.wait(60)
        check_chunks(rules, part)

    with patch.object(module.ItemRules, "check_chunks", both), ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(table.parts.part, 0, place) for place in range(2)]
        errors = [error for each in asked if (error := each.exception()) is not None]
    assert [type(error) for error in errors] == [MetadataError]
    assert "parts of a band have other items" in str(errors[0])


def test_what_is_malformed_is_told_by_who_knows_where_it_is() -> None:
    parts = forgery()
    columns = unpack_columns(parts.raw_parts()[1])
    columns[module.col.MORE.id], columns[module.col.MORE_ENDS.id] = b"{}x", [3]
    table = read(*parts.with_part(1, pack_columns(columns, 1, 8)).stored())
    table.parts.on_error.append(lambda error: error.add_note("told"))
    item: Item = table["a"]
    with pytest.raises(MetadataError) as caught:
        _ = item.path
    assert caught.value.item == "a"
    assert caught.value.__notes__ == ["told"]


def test_a_root_whose_parts_have_no_bytes_is_malformed() -> None:
    root, parts = packed(made_of("a"))
    content = json.loads(zstandard.ZstdDecompressor().decompress(root))
    for entry in content["items"][0]["parts"]:
        entry["raw"] = 0
    with pytest.raises(MetadataError, match="another size"):
        read(frame_of(json.dumps(content).encode("ascii")), parts).check()


def test_two_items_of_one_container_are_refused_by_whoever_reads_both() -> None:
    made = made_of("ab")
    made["b"] = replace(made["a"], name="b")
    table = read(*packed(made))
    one, other = table["a"], table["b"]
    assert isinstance(one, TensorItem)
    assert isinstance(other, TensorItem)
    assert one.chunks[3] == one.chunks[3]
    assert other.chunks[4].place.number == 4
    for ask in (lambda: other.chunks[3], lambda: tuple(other.chunks)):
        with pytest.raises(MetadataError, match="two items, or chunks, have one writer and number") as caught:
            ask()
        assert caught.value.item == "b"


def test_what_is_checked_costs_nothing_more_the_next_time() -> None:
    table = read(*packed(made_of("ab")))
    for _ in range(3):
        for name in "ab":  # each time another object
            item = table[name]
            assert isinstance(item, TensorItem)
            item.chunks.spans()
        with patch("streamxf.format.table.check_tiles", side_effect=AssertionError):
            assert len(table["a"].chunks) == len(tuple(table["a"].chunks))


def test_an_item_keeps_the_file_open_that_it_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    save({"a": torch.zeros(3), "b": torch.ones(3)}, tmp_path)
    found = streamxf.Checkpoint(tmp_path, keys=KEY).stored
    item = found["b"]
    del found
    gc.collect()
    assert [chunk.shape for chunk in item.chunks] == [(3,)]


@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        (module.col.FILE, 1, "a chunk is in a file that there is not"),
        (module.col.AT, 1, "reaches beyond the end of its file"),
        (module.col.BYTES, 2, "reaches beyond the end of its file"),
        *((module.col.KIND, kind, "a chunk has a kind that it cannot have") for kind in (0, 1, 4)),
    ],
)
def test_one_chunk_among_usual_ones_is_wrong(place: int, column: module.col.Column, value: int, what: str) -> None:
    parts = forgery()
    columns = unpack_columns(parts.raw_parts()[2])
    own = columns[column.id]
    assert isinstance(own, list)
    columns[column.id] = [*own[:place], value, *own[place + 1 :]]
    if value == Kind.VALUE:  # which has a place in its container's stream, too
        columns |= {module.col.BEGIN.id: [0], module.col.END.id: [1]}
    table = read(*parts.with_part(2, pack_columns(columns, 1, 8)).stored())
    with pytest.raises(MetadataError, match=what):
        table.parts.part(0, 1)


def cut(cuts: list[tuple[int, ...]], shapes: list[tuple[int, int]]) -> dict[str, TensorItem]:
    """Tensors of one band, each with its shape and with rows of these lengths."""
    numbers, made = itertools.count(), {}
    for name, lengths, shape in zip(NAMES, cuts, shapes, strict=False):
        at = [0, *itertools.accumulate(lengths)]
        boxes = [((begin, 0), (length, shape[1])) for begin, length in zip(at, lengths, strict=False)]
        places = (Place(PATH, 0, 1, CHAIN, None, next(numbers)) for _ in boxes)
        chunks = tuple(Chunk(*box, place, False) for box, place in zip(boxes, places, strict=True))
        made[name] = TensorItem(name, "float32", shape, chunks)
    return made


@pytest.mark.parametrize("step", [1, 2, 8])
def test_items_beside_each_other_are_cut_alike_or_not(step: int) -> None:
    same, other = (2, 2, 2, 2), (2, 3, 1, 2)
    shapes = [(8, 6)] * 4 + [(8, 5), (8, 6), (9, 6), (8, 6)]
    made = cut([same, same, other, same, same, other, (2, 2, 2, 3), (4, 4)], shapes)
    index = Index("ab" * 16, None, (), (CHAIN,), {PATH: File(1, bytes(16))}, {**made})
    with patch("streamxf.format.index._ROWS", step * len(made)):
        table = read(*index.pack())
    assert len(table.parts.bands) == 1
    for names in itertools.islice(itertools.permutations("abcfgh"), 0, None, 11):
        for name in names:
            item, wanted = table[name], made[name]
            assert isinstance(item, TensorItem)
            for box in (((2, 0), (2, 5)), ((4, 1), (1, 1)), ((3, 0), (5, 5)), ((0, 0), (8, 5)), ((-1, 0), (3, 5))):
                assert item.overlapping([box]) == wanted.overlapping([box]), (name, box)
        table.parts.answers.clear()
    for name, wanted in made.items():
        assert tuple(table[name].chunks) == wanted.chunks  # type: ignore[union-attr]


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("other", [{"shape": (2, 5)}, {"shape": (1, 6)}, {"offset": (5, 0)}, {}])
def test_what_does_not_tile_is_refused_beside_what_does(at: int, other: dict[str, tuple[int, int]]) -> None:
    made = cut([(2, 2, 2, 2)] * 4, [(8, 6)] * 4)
    name = "abcd"[at]
    wrong = made[name]
    if other:
        made[name] = replace(wrong, chunks=(*wrong.chunks[:2], wrong.chunks[2]._replace(**other), wrong.chunks[3]))
    else:
        made[name] = replace(wrong, shape=(9, 6))
    table = read(*Index("ab" * 16, None, (), (CHAIN,), {PATH: File(1, bytes(16))}, {**made}).pack())
    assert len(table.parts.bands) == 1
    for each in "dacb":
        item = table[each]
        assert isinstance(item, TensorItem)
        with pytest.raises(MetadataError, match="its chunks") if each == name else nullcontext():
            assert item.chunks.spans() == [chunk[:2] for chunk in made[each].chunks]
            assert each != name


def test_what_is_beside_a_box_is_seen_whichever_item_was_asked_first() -> None:
    made = cut([(1, 2, 3, 5, 3, 1, 3, 5)] * 3, [(23, 6)] * 3)
    own = made["b"].chunks
    made["b"] = replace(made["b"], chunks=(*own[:3], own[3]._replace(shape=(7, 6)), *own[4:]))  # reaches into the next
    with patch("streamxf.format.index._ROWS", 4 * len(made)):
        packed = Index("ab" * 16, None, (), (CHAIN,), {PATH: File(1, bytes(16))}, {**made}).pack()
    for names in itertools.permutations("abc"):
        table = read(*packed)
        for name in names:
            item = table[name]
            assert isinstance(item, TensorItem)
            with pytest.raises(MetadataError, match="its chunks") if name == "b" else nullcontext():
                assert item.overlapping([((11, 0), (1, 6))]) == [(4, ((11, 0), (3, 6)))]
                assert name != "b"


def test_an_item_is_pickled_with_its_chunks_and_copied_without_reading_them() -> None:
    made = made_of("ab")
    table = read(*packed(made))
    item = table["b"]
    assert isinstance(item, TensorItem)
    with patch.object(table.parts, "fetch", side_effect=AssertionError):
        assert copy.deepcopy(item).chunks is item.chunks
    found = pickle.loads(pickle.dumps(item))
    assert found == made["b"]
    assert type(found.chunks) is tuple


def test_an_item_that_is_malformed_is_not_pickled() -> None:
    parts = forgery()
    columns = unpack_columns(parts.raw_parts()[2])
    columns[module.col.FILE.id] = [1] * 8
    item = read(*parts.with_part(2, pack_columns(columns, 1, 8)).stored())["a"]
    with pytest.raises(MetadataError):
        pickle.dumps(item)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("rank", [None, 0])
def test_a_tensor_without_dimensions_has_one_chunk_in_all_parts_together(rank: int | None, rows: int) -> None:
    chunks = tuple(Chunk((), (), Place(PATH, 0, 1, CHAIN, None, number), False) for number in range(2))
    items: dict[str, Item] = {"a": TensorItem("a", "float32", (), chunks)}
    index = Index("ab" * 16, rank, (), (CHAIN,), {PATH: File(1, bytes(16))}, items)
    with patch("streamxf.format.index._ROWS", rows):
        table = read(*index.pack())
    assert len(table.parts.bands[0].parts) == 2 // rows
    for refused in (table.check, table.whole):
        with pytest.raises(MetadataError, match="several chunks, and no dimensions"):
            refused()


def test_few_boxes_are_remembered_and_fewer_of_many_chunks() -> None:
    table = read(*packed(made_of("a")))
    item = table["a"]
    assert isinstance(item, TensorItem)
    with patch("streamxf.format.table._KEPT", 160):
        for begin, size in (*((0, size) for size in range(64, 32, -1)), *((begin, 1) for begin in range(32))):
            assert len(item.overlapping([((begin, 0), (size, 6))])) == size
            answers = [len(boxes) for _, boxes in table.parts.answers.values()]
            assert answers[-1] == size
            assert sum(answers) <= 160 + 64
            assert len(answers) <= 16
