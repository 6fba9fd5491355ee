"""`Plan`: which files a checkpoint becomes, and what stands in them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamxf.convert.files import huggingface, safetensors, torchfile
from streamxf.convert.files.layout import File
from streamxf.convert.files.restored import restored as restored_files
from streamxf.convert.origin import Origin, is_kept
from streamxf.descriptor import shorten
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.formats.choosing import chosen
from streamxf.formats.contents import Entry, Format
from streamxf.formats.source import Source
from streamxf.wording import many

_SUFFIXES = {".safetensors": Format.SAFETENSORS, **dict.fromkeys(torchfile.SUFFIXES, Format.TORCH)}
# Other formats of models and data. Any other suffix is part of a folder's name, as in "llama-3.1".
_MODELS = (
    ".gguf",
    ".ggml",
    ".llamafile",
    ".onnx",
    ".h5",
    ".hdf5",
    ".keras",
    ".pb",
    ".tflite",
    ".mlmodel",
    ".mlpackage",
)
_TENSORS = (
    ".npz",
    ".npy",
    ".msgpack",
    ".pkl",
    ".pickle",
    ".joblib",
    ".nemo",
    ".mar",
    ".ptl",
    ".pte",
    ".pt2",
    ".engine",
)
_DATA = (".json", ".txt", ".yaml", ".csv", ".parquet", ".arrow", ".zip", ".tar", ".gz", ".tgz", ".zst", ".distcp")
_FOREIGN = frozenset((*_MODELS, *_TENSORS, *_DATA))
_SHOWN = 5


@dataclass(frozen=True)
class Plan:
    """What is to be written.

    Attributes
    ----------
    files : sequence of File
    folder : bool
        Whether they lie in a folder; else there is one, the target.
    tensors, objects : int
        How many are in them.
    restored, left_out, notes
        As in `Unpacked`.
    folders : mapping of str to int or None
        Folders that have to be there, and their permissions; the folder itself has an empty path.
    links : mapping of str to str
        Symbolic links, and what they say.
    """

    files: Sequence[File]
    folder: bool
    tensors: int
    objects: int
    restored: bool = False
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    folders: Mapping[str, int | None] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def format_of(name: str) -> Format | None:
    """The format that a file's name says; None if it says nothing.

    Raises
    ------
    UnsupportedError
        If it is the name of a format that is not written here.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _FOREIGN:
        raise UnsupportedError(
            f"{suffix} files are not written here: name a target that ends in .safetensors or "
            f"{', '.join(torchfile.SUFFIXES)}, or a folder; format= writes one of these under any name",
            file=name,
        )
    return _SUFFIXES.get(suffix)


def fresh(
    source: Source,
    format: Format,
    name: str,
    only: Sequence[str],
    prefix: str,
    shard_size: int,
    *,
    skip_objects: bool,
    origin: Origin | None = None,
) -> Plan:
    """New files.

    Parameters
    ----------
    format : Format
        `SAFETENSORS`, `TORCH` or `HUGGING_FACE`.
    name : str
        Of the file, where there is one.
    only, prefix, shard_size, skip_objects
        As in `unpack`.
    origin : Origin, optional
        What was packed. Of a folder with a model only the model is written.

    Raises
    ------
    ParameterError
        If no item is chosen.
    UnsupportedError
        If the format has no place for an item.
    """
    found = chosen(source.contents.entries, only, prefix)
    entries = {shown: entry for shown, entry in found.items() if not is_kept(entry.name)}
    files_left_out: tuple[str, ...] = ()
    if origin is not None and origin.is_folder:
        entries, files_left_out = _model_of(origin, entries)
    if not entries and (only or prefix):
        raise ParameterError("no item has such a name, so there is nothing to write", file=source.contents.path)
    tensors = {shown: entry for shown, entry in entries.items() if entry.is_tensor}
    objects = [shown for shown in entries if shown not in tensors]
    if format is Format.TORCH:
        paths = {shown: _path(source.paths.get(entry.name), shown, prefix) for shown, entry in entries.items()}
        file = torchfile.fresh(name, entries, paths, source.load_object)
        return Plan([file], False, len(tensors), len(objects), left_out=files_left_out)
    if objects and not skip_objects:
        more = f" and {len(objects) - _SHOWN:,} more" if len(objects) > _SHOWN else ""
        raise UnsupportedError(
            f"{format} has no place for {many(len(objects), 'object')} besides tensors: "
            f"{', '.join(map(shorten, objects[:_SHOWN]))}{more}. Write a .pt file or a DCP checkpoint, which "
            "have a place for them, choose items by only= or prefix=, or allow to leave objects out (skip_objects)"
        )
    safetensors.check_fit(tensors)
    extra = source.contents.extra if source.contents.format is Format.SAFETENSORS else {}
    metadata = {"format": "pt", **extra}  # without which transformers refuses a file
    folder = format is Format.HUGGING_FACE
    if folder:
        files = huggingface.fresh(tensors, metadata, shard_size)
    else:
        files = [safetensors.fresh(name, tensors, metadata)]
    return Plan(files, folder, len(tensors), 0, left_out=(*objects, *files_left_out))


def restored(source: Source, origin: Origin, name: str) -> Plan:
    """The files that were packed; a single one under the name `name`.

    Raises
    ------
    MetadataError
        If the checkpoint does not hold what was packed.
    """
    entries = source.contents.entries
    files = restored_files(origin, entries)
    if origin.is_folder:
        files.sort(key=lambda file: (file.name.endswith(huggingface.INDEX), file.name))
    else:
        files = [replace(files[0], name=name, mode=None)]
    shown = [entry for item, entry in entries.items() if not is_kept(item)]
    tensors = sum(entry.is_tensor for entry in shown)
    notes = (f"left out when it was packed: {', '.join(map(shorten, origin.excluded))}",) if origin.excluded else ()
    return Plan(
        files,
        origin.is_folder,
        tensors,
        len(shown) - tensors,
        restored=True,
        notes=notes,
        folders=origin.folders if origin.is_folder else {},
        links=origin.links,
    )


def _model_of(origin: Origin, entries: Mapping[str, Entry]) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """The items of a packed folder that are a model's, and the files in which there are none; if there is no model, all
    items.
    """
    beside: set[str] = set()
    for path, file in origin.files.items():
        beside.update(tensor.name for tensor in file.tensors if tensor.name.startswith(f"{path}/"))
    model = {shown: entry for shown, entry in entries.items() if entry.name not in beside}
    if not model:
        model = dict(entries)
    written = {entry.name for entry in model.values()}
    left_out = tuple(
        path
        for path, file in origin.files.items()
        if written.isdisjoint((*(tensor.name for tensor in file.tensors), *file.others))
    )
    return model, left_out


def _path(path: tuple[str | int, ...] | None, name: str, prefix: str) -> tuple[str | int, ...]:
    """Where an item is nested without the tables that `prefix` names; on top where that is no whole table."""
    if path is None or not prefix:
        return path or (name,)
    for depth in range(1, len(path)):
        if ".".join(map(str, path[:depth])) + "." == prefix:
            return path[depth:]
    return (name,)
