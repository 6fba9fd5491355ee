"""Files of ``torch.save``: a zip file of a pickle and the tensors' storages, of which only the pickle is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from streamxf.budget import FREE_WHOLE, MAX_EXPANSION
from streamxf.buffers import collector_paused
from streamxf.errors import ContainerError, UnsupportedError, shorten
from streamxf.format.items import Item, ObjectItem, Path, Place
from streamxf.format.limits import MAX_STEPS
from streamxf.formats.contents import Shard, whole_tensor
from streamxf.storage.reading import StoredFile
from streamxf.torchsave.archive import PICKLE, Archive, NotSavedByTorch
from streamxf.torchsave.calls import StoredTensor
from streamxf.torchsave.check import read_outline
from streamxf.torchsave.unpickler import Foreign

MAX_RECORDS = 2**20
"""Storages in a file, and a few records more."""

_PLACE = 64  # bytes, or characters, that an entry of a dict or a list counts for, besides its name
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save's before version 1.6: a pickle of a magic number
_OF_TORCHSCRIPT = "constants.pkl"
_TAIL = 2**20  # bytes in which a TorchScript archive names that record
_SCALARS = (str, int, float, bool, bytes, type(None))


@collector_paused()
def read(file: StoredFile, name: str) -> Shard:
    """Read what a file holds, except for its tensors' elements; `name` is the file's in `Place`. Items are named as DCP
    flattens nested state dicts.

    Raises ContainerError if it is damaged, and UnsupportedError if it cannot be read here, or is no state dict.
    """
    if file.read(0, min(len(_LEGACY), file.size)) == _LEGACY:
        raise UnsupportedError(
            "torch.save wrote this file in its old form, which has no index: load it with torch.load, and save it again"
        )
    try:
        archive = Archive(file.raw, file.size, MAX_RECORDS)
        if _OF_TORCHSCRIPT in archive.sizes:
            raise _torchscript()
        if not archive.little:
            raise UnsupportedError("the file was written on a big-endian machine")
        root = read_outline(archive.pickled, archive.sizes)
        flat = _flattened(root, len(archive.pickled))
        records = dict.fromkeys(value.record for _, value in flat.values() if isinstance(value, StoredTensor))
        begins = {record: archive.find(record)[0] for record in records}
        return _described(flat, begins, archive.find(PICKLE)[0], name)
    except RecursionError:
        raise _too_deep() from None
    except NotSavedByTorch as error:
        if f"/{_OF_TORCHSCRIPT}".encode() in file.read(max(0, file.size - _TAIL)):
            raise _torchscript() from None
        raise ContainerError(f"this is not an intact file of torch.save: {error}") from None


def _described(flat: Mapping[str, tuple[Path, Any]], begins: Mapping[str, int], pickled_at: int, file: str) -> Shard:
    items: dict[str, Item] = {}
    strides: dict[str, tuple[int, ...]] = {}
    objects: dict[str, Any] = {}
    weights: dict[str, int] = {}
    known: dict[int, tuple[int, bool]] = {}
    for name, (path, value) in flat.items():
        if not isinstance(value, StoredTensor):
            items[name] = ObjectItem(name, Place(file, pickled_at, 0, ()), path)
            weights[name], is_plain = _measured(value, known)
            if is_plain:
                objects[name] = value
            continue
        if not value.is_row_major:
            strides[name] = value.strides
        at = begins[value.record] + (value.start if value.extent else 0)
        items[name] = whole_tensor(name, value.dtype, value.shape, file, at, value.extent, path)
    return Shard(items, strides, objects, weights)


def _measured(value: Any, known: dict[int, tuple[int, bool]]) -> tuple[int, bool]:
    """About how many bytes an object takes, each of its parts as often as it is there; and whether it is what it was
    when it was saved: of scalars, lists, tuples and dicts alone, none in itself. `known` are containers.
    """
    if isinstance(value, StoredTensor):
        return value.extent, False
    inner = value.parts if isinstance(value, Foreign) else value
    if not isinstance(inner, list | tuple | dict | set | frozenset):
        return _PLACE + (len(value) if isinstance(value, str | bytes) else 0), type(value) in _SCALARS
    if id(value) not in known:
        known[id(value)] = 0, False  # in case it holds itself
        weight, plain = _PLACE, type(value) in (list, tuple, dict)
        for each in chain(inner.keys(), inner.values()) if isinstance(inner, dict) else inner:
            more, is_plain = _measured(each, known)
            weight, plain = weight + more, plain and is_plain
        known[id(value)] = weight, plain
    return known[id(value)]


def _flattened(root: Any, size: int) -> dict[str, tuple[Path, Any]]:
    """The contents of nested dicts and lists, named as DCP names them: it enters dicts, and lists that hold tensors or
    dicts.

    Dicts and lists that share their parts, or hold themselves, can expand to any number of names, and one long key can
    be part of each; so names are bounded in proportion to the `size` of the pickle.
    """
    if not isinstance(root, dict):
        kind = root.name if isinstance(root, Foreign) else type(root).__name__
        what = "a tensor" if isinstance(root, StoredTensor) else f"a {shorten(kind)}"
        raise UnsupportedError(f"the file holds {what} and not a state dict: load it with torch.load, and save a dict")
    found: dict[str, tuple[Path, Any]] = {}
    left = max(FREE_WHOLE, MAX_EXPANSION * size)
    whole: dict[int, bool] = {}

    def enter(value: Any, path: Path, length: int) -> None:
        nonlocal left
        if isinstance(value, dict):
            inner: Iterable[tuple[str | int, Any]] = ((_as_step(key), each) for key, each in value.items())
        elif isinstance(value, list) and not _is_whole(value, whole):
            inner = enumerate(value)
        else:
            name = ".".join(map(str, path))
            if name in found:
                raise UnsupportedError(f"two of the file's items have the name {shorten(name)!r} once flattened")
            found[name] = path, value
            return
        if len(path) == MAX_STEPS:
            raise _too_deep()
        for step, each in inner:
            longer = length + 1 + len(str(step))
            left -= _PLACE + longer
            if left < 0:
                raise UnsupportedError(
                    "the file's dicts and lists share their parts so often, or have such long keys, that the names of "
                    "their contents are out of proportion: it is not a state dict"
                )
            enter(each, (*path, step), longer)

    enter(root, (), 0)
    return found


def _is_whole(value: list[Any], known: dict[int, bool]) -> bool:
    """Whether a list is one object: neither it nor lists in it hold a tensor or a dict."""
    if id(value) not in known:
        known[id(value)] = True  # in case it holds itself
        known[id(value)] = not any(
            isinstance(each, dict | StoredTensor) or (isinstance(each, list) and not _is_whole(each, known))
            for each in value
        )
    return known[id(value)]


def _as_step(key: Any) -> str:
    parts = key if type(key) is tuple else (key,)
    if not all(isinstance(part, _SCALARS) for part in parts):
        raise UnsupportedError("a dict of the file has a key that is neither a string nor a number")
    try:
        return str(key)
    except ValueError as error:  # of an integer with too many digits
        raise UnsupportedError(f"a dict of the file has a key without a name: {error}") from None


def _too_deep() -> UnsupportedError:
    return UnsupportedError("the file's dicts and lists are nested too deeply for a state dict")


def _torchscript() -> UnsupportedError:
    return UnsupportedError(
        "this is a TorchScript archive, which holds code besides tensors: load it with torch.jit.load, and save its "
        "state_dict()"
    )
