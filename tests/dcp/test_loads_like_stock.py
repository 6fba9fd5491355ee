"""Whatever is stored, and whatever it is loaded into: the target holds afterwards, to the last byte, what torch's own
reader makes of torch's own checkpoint, or the same kind of error is raised.
"""

import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

import streamxf
from streamxf.dcp import loader as load_module

from .helpers import raw_bytes
from .test_state_dicts import DTYPES

BLOCK = 1 << 16

# more than one block of two-byte elements, edges inside of rows, dimensions of one and of none
SHAPES = [
    *[(70_001,), (300, 301), (7, 120, 131), (2, 3, 90, 200), (90_000, 1), (1, 90_000), (3, 1, 40_000), (33, 32 * 64)],
    *[(5, 4), (1,), (), (0,), (3, 0, 2)],
]


def values(dtype: torch.dtype, shape: tuple[int, ...], bits: bool) -> torch.Tensor:
    """Noise. Without `bits` they are numbers that every dtype has: what a cast makes of others, and of the bits of a
    NaN, depends on where a vector instruction begins.
    """
    count = math.prod(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    if bits:
        noise = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
        if dtype == torch.complex32:  # a conjugate goes through float32, where vector instructions are not used
            halves = noise.view(torch.int16)
            halves[halves & 0x7C00 == 0x7C00] |= 0x200
        return noise.view(dtype).reshape(shape)
    return torch.randint(0, 2, shape).float().to(dtype)


def dense(
    shape: tuple[int, ...], order: list[int], dtype: torch.dtype, make: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """A tensor whose memory has the dimensions in another order, without gaps."""
    inner = make(dtype, tuple(shape[dim] for dim in order))
    return inner.permute([order.index(dim) for dim in range(len(shape))])


LAYOUTS = [
    *("contiguous", "contiguous", "permuted", "channels last", "offset", "steps", "rows of a wider one"),
    *("conj", "neg", "expanded", "windows", "parameter", "leaf"),
]


def laid_out(kind: str, dtype: torch.dtype, shape: tuple[int, ...], make: Callable[..., torch.Tensor]) -> torch.Tensor:
    """A tensor of a shape in memory of some layout; contiguous where the layout makes no sense."""
    if kind == "permuted":
        return dense(shape, list(range(len(shape)))[::-1], dtype, make)
    if kind == "channels last" and len(shape) == 4:
        return dense(shape, [0, 2, 3, 1], dtype, make)
    if kind == "offset":
        return make(dtype, (math.prod(shape) + 7,))[5 : 5 + math.prod(shape)].view(shape)
    if kind == "steps" and shape:
        return make(dtype, (*shape[:-1], 2 * shape[-1]))[..., ::2]
    if kind == "rows of a wider one" and len(shape) > 1:
        return make(dtype, (shape[0], shape[1] + 3, *shape[2:]))[:, 1 : shape[1] + 1]
    if kind == "conj" and dtype.is_complex:
        return make(dtype, shape).conj()
    if kind == "neg" and dtype in (torch.float32, torch.float64):
        complex_dtype = torch.complex64 if dtype == torch.float32 else torch.complex128
        return make(complex_dtype, shape).conj().imag
    if kind == "expanded" and shape:
        return make(dtype, (*shape[:-1], 1)).expand(shape)
    if kind == "windows" and len(shape) == 2 and shape[0]:
        return torch.as_strided(make(dtype, (sum(shape) + 1,)), shape, (1, 1))
    tensor = make(dtype, shape)
    if kind in ("parameter", "leaf") and (dtype.is_floating_point or dtype.is_complex):
        return torch.nn.Parameter(tensor) if kind == "parameter" else tensor.requires_grad_()
    return tensor


class Into(LoadPlanner):
    """Loads boxes of one tensor into given targets."""

    def __init__(self, targets: list[torch.Tensor]) -> None:
        self.targets = targets
        self.committed: list[int] = []

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.targets[read_item.dest_index.index]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self.committed.append(read_item.dest_index.index)

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None: ...
    def create_local_plan(self) -> Any: ...
    def create_global_plan(self, global_plan: Any) -> Any: ...
    def finish_plan(self, central_plan: Any) -> Any: ...
    def load_bytes(self, read_item: ReadItem, value: Any) -> None: ...


Boxes = list[tuple[tuple[int, ...], tuple[int, ...]]]


def read_items(index: MetadataIndex, boxes: Boxes) -> list[ReadItem]:
    """What a planner asks for boxes of one tensor, each for a target of its own."""
    return [
        ReadItem(
            LoadItemType.TENSOR,
            MetadataIndex("t", index=number),
            torch.Size([0] * len(offsets)),
            index,
            torch.Size(offsets),
            torch.Size(lengths),
        )
        for number, (offsets, lengths) in enumerate(boxes)
    ]


def read(reader: Any, boxes: Boxes, targets: list[torch.Tensor]) -> type[BaseException] | None:
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    (index,) = metadata.storage_data
    planner = Into(targets)
    try:
        reader.read_data(LoadPlan(read_items(index, boxes)), planner)
    except Exception as error:
        return type(error)
    assert sorted(planner.committed) == list(range(len(boxes)))
    return None


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the storage, with what lies around the tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())


def check(
    stored: torch.Tensor, boxes: Boxes, kinds: list[str], dtype: torch.dtype, chain: list[Any], inline: int
) -> None:
    def target(kind: str, lengths: tuple[int, ...]) -> torch.Tensor:
        return laid_out(kind, dtype, lengths, lambda dtype, shape: values(dtype, shape, True))

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex numbers that lose their imaginary part
        patch.setattr(load_module, "INLINE_BYTES", inline)
        stock, own = Path(name, "stock"), Path(name, "own")
        dcp.save({"t": stored}, storage_writer=dcp.FileSystemWriter(stock, sync_files=False))
        dcp.save(
            {"t": stored},
            storage_writer=streamxf.FileSystemWriter(own, _extensions=chain, sync_files=False, block_size=BLOCK),
        )
        ours = [target(kind, lengths) for kind, (_, lengths) in zip(kinds, boxes, strict=True)]
        theirs = [deep_copy(tensor) for tensor in ours]
        versions = [tensor._version for tensor in ours]
        wanted = read(dcp.FileSystemReader(stock), boxes, theirs)
        assert read(streamxf.FileSystemReader(own), boxes, ours) == wanted
        if wanted is not None:
            return
        for number, (found, right) in enumerate(zip(ours, theirs, strict=True)):
            if found.ndim == 2 and kinds[number] == "windows":
                offsets, lengths = boxes[number]
                box = tuple(slice(begin, begin + size) for begin, size in zip(offsets, lengths, strict=True))
                check_windows(found, stored.detach()[box].to(dtype))
            else:
                assert torch.equal(memory_of(found), memory_of(right)), (number, kinds[number])
            # autograd must see that something it may have kept was written to
            assert found._version > versions[number] or not found.numel()


def check_windows(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Several elements share a place, and torch copies in whatever order its threads take: any of them may stay."""
    rows, columns = found.shape
    same = (raw_bytes(found) == raw_bytes(wanted)).reshape(rows, columns, -1).all(dim=2)
    place = torch.arange(rows)[:, None] + torch.arange(columns)
    assert torch.equal(place[same].unique(), place.unique())


def deep_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same view of a copy of the same storage."""
    storage = memory_of(tensor).clone().untyped_storage()
    plain = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        plain = plain.conj()
    return torch._neg_view(plain) if tensor.is_neg() else plain.requires_grad_(tensor.requires_grad)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The whole, a part along the first dimension, or any box."""
    how = draw(st.sampled_from(["whole", "rows", "any"]))
    offsets, lengths = [], []
    for dim, size in enumerate(shape):
        if how == "whole" or (how == "rows" and dim) or not size:
            begin, end = 0, size
        else:
            begin = draw(st.integers(0, size - 1))
            end = draw(st.integers(begin + 1, size))
        offsets.append(begin)
        lengths.append(end - begin)
    return tuple(offsets), tuple(lengths)


CHAINS = [[streamxf.ZStandard(level=1)], [streamxf.Checksum()], [streamxf.FloatZip()]]


@given(data=st.data())
@settings(settings.get_profile("disk"))
def test_any_box_of_any_tensor_into_any_target(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES), "shape")
    dtype = data.draw(st.sampled_from(DTYPES), "stored dtype")
    cast = data.draw(st.booleans(), "cast")
    target_dtype = data.draw(st.sampled_from(DTYPES), "target dtype") if cast else dtype
    kind = data.draw(st.sampled_from(LAYOUTS), "stored layout")
    stored = laid_out(kind, dtype, shape, lambda dtype, shape: values(dtype, shape, target_dtype == dtype))
    boxes = data.draw(st.lists(boxes_in(shape), min_size=1, max_size=3), "boxes")
    kinds = [data.draw(st.sampled_from(LAYOUTS), "target layout") for _ in boxes]
    chain = data.draw(st.sampled_from(CHAINS), "chain")
    inline = data.draw(st.sampled_from([0, load_module.INLINE_BYTES]), "inline")
    check(stored, boxes, kinds, target_dtype, chain, inline)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["contiguous", "permuted", "steps"])
def test_every_dtype_in_place_and_by_pieces(dtype: torch.dtype, kind: str) -> None:
    stored = values(dtype, (300, 301), True)
    boxes: Boxes = [((0, 0), (300, 301)), ((7, 0), (200, 301)), ((1, 2), (290, 280))]
    check(stored, boxes, [kind] * 3, dtype, CHAINS[0], 0)


@pytest.mark.parametrize("kind", sorted(set(LAYOUTS)))
@pytest.mark.parametrize("stored_kind", ["contiguous", "permuted", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_every_layout_into_every_layout(kind: str, stored_kind: str, dtype: torch.dtype) -> None:
    shape = (3, 5, 40, 60)
    stored = laid_out(stored_kind, dtype, shape, lambda dtype, shape: values(dtype, shape, True))
    boxes: Boxes = [((0, 0, 0, 0), shape), ((1, 0, 0, 0), (2, 5, 40, 60)), ((0, 1, 3, 7), (3, 3, 30, 50))]
    check(stored, boxes, [kind] * 3, dtype, CHAINS[0], 0)


@pytest.mark.parametrize("stored_kind", ["contiguous", "permuted", "leaf"])
def test_a_part_first_and_then_the_whole(stored_kind: str) -> None:
    """What was decoded to look at the framing serves the next request too, and is compared for it anew."""
    shape = (500, 500)
    stored = laid_out(stored_kind, torch.float32, shape, lambda dtype, shape: values(dtype, shape, True))
    boxes: Boxes = [((3, 0), (400, 500)), ((0, 0), shape), ((0, 0), shape), ((3, 5), (400, 400))]
    check(stored, boxes, ["contiguous", "contiguous", "permuted", "steps"], torch.float32, CHAINS[1], 0)
