"""What a few bytes ask for out of proportion: memory of the unpickler, keys of one hash, chunks hard to compare.

Without a bound each takes minutes, or gigabytes.
"""

import itertools
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

import streamxf
from streamxf import ZStandard, budget, diff, pack
from streamxf.budget import FREE_STEPS, Steps, TooMuch
from streamxf.checkpoint import datafile
from streamxf.errors import MetadataError, PolicyError
from streamxf.format.items import Chunk, Place, TensorItem
from streamxf.format.tiling import check_apart, check_offsets, check_tiles, work_for
from streamxf.format.values import _Reading, from_json, pack_name
from streamxf.formats.contents import FileReader
from streamxf.formats.opening import open_source
from streamxf.storage.opening import open_storage
from streamxf.tools.convert.plan import model_in
from streamxf.tools.diff.diff import _prefix
from streamxf.tools.diff.difference import Incomparable, difference_of
from streamxf.tools.inspect.inspect import MAX_DEPTH, Module, tree_of
from streamxf.tools.inspect.inspect import _grown as grown_from
from streamxf.tools.inspect.page.page import stacks_of
from streamxf.torchsave.archive import NotSavedByTorch
from streamxf.torchsave.check import Check, read_outline
from streamxf.torchsave.unpickler import read_stock
from tests.cli import preloaded
from tests.traced import memory_below

from .made import TIB, Stock, hole, saved

MODULUS = sys.hash_info.modulus
MIB = 2**20

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "an outline": lambda pickled: read_outline(pickled, {}),
    "stock metadata": lambda pickled: read_stock(pickled, None),
    "an object": lambda pickled: Check(pickled, {}, len(pickled)).load(),
}
REFUSALS = (NotSavedByTorch, MetadataError)


def long(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little")
    return b"\x8a" + bytes([len(data)]) + data


def colliding(count: int) -> list[bytes]:
    return [long(number * MODULUS) for number in range(1, count)]


COUNT = 50_000
TENSOR_OF_NOTHING = b"ctorch._utils\n_rebuild_tensor_v2\nq\0(NK\0))NNtq\1"
SHARED = b"K\x01" + b"".join(b"q%ch%c\x86" % (place, place) for place in range(40))  # a tuple of itself, 40 times over
PICKLES = {
    "integers of one hash, in a dict": b"}(" + b"".join(key + b"N" for key in colliding(COUNT)) + b"u.",
    "integers of one hash, one by one": b"}" + b"".join(key + b"Ns" for key in colliding(COUNT)) + b".",
    "tuples of one hash": b"}(" + b"".join(key + b"\x85N" for key in colliding(COUNT)) + b"u.",
    "a key beside those of one hash": b"}("
    + b"".join(key + b"N" for key in colliding(800))
    + b"u"
    + b"K\x00Ns" * 1_000_000
    + b".",
    "tuples that share their parts": b"}" + SHARED + b"Ns.",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", PICKLES)
@pytest.mark.parametrize("parser", PARSERS)
def test_keys_that_take_forever_to_compare(parser: str, how: str) -> None:
    with pytest.raises(REFUSALS, match=r"out of proportion|nested deeper"):
        PARSERS[parser](b"\x80\x02" + PICKLES[how])


SETS = {"a set": b"\x8f(%b\x90.", "a frozenset": b"(%b\x91.", "a call": b"cbuiltins\nset\n](%be\x85R."}
OF_SETS = [*itertools.product([*PARSERS][:2], [*SETS][:2]), ("an object", "a call")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("parser", "kind"), OF_SETS)
def test_sets_of_integers_of_one_hash(parser: str, kind: str) -> None:
    with pytest.raises(REFUSALS, match="out of proportion"):
        PARSERS[parser](b"\x80\x04" + SETS[kind] % b"".join(colliding(COUNT)))


STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpuK\x10tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\0K\x10\x85K\1\x85\x89NtR"
METADATA = "torch.distributed.checkpoint.metadata"
CHANGED = {
    "a tensor": TENSOR + b"](X\7\0\0\0float32K\x10\x85K\1\x85X\6\0\0\0data/0J\xc0\xff\xff\xffeb",
    "a storage": STORAGE + b"](X\7\0\0\0float32" + SHARED + b"K@eb",
    "a class": b"ca\nb\n}X\4\0\0\0nameNsb",
    "a class of dicts": b"ccollections\nOrderedDict\n}X\4\0\0\0nameNsb",
    "a function": b"ctorch._utils\n_rebuild_tensor_v2\n}X\4\0\0\0nameNsb",
    "a shape": b"ctorch\nSize\n)\x85R}X\4\0\0\0nameNsb",
    "a dict": b"}}X\4\0\0\0nameNsb",
}
CHANGED_METADATA = {
    "a class": b"c%b\nMetadata\n}X\4\0\0\0nameNsb" % METADATA.encode(),
    "a function": b"ctorch\nSize\n}X\4\0\0\0nameNsb",
    "what functions share": b"cpathlib\nPosixPath\nN}X\x0c\0\0\0__defaults__Ns\x86b",
    "a dtype": b"ctorch\nfloat32\n}X\4\0\0\0nameNsb",
    "a dict": b"ccollections\nOrderedDict\n)R}X\4\0\0\0nameNsb",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", CHANGED)
def test_an_outline_in_which_something_is_changed_after_it_was_checked(what: str) -> None:
    """As a key of a dict too: a storage whose record shares its parts would take forever to hash."""
    with pytest.raises(NotSavedByTorch, match="changes something after it was made"):
        read_outline(b"\x80\x02}(" + CHANGED[what] + b"K\1u.", {"data/0": 64})


@pytest.mark.parametrize("what", CHANGED_METADATA)
def test_stock_metadata_in_which_something_is_changed_that_is_not_a_record(what: str) -> None:
    with pytest.raises(MetadataError, match="changes something after it was made"):
        read_stock(b"\x80\x02" + CHANGED_METADATA[what] + b".", None)


@pytest.mark.timeout(60)
def test_a_record_whose_hash_its_fields_decide_is_no_key() -> None:
    @dataclass(frozen=True)
    class Record:
        parts: Any

    steps = Steps(0)
    with pytest.raises(TooMuch, match="has a Record where it may be hashed"):
        steps.charge_key({}, (Record(()),))
    steps.charge_key({}, (print, Record, object(), 1.5, None))


def test_a_frozenset_is_what_it_was() -> None:
    value = [{frozenset({"a", 1}): 2}, frozenset({(3, frozenset())})]
    assert read_outline(pickle.dumps(value, 4), {}) == value


@pytest.mark.timeout(60)
def test_frozensets_of_long_tuples_are_compared_in_full() -> None:
    """The hash of one takes nothing, since those of its elements are known."""
    tuples = b"".join(b"(" + b"K\1" * 50_000 + b"t\x94(h%c\x91\x9400" % place for place in (0, 2))
    pickled = b"\x80\4" + tuples + b"}" + b"h\1Nsh\3Ns" * 50_000 + b"."
    with pytest.raises(NotSavedByTorch, match="out of proportion"):
        read_outline(pickled, {})


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02K\x01r" + (2**27).to_bytes(4, "little") + b".",
        b"\x80\x05\x96" + (2**32).to_bytes(8, "little") + b".",
        b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N.",
        b"\x80\x04\x8e" + (2**32).to_bytes(8, "little") + b".",
        b"\x80\x02X" + (2**32 - 1).to_bytes(4, "little") + b".",
    ],
    ids=["a far place of the memo", "a bytearray", "a frame", "bytes", "text"],
)
def test_a_few_bytes_that_name_a_large_size(parser: str, pickled: bytes) -> None:
    """In C, the first takes two gigabytes."""
    with memory_below(MIB):
        with suppress(*REFUSALS):
            PARSERS[parser](pickled)


BYTES = {
    "dicts": b"}",
    "dicts with places": b"}\x94",
    "lists with places": b"]\x94",
    "marks": b"(",
    "sets": b"\x8f",
    "sets that are frozen": b"(N\x91",
    "one thing with many places": b"\x94",
}


@pytest.fixture
def eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the steps and bytes that are free: what goes beyond them need not be as large, either."""
    for name in "FREE_STEPS", "FREE":
        monkeypatch.setattr(budget, name, getattr(budget, name) // 8)


@pytest.mark.parametrize("parser", ["an outline", "stock metadata"])
@pytest.mark.parametrize("kind", BYTES)
def test_many_of_what_a_byte_makes(parser: str, kind: str, eighth: None) -> None:
    pickled = b"\x80\4N" + BYTES[kind] * (MIB // 8 // len(BYTES[kind])) + b"."
    with memory_below(8 * MIB), pytest.raises(REFUSALS, match=r"out of proportion|in a row"):
        PARSERS[parser](pickled)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_hundred_thousand_small_containers_are_not_out_of_proportion(protocol: int) -> None:
    value = [{"a": [number], "b": (number,)} for number in range(100_000)]
    assert read_outline(pickle.dumps(value, protocol), {}) == value


def test_a_text_that_is_copied_many_times() -> None:
    pickled = (
        b"\x80\x02](c_codecs\nencode\nq\x00X" + MIB.to_bytes(4, "little") + b"x" * MIB + b"q\x01X\x06\0\0\0latin1q\x02"
    )
    with memory_below(64 * MIB), pytest.raises(NotSavedByTorch, match="out of proportion"):
        read_outline(pickled + b"h\x00h\x01h\x02\x86R" * 100_000 + b"e.", {})


@pytest.mark.parametrize(
    "call", [b"(X\7\0\0\0storageNX\1\0\0\0" + b"0NK\1tq\0", TENSOR_OF_NOTHING], ids=["storages", "tensors"]
)
def test_things_without_a_class_do_not_make_one_each(call: bytes, eighth: None) -> None:
    again = b"h\0h\1R" if call is TENSOR_OF_NOTHING else b"h\0Q"
    with memory_below(8 * MIB), suppress(NotSavedByTorch):
        read_outline(b"\x80\x02" + call + again * (MIB // 8 // len(again)) + b".", {})


def test_the_names_that_a_caller_allows_are_looked_up_once() -> None:
    calls = 0

    def allowed() -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {}

    Check(b"\x80\x02" + b"ca\nb\n" * 1000 + b".", {}, 5000, allowed).load()
    assert calls == 1


@pytest.mark.timeout(60)
def test_as_many_names_as_fit() -> None:
    """No class is made for any of them."""
    names = b"".join(b"ca\n%d\n" % number for number in range(20_000))
    with memory_below(12 * MIB):
        assert len(read_outline(b"\x80\x02](" + names + b"e.", {})) == 20_000


@pytest.mark.parametrize("kind", [b"]K\x01a", b"}"], ids=["a list", "a dict"])
def test_a_layout_that_is_not_text(kind: bytes) -> None:
    """Lists in lists have texts of any length."""
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([]), [])
    pickled, layout = pickle.dumps(Metadata({"t": tensor}, None, {}), 2), b"X\x0d\0\0\0torch.strided"
    assert layout in pickled
    with pytest.raises(MetadataError, match="not called with str"):
        read_stock(pickled.replace(layout, kind), None)


def pairs(count: int) -> Iterator[tuple[int, int]]:
    """Pairs of integers of one hash: Python's hash of a tuple has no secret, and each of its steps can be undone."""
    mask, first, second, start = 2**64 - 1, 11400714785074694791, 14029467366897019727, 2870177450012600261
    for one in itertools.count(1):
        mixed = (start + one * second) & mask
        mixed = ((mixed << 31 | mixed >> 33) & mask) * first & mask
        other = (12345 - mixed) * pow(second, -1, 2**64) & mask
        if other < MODULUS:
            yield one, other
            count -= 1
        if not count:
            return


def test_tuples_can_be_made_of_one_hash() -> None:
    assert len(set(map(hash, pairs(100)))) == 1


@pytest.mark.timeout(60)
def test_extra_data_with_keys_of_one_hash() -> None:
    def extra(keys: list[tuple[int, int]]) -> Any:
        return {"dict": [[{"tuple": list(key)}, None] for key in keys]}

    assert len(from_json(extra([(number, 0) for number in range(10_000)]))) == 10_000
    with pytest.raises(MetadataError, match="extra data is malformed"):
        from_json(extra(list(pairs(COUNT))))


# -- chunks --------------------------------------------------------------------------------------------------------


def grid(counts: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(offset, (1,) * len(counts)) for offset in itertools.product(*map(range, counts))]


@pytest.mark.timeout(60)
def test_chunks_that_overlap_along_the_first_dimension_only() -> None:
    """Each has all rows but some, and one column: along the rows each overlaps all others."""
    count = 1000
    chunks = [((row, row), (2 * count - row, 1)) for row in range(count)]
    check_apart((2 * count, count), chunks)
    with pytest.raises(MetadataError, match="overlap"):
        check_apart((2 * count, count), [*chunks, ((count, 7), (1, 1))])


@pytest.mark.timeout(60)
def test_chunks_that_no_dimension_parts() -> None:
    """Pinwheels: each dimension goes through some chunk, wherever it is cut."""
    wheel = [((0, 0), (2, 1)), ((0, 1), (1, 2)), ((1, 2), (2, 1)), ((2, 0), (1, 2)), ((1, 1), (1, 1))]
    check_apart((3, 3), wheel)
    nested = [((0, 0), (3**9, 3**9))]
    for level in range(9):
        size = 3 ** (8 - level)
        nested = [
            (tuple(map(sum, zip(at, [size * each for each in corner], strict=True))), tuple(size * n for n in shape))
            for at, _ in nested[:12]
            for corner, shape in wheel
        ]
    try:
        check_apart((3**9, 3**9), nested)
    except MetadataError as error:
        assert "no writer cuts" in str(error)  # noqa: PT017 - or it is found to be fine


@pytest.mark.timeout(60)
def test_chunks_that_no_dimension_parts_draw_from_one_budget() -> None:
    """Nested pinwheels again and again: as many as are in proportion to what was read."""
    wheels = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]
    check_tiles((3, 3), wheels, work_for(0))
    rings, boxes = 1000, [((1000, 1000), (1, 1))]
    for ring in range(rings):
        side, low, high = 2 * (rings - ring), ring, 2 * rings - ring
        boxes += [((low, low), (1, side)), ((low, high), (side, 1))]
        boxes += [((high, low + 1), (1, side)), ((low + 1, low), (side, 1))]
    work = Steps(10 * 4 * len(boxes) - FREE_STEPS)  # ten times their corners
    with pytest.raises(MetadataError, match="as no writer cuts a tensor"):
        for _ in range(20):
            check_tiles((2001, 2001), boxes, work)
    check_tiles((200, 200), grid((200, 200)))


def test_what_is_compared_is_never_held_all_at_once() -> None:
    number, shape = random.Random(1), (256,) * 6
    chunks = [tuple(tuple(number.randrange(1, 128) for _ in shape) for _ in range(2)) for _ in range(2**14)]
    with memory_below(64 * MIB), pytest.raises(MetadataError):
        check_tiles(shape, chunks, work_for(MIB))


@pytest.mark.timeout(60)
def test_offsets_that_are_equal_or_have_one_hash() -> None:
    place = Place("a", 0, 0, ())
    chunks = [Chunk(offset, (1, 1), place, False) for offset in pairs(COUNT)]
    check_offsets(chunks)
    with pytest.raises(MetadataError, match="two chunks have the same offset"):
        check_offsets([*chunks, chunks[0]])


# -- tools ---------------------------------------------------------------------------------------------------------


def test_tensors_that_repeat_an_element_share_one_budget(tmp_path: Path) -> None:
    """In all objects of a comparison together, and in pieces, so that none of them is ever whole."""
    stock = Stock(tmp_path)
    for number in range(8):
        stock.object(f"o{number}", saved([torch.ones(1).expand(MIB * 16)]))
    stock.write()
    with memory_below(64 * MIB):
        found = diff(tmp_path, tmp_path)
    assert found.equal == 2
    assert len(found.incomparable) == 6
    assert all("far larger than its storage" in reason for reason in found.incomparable.values())


# In a process of its own, since garbage stays longer where much else is held.
_DIFFERS_TWICE = """
import sys
from streamxf import diff
from tests.traced import memory_below
assert len(diff(*sys.argv[1:], sys.argv[1]).incomparable) == 599
with memory_below(6 * 2**20):
    assert len(diff(*sys.argv[1:], sys.argv[1]).incomparable) == 599
"""


def test_reasons_of_items_that_cannot_be_compared_are_not_kept(tmp_path: Path) -> None:
    """Each would hold on to what was at work when it was raised."""
    stock = Stock(tmp_path)
    for number in range(600):
        stock.tensor(f"w{number}", saved(torch.ones(1)) if not number else b"", [1])
    stock.write()
    done = preloaded.script(_DIFFERS_TWICE, tmp_path, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(10)
def test_long_names_that_end_as_those_of_the_other_do() -> None:
    names = [f"w{number}" for number in range(2000)]
    prefixed = {"p" * MIB + f"{number}.w0" for number in range(40)}
    assert _prefix(names, prefixed)[1] == 1
    assert _prefix(names, {f"model.{name}" for name in names}) == ("model.", 2000)


def test_views_of_one_storage_share_that_budget() -> None:
    whole = torch.ones(MIB)
    with pytest.raises(Incomparable, match="far larger than its storage"):
        difference_of([whole[number:] for number in range(200)], [whole[number:] for number in range(200)])


def test_a_hole_is_not_packed(tmp_path: Path) -> None:
    """It is refused before anything is written."""
    folder = tmp_path / "in"
    folder.mkdir()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors")
    hole(folder / "rest.bin", TIB)
    with pytest.raises(PolicyError, match=r"the file would take .* out of proportion"):
        pack(folder, tmp_path / "out", "zstd")
    assert not (tmp_path / "out").exists()


def item(name: str) -> TensorItem:
    return TensorItem(name, "float32", (1,), (Chunk((0,), (1,), Place("a", 0, 1, ()), False),))


def modules(tree: Module) -> int:
    return 1 + sum(map(modules, tree.children))


def test_a_tree_has_modules_in_proportion_to_items() -> None:
    names = [".".join(f"{number}x{part}" for part in range(31)) + ".w" for number in range(2_500)]
    grown = grown_from([item(name) for name in names], MAX_DEPTH)
    assert grown is None
    assert tree_of(map(item, names)).totals.tensors == 2_500
    few = tree_of(map(item, names[:10]))
    assert [child.name for child in few.children] == names[:10]


def test_what_is_before_each_number_of_a_name_is_not_kept() -> None:
    names = [".".join(f"{number * 31 + part}" for part in range(31)) + ".w" for number in range(1_000)]
    items = [item(name) for name in names]
    with memory_below(8 * MIB):
        stacks_of(items)


# -- files of torch.save -------------------------------------------------------------------------------------------


def as_file(path: Path, root: bytes) -> Path:
    """A file of torch.save with this pickle, and a record of 64 bytes."""
    file = torch._C.PyTorchFileWriter(str(path))
    for name, data in {"data.pkl": b"\x80\2" + root, "byteorder": b"little", "data/0": bytes(64)}.items():
        file.write_record(name, data, len(data))
    file.write_end_of_file()
    return path


def shared_list(path: Path, count: int, last: bytes = b"") -> Path:
    """A list, and entries that are that list, or lists of it alone: `count` of each."""
    body = b"".join(b"X\6\0\0\0%06xh\0X\6\0\0\0%06x]h\0a" % (2 * number, 2 * number + 1) for number in range(count))
    return as_file(path, b"}(X\4\0\0\0list](" + b"K\1" * count + last + b"eq\0" + body + b"u.")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("last", [b"", b"ca\nb\n"], ids=["plain", "not plain"])
def test_a_list_that_many_entries_share_is_looked_through_once(tmp_path: Path, last: bytes) -> None:
    count = 30_000
    with open_source(open_storage(shared_list(tmp_path / "a.pt", count, last))) as reader:
        assert len(reader.stored) == 2 * count + 1


def test_an_object_that_holds_itself_is_not_taken_for_plain(tmp_path: Path) -> None:
    """Nor is what holds it."""
    path = as_file(tmp_path / "a.pt", b"}(X\1\0\0\0a]q\0h\0aX\1\0\0\0b]h\0aX\1\0\0\0c]K\1au.")
    with open_source(open_storage(path)) as reader:
        assert isinstance(reader, FileReader)
        assert reader.shards["a.pt"].objects == {"c": [1]}


@pytest.mark.timeout(60)
def test_a_list_that_many_entries_share_is_compared_a_few_times(eighth: None, tmp_path: Path) -> None:
    paths = [shared_list(tmp_path / name, 1400) for name in ("a.pt", "b.pt")]
    found = diff(*paths)
    assert found.equal + len(found.incomparable) == 2801
    assert all("shared so often" in reason for reason in found.incomparable.values())
    assert found.incomparable


@pytest.mark.timeout(60)
@pytest.mark.parametrize("last", [b"", b"ctorch\nSize\n(K\1K\2t\x85R"], ids=["plain", "not plain"])
def test_a_list_that_many_entries_share_is_packed_a_few_times(eighth: None, tmp_path: Path, last: bytes) -> None:
    path = shared_list(tmp_path / "a.pt", 1400, last)
    with pytest.raises(PolicyError, match=r"the object would take .* besides .* out of proportion") as caught:
        pack(path, tmp_path / "packed")
    assert caught.value.item
    assert not (tmp_path / "packed").exists()


def test_an_objects_weight_has_its_parts_as_often_as_they_are_there(tmp_path: Path) -> None:
    shared = [1] * 1000
    torch.save(
        {"a": shared, "b": (shared, shared), "c": "x" * 500, "d": {1, 2}, "e": (torch.ones(64),)}, tmp_path / "a.pt"
    )
    with open_source(open_storage(tmp_path / "a.pt")) as reader:
        assert isinstance(reader, FileReader)
        weights = reader.shards["a.pt"].weights
    assert weights["a"] > 1000
    assert weights["b"] == 2 * weights["a"] + 64
    assert 500 < weights["c"] < weights["a"]
    assert weights["d"] > 2 * 64
    assert weights["e"] >= 256


@pytest.mark.timeout(60)
def test_many_beginnings_beside_a_model(tmp_path: Path) -> None:
    names = b"".join(b"X\6\0\0\0%06xN" % number for number in range(20_000))
    path = as_file(tmp_path / "a.pt", b"}(" + b"X\7\0\0\0model.w" + TENSOR + names + b"u.")
    with open_source(open_storage(path)) as reader:
        model, beside, _ = model_in(reader.stored)
    assert [*model] == ["model.w"]
    assert len(beside) == 20_000


# -- streams of values ---------------------------------------------------------------------------------------------


def attached(path: Path) -> None:
    reader = streamxf.attach(dcp.FileSystemReader(path))
    dcp.load({"step": 0}, storage_reader=reader)


def salvaged(path: Path) -> None:
    (path / ".metadata").unlink()
    found = streamxf.load_intact(path, without_metadata=True)
    raise PolicyError("; ".join(damage.message for damage in found.damaged))


def verified(path: Path) -> None:
    report = streamxf.verify(path)
    raise PolicyError("; ".join(damage.message for damage in report.damaged))


def loaded(path: Path) -> None:
    dcp.load({f"{number}": 0 for number in range(4)}, storage_reader=streamxf.FileSystemReader(path))


def loaded_by_another_planner(path: Path) -> None:
    state, reader = {f"{number}": 0 for number in range(4)}, streamxf.FileSystemReader(path)
    dcp.load(state, storage_reader=reader, planner=DefaultLoadPlanner())


def salvaged_by_name(path: Path) -> None:
    found = streamxf.load_intact(path)
    assert 0 < len(found.loaded) < 4
    raise PolicyError("; ".join(damage.message for damage in found.damaged))


@pytest.fixture
def little_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FREE", 4 * MIB)


REFUSED = (PolicyError, CheckpointException)


@pytest.mark.parametrize("read", [verified, salvaged, attached])
def test_values_that_no_item_names(
    tmp_path: Path, read: Any, little_free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their name and value take three bytes, which compress to nothing."""
    monkeypatch.setattr(datafile, "pack_name", lambda name: b"\x61a\0" * 20_000 + pack_name(name))
    with streamxf.CheckpointWriter(tmp_path, chain=ZStandard()) as writer:
        writer["step"] = 7
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 4096
    parsed, value = [0], _Reading.value

    def counted(reading: _Reading) -> Any:
        parsed[0] += 1
        return value(reading)

    monkeypatch.setattr(_Reading, "value", counted)
    with pytest.raises(REFUSED, match="out of proportion"):
        read(tmp_path)
    assert parsed[0] < 10_000


@pytest.mark.parametrize("read", [verified, salvaged, salvaged_by_name, loaded, loaded_by_another_planner])
def test_values_of_many_parts(tmp_path: Path, read: Any, little_free: None) -> None:
    with streamxf.CheckpointWriter(tmp_path, chain=ZStandard()) as writer:
        for number in range(4):
            writer[f"{number}"] = [number] * 30_000
    with pytest.raises(REFUSED, match="out of proportion"):
        read(tmp_path)
