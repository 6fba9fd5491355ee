"""Files of ``torch.save``: a zip file of a pickle and the tensors' storages, of which none is read here."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from streamxf.dcp.objects.archive import PICKLE, Archive, NotSavedByTorch
from streamxf.dcp.objects.outline import Outline
from streamxf.dcp.objects.policy import Objects
from streamxf.descriptor import shorten
from streamxf.errors import ContainerError, MetadataError, UnsupportedError
from streamxf.formats.contents import Entry, Part
from streamxf.formats.extents import Extent
from streamxf.formats.location import Location
from streamxf.formats.source import Paths

MAX_RECORDS = 2**20
"""Storages in a file, and a few records more."""

_FREE_PLACES = 2**20  # besides one for each byte of the pickle, which is more than a tree has
_MAX_NAMES = 2**28  # characters of all names together

_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save's before version 1.6: a pickle of a magic number
_OF_TORCHSCRIPT = "constants.pkl"
_SIMPLE = (int, float, str, bytes, bool, type(None))


@dataclass(frozen=True)
class TorchFile:
    """What a file holds.

    Attributes
    ----------
    entries : dict of str to Entry
        Named as DCP flattens nested state dicts.
    extents : dict of str to Extent
        Of the tensors.
    objects : dict of str to Any
        The others.
    paths : dict of str to tuple
        As in `Source`.
    root : Any
        What was saved, with tensors of the device "meta".
    metadata : mapping
        There is none.
    """

    entries: dict[str, Entry]
    extents: dict[str, Extent]
    objects: dict[str, Any]
    paths: Paths
    root: Any
    metadata: Mapping[str, str] = field(default_factory=dict)


def read(location: Location, name: str, *, alone: bool) -> TorchFile:
    """Read what a file holds, but for its tensors' elements.

    Parameters
    ----------
    location : Location
        Of the file, or of the folder that it is in.
    name : str
        The file's name.
    alone : bool
        Whether `location` is that of the file.

    Raises
    ------
    UnsupportedError
        If it is one that is too old, or of ``torch.jit.save``, or holds something that a state dict cannot.
    ContainerError
        If it is damaged.
    PolicyError
        If it holds something that ``torch.load(weights_only=True)`` does not take.
    """
    inside = "" if alone else name
    size = location.size(inside)
    if size is None:
        raise ContainerError("this is no file")
    with location.open(inside, random=True) as raw:
        file = io.BufferedReader(raw, 4096) if isinstance(raw, io.RawIOBase) else raw
        if file.read(len(_LEGACY)) == _LEGACY:
            raise UnsupportedError(
                "torch.save wrote this file in its old form, which has no index: load it with torch.load, and save it "
                "anew"
            )
        try:
            archive = Archive.read(file, size, MAX_RECORDS)
            if _OF_TORCHSCRIPT in archive.sizes:
                raise _torchscript()
            if not archive.native:
                raise UnsupportedError("the file was written on a machine with another order of bytes")
            outline = Objects().outline(archive, size)
            starts = {record: archive.find(file, record)[0] for record in archive.sizes if record.startswith("data/")}
            at = archive.find(file, PICKLE)[0]
        except NotSavedByTorch as error:
            if _is_torchscript(file):
                raise _torchscript() from None
            raise ContainerError(f"this is no whole file of torch.save: {error}") from None
        except MetadataError as error:
            raise ContainerError(f"the file is damaged: {error.message}") from error
    _check_nesting(outline.root, _FREE_PLACES + len(archive.pickled))
    return _described(outline, starts, at, name)


def _check_nesting(root: Any, most: int) -> None:
    """Check that there is an end to all places and their names: tables that share their parts, or hold themselves, can
    have any number of them, and one long key can stand in each.
    """
    left: list[tuple[Any, int]] = [(root, 0)]
    places = characters = 0
    while left:
        value, length = left.pop()
        if isinstance(value, Mapping):
            inner = [(item, length + 1 + len(str(key))) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            inner = [(item, length + 1 + len(str(len(value)))) for item in value]
        else:
            continue
        places += len(inner)
        characters += sum(size for _, size in inner)
        if places > most or characters > _MAX_NAMES:
            raise UnsupportedError(
                "the file's dicts and lists share their parts so often, hold themselves, or have such long keys, that "
                "there is no end to the names of what is in them: it is no state dict"
            )
        left += inner


def _described(outline: Outline, starts: Mapping[str, int], pickled_at: int, name: str) -> TorchFile:
    if not isinstance(outline.root, Mapping):
        raise UnsupportedError(
            f"the file holds a {type(outline.root).__name__}, no state dict: load it with torch.load, and save a dict"
        )
    try:
        flat, paths = flatten_state_dict(dict(outline.root))
    except ValueError as error:
        raise UnsupportedError(
            f"the names of the file's items do not differ once they are flattened: {error}"
        ) from None
    except RecursionError:
        raise UnsupportedError("the file's dicts and lists are nested too deeply for a state dict") from None
    made = TorchFile({}, {}, {}, paths, outline.root)
    for item, value in flat.items():
        if not isinstance(value, torch.Tensor):
            made.objects[item] = value if type(value) in _SIMPLE else _renewed(value, item)
            made.entries[item] = Entry(item, None, (), None, (Part((), (), name, pickled_at, 0),))
            continue
        record = outline.record_of(value)
        if record is None:
            raise UnsupportedError(
                f"the tensor is {_kind_of(value)}, which cannot be read in parts: load the file with torch.load, and "
                "save plain tensors",
                item=shorten(item),
            )
        shape = tuple(value.shape)
        start = starts[record] + int(value.storage_offset()) * value.dtype.itemsize
        raw = value.numel() * value.dtype.itemsize
        made.extents[item] = Extent(start, value.dtype, shape, tuple(value.stride()))
        part = Part((0,) * len(shape), shape, name, start, raw)
        made.entries[item] = Entry(item, str(value.dtype).removeprefix("torch."), shape, raw, (part,))
    return made


def _kind_of(tensor: torch.Tensor) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"one of a subclass, {type(tensor).__name__}"
    if tensor.layout != torch.strided:
        return f"of the layout {str(tensor.layout).removeprefix('torch.')}"
    return "stored in another way than its elements stand in memory"


class _WithoutTensors(pickle.Pickler):
    """Pickles objects that hold no tensors."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor | torch.UntypedStorage | torch.TypedStorage):
            raise UnsupportedError(
                "the object holds tensors, and is neither a dict nor a list: DCP has no names for them. Load the file "
                "with torch.load, and save them in dicts or lists"
            )
        return NotImplemented


def _renewed(value: Any, item: str) -> Any:
    """The object, without what stood in for classes while it was unpickled."""
    pickled = io.BytesIO()
    try:
        _WithoutTensors(pickled, protocol=4).dump(value)
    except UnsupportedError as error:
        raise error.locate(item=shorten(item)) from None
    return pickle.loads(pickled.getbuffer())


def _torchscript() -> UnsupportedError:
    return UnsupportedError(
        "this is a TorchScript archive, which holds code besides tensors: load it with torch.jit.load, and save its "
        "state_dict()"
    )


def _is_torchscript(file: Any) -> bool:
    """Whether a zip file that ``torch.save`` did not write is one of ``torch.jit.save``."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith(f"/{_OF_TORCHSCRIPT}") for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError):
        return False
