"""`unpack`: a checkpoint as a file or a folder of another format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Literal

from streamxf.budget import MAX_EXPANSION
from streamxf.checkpoint.access import Access, Require
from streamxf.errors import ParameterError
from streamxf.format.items import TensorItem
from streamxf.formats.contents import Format
from streamxf.formats.opening import open_source
from streamxf.keys import KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.storage.opening import Location, open_storage
from streamxf.tools.convert.model import open_model
from streamxf.tools.convert.origin import origin_of
from streamxf.tools.convert.plan import SHARD_SIZE, format_of_name, fresh, restored
from streamxf.tools.convert.result import Converted, Unpacked
from streamxf.tools.convert.writing import refuse_existing, write

FormatName = Literal["safetensors", "torch", "huggingface", "dcp"]
FORMATS: dict[str, Format] = {
    "safetensors": Format.SAFETENSORS,
    "torch": Format.TORCH,
    "huggingface": Format.HUGGING_FACE,
    "dcp": Format.DCP,
}


def unpack(
    source: Location,
    target: Location,
    *,
    format: FormatName | None = None,
    only: Sequence[str] = (),
    prefix: str = "",
    shard_size: int = SHARD_SIZE,
    skip_objects: bool = False,
    model: bool = False,
    overwrite: bool = False,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> Unpacked | Converted:
    """Write a DCP checkpoint, streamxf's or stock, as a file or folder of another format.

    Tensors are read and written box by box, so that memory does not depend on the size of the model. A packed file or
    folder becomes the same file or folder again, byte for byte, unless another format is requested. Otherwise
    ``.safetensors`` files are written as the safetensors library writes them, ``torch.save`` files have the state dict
    nested as it was saved, and of a packed folder with a model only the model is written.

    A local target appears when all of it is written; until then it is in a hidden folder next to it, which only you
    can read. When the call fails or the process is killed, the same call starts over.

    Parameters
    ----------
    source, target : path, str or Storage
        The checkpoint's folder, and the file or folder to write; or URLs.
    format : str, optional
        By default that of the target's suffix: ``.safetensors``; ``.pt``, ``.pth``, ``.bin`` and ``.ckpt`` for
        ``torch.save``; with any other name the format that was packed, or else a Hugging Face folder. ``"dcp"`` is a
        checkpoint without a chain, which torch's own reader loads.
    only : sequence of str
        Shell patterns; only items whose names match one of them are written.
    prefix : str
        Only items whose names begin with it are written, without it: ``"model."`` extracts the model from a training
        checkpoint.
    shard_size : int
        Bytes of tensors in one file of a Hugging Face folder; an error for any other target.
    skip_objects : bool
        Whether to leave out non-tensor objects if the format cannot hold them.
    model : bool
        Write only the model's tensors, by the names that ``load_state_dict`` and ``from_pretrained`` know: `source` may
        also be the folder of a Trainer or Lightning, or a file of `streamxf.open` that contains a ``torch.save`` file.
    overwrite : bool
        Whether the target may be replaced. A folder must be a Hugging Face one, and files in it that are not weights
        stay.
    keys, trust, allow_unsigned, require
        As in `FileSystemReader`.
    storage_options, target_options : mapping, optional
        fsspec's, for URLs.
    max_expansion, progress
        As in `transcode`.

    Returns
    -------
    Unpacked
        Or, for ``"dcp"``, the result of `transcode`.

    Raises
    ------
    FileExistsError, IsADirectoryError, NotADirectoryError
        If the target exists and may not, or cannot, be replaced.
    FileNotFoundError, NoCheckpointError
        If there is no checkpoint.
    ParameterError
        If no item is chosen, several may be the model, or the arguments contradict each other.
    UnsupportedError
        If the format cannot hold something, which the message names, or the target's suffix is that of a format which
        is not written here.
    AbortedError
        If another process is writing to the target.
    NoSpaceError
        If the files cannot fit on the disk.
    StreamxfError
        If the source is damaged or was altered.
    """
    if shard_size < 1:
        raise ParameterError(f"shard_size {shard_size}: it must be a number of bytes, at least 1")
    begin = perf_counter()
    place = open_storage(target, target_options)
    asked = FORMATS[format] if format is not None else format_of_name(place.name)
    if asked is Format.DCP and (only or prefix or model):
        raise ParameterError("a DCP checkpoint is always copied whole: leave out only, prefix and model")
    storage = open_storage(source, storage_options)
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned, require=require, max_expansion=max_expansion)
    if asked is Format.DCP:
        from streamxf.chain import Chain
        from streamxf.checkpoint.saving import Save
        from streamxf.tools.convert.conversion import refuse_same
        from streamxf.tools.convert.transcode import copy

        refuse_same(source, target)
        to = Save.to(target, Chain([]), overwrite=overwrite, storage_options=target_options)
        return copy(storage, access, to, progress=progress)
    if not overwrite:
        refuse_existing(place)
    with (open_model if model else open_source)(storage, access) as reader:
        origin = None if only or prefix else origin_of(reader)
        wanted = asked or (origin.format if origin is not None and not model else Format.HUGGING_FACE)
        if shard_size != SHARD_SIZE and wanted is not Format.HUGGING_FACE:
            raise ParameterError("only a Hugging Face folder has shards: name a folder as the target (shard_size)")
        if origin is not None and origin.format is wanted and not model:
            plan = restored(reader.stored, origin, place.name)
        else:
            kinds = {"skip_objects": skip_objects, "model": model}
            plan = fresh(reader, wanted, place.name, only, prefix, shard_size, origin=origin, **kinds)
        write(place, plan, reader, overwrite=overwrite, progress=progress)
    tensors, size = sum(isinstance(item, TensorItem) for item in plan.items), sum(file.size for file in plan.files)
    counts = len(plan.files), size, tensors, len(plan.items) - tensors
    seconds = perf_counter() - begin
    return Unpacked(place.given, str(wanted), *counts, plan.restored, plan.left_out, seconds, plan.notes)
