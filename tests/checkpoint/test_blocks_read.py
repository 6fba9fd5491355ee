"""Of a part of a tensor, the blocks that hold an element of it are read and decoded, each once, and nothing else but
what says where they are.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import streamxf
from streamxf import Checkpoint, Checksum, Encrypt, FloatZip, Key, ZStandard
from streamxf.errors import ContainerError
from streamxf.format.items import TensorItem
from streamxf.storage import fetch
from streamxf.storage.reading import READ_WHOLE, StoredFile
from streamxf.stream.container import BlockReader
from streamxf.stream.reader import BareBlocks, Blocks
from tests.altered import flipped
from tests.dcp.shards import Shard as SavedShard
from tests.dcp.shards import save_shards
from tests.dcp.test_load_planner import as_rank, grids
from tests.storage.stores import MemoryStorage

KEY = Key(bytes(range(32)))
MIB = 2**20
CHAINS: dict[str, Any] = {
    "plain": [],
    "raw": "raw",
    "zstd": [ZStandard(level=1)],
    "full": [FloatZip(), Checksum(), Encrypt(KEY)],
}
DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.complex128]
_ENDS = 16 * 1024  # bytes of a container that are fetched for its header, and for the end of its table
_FRAME = 1024  # before the elements of a tensor that is stored as torch.save writes it


class Counted(MemoryStorage):
    """Which bytes of data files were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.opened: dict[Any, str] = {}

    def sized(self, name: str, size: int) -> StoredFile:
        file = super().sized(name, size)
        self.opened[file.access] = name
        return file

    def file_of(self, blocks: Any) -> str:
        access = blocks._source._access
        while access not in self.opened:
            access = access._access  # of a reader that measures
        return self.opened[access]

    def read(self, path: str, start: int, stop: int) -> bytes:
        if path.endswith(".distcp"):
            self.asked.append((path, start, stop))
        return super().read(path, start, stop)

    @property
    def bytes_read(self) -> int:
        return sum(stop - start for _, start, stop in self.asked)


def place_of(blocks: Blocks, index: int) -> tuple[int, int]:
    """Where a block stands in its file."""
    assert isinstance(blocks, BlockReader | BareBlocks)
    begin = blocks._begin_of(index) if isinstance(blocks, BlockReader) else index * blocks.block_size
    return blocks._source._offset + begin, blocks._source._offset + begin + blocks.stored_size_of(index)


@contextmanager
def decoded(store: Counted) -> Iterator[Counter[tuple[str, int]]]:
    """The files of blocks that are decoded, where they stand, and how often each is."""
    found: Counter[tuple[str, int]] = Counter()

    def watched(real: Any) -> Any:
        def decoder(self: Any, index: int) -> Any:
            found[store.file_of(self), place_of(self, index)[0]] += 1
            return real(self, index)

        return decoder

    with (
        patch.object(BlockReader, "decoder", watched(BlockReader.decoder)),
        patch.object(BareBlocks, "decoder", watched(BareBlocks.decoder)),
    ):
        yield found


def needed_of(checkpoint: Checkpoint, name: str, mask: Any) -> dict[tuple[str, int], int]:
    """The blocks that hold an element where `mask` is true: the file of each, its place there, and its stored size. A
    small item is read whole.
    """
    item: Any = checkpoint.stored[name]
    found = {}
    for chunk in item.chunks:
        wanted = part_of(chunk, mask)
        if wanted.any() and chunk.place.size <= READ_WHOLE:
            found[chunk.place.file, chunk.place.at] = chunk.place.size
        elif wanted.any():
            elements = checkpoint.elements(item, chunk)
            places = elements.origin + np.flatnonzero(wanted.reshape(-1)) * elements.itemsize
            for index in np.unique(places // elements.blocks.block_size).tolist():
                start, stop = place_of(elements.blocks, index)
                found[chunk.place.file, start] = stop - start
    return found


def may_be_read(
    checkpoint: Checkpoint, item: TensorItem, needed: dict[tuple[str, int], int], mask: Any
) -> dict[str, Any]:
    """By file, the bytes that a read may touch: the blocks, what says where they are, and gaps between these that no
    request is worth.
    """
    allowed = {file: np.zeros(size or 0, bool) for file, size in checkpoint.storage.names().items()}
    for (file, start), size in needed.items():
        allowed[file][start : start + size] = True
    for chunk in item.chunks:
        place = chunk.place
        if any(place.at <= start < place.at + place.size for file, start in needed if file == place.file):
            head, tail = (_ENDS, _ENDS) if place.chain else (_FRAME, 0)
            if part_of(chunk, mask).all():  # it is fetched as it is
                head = place.size
            allowed[place.file][place.at : place.at + min(place.size, head)] = True
            allowed[place.file][place.at + max(0, place.size - tail) : place.at + place.size] = True
        elif 0 in chunk.shape and mask.all():  # nothing else would look at it
            allowed[place.file][place.at : place.at + place.size] = True
    for marked in allowed.values():
        edges = np.flatnonzero(np.diff(marked.astype("i1"), prepend=0, append=0)).reshape(-1, 2)
        for (_, end), (begin, _) in itertools.pairwise(edges):
            if begin - end <= fetch._GAP:
                marked[end:begin] = True
    return allowed


def part_of(chunk: Any, mask: Any) -> Any:
    return mask[tuple(slice(at, at + size) for at, size in zip(chunk.offset, chunk.shape, strict=True))]


def check_read(store: Counted, found: Counter[tuple[str, int]], checkpoint: Checkpoint, mask: Any) -> None:
    asked = [*store.asked]
    needed, item = needed_of(checkpoint, "w", mask), checkpoint.stored["w"]
    assert isinstance(item, TensorItem)
    small = [chunk.place for chunk in item.chunks if chunk.place.size <= READ_WHOLE]
    for place in small:
        for file, start in [*found, *needed]:
            if file == place.file and place.at <= start < place.at + place.size:
                del found[file, start]
                needed.pop((file, start), None)
    assert found == Counter([*needed]), "other blocks were decoded than are needed, or one twice"
    allowed = may_be_read(checkpoint, item, needed_of(checkpoint, "w", mask), mask)
    for file, start, stop in asked:
        assert allowed[file][start:stop].all(), f"{file} from {start} to {stop}"


# -- any boxes -----------------------------------------------------------------------------------------------------


@st.composite
def saved(draw: st.DrawFn) -> tuple[str, int, torch.Tensor, list[Any]]:
    """A chain, the size of its blocks, and a tensor of some blocks in some shards."""
    chain, block_log2 = draw(st.sampled_from(sorted(CHAINS))), draw(st.sampled_from([16, 17]))
    dtype = draw(st.sampled_from(DTYPES))
    block = MIB if chain in ("plain", "raw") else 2**block_log2
    total = max(1, int(block * draw(st.floats(0, 8)) / dtype.itemsize))
    outer = tuple(draw(st.lists(st.one_of(st.integers(1, 4), st.integers(1, 40)), max_size=2)))
    shape = (*outer, -(-total // math.prod(outer)))
    values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 100, shape, np.uint8)
    return chain, block_log2, torch.from_numpy(values).to(dtype), draw(grids(shape))


@st.composite
def ranges(draw: st.DrawFn, size: int) -> slice:
    begin = draw(st.integers(0, size))
    step = draw(st.one_of(st.just(1), st.integers(1, max(2, size)), st.just(10**30)))
    return slice(begin, draw(st.integers(begin, size)), step)


def save(chain: str, block_log2: int, tensor: torch.Tensor, boxes: list[Any]) -> Counted:
    store = Counted()
    shards = [
        SavedShard(
            tensor[tuple(slice(at, at + size) for at, size in zip(*box, strict=True))].clone(), box[0], (*tensor.shape,)
        )
        for box in boxes
    ]
    save_shards(store, [{"w": shard} for shard in shards], lambda: CHAINS[chain], block_size=2**block_log2)
    return store


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and torch.equal(found, wanted)


@given(saved(), st.data())
@settings(settings.get_profile("disk"))
def test_a_slice_reads_its_blocks(found: tuple[str, int, torch.Tensor, list[Any]], data: st.DataObject) -> None:
    chain, block_log2, tensor, boxes = found
    store = save(chain, block_log2, tensor, boxes)
    keys = KEY if chain == "full" else None
    check_slice(
        store,
        tensor,
        keys,
        tuple(data.draw(st.one_of(ranges(size), st.integers(0, size - 1))) for size in tensor.shape),
    )


def check_slice(store: Counted, tensor: torch.Tensor, keys: Any, key: tuple[Any, ...]) -> None:
    with Checkpoint(store, keys=keys) as aside, Checkpoint(store, keys=keys) as checkpoint:
        mask = np.zeros(tensor.shape, bool)
        mask[key] = True
        store.asked.clear()
        with decoded(store) as counts:
            read = checkpoint["w"][key]
        fits = (slice(k.start, k.stop, min(k.step or 1, 2**40)) if isinstance(k, slice) else k for k in key)
        assert same(read, tensor[tuple(fits)])
        check_read(store, counts, aside, mask)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("key", [np.s_[:, 2], np.s_[::3], np.s_[1:, :1, 1000:1001], np.s_[2:, ::3, ::2]])
def test_blocks_between_those_that_are_needed_are_not_read(chain: str, key: Any) -> None:
    tensor = torch.randn((5, 4, MIB // 8), generator=torch.Generator().manual_seed(0)).bfloat16()
    store = save(chain, 16, tensor, [((0, 0, 0), (2, 4, MIB // 8)), ((2, 0, 0), (3, 4, MIB // 8))])
    keys = key if isinstance(key, tuple) else (key,)
    check_slice(store, tensor, KEY if chain == "full" else None, keys)


PLACEMENTS = st.one_of(st.just(Replicate()), st.integers(0, 2).map(Shard))


@given(saved(), st.data())
@settings(settings.get_profile("disk"))
def test_a_rank_reads_the_blocks_of_its_part(
    found: tuple[str, int, torch.Tensor, list[Any]], data: st.DataObject
) -> None:
    chain, block_log2, tensor, boxes = found
    store = save(chain, block_log2, tensor, boxes)
    keys = KEY if chain == "full" else None
    mesh_shape = data.draw(st.sampled_from([(2,), (3,), (8,), (2, 2), (2, 3)]))
    placements = data.draw(st.lists(PLACEMENTS, min_size=len(mesh_shape), max_size=len(mesh_shape)))
    placements = [each if each.is_replicate() or each.dim < tensor.ndim else Shard(0) for each in placements]
    dtype = data.draw(st.sampled_from([tensor.dtype, torch.complex128]))
    planner = data.draw(st.sampled_from([streamxf.LoadPlanner, DefaultLoadPlanner]))
    with as_rank(data.draw(st.integers(0, math.prod(mesh_shape) - 1)), math.prod(mesh_shape)):
        mesh = init_device_mesh("cpu", mesh_shape)
        lengths, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        part = tuple(slice(at, at + size) for at, size in zip(offset, lengths, strict=True))
        local = torch.full(lengths, 111, dtype=dtype)
        state = {
            "w": DTensor.from_local(
                local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
            )
        }
        mask = np.zeros(tensor.shape, bool)
        mask[part] = True
        store.asked.clear()
        with decoded(store) as counts:
            dcp.load(state, storage_reader=streamxf.FileSystemReader(store, keys=keys), planner=planner(), no_dist=True)
    assert same(state["w"].to_local(), tensor[part].to(dtype))
    with Checkpoint(store, keys=keys) as aside:
        check_read(store, counts, aside, mask)


def test_a_frame_that_is_not_as_it_was_written_is_not_believed() -> None:
    """What is before the elements is read without the rest of its MiB, and decides where they are."""
    tensor = torch.arange(3 * MIB, dtype=torch.int32).reshape(3, -1)
    store = save("plain", 16, tensor, [((0, 0), (3, MIB))])
    ((path, (data, _)),) = [file for file in store.files.items() if file[0].endswith(".distcp")]
    elements = data.index(bytes(tensor[:1, :64].numpy()))
    for at in range(0, elements, 7):
        store.files[path] = flipped(data, at), 0
        with Checkpoint(store) as checkpoint, pytest.raises(ContainerError):
            checkpoint["w"][2, 100:200]
