"""Files of ``torch.save``: a zip file of a pickle and the tensors' storages, of which only the pickle is read here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from zlib import crc32

from streamxf.budget import MAX_EXPANSION
from streamxf.buffers import collector_paused
from streamxf.errors import ContainerError, NoCheckpointError, StreamxfError, UnsupportedError, shorten
from streamxf.format.items import ObjectItem, Place
from streamxf.formats.contents import Shard, whole_tensor
from streamxf.reading import Item, Nesting, Path, StoredFile, TorchFile

_PICKLE = "data.pkl"
_PLACE = 64  # bytes, or characters, that an entry of a dict or a list counts for, besides its name
_FREE = 16 * 2**20  # of all names, however small the pickle is
_TAIL = 2**20  # bytes in which a zip file of another kind names the records below
_OTHERS = {
    "/.data/extern_modules": "an archive of torch.package, which holds code besides tensors: load what is in it with "
    "torch.package.PackageImporter",
    "/archive_format": "a program of torch.export: load it with torch.export.load",
    "/constants.pkl": "a TorchScript archive, which holds code besides tensors: load it with torch.jit.load",
}
_END = 2**16 + 22  # bytes in which a zip file has the end of its directory
_FIRST = 2**10  # bytes in which it has the name of its first record
OTHER_PROTOCOL = (
    "with another pickle protocol than 2: load it with torch.load(..., weights_only=False), which runs whatever "
    "is in the file, and save it again. Of protocol 0 torch loads no tensors"
)
_DEEPEST = 256  # dicts and lists in each other, as many steps as an item of an index may take
_SCALARS = (str, int, float, bool, bytes, type(None))


@collector_paused()
def read(file: StoredFile, name: str) -> Shard:
    """Read what a file holds but elements; `name` is the file's in `Place`. Items have the names that DCP gives them.

    Raises ContainerError if it is damaged, UnsupportedError if it cannot be read here, or is no state dict, and
    NoCheckpointError if it is another kind of zip file.
    """
    try:
        opened = TorchFile(file)
        if "constants.pkl" in opened.sizes:
            raise ContainerError("it has a record that torch.save does not write")
        if not opened.little:
            raise UnsupportedError("the file was written on a big-endian machine")
        if opened.pickled[:1] != b"\x80" and crc32(opened.pickled) == opened.find(_PICKLE)[1]:  # it is whole
            raise UnsupportedError(f"a file of torch.save, {OTHER_PROTOCOL}")
        root = opened.outline()
        flat = _flattened(root, len(opened.pickled))
        records = dict.fromkeys(tensor.record for _, value in flat.values() if (tensor := TorchFile.tensor(value)))
        begins = {record: opened.find(record)[0] for record in records}
        whole: dict[int, bool] = {}
        nesting = Nesting.recorded(root, lambda value: not _is_whole(value, whole))
        return replace(_described(flat, begins, opened.find(_PICKLE)[0], name), nesting=nesting)
    except RecursionError:
        raise _too_deep() from None
    except ContainerError as error:
        what = f"this is not an intact file of torch.save: {error.message}"
        raise _another(file) or ContainerError(what) from None


def _described(flat: Mapping[str, tuple[Path, Any]], begins: Mapping[str, int], pickled_at: int, file: str) -> Shard:
    items: dict[str, Item] = {}
    strides: dict[str, tuple[int, ...]] = {}
    objects: dict[str, Any] = {}
    weights: dict[str, int] = {}
    known: dict[int, tuple[int, bool]] = {}
    needed: set[str] = set()
    for name, (path, value) in flat.items():
        if (tensor := TorchFile.tensor(value)) is None:
            items[name] = ObjectItem(name, Place(file, pickled_at, 0, ()), path)
            weights[name], is_plain = _measured(value, known, needed)
            if is_plain:
                objects[name] = value
            continue
        if not tensor.is_row_major:
            strides[name] = tensor.strides
        at = begins[tensor.record] + (tensor.start if tensor.extent else 0)
        items[name] = whole_tensor(name, tensor.dtype, tensor.shape, file, at, tensor.extent, path)
    return Shard(items, strides, objects, weights, records=frozenset(needed))


def _measured(value: Any, known: dict[int, tuple[int, bool]], needed: set[str]) -> tuple[int, bool]:
    """About how many bytes an object takes, each of its parts as often as it is there; and whether it is what it was
    when it was saved: of scalars, lists, tuples and dicts alone, none in itself. `known` are containers; the records
    that it needs are added to `needed`.
    """
    if record := TorchFile.record(value):
        needed.add(record)
        return tensor.extent if (tensor := TorchFile.tensor(value)) else _PLACE, False
    _, inner = TorchFile.foreign(value) or ("", value)
    if not isinstance(inner, list | tuple | dict | set | frozenset):
        return _PLACE + (len(value) if isinstance(value, str | bytes) else 0), type(value) in _SCALARS
    if id(value) not in known:
        known[id(value)] = 0, False  # in case it holds itself
        weight, plain = _PLACE, type(value) in (list, tuple, dict)
        attributes = vars(inner).values() if isinstance(inner, OrderedDict) else ()
        for each in chain(inner.keys(), inner.values(), attributes) if isinstance(inner, dict) else inner:
            more, is_plain = _measured(each, known, needed)
            weight, plain = weight + more, plain and is_plain
        known[id(value)] = weight, plain
    return known[id(value)]


def _flattened(root: Any, size: int) -> dict[str, tuple[Path, Any]]:
    """The contents of nested dicts and lists, named as DCP names them: it enters dicts, and lists of tensors or dicts.

    Dicts and lists that share their parts, or hold themselves, can expand to any number of names, and one long key can
    be part of each; so names are bounded in proportion to the `size` of the pickle.
    """
    if not isinstance(root, dict):
        kind, parts = TorchFile.foreign(root) or (type(root).__name__, [])
        what = "a tensor" if TorchFile.tensor(root) else f"a {shorten(kind)}"
        cure = "load it with torch.load, and save a dict"
        if any(isinstance(part, dict) and "_parameters" in part for part in parts):
            cure = "it is a whole module. Load it with torch.load(..., weights_only=False), which runs whatever is in "
            cure += "the file, and save its state_dict()"
        raise UnsupportedError(f"the file holds {what} and not a state dict: {cure}")
    found: dict[str, tuple[Path, Any]] = {}
    left = max(_FREE, MAX_EXPANSION * size)
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
                raise UnsupportedError(
                    f"two of the file's items have the name {shorten(name)!r} once flattened: load it with torch.load, "
                    "rename a key, and save it again"
                )
            found[name] = path, value
            return
        if len(path) == _DEEPEST:
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
            isinstance(each, dict) or TorchFile.tensor(each) or (isinstance(each, list) and not _is_whole(each, known))
            for each in value
        )
    return known[id(value)]


def _as_step(key: Any) -> str:
    if not all(isinstance(part, _SCALARS) for part in (key if type(key) is tuple else (key,))):
        raise UnsupportedError("a dict of the file has a key that is neither a string nor a number")
    try:
        return str(key)
    except ValueError as error:  # of an integer with too many digits
        raise UnsupportedError(f"a dict of the file has a key without a name: {error}") from None


def _too_deep() -> UnsupportedError:
    return UnsupportedError("the file's dicts and lists are nested too deeply for a state dict")


def _another(file: StoredFile) -> StreamxfError | None:
    """The error of a zip file that torch.save did not write; None of one that it may have written."""
    tail = file.read(max(0, file.size - _TAIL))
    for record, what in _OTHERS.items():
        if record.encode() in tail:
            return UnsupportedError(f"this is {what}, and save its state_dict()")
    first = file.read(0, min(_FIRST, file.size))
    name = first[30 : 30 + int.from_bytes(first[26:28], "little")].decode("utf-8", "replace")
    if b"PK\x05\x06" not in tail[-_END:] or name.endswith(f"/{_PICKLE}") or not first.startswith(b"PK"):
        return None
    what = "an .npz archive of NumPy's" if name.endswith(".npy") else f"a zip file that begins with {shorten(name)!r}"
    return NoCheckpointError(
        f"the file is not a checkpoint: it is {what}. Load it with the library that wrote it, and save its arrays as "
        "tensors, with safetensors or torch.save"
    )
