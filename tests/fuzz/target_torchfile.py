"""A file of ``torch.save``, by itself and as a tensor of a checkpoint of torch's own: all readers read the same.

`torch.load` comes last, and only for what streamxf accepted; it may refuse that, but must not read anything else.
"""

import io
import pickle
import random
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import zstandard
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

import streamxf
from streamxf.checkpoint.reading import Box
from streamxf.errors import NotAllowedError
from streamxf.format.items import ObjectItem
from streamxf.formats.opening import open_source
from streamxf.storage.opening import open_storage
from tests.archives import behind, join, old_form, redirected, saved, take_apart
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.pickles import change_pickle
from tests.fuzz.target import Havoc, Target
from tests.fuzz.target_checkpoint import loaded_into, scratch_folder

TENSOR = torch.arange(6.0).reshape(2, 3)


def run(data: bytes) -> None:
    folder = scratch_folder()
    (folder / "model.pt").write_bytes(data)
    alone, _ = attempt(lambda: _read(folder / "model.pt"))
    if alone is not None:
        _compare(alone, data, "a file of torch.save")
    for compressed in (False, True):  # what torch compresses can only be read once
        _as_item(data, folder / "checkpoint", compressed)


def _as_item(data: bytes, folder: Path, compressed: bool) -> None:
    _plant(data, folder, compressed)
    loaded, refusal = attempt(lambda: _load(folder))
    report, _ = attempt(lambda: streamxf.verify(folder))
    kept, _ = attempt(lambda: streamxf.load_intact(folder))
    copied, _ = attempt(lambda: _copy(folder))
    # a class that is not known here is no damage, and verify names it
    named = isinstance(refusal, NotAllowedError) and "can be loaded here, which needs" in str(report)
    known = report is None or bool(report.damaged) or loaded is not None or named
    agree(known, "verify finds nothing, and it does not load")
    for found, what in ((kept and kept.state_dict.get("t"), "salvage"), (copied, "transcode")):
        if found is not None:
            agree(loaded is not None and _bits(found) == _bits(loaded), f"{what} gives another tensor than a load")
    if loaded is not None:
        _compare({"": loaded}, data, "an item")


def _compare(found: dict[str, Any], data: bytes, what: str) -> None:
    try:
        torchs = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # of any kind
        return
    theirs = {"": torchs} if "" in found else flatten_state_dict(dict(torchs))[0]
    agree(found.keys() == theirs.keys(), f"torch finds other names in {what}")
    agree(all(_bits(value) == _bits(theirs[name]) for name, value in found.items()), f"torch reads {what} differently")


def _bits(value: Any) -> Any:
    """What must be the same. Other objects are compared by their repr, in which a NaN equals a NaN."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return value.dtype, value.shape, bytes(raw.numpy())


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with open_source(open_storage(path)) as source:
        for name, item in source.stored.items():
            if isinstance(item, ObjectItem):
                found[name] = source.load_object(name)
                continue
            raw = b"".join(part.tobytes() for part in source.read_boxes(Box.of(item)))
            elements = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            found[name] = elements.view(getattr(torch, item.dtype)).reshape(item.shape)
    return found


def _plant(data: bytes, folder: Path, compressed: bool) -> None:
    """A checkpoint of torch's own with this for its only item."""
    extensions = [ZStandard()] if compressed else None
    writer = dcp.FileSystemWriter(folder, sync_files=False, _extensions=extensions)
    dcp.save({"t": TENSOR}, storage_writer=writer, no_dist=True)
    stored = zstandard.compress(data) if compressed else data
    content = pickle.loads((folder / ".metadata").read_bytes())
    (place,) = content.storage_data.values()
    place.offset, place.length = 0, len(stored)
    (folder / ".metadata").write_bytes(pickle.dumps(content))
    (folder / place.relative_path).write_bytes(stored)


def _load(folder: Path) -> torch.Tensor:
    target = {"t": torch.zeros_like(TENSOR)}
    loaded_into(target, folder, None)
    return target["t"]


def _copy(folder: Path) -> torch.Tensor:
    target = folder.with_name("copy")
    streamxf.transcode(folder, target, "", overwrite=True)
    return _load(target)


def seeds() -> Iterable[bytes]:
    yield saved(TENSOR)
    state = {"t": TENSOR, "nested": {"list": [TENSOR[0], 3], "text": "a", "none": None}}
    yield saved(state)
    yield old_form(state)


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change a record, the directory, or what stands before or behind; places and lengths are right again."""
    try:
        return _changed(data, choose, havoc)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, LookupError, struct.error):
        return havoc(data)  # no zip file, or one with a number for which there is no room


def _changed(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    body, entries = take_apart(data)
    contents = {name.partition(b"/")[2].decode(): _content(body, at, size) for name, at, _, size in entries}
    number = choose.randrange(len(entries))
    name, at, crc, size = entries[number]
    record = choose.choice(list(contents))
    match choose.randrange(7):
        case 0:
            return redirected(data, {record: havoc(contents[record])})
        case 1:
            return redirected(data, {"data.pkl": change_pickle(contents["data.pkl"], choose, havoc)})
        case 2:
            entries[number] = (havoc(name), at, crc, size)
        case 3:
            _, at, crc, other = choose.choice(entries)
            entries[number] = (name, at, crc, choose.choice((size, other)))
        case 4:
            entries[number] = (name, choose.randrange(len(body) + 1), crc, choose.choice((size, 0, 2**32 - 1)))
        case 5:
            return behind(choose.choice((old_form(-TENSOR), havoc(b"PK"), b"\x80\x02")), data)
        case _:
            return havoc(data)
    return join(body, entries)


def _content(body: bytes, at: int, size: int) -> bytes:
    start = (
        at + 30 + int.from_bytes(body[at + 26 : at + 28], "little") + int.from_bytes(body[at + 28 : at + 30], "little")
    )
    return body[start : start + size]


TARGET = Target(run, seeds, mutate, max_len=8192)
