"""`open_model`: what holds the model in what a framework saved; `model_in`: its tensors, by the model's own names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, cast

from streamxf.errors import NoCheckpointError, ParameterError, located
from streamxf.formats import torchfile
from streamxf.formats.contents import Contents, FileReader, Format
from streamxf.formats.opening import format_of, kind_of, open_source, parts_of
from streamxf.places import Storage
from streamxf.reading import Access, BoxReader, Item, Path, StoredFile, TensorItem
from streamxf.storage.reading import access_to
from streamxf.stream import open as open_plain
from streamxf.stream.reader import StreamReader
from streamxf.wording import many, some

# How names begin of what jobs save beside a model: accelerate's, Lightning's, the Trainer's and torchtitan's.
_BESIDE = re.compile(
    r"(optim|lr_|sched|scaler|rng|random|train(er|ing)?_|loops|callbacks|data_?load|sampler|metric|hparams|hyper_param)"
)
# What optimizers call their tensors, beside counters of steps.
_MOMENTS = re.compile(
    r"(.*\.)?(exp_avg|exp_avg_sq|max_exp_avg_sq|exp_inf|momentum_buffer|square_avg|grad_avg|acc_delta)"
)
# Modules in which torch.compile, FSDP and activation checkpointing wrap others.
_WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_PARALLEL = "module."  # of DistributedDataParallel


def open_model(storage: Storage, access: Access) -> BoxReader:
    """Open the part of a folder that may hold the model, or a file, also one of `streamxf.open` with a ``torch.save``
    file in it. Raises ParameterError if several parts may, and as `open_source`.
    """
    if storage.is_folder():
        found = dict.fromkeys(parts_of(storage))  # files beside a checkpoint's own are no model
        parts = [part for part in found if "/" not in part or part.rpartition("/")[0] not in found]
        parts = [part for part in parts if not _BESIDE.match(part.rpartition("/")[2])]
        if len(parts) > 1 and "" not in parts:
            raise ParameterError(
                f"the model may be in {many(len(parts), 'place')}: {some(parts)}. Name one of them; of a training run, "
                "`streamxf latest` prints the newest"
            )
        if parts and "" not in parts:
            storage = storage.child(parts[0])
    if storage.is_folder() or kind_of(storage) is not Format.PLAIN:
        return open_source(storage, access)

    @contextmanager
    def opened(name: str) -> Iterator[StoredFile]:
        with storage.open(random=True) as file, open_plain(file.raw, keys=access.keys) as stream:
            assert isinstance(stream, StreamReader)  # the file is seekable
            yield StoredFile(storage.label(), stream.size, cast("IO[bytes]", stream), access_to(stream))

    with located(file=storage.label()), opened("") as file:
        if format_of(file, storage.name) is not Format.TORCH:
            raise NoCheckpointError("the file of streamxf.open holds no file of torch.save")
        shard = torchfile.read(file, storage.name)
        contents = Contents(storage.label(), Format.TORCH, shard.items, {storage.name: file.size})
    return FileReader(storage, contents, {storage.name: shard}, access, opened)


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
    return any(_BESIDE.match(str(step)) for step in steps) or _MOMENTS.fullmatch(str(path[-1])) is not None
