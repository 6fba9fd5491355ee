"""`Plan`: the files that a checkpoint becomes, and their layout: tensors' elements, and the bytes around them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import add
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import MetadataError, NotAllowedError, ObjectError, ParameterError, UnsupportedError, shorten
from streamxf.formats.contents import OF_TORCH, SUFFIXES, FileReader, Format, chosen
from streamxf.formats.huggingface import DTYPES, INDEX, TWO_IN_ONE, is_text
from streamxf.reading import BareHeader, Box, BoxReader, Item, Nesting, Path, TensorItem
from streamxf.tools.convert.packed import ITEM, PackedFile, PackManifest, Placed, is_kept, rest_of
from streamxf.tools.nesting import nested, restore_optimizers, say_lost
from streamxf.wording import many, some
from streamxf.writing import torch_file

_WINDOW = 2**20  # bytes that are read at once of the item whose parts are all over the file

SHARD_SIZE = 5 * 10**9
"""Bytes of tensors in a shard of a Hugging Face folder, by default; transformers has the same."""

# Other formats of models and data. Any other suffix is part of a folder's name, as in "llama-3.1".
_MODELS = ".gguf .ggml .llamafile .onnx .h5 .hdf5 .keras .pb .tflite .mlmodel .mlpackage"
_TENSORS = ".npz .npy .msgpack .pkl .pickle .joblib .nemo .mar .ptl .pte .pt2 .engine"
_DATA = ".json .txt .yaml .csv .parquet .arrow .zip .tar .gz .tgz .zst .distcp"
_FOREIGN = frozenset(f"{_MODELS} {_TENSORS} {_DATA}".split())

# The safetensors library sorts tensors by dtype, those with the strictest alignment first, and then by name.
_WIDE = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16")
_NARROW = ("F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8", "F4", "BOOL")
_RANKS = {name: rank for rank, name in enumerate(_WIDE + _NARROW)}
_NAMES = {torch_name: name for name, torch_name in DTYPES.items()}
# How names begin of what jobs save beside a model: accelerate's, Lightning's, the Trainer's and torchtitan's.
BESIDE = re.compile(
    r"(optim|lr_|sched|scaler|rng|random|train(er|ing)?_|loops|callbacks|data_?load|sampler|metric|hparams|hyper_param)"
)
# What optimizers call their tensors, beside counters of steps.
_MOMENTS = re.compile(
    r"(.*\.)?(exp_avg|exp_avg_sq|max_exp_avg_sq|exp_inf|momentum_buffer|square_avg|grad_avg|acc_delta)"
)
# Modules in which torch.compile, FSDP and activation checkpointing wrap others.
_WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_PARALLEL = "module."  # of DistributedDataParallel


class Stretch(NamedTuple):
    """A tensor's elements, from `start` in a file; `order` has its dimensions, the slowest in the file first, and is
    empty for row-major order. It may be the slice of the tensor `whole` that begins at `offset`. Their CRC-32 goes to
    `crcs_at` in the file's other bytes, behind `start`.
    """

    start: int
    item: TensorItem
    order: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    whole: TensorItem | None = None
    crcs_at: tuple[int, ...] = ()

    def boxes(self) -> Iterator[Box]:
        order = self.order or tuple(range(len(self.item.shape)))
        turned = replace(self.item, shape=tuple(self.item.shape[dim] for dim in order))
        places = [order.index(dim) for dim in range(len(order))]
        for box in Box.of(turned):
            offset, lengths = (tuple(sides[place] for place in places) for sides in (box.offset, box.lengths))
            yield Box(self.whole or self.item, tuple(map(add, offset, self.offset)) or offset, lengths)


@dataclass(frozen=True)
class NewFile:
    """A file to write: tensors in the order of their places, and the bytes around them, an item's as uint8.

    - `name`: its path in the checkpoint's folder; of a single file, its name.
    """

    name: str
    runs: Sequence[Stretch]
    rest: bytes | bytearray | TensorItem | None

    @property
    def rest_size(self) -> int:
        return self.rest.size if isinstance(self.rest, TensorItem) else len(self.rest or b"")

    @property
    def size(self) -> int:
        return self.rest_size + sum(run.item.size for run in self.runs)


@dataclass(frozen=True)
class Plan:
    """The files to write, in a folder or a single one, and the items in them; the rest is as in `Unpacked`."""

    files: Sequence[NewFile]
    folder: bool
    items: Collection[Item]
    restored: bool = False
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def format_of_name(name: str) -> Format | None:
    """The format of a name's suffix, or None. Raises UnsupportedError for formats that are not written here."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _FOREIGN:
        raise UnsupportedError(
            f"{suffix} files are not written here: name a target that ends in .safetensors or {', '.join(OF_TORCH)}, "
            "or a folder; with a format given, any name will do",
            file=name,
        )
    return SUFFIXES.get(suffix)


# -- the model among items: its tensors, by its own names ------------------------------------------------------


def model_in(items: Mapping[str, Item]) -> tuple[dict[str, Item], tuple[str, ...], str]:
    """The tensors of the model among items, by their names in it; what was left out, by its beginning; and what stood
    before the names. Raises ParameterError if there is no model, or there may be several.

    A state dict is a dict, so the steps of an item's path before the last say which one it is in.
    """
    tensors = {name: item for name, item in items.items() if isinstance(item, TensorItem)}
    model = {name: path for name, item in tensors.items() if not _is_beside(path := item.path or (name,))}
    deeper = {name: path for name, path in model.items() if len(path) > 1}
    if deeper and not any(tensors[name].shape for name in model.keys() - deeper.keys()):
        model = deeper  # a step or a loss beside a state dict is in none
    depth = 0
    while any(tensors[name].shape for name in model):
        groups = {path[depth] if len(path) > depth + 1 else None for path in model.values()}
        if len(groups) > 1 or None in groups:
            break
        depth += 1
    else:
        raise ParameterError("there are no tensors but those of optimizers and the like")
    if depth == 0 and len(groups) > 1:
        listed = some(sorted(repr("" if step is None else f"{step}.") for step in groups))
        raise ParameterError(f"the model may be in {many(len(groups), 'state dict')}, {listed}: choose one (prefix)")
    named = {name: _WRAPPERS.sub("", ".".join(map(str, path[depth:]))) for name, path in model.items()}
    if all(text.startswith(_PARALLEL) for text in named.values()):
        named = {name: text.removeprefix(_PARALLEL) for name, text in named.items()}
    if len(set(named.values())) < len(named):
        raise ParameterError("two tensors have the same name without those of what wraps the model: leave model out")
    others = (str((item.path or (name,))[0]) for name, item in items.items() if name not in named)
    left = Counter(first.partition(".")[0] for first in others)
    beside = tuple(f"{first} ({many(count, 'item')})" for first, count in left.items())
    prefix = "".join(f"{step}." for step in next(iter(model.values()))[:depth])
    return {text: tensors[name] for name, text in named.items()}, beside, prefix


def _is_beside(path: Path) -> bool:
    steps = path[:-1] if len(path) > 1 else (str(path[0]).partition(".")[0],) if "." in str(path[0]) else ()
    return any(BESIDE.match(str(step)) for step in steps) or _MOMENTS.fullmatch(str(path[-1])) is not None


# -- new files -------------------------------------------------------------------------------------------------


def fresh(
    reader: BoxReader,
    format: Format,
    name: str,
    only: Sequence[str],
    prefix: str,
    shard_size: int,
    *,
    skip_objects: bool,
    manifest: PackManifest | None = None,
    model: bool = False,
) -> Plan:
    """New files of a format with the items that `only` and `prefix` choose, or a single one with the name `name`. If
    `manifest` is a folder with a model, only the model is written; with `model`, only what `model_in` finds.

    Raises ParameterError if no item is chosen, and UnsupportedError if the format has no place for one.
    """
    stored = reader.stored
    if isinstance(reader, Checkpoint):
        names = (each.nesting.in_saved_order(each.items) for each in reader.metadata)
        stored = {name: stored[name] for name in chain.from_iterable(names)}
    items = {shown: item for shown, item in chosen(stored, only, prefix).items() if not is_kept(item.name)}
    left_out: tuple[str, ...] = ()
    if manifest is not None and manifest.is_folder:
        items, left_out = _model_of(manifest, items)
    notes: tuple[str, ...] = ()
    if model:
        items, beside, before = model_in(items)
        left_out += beside
        notes = (f"took the prefix {before!r} off the model's names" if before else "the model's names had no prefix",)
    if not items and (only or prefix):
        raise ParameterError("no item has such a name; streamxf inspect --items lists the names of all")
    tensors = {shown: item for shown, item in items.items() if isinstance(item, TensorItem)}
    if isinstance(reader, Checkpoint):
        whole = {shown: Box(item, (0,) * len(item.shape), item.shape) for shown, item in tensors.items()}
        tensors = {shown: box.item for shown, box in whole.items() if reader.is_plain(box)}
    objects = [shown for shown in items if shown not in tensors]
    if format is Format.TORCH:
        made = ((shown, _make(reader, items[shown], prefix + shown, skip_objects)) for shown in objects)
        values = {shown: value for shown, found in made for value in found}
        refused = [shown for shown in objects if shown not in values]
        items = {shown: item for shown, item in items.items() if shown not in refused}
        file, told = _torch_file(name, reader, items, values, prefix, model, not (only or refused))
        return Plan([file], False, items.values(), left_out=(*refused, *left_out), notes=(*notes, *told))
    if objects and not skip_objects:
        raise UnsupportedError(
            f"{format} has no place for {many(len(objects), 'object')} besides tensors: "
            f"{some(map(shorten, objects))}. Write a .pt file or a DCP checkpoint, choose items (only, prefix), or "
            "leave objects out (skip_objects)"
        )
    metadata = {"format": "pt"}  # without which transformers refuses a file
    if isinstance(reader, FileReader) and reader.contents.format is Format.SAFETENSORS:
        metadata |= reader.contents.extra
    folder = format is Format.HUGGING_FACE
    files = shards(tensors, metadata, shard_size) if folder else [_safetensors_file(name, tensors, metadata)]
    return Plan(files, folder, tensors.values(), left_out=(*objects, *left_out), notes=notes)


def _model_of(manifest: PackManifest, items: Mapping[str, Item]) -> tuple[dict[str, Item], tuple[str, ...]]:
    """The items of the model in a packed folder, or all items if it has none; and the files that have none of them."""
    beside: set[str] = set()
    for path, file in manifest.files.items():
        beside.update(tensor.name for tensor in file.tensors if tensor.name.startswith(f"{path}/"))
    model = {shown: item for shown, item in items.items() if item.name not in beside} or dict(items)
    written = {item.name for item in model.values()}
    left_out = tuple(
        path
        for path, file in manifest.files.items()
        if written.isdisjoint((*(tensor.name for tensor in file.tensors), *file.others))
    )
    return model, left_out


def _make(reader: BoxReader, item: Item, name: str, skip: bool) -> list[Any]:
    """What only its class can make; nothing of what cannot be made here, if that is to `skip`."""
    try:
        if isinstance(reader, Checkpoint) and isinstance(item, TensorItem):
            return [reader.load_tensor(item)]
        return [reader.load_object(name)]
    except (NotAllowedError, ObjectError) as error:
        if skip:
            return []
        said, trusted, _ = error.message.partition(". If you trust it")
        said += "; leave such items out (skip_objects)"
        if isinstance(reader, Checkpoint):
            said += ", or copy all as it is stored, into a DCP checkpoint (format='dcp')"
        if trusted:
            said += f"{trusted}, call torch.serialization.add_safe_globals([...]) and streamxf.unpack in Python"
        raise type(error)(said, file=error.file, item=error.item) from None


def _torch_file(
    name: str, reader: BoxReader, items: Mapping[str, Item], made: dict[str, Any], prefix: str, flat: bool, whole: bool
) -> tuple[NewFile, Sequence[str]]:
    """A ``torch.save`` file, nested by the items' paths unless it is to be `flat`; tensors have storages of their own,
    but for those that are `made`, as objects are. And notes; `whole` says that nothing was left out of a dict.
    """
    tensors = {shown: item for shown, item in items.items() if shown not in made and isinstance(item, TensorItem)}
    paths = {shown: (shown,) if flat else _path(item.path, shown, prefix) for shown, item in items.items()}
    record = _record_of(reader, [(item.path, paths[shown]) for shown, item in items.items()])
    tree = nested({shown: shown for shown in items}, paths, None if flat else record)
    told = [] if flat else [*say_lost(record), *restore_optimizers(tree, made, whole)]
    runs, rest, at = [], [], 0
    parts, crcs_at = torch_file(tree, tensors, made)
    for part in parts:
        if isinstance(part, str):
            runs.append(Stretch(at, tensors[part], crcs_at=crcs_at[part]))
            at += tensors[part].size
        else:
            rest.append(part)
            at += len(part)
    return NewFile(name, runs, bytearray().join(rest)), told


def _record_of(reader: BoxReader, pairs: Sequence[tuple[Path | None, Path]]) -> Nesting:
    """What is recorded of the nesting, for items that go from path to path."""
    records = [each.nesting for each in reader.metadata] if isinstance(reader, Checkpoint) else []
    record, *_ = [reader.nesting] if isinstance(reader, FileReader) else records or [Nesting({})]
    same = all(old == new for old, new in pairs)
    return record if same else record.moved((old, new) for old, new in pairs if old is not None)


def _path(path: Path | None, name: str, prefix: str) -> Path:
    """An item's path below the dict that `prefix` names; at the top if it names no dict."""
    if path is None or not prefix:
        return path or (name,)
    for depth in range(1, len(path)):
        if ".".join(map(str, path[:depth])) + "." == prefix:
            return path[depth:]
    return (name,)


def _check_fit(tensors: Mapping[str, TensorItem]) -> None:
    strange = {name: item for name, item in tensors.items() if item.dtype not in _NAMES}
    if strange:
        raise UnsupportedError(
            f"safetensors has no dtype for {many(len(strange), 'tensor')}: {_typed(strange)}. Write another format, or "
            "choose tensors (only)"
        )
    unnamed = {name: item for name, item in tensors.items() if name == BareHeader.METADATA or not is_text(name)}
    if unnamed:
        raise UnsupportedError(f"safetensors has no place for tensors of such names: {_typed(unnamed)}")


def _safetensors_file(file: str, tensors: Mapping[str, TensorItem], metadata: Mapping[str, str]) -> NewFile:
    """A file as the safetensors library writes it, with compact JSON, padded with spaces to a multiple of 8 bytes."""
    _check_fit(tensors)
    ordered = sorted(tensors.items(), key=lambda each: (_RANKS[_NAMES[each[1].dtype]], each[0]))
    header: dict[str, object] = {BareHeader.METADATA: dict(sorted(metadata.items()))}
    at = 0
    for name, item in ordered:
        dtype = _NAMES[item.dtype]
        shape = [*item.shape[:-1], 2 * item.shape[-1]] if dtype == TWO_IN_ONE else item.shape
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + item.size]}
        at += item.size
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % BareHeader.LENGTH)
    if len(text) > BareHeader.MOST:
        raise UnsupportedError(
            f"the header would have {len(text):,} bytes, and safetensors allows {BareHeader.MOST:,}: write more files"
        )
    starts = accumulate((item.size for _, item in ordered), initial=BareHeader.LENGTH + len(text))
    runs = [Stretch(start, item) for start, (_, item) in zip(starts, ordered, strict=False)]
    return NewFile(file, runs, len(text).to_bytes(BareHeader.LENGTH, "little") + text)


def shards(tensors: Mapping[str, TensorItem], metadata: Mapping[str, str], shard_size: int) -> list[NewFile]:
    """A Hugging Face folder's files, an index last if several. A tensor beyond `shard_size` has its own shard."""
    shards: list[dict[str, TensorItem]] = [{}]
    filled = 0
    for name, item in tensors.items():
        if shards[-1] and filled + item.size > shard_size:
            shards.append({})
            filled = 0
        shards[-1][name] = item
        filled += item.size
    if len(shards) == 1:
        return [_safetensors_file("model.safetensors", shards[0], metadata)]
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    placed = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": sum(item.size for item in tensors.values())}, "weight_map": placed}
    text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    written = [_safetensors_file(file, shard, metadata) for file, shard in zip(files, shards, strict=True)]
    return [*written, NewFile(f"model.safetensors{INDEX}", (), text.encode())]


# -- files that were packed ------------------------------------------------------------------------------------


def restored(items: Mapping[str, Item], manifest: PackManifest, name: str) -> Plan:
    """The packed files; a single one is called `name`. Raises MetadataError if items are not those packed."""
    known = set(manifest.items())
    if added := [item for item in items if item not in known]:
        raise MetadataError(
            f"{many(len(added), 'item')} of the checkpoint, such as {shorten(added[0])}, were not in the files that "
            "were packed, which cannot be restored; choose what to write into new ones (only)",
            item=ITEM,
        )
    files = [_as_it_was(path, file, items) for path, file in manifest.files.items()]
    written = Counter[str]()
    for run in (run for file in files for run in file.runs):
        written[run.item.name] += run.item.size
        if written[run.item.name] > items[run.item.name].size:  # type: ignore[union-attr]
            raise MetadataError("slices of the tensor overlap in the files that were packed", item=run.item.name)
    if manifest.is_folder:
        files.sort(key=lambda file: (file.name.endswith(INDEX), file.name))
    else:
        files = [replace(files[0], name=name)]
    notes = (f"left out when it was packed: {some(manifest.left_out)}",) if manifest.left_out else ()
    kept = [item for item in items.values() if not is_kept(item.name)]
    return Plan(files, manifest.is_folder, kept, restored=True, notes=notes)


def _as_it_was(path: str, file: PackedFile, items: Mapping[str, Item]) -> NewFile:
    rest = items.get(rest_of(path))
    if rest is not None and not (isinstance(rest, TensorItem) and rest.dtype == "uint8" and len(rest.shape) == 1):
        raise MetadataError("the item is not one-dimensional uint8, as pack stores it", item=rest.name)
    runs, at, gaps = [], 0, [0]
    for tensor in file.tensors:
        item = items.get(tensor.name)
        shape = () if not isinstance(item, TensorItem) else _within(item.shape, tensor)
        if not isinstance(item, TensorItem) or (item.dtype, shape) != (tensor.dtype, tensor.shape):
            raise MetadataError(
                f"{shorten(path)} cannot be restored: the tensor is missing, or has another dtype or shape than when "
                "it was packed; choose what to write into a new file (only)",
                item=shorten(tensor.name),
            )
        part = replace(item, shape=shape)
        runs.append(Stretch(tensor.start, part, tensor.order, tensor.offset, item))
        gaps.append(tensor.start - at)
        at = tensor.start + part.size
    made = NewFile(path, runs, rest if isinstance(rest, TensorItem) else None)
    if min(gaps) < 0 or sum(gaps) > made.rest_size:
        raise MetadataError(
            f"{shorten(path)} cannot be restored: its tensors do not fit where they were when it was packed", item=ITEM
        )
    return made


def _within(shape: tuple[int, ...], tensor: Placed) -> tuple[int, ...]:
    """The shape of a slice, as far as it is in a tensor of this `shape`; that itself where it is no slice."""
    if len(tensor.offset) != len(shape):
        return shape
    return tuple(
        max(0, min(size, whole - at)) for at, size, whole in zip(tensor.offset, tensor.shape, shape, strict=True)
    )


def _typed(tensors: Mapping[str, TensorItem]) -> str:
    return some(f"{shorten(name)} ({item.dtype})" for name, item in tensors.items())


# -- their bytes ------------------------------------------------------------------------------------------------


def pieces(reader: BoxReader, file: NewFile) -> Iterator[memoryview]:
    """A file's bytes; each piece is valid until the next."""
    arrays = reader.read_boxes(box for run in file.runs for box in run.boxes())
    rest = file.rest if isinstance(file.rest, TensorItem) else None
    windows = reader.read_boxes(Box.of(rest, _WINDOW) if rest is not None else ())
    window = around = memoryview(file.rest if isinstance(file.rest, bytes | bytearray) else b"")
    at = 0
    for run in (*file.runs, None):
        left = (run.start if run is not None else file.size) - at
        while left:
            window = window or _bytes_of(next(windows))
            part, window = window[:left], window[left:]
            left -= len(part)
            yield part
        if run is not None:
            crc = 0
            for _ in run.boxes():
                array = next(arrays)
                part = _bytes_of(array.transpose(run.order) if run.order else array)
                crc = crc32(part, crc) if run.crcs_at else 0
                yield part
            for place in run.crcs_at:
                around[place : place + 4] = crc.to_bytes(4, "little")
            at = run.start + run.item.size


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
