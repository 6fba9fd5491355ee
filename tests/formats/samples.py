"""State dicts, written in every format."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan

import streamxf
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.reading import Box, BoxReader
from streamxf.format.items import TensorItem
from streamxf.formats import opening
from streamxf.formats.contents import Contents
from streamxf.formats.opening import Source
from streamxf.storage.opening import open_storage
from tests.dcp.helpers import KEY, noise, save
from tests.dcp.shards import Planner, rows, save_shards

FLOATS = "float16 bfloat16 float32 float64 complex64"
FP8 = "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
INTEGERS = "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64"
DTYPES = [getattr(torch, name) for name in f"{FLOATS} {FP8} {INTEGERS}".split()]

State = dict[str, torch.Tensor]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any dtype; 0-d, empty and large ones, and views."""
    torch.manual_seed(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(
        st.one_of(
            st.lists(st.integers(0, 7), max_size=4),
            st.sampled_from([[70_000], [300, 257], [3, 40_000], [1, 1, 99_000]]),
        )
    )
    tensor = noise(dtype, *shape)
    match draw(st.sampled_from(["plain", "permuted", "cut", "expanded"])):
        case "permuted" if tensor.ndim > 1:
            return tensor.permute(draw(st.permutations(range(tensor.ndim))))
        case "cut" if tensor.ndim and tensor.shape[0] > 2:
            return tensor[1:-1:2]
        case "expanded":
            return tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


def states() -> st.SearchStrategy[State]:
    names = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=8)
    return st.dictionaries(names, tensors(), min_size=1, max_size=4)


@st.composite
def boxes(draw: st.DrawFn, item: TensorItem) -> Box:
    offset = [draw(st.integers(0, size)) for size in item.shape]
    lengths = [draw(st.integers(0, size - at)) for at, size in zip(offset, item.shape, strict=True)]
    return Box(item, tuple(offset), tuple(lengths))


def part_of(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    for dim, (start, length) in enumerate(zip(box.offset, box.lengths, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor


# -- reading ---------------------------------------------------------------------------------------


def open_at(path: Path | str, *, listing: bool = False, **access: Any) -> Source:
    """Open a checkpoint of any format; `access` as `Access.of` takes it."""
    return opening.open_source(open_storage(path), Access.of(**access), listing=listing)


def contents_at(path: Path | str, **access: Any) -> Contents:
    with open_at(path, listing=True, **access) as source:
        return opening.contents_of(source)


def tensor_item(reader: BoxReader, name: str) -> TensorItem:
    item = reader.stored[name]
    assert isinstance(item, TensorItem)
    return item


def as_tensor(array: Any, item: TensorItem) -> torch.Tensor:
    """What a box was read as, with the item's dtype."""
    dtype: torch.dtype = getattr(torch, item.dtype)
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    assert array.flags.c_contiguous
    return torch.from_numpy(array.reshape(-1).view("u1")).view(dtype).view(array.shape)


def read_boxes(reader: BoxReader, boxes: Iterable[Box]) -> Iterator[torch.Tensor]:
    """`BoxReader.read_boxes` as tensors."""
    kept = list(boxes)
    for box, array in zip(kept, reader.read_boxes(kept), strict=True):
        yield as_tensor(array, box.item)


def whole(reader: BoxReader, name: str) -> torch.Tensor:
    """A tensor, read in one box."""
    item = tensor_item(reader, name)
    (found,) = read_boxes(reader, [Box(item, (0,) * len(item.shape), item.shape)])
    return found


def in_pieces(reader: BoxReader, name: str, limit: int) -> torch.Tensor:
    """A tensor, read in boxes of `limit` bytes."""
    item = tensor_item(reader, name)
    found = [part.reshape(-1) for part in read_boxes(reader, Box.of(item, limit))]
    return torch.cat([torch.empty(0, dtype=getattr(torch, item.dtype)), *found]).reshape(item.shape)


# -- writers ---------------------------------------------------------------------------------------


def _sharded(state: State, path: Path, stem: str, suffix: str, write: Callable[[Any, Path], Any]) -> None:
    path.mkdir()
    placed: dict[str, str] = {}
    for number, name in enumerate(state):
        placed[name] = f"{stem}-{number % 2}{suffix}"
        if number < 2:
            write(dict(list(state.items())[number::2]), path / placed[name])
    index = {"metadata": {"total_size": 3}, "weight_map": placed}
    (path / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text("{}")


def through_torchs_writer(state: State, path: Path) -> None:
    chain = [streamxf.ZStandard(level=1), streamxf.Checksum()]
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=False, _extensions=chain))


def bare(state: State, path: Path) -> None:
    save(state, path, [])


def compressed(state: State, path: Path) -> None:
    save(state, path, [streamxf.FloatZip()], block_size=1 << 16)


def encrypted(state: State, path: Path) -> None:
    save(state, path)


def sharded(state: State, path: Path) -> None:
    save_shards(path, _cut(state), lambda: [streamxf.ZStandard(level=1)])


def _cut(state: State, ranks: int = 3) -> list[dict[str, Any]]:
    """By rows, where there are enough; other tensors are on the first rank."""
    states: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for name, tensor in state.items():
        if tensor.ndim and len(tensor.chunk(ranks)) == ranks and tensor.numel():
            for rank, part in enumerate(states):
                part[name] = rows(tensor, rank, ranks)
        else:
            states[0][name] = tensor
    return states


def contiguous(state: State) -> State:
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


WRITERS: dict[str, Callable[[State, Path], None]] = {
    "safetensors": lambda state, path: save_file(contiguous(state), path),
    "torch.save": lambda state, path: torch.save(state, path),
    "Hugging Face": lambda state, path: _sharded(contiguous(state), path, "model", ".safetensors", save_file),
    "Hugging Face .bin": lambda state, path: _sharded(state, path, "pytorch_model", ".bin", torch.save),
    "stock": lambda state, path: dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=False)),
    "stock with a chain": through_torchs_writer,
    "no chain": bare,
    "compressed": compressed,
    "encrypted": encrypted,
    "sharded": sharded,
    "rank-local": lambda state, path: save_shards(path, _cut(state), use_collectives=False),
}


def keys_of(kind: str) -> dict[str, Any]:
    """What opening a checkpoint of this kind takes."""
    return {"keys": KEY} if kind == "encrypted" else {}


def written(kind: str, state: State, folder: Path) -> Path:
    """A checkpoint of a kind in a folder, where it gets a name of its own."""
    path = folder / f"checkpoint{'.safetensors' if kind == 'safetensors' else ''}"
    WRITERS[kind](state, path)
    return path


def by_dcp(writer: Callable[[], Any], states: Sequence[dict[str, Any]]) -> None:
    """A checkpoint of several ranks by a writer of torch's."""
    writers, planners = [writer() for _ in states], [Planner() for _ in states]
    plans = []
    for rank, (each, planner, state) in enumerate(zip(writers, planners, states, strict=True)):
        each.set_up_storage_writer(rank == 0)
        planner.set_up_planner(state, each.storage_meta(), rank == 0)
        plans.append(each.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = create_default_global_save_plan(plans)
    metadata.planner_data = {name: at for planner in planners for name, at in planner.mappings.items()}
    plans = writers[0].prepare_global_plan(plans)
    written = zip(writers, planners, plans, strict=True)
    writers[0].finish(
        metadata, [each.write_data(planner.finish_plan(plan), planner).wait() for each, planner, plan in written]
    )
