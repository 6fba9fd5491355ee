"""A sample of the rows through `streamxf.salvage`: it returns what was saved or nothing, and raises a typed error."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import zstandard

import streamxf
from tests.altered import flipped
from tests.forge import frame_of, identity_of, split_metadata, take_container_apart

from .rows import Row, six
from .targets import Checkpoint, content

ROW = "salvage"
MEBIBYTES = 64
RIGHT = "right"


def state() -> dict[str, Any]:
    return {"w": torch.arange(12.0).reshape(4, 3), "obj": "a small object", "last": torch.ones(3)}


def flips(whole: bytes, but: set[int] = frozenset()) -> Iterator[tuple[int, bytes]]:
    for at in range(len(whole)):
        if at not in but:
            yield 8 * at + at % 8, flipped(whole, at, 1 << at % 8)


def salvaged(target: Checkpoint, *, judge: bool = True, **options: Any) -> str:
    """`RIGHT`, if all that comes back is; where anybody can write what is right, that it comes back at all."""
    found = streamxf.load_intact(target.folder, keys=target.keys, **options)
    right = dict(target.right)
    for name, value in content({name: found.state_dict.get(name) for name in found.loaded}):
        if judge and right.get(name) != value:
            return f"{name} is wrong"
    return RIGHT


def with_file(target: Checkpoint, file: Path, data: bytes, **options: Any) -> str:
    file.write_bytes(data)
    return salvaged(target, **options)


def test_forged_metadata(row: Row, tmp_path: Path) -> None:
    """Without a key anyone can make it, so values may be anyone's; but errors are typed, and memory is bounded."""
    target = Checkpoint(tmp_path / "checkpoint", state(), keyed=False)
    parts = split_metadata(target.metadata)
    text = zstandard.ZstdDecompressor().decompress(parts.packed_index)
    forged = [parts.change(index=frame_of(altered)) for _, altered in row.share(flips(text), 2)]
    for place, raw in enumerate(parts.raw_parts()):
        forged += [parts.with_part(place, altered) for _, altered in row.share(flips(raw), 2)]
    for number, made in enumerate(forged):
        data = made.pack()
        row.refuse_or_equal(f"{number}", RIGHT, with_file, target, target.metadata_file, data, judge=False)


def test_forged_headers(row: Row, tmp_path: Path) -> None:
    """Offsets, kinds and names of all sorts, with right CRCs, where no metadata contradicts them."""
    target = Checkpoint(tmp_path / "checkpoint", state(), keyed=False)
    target.metadata_file.unlink()
    container = next(container for container in target.containers() if container.name == "w")
    start, stop = target.places["w"]
    parts = take_container_apart(container.intact)
    for value in (*six(0, 64), 2**63 - 1, 2**62, 2**40, 2**31):
        for offset in ((value, 0), (0, value)):
            identity = identity_of("w", 2, "float32", offset, (4, 3), (4, 3), writer=parts.identity[:16])
            data = target.data[:start] + parts.change(identity=identity).container() + target.data[stop:]
            for partial in (False, True) if value < 2**20 else (False,):
                how = {"judge": False, "without_metadata": True, "partial": partial}
                row.refuse_or_equal(f"offset {value}", RIGHT, with_file, target, target.data_file, data, **how)
    for number, altered in islice(flips(container.intact, container.at.crcs), 48, 110):
        data = target.data[:start] + container.mended(altered) + target.data[stop:]
        row.refuse_or_equal(
            f"bit {number}", RIGHT, with_file, target, target.data_file, data, judge=False, without_metadata=True
        )
