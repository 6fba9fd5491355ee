"""Indexes that ask for more time or memory than their stored bytes explain: at the limit they are read in proportion,
beyond it they are refused, and what a writer has to say stays within.
"""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from streamxf import Checkpoint, inspect, verify
from streamxf.codecs.zstd import compress_to, compressor, decompress, stored
from streamxf.errors import MetadataError
from streamxf.format import table as parts_module
from streamxf.format.columns import IndexPart
from streamxf.format.index import File, Index
from streamxf.format.items import Chunk, Place, TensorItem
from streamxf.format.table import ItemTable
from tests.forge import Columns, MetadataParts, count_marks, entry_of, frame_of, pack_columns, part_frame

from .test_work import memory_below

MIB = 2**20
ROOT: dict[str, Any] = {
    **{"save_id": "0" * 32, "rank": None, "transforms": [], "chains": [["streamxf.zstd/1"]]},
    **{"dtypes": ["float32:32"], "files": [], "items": [], "modules": [], "packages": {}, "extra": {}},
}


def written(folder: Path, root: bytes, parts: bytes = b"") -> Path:
    folder.mkdir()
    (folder / ".metadata").write_bytes(MetadataParts(b"\xd3SXM\r\n\x1a\n", root, parts=parts).pack())
    return folder


def root_of(value: bytes, count: int, size: int) -> bytes:
    """A root of about `size` stored bytes with a value as often as that, where nobody looks."""
    noise = os.urandom(size).hex().encode()
    text = json.dumps(ROOT).encode()[:-1] + b',"_n":"' + noise + b'","_x":[' + b",".join([value] * count) + b"]}"
    return compressor(3).compress(text)


def looks(path: Path) -> None:
    """All that is done with a checkpoint without keys, but for what reads data."""
    inspect(path).as_dict(items=True)
    [*Checkpoint(path).values()]
    str(verify(path))


@pytest.mark.parametrize("value", [b"[]", b'{"":{"":{"":{"":{}}}}}', b'"' + b"-" * 40 + b'"'], ids=repr)
def test_a_root_takes_memory_in_proportion(tmp_path: Path, value: bytes) -> None:
    each = 1 + count_marks(value)
    most = (MIB // 3 - 100) // each
    root = root_of(value, most, MIB + 2**14)
    assert MIB <= len(root) < 1.2 * MIB
    with memory_below(64 * MIB):
        looks(written(tmp_path / "most", root))
    with pytest.raises(MetadataError, match=r"commas and brackets|are allowed for one of"):
        inspect(written(tmp_path / "more", root_of(value, most * 3 // 2, MIB)))


def test_a_root_of_one_string_takes_memory_in_proportion(tmp_path: Path) -> None:
    text = b'"' + b"a" * (15 * MIB) + b'"'
    with memory_below(64 * MIB):
        looks(written(tmp_path / "most", root_of(text, 1, MIB + 2**16)))
    with pytest.raises(MetadataError, match="are allowed for one of"):
        inspect(written(tmp_path / "more", root_of(text, 2, MIB)))


# -- parts ---------------------------------------------------------------------------------------------------------


def names_of(count: int) -> bytes:
    return b"".join(b"%04d" % number for number in range(count))


def ends_of(count: int, width: int = 4) -> list[int]:
    return [*range(width, width * count + 1, width)]


def items_of(count: int, more: bytes = b"") -> tuple[Columns, int, int]:
    """Tensors of one element each."""
    about: Columns = {1: ends_of(count), 2: names_of(count), 3: ends_of(count, len(more)) if more else [0] * count}
    about |= {4: more * count, 5: [1] * count, 6: [1] * count, 7: [1] * count, 8: [1] * count, 9: [0] * count}
    return about | chunks_of(count) | {10: [0] * count}, count, count


def chunks_of(count: int) -> Columns:
    zeros, ones = [0] * count, [1] * count
    return {
        10: [*range(count)],
        11: ones,
        12: [2] * count,
        13: zeros,
        14: zeros,
        15: ones,
        16: [*range(count)],
        18: b"",
        19: [],
        20: [],
    }


def tensor_of(count: int) -> tuple[Columns, int, int]:
    """One that is cut into its elements."""
    about: Columns = {1: [4], 2: names_of(1), 3: [0], 4: b"", 5: [1], 6: [1], 7: [count], 8: [count], 9: [0]}
    return about | chunks_of(count), 1, count


def files_of(count: int) -> tuple[Columns, int, int]:
    return {32: ends_of(count), 33: names_of(count), 34: [9] * count, 35: bytes(16 * count)}, count, 0


HOSTILE: dict[str, tuple[Columns, int, int]] = {
    "files": files_of(5000),
    "items": items_of(5000),
    "what is said of items": items_of(500, b'{"_":[[],[],[],[],[],[],[],[],[],[],[]]}'),
    "chunks": tensor_of(16_000),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_part_takes_stored_bytes_for_all_that_it_has(tmp_path: Path, what: str) -> None:
    columns, rows, chunks = HOSTILE[what]
    raw = pack_columns(columns, rows, chunks)

    def checkpoint(name: str, packed: bytes) -> Path:
        small = [(pack_columns(*few), few) for few in (files_of(1), items_of(1))]
        both = [(part_frame(data), data) for data, _ in small]
        both[what != "files"] = packed, raw
        entries = [entry_of(stored_, len(data)) for stored_, data in both]
        last = f"{rows - 1 if what != 'files' else 0:04}"
        band = {"first": "0000", "last": last, "items": rows if what != "files" else 1, "parts": entries[1:]}
        root = ROOT | {"files": entries[:1], "items": [band]}
        return written(tmp_path / name, frame_of(json.dumps(root).encode()), b"".join(each for each, _ in both))

    enough = part_frame(raw)
    assert len(Checkpoint(checkpoint("enough", enough))) == (1 if what == "files" else rows)
    fewer = compress_to(raw, len(enough) * 3 // 4)
    assert len(fewer) < len(enough)
    with pytest.raises(MetadataError, match=r"more than a writer puts|the size of a part"):
        [*Checkpoint(checkpoint("fewer", fewer)).values()]


def test_parts_together_have_a_greatest_size(tmp_path: Path) -> None:
    """Each has what readers ignore, 4 MiB of zeros."""
    columns, _, _ = items_of(1)
    raw = pack_columns(columns | {200: bytes(4 * MIB - 1000)}, 1, 1)
    file = pack_columns(*files_of(1))
    for count, fits in (2, True), (3, False):
        names = [f"{number}000" for number in range(count)]
        each = [pack_columns(columns | {2: name.encode(), 200: bytes(4 * MIB - 1000)}, 1, 1) for name in names]
        packed = [part_frame(data) for data in (file, *each)]
        entries = [entry_of(stored_, len(data)) for stored_, data in zip(packed, (file, *each), strict=True)]
        bands = [{"first": n, "last": n, "items": 1, "parts": [e]} for n, e in zip(names, entries[1:], strict=True)]
        root = ROOT | {"files": entries[:1], "items": bands}
        path = written(tmp_path / str(count), frame_of(json.dumps(root).encode()), b"".join(packed))
        assert count * len(raw) < 13 * MIB
        if fits:
            assert len(Checkpoint(path)) == count
        else:
            with pytest.raises(MetadataError, match="more than they can hold"):
                Checkpoint(path)


@pytest.mark.parametrize("size", [0, 1, 1000, 2**17, 2**17 + 1, MIB])
@pytest.mark.parametrize("least", [0, 100, 5000, 2**16, 2**18, 2 * MIB])
def test_a_frame_may_be_longer_than_what_it_has_would_take(size: int, least: int) -> None:
    data = (b"0123456789" * (size // 10 + 1))[:size]
    frame = compress_to(data, least)
    assert decompress(memoryview(frame), size) == data
    assert least <= len(frame) <= least + 32 or frame in (compress_to(data, 0), stored(data))


GRID = 64


def grids(count: int) -> Index:
    """Tensors that are cut along the second dimension, each in its own way, in bands of many parts."""
    items = {}
    for item in range(1, count + 1):
        places = [Place("a", 0, 1, ("streamxf.zstd/1",), None, GRID * item + at) for at in range(GRID)]
        chunks = tuple(Chunk((0, at * item), (1, item), place, False) for at, place in enumerate(places))
        items[f"w{item:03}"] = TensorItem(f"w{item:03}", "float32", (1, GRID * item), chunks)
    return Index("0" * 32, None, (), (("streamxf.zstd/1",),), {"a": File(9, bytes(16))}, items)


def test_a_band_is_read_once_for_all_its_items() -> None:
    """Also where no part stays in memory."""
    count = 40
    with patch("streamxf.format.index._ROWS", 2 * count):
        root, parts = grids(count).pack()
    with patch.object(parts_module, "_REMEMBERED", (0, 0)):
        table = Index.parse(memoryview(root), lambda at, size: parts[at : at + size], len(parts), lazy=True).items
    assert isinstance(table, ItemTable)
    (band,) = table.parts.bands
    assert len(band.parts) == GRID // 2
    with patch.object(IndexPart, "parse", side_effect=IndexPart.parse) as parse:
        table.check()
    assert parse.call_count <= 3 * len(band.parts)


def test_what_is_as_regular_as_can_be_is_written_so_that_it_is_read() -> None:
    chunks = tuple(Chunk((at,), (1,), Place("a", 0, 1, ("streamxf.zstd/1",), None, at), False) for at in range(40_000))
    items = {"w": TensorItem("w", "float32", (40_000,), chunks)}
    extra = {"a": [[]] * 30_000, "b": "x" * 10**6}
    index = Index("0" * 32, None, (), (("streamxf.zstd/1",),), {"a": File(9, bytes(16))}, items, extra=extra)
    root, parts = index.pack()
    assert Index.parse(memoryview(root), lambda at, size: parts[at : at + size], len(parts)) == index
