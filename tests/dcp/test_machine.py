"""T2: the pickle machine reads what DCP writes as Python does, and accepts nothing that Python reads otherwise."""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streamxf.dcp.metadata.machine import _KNOWN
from streamxf.dcp.metadata.unpickle import load_metadata
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from streamxf.dcp.metadata import records, unpickle
from streamxf.errors import MetadataError

DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
FORMATS = [torch.contiguous_format, torch.channels_last, torch.preserve_format]
INLINE = set(b"\x94jhMK).\x80")

names = st.text(min_size=1, max_size=12)
sizes = st.one_of(st.integers(0, 300), st.integers(0, 2**62))
shapes = st.lists(st.integers(0, 40), max_size=5).map(torch.Size)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | names | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(names | st.integers(0, 9), inner, max_size=4)
        | st.dictionaries(names, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)
paths = st.lists(names | st.integers(0, 50), min_size=1, max_size=5).map(tuple)
properties = st.builds(
    TensorProperties,
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from([torch.strided, torch.sparse_coo]),
    requires_grad=st.booleans(),
    memory_format=st.sampled_from(FORMATS),
    pin_memory=st.booleans(),
)
places = st.builds(
    _StorageInfo,
    relative_path=names,
    offset=sizes,
    length=sizes,
    transform_descriptors=st.none() | st.lists(names, max_size=4),
)


@st.composite
def metadata(draw: st.DrawFn) -> Metadata:
    """Metadata as DCP makes it, with unusual values wherever the types allow them."""
    items: dict[str, Any] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    shared = draw(places)
    for name in draw(st.lists(names, max_size=5, unique=True)):
        if draw(st.booleans()):
            items[name] = BytesStorageMetadata()
            stored[MetadataIndex(name)] = draw(places)
            continue
        shape = draw(shapes)
        count = draw(st.integers(1, 4))
        offsets = [torch.Size([part, *shape[1:]]) if shape else shape for part in range(count)]
        items[name] = TensorStorageMetadata(
            draw(properties), shape, [ChunkStorageMetadata(offset, shape) for offset in offsets]
        )
        for number, offset in enumerate(offsets):
            stored[MetadataIndex(name, offset, draw(st.none() | st.just(number)))] = shared
    meta = st.builds(StorageMeta, checkpoint_id=st.none() | names, save_id=st.none() | names, modules=st.lists(names))
    # a table of tuples would be taken for DCP's paths, which are not just anything
    data = draw(plain.map(lambda value: [value]) | st.dictionaries(names, paths, max_size=5))
    return Metadata(items, data, stored, draw(st.none() | meta), draw(st.none() | names))


PICKLERS: dict[str, Callable[[Any, int], bytes]] = {"C": pickle.dumps, "Python": pickle._dumps}  # type: ignore[attr-defined]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("pickler", PICKLERS)
@given(content=metadata())
@settings(deadline=None)
def test_any_metadata_comes_back_as_python_would_read_it(pickler: str, protocol: int, content: Metadata) -> None:
    pickled = PICKLERS[pickler](content, protocol)
    if b"_codecs\nencode" in pickled or b"__builtin__\nbytes" in pickled:  # protocol 2 has no bytes objects
        with pytest.raises(MetadataError, match=r"_codecs\.encode|__builtin__\.bytes"):
            load_metadata(memoryview(pickled))
        return
    found = load_metadata(memoryview(pickled))
    assert found == pickle.loads(pickled) == content
    assert vars(found).keys() == vars(content).keys()
    for index, wanted in zip(found.storage_data, content.storage_data, strict=True):
        assert (index, index.index) == (wanted, wanted.index)


def real_pickle(protocol: int = 4) -> bytes:
    size = torch.Size([4, 3])
    chunks = [ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([2, 3])) for row in (0, 2)]
    items: dict[str, Any] = {
        "weight": TensorStorageMetadata(TensorProperties(torch.bfloat16), size, chunks),
        "scalar": TensorStorageMetadata(
            TensorProperties(), torch.Size([]), [ChunkStorageMetadata(torch.Size([]), torch.Size([]))]
        ),
        "step": BytesStorageMetadata(),
    }
    data = {"weight": ("weight",), "scalar": ("list", 0), "step": ("a", "b", 3, "c")}
    stored = {
        MetadataIndex("weight", chunk.offsets, number): _StorageInfo("a.distcp", 2**33 * number, 70_000, ["x/1"])
        for number, chunk in enumerate(chunks)
    }
    stored[MetadataIndex("scalar", torch.Size([]))] = _StorageInfo("a.distcp", 5, 300)
    stored[MetadataIndex("step")] = _StorageInfo("b.distcp", 0, 12, None)
    return pickle.dumps(Metadata(items, data, stored, StorageMeta(Path("/tmp/x")), "1.0.0"), protocol)


def wide_pickle() -> bytes:
    """With more than 256 memorised objects, and more than one batch of a table."""
    stored = {MetadataIndex(f"item {number}"): _StorageInfo("a", number, 1) for number in range(1100)}
    return pickle.dumps(Metadata({index.fqn: BytesStorageMetadata() for index in stored}, None, stored))


class _AsPython(pickle.Unpickler):
    """Python's unpickler, which takes nothing but what belongs into metadata."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "torch",
            "torch.serialization",
            "pathlib",
            "collections",
            dcp_metadata.__name__,
            _StorageInfo.__module__,
        }
        if module not in known or name.startswith("__"):
            raise pickle.UnpicklingError(name)
        return super().find_class(module, name)


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_is_accepted_of_altered_metadata_python_reads_alike(protocol: int) -> None:
    """Every byte of a real pickle, exchanged for every opcode and some other bytes."""
    pickled = real_pickle(protocol)
    others = bytes(_KNOWN) + b"\x94jhMK).\x80\x00\x01\x7f\xff"
    accepted = refused = 0
    frame = range(3, 11) if protocol == 4 else ()  # its length says how much Python reads at once, and nothing else
    for position in sorted(set(range(len(pickled))).difference(frame)):
        for other in others[position % 3 :: 3]:
            altered = pickled[:position] + bytes([other]) + pickled[position + 1 :]
            try:
                found = load_metadata(memoryview(altered))
            except MetadataError:
                refused += 1
                continue
            accepted += 1
            expected = _AsPython(io.BytesIO(altered)).load()
            expected.storage_meta.checkpoint_id = found.storage_meta.checkpoint_id
            vars(expected.storage_meta).setdefault("modules", [])  # one whose name was altered; here it has its default
            assert repr(found) == repr(expected), position
    assert accepted > 100
    assert refused > 5 * accepted


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_cut_is_refused(protocol: int) -> None:
    pickled = real_pickle(protocol)
    load_metadata(memoryview(pickled))
    for end in range(len(pickled)):
        with pytest.raises(MetadataError):
            load_metadata(memoryview(pickled)[:end])
    with pytest.raises(MetadataError, match="something follows"):
        load_metadata(memoryview(pickled + b"."))


def test_the_machine_steps_where_pickletools_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LEARN_AFTER", 10**9)  # opcode by opcode
    for pickled in (*map(real_pickle, (2, 3, 4, 5)), wide_pickle()):
        seen: set[int] = set()

        class Watching(bytes):
            def __getitem__(self, key: Any, seen: set[int] = seen) -> Any:
                seen.add(key if type(key) is int else key.start)
                return super().__getitem__(key)

        monkeypatch.setattr(unpickle, "bytes", Watching, raising=False)
        load_metadata(memoryview(pickled))
        opcodes = {position for _, _, position in pickletools.genops(pickled)}
        assert opcodes <= seen


def test_real_writers_need_every_opcode_but_few() -> None:
    """What the machine knows is what DCP's metadata is made of."""
    used: set[int] = set()
    values = [1.5, -3, b"x", b"x" * 300, "x" * 300, [1], (1, 2, 3), {1: 2}, True]
    for protocol in (2, 3, 4, 5):
        for pickled in (real_pickle(protocol), wide_pickle(), pickle.dumps(values, protocol)):
            used |= {ord(op.code) for op, _, _ in pickletools.genops(pickled)}
    used |= {ord("a"), ord("s"), ord("r")}
    assert set(_KNOWN) | INLINE <= used | {0x80}


@pytest.mark.parametrize("code", sorted(set(range(256)) - set(_KNOWN) - INLINE))
def test_other_opcodes_are_refused(code: int) -> None:
    with pytest.raises(MetadataError, match=f"opcode {code:#04x} at 2"):
        load_metadata(memoryview(b"\x80\x04" + bytes([code]) + b"\0" * 16 + b"."))


def test_paths_become_texts() -> None:
    for path in (Path("/a/b"), PurePosixPath("a/b"), Path("/")):
        content = Metadata({}, None, {}, StorageMeta(path))
        assert load_metadata(memoryview(pickle.dumps(content))).storage_meta.checkpoint_id == str(path)
    with pytest.raises(MetadataError, match="a path that is no text"):
        load_metadata(memoryview(pickle.dumps(Metadata({}, None, {}, StorageMeta(Path("/" + "a" * 70_000))))))


def test_the_garbage_collector_is_left_as_it_was() -> None:
    for wanted in (True, False, True):
        (gc.enable if wanted else gc.disable)()
        load_metadata(memoryview(real_pickle()))
        with pytest.raises(MetadataError):
            load_metadata(memoryview(b"\x80\x04?"))
        assert gc.isenabled() is wanted


def test_names_are_told_in_characters_that_do_nothing_to_a_terminal() -> None:
    with pytest.raises(MetadataError, match=r"wants os\\x1b\[2J\.\\ud800, which"):
        load_metadata(memoryview(b"\x80\x04\x8c\x06os\x1b[2J\x8c\x03\xed\xa0\x80\x93."))
