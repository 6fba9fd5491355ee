"""DCP's ``Metadata`` out of a pickle that cannot be trusted.

A pickle can call anything that it can name. Here it can name what DCP's own writers put into ``.metadata`` and nothing
else; whatever is not on the list is refused by name.

Not even those names lead to the real classes. A pickle may also set attributes on whatever it has named, and so rewire
a class for the whole process: replace ``Metadata.__reduce_ex__``, say, and wait for the next save. So each name stands
for an object that makes instances of the real class and on which nothing can be set.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata

from streamxf.errors import MetadataError, StreamxfError

_KNOWN_PROPERTIES = len(metadata.TensorProperties().__getstate__())  # type: ignore[no-untyped-call]


def load_metadata(pickled: memoryview) -> Metadata:
    """Unpickle `pickled`, which is a ``Metadata`` and nothing else.

    Raises
    ------
    MetadataError
        If it is damaged, names something that does not belong there, is no ``Metadata``, or something follows it.
    """
    stream = io.BytesIO(pickled)
    try:
        content = _Unpickler(stream).load()
    except StreamxfError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise MetadataError(f"the metadata is damaged: {type(error).__name__}: {error}") from error
    if type(content) is not Metadata:
        raise MetadataError(f"the metadata holds a {type(content).__name__}, not DCP's Metadata")
    if stream.tell() != len(pickled):
        raise MetadataError(
            "something follows the metadata that is no trailer: the file is damaged, or it was cut or continued"
        )
    return content


class _Sealed(type):
    """The type of classes on which nothing can be set."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise MetadataError(f"the metadata sets {name!r} on a class; it was refused")

    __delattr__ = __setattr__  # type: ignore[assignment]


def _stand_in(cls: type) -> type:
    """A class whose instances are those of `cls`, made without arguments as pickles make them."""

    def __new__(_: type) -> object:
        return object.__new__(cls)

    return _Sealed(cls.__name__, (), {"__slots__": (), "__new__": __new__})


class _Call:
    """A function on which nothing can be set."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise MetadataError(f"the metadata sets {name!r} on a function; it was refused")


class _Properties(metadata.TensorProperties):
    """Reads what newer versions of torch append to these properties (2.15: strides), which this one would not take."""

    def __setstate__(self, state: Any) -> None:
        self.__class__ = metadata.TensorProperties  # type: ignore[assignment]
        self.__setstate__(tuple(state)[:_KNOWN_PROPERTIES])


def _path_text(*parts: str) -> str:
    """The folder's name, which torch's own writers store as a path: as text, which touches no file system."""
    return "/".join(map(str, parts)).replace("//", "/", 1)


_DCP_CLASSES: tuple[type, ...] = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorStorageMetadata,
    filesystem._StorageInfo,
)
_PATHS = [
    (module, name)
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
]
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(cls.__module__, cls.__qualname__): _stand_in(cls) for cls in _DCP_CLASSES},
    **{("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **dict.fromkeys(_PATHS, _Call(_path_text)),
    (metadata.TensorProperties.__module__, "TensorProperties"): _stand_in(_Properties),
    (metadata.__name__, "_MEM_FORMAT_ENCODING"): _Call(metadata._MEM_FORMAT_ENCODING),
    ("torch.serialization", "_get_layout"): _Call(torch.serialization._get_layout),
    # built in C, where nothing can be set on them either
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise MetadataError(
                f"the metadata wants {module}.{name}, which does not belong into a checkpoint's metadata; it was "
                "refused and nothing was run"
            )
        return found

    def persistent_load(self, pid: Any) -> NoReturn:
        raise MetadataError("the metadata refers to something outside of itself; it was refused")
