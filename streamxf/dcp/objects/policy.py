"""Items that are no tensors: what DCP's planner may unpickle of them.

The planner unpickles whatever it is given, and a pickle can call anything. So the object is loaded here first, as
``torch.load(weights_only=True)`` does it, and the planner is given a new serialization of what came of it. It never
sees the stored bytes, so nothing depends on whether its unpickler reads them as this one does. `plain` does the same,
without torch, for the many small objects that need no class.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch

from streamxf.dcp.objects.archive import Archive, NotSavedByTorch
from streamxf.dcp.objects.needs import allowed, chosen, name_of, shown
from streamxf.dcp.objects.outline import Outline
from streamxf.dcp.objects.plain import renew_plain
from streamxf.dcp.objects.stand_ins import ALL as STAND_INS
from streamxf.dcp.objects.stand_ins import stand_ins
from streamxf.dcp.objects.unpickle import load
from streamxf.dcp.objects.vet import vet
from streamxf.dcp.objects.vet_values import NeverLoads, TooMuch
from streamxf.descriptor import shorten
from streamxf.errors import MetadataError, ParameterError, PolicyError, StreamxfError, UnsupportedError
from streamxf.stream.locks import ForkLock

T = TypeVar("T")

MAX_OBJECT = 2 * 2**30
FREE_OBJECT = 256 * 2**20
MAX_EXPANSION = 64
_REMEMBERED = 1024  # objects of up to as many bytes, which is where the same ones come again and again
_REMEMBERED_BYTES = 4096


# Torch forgot the type of b"".
_BASIC: frozenset[Any] = frozenset([bytes])
_NAME = re.compile(r"GLOBAL (\S+) was not an allowed")
_CLASS = re.compile(r"got <class '([^']+)'>")
_allowing = ForkLock()


class Objects:
    """How the objects of a checkpoint are loaded.

    Parameters
    ----------
    weights_only : bool
        False hands the stored bytes to the planner as they are.
    safe_globals : sequence
        Classes and functions that objects may use besides those that torch allows; as
        ``torch.serialization.add_safe_globals`` takes them.

    Raises
    ------
    ParameterError
    """

    def __init__(self, weights_only: bool = True, safe_globals: Sequence[Any] = ()) -> None:
        if not isinstance(weights_only, bool):
            raise ParameterError(f"weights_only is True or False, not {weights_only!r}")
        if isinstance(safe_globals, str) or not isinstance(safe_globals, Sequence):
            raise ParameterError("safe_globals is a list of classes and functions")
        if safe_globals and not weights_only:
            raise ParameterError("weights_only=False allows everything, so safe_globals= would mean nothing")
        self._given = frozenset(safe_globals)
        _names(self._given)
        self._weights_only = weights_only
        self._known: dict[bytes, bytes] = {}

    def limit(self, stored: int) -> int | None:
        """The most bytes that an object may have which takes `stored` bytes in storage; None for any number."""
        return min(MAX_OBJECT, max(FREE_OBJECT, MAX_EXPANSION * stored)) if self._weights_only else None

    def renew(self, data: bytes, stored: int) -> bytes:
        """What the planner may be given for an object's `data`.

        Raises
        ------
        PolicyError
            If it is more than weights_only allows.
        MetadataError
            If it is a tensor, or torch cannot make an object of it.
        """
        if not self._weights_only:
            return data
        renewed = self._known.get(data)
        if renewed is None:
            renewed = self._renew(data, stored)
            if len(data) <= _REMEMBERED_BYTES and len(self._known) < _REMEMBERED:
                self._known[data] = renewed
        return renewed

    def load(self, data: bytes, stored: int) -> Any:
        """What `data` was made of; raises as `renew`."""
        return torch.load(io.BytesIO(self.renew(data, stored)), weights_only=False)

    def load_tensor(self, file: Any, size: int, stored: int) -> torch.Tensor:
        """What ``torch.load`` makes of a tensor's file of `size` bytes, on the CPU; always with weights_only.

        Raises
        ------
        PolicyError
            If it needs a class that is not allowed.
        MetadataError
            If ``torch.save`` did not write it, or it is damaged, or holds no tensor.
        StreamxfError, OSError
            Those of `file`.
        """
        try:
            archive = Archive.read(file, size)
            with _allowed(self._given, objects=False) as trusted:
                tensor = _load(file, archive, stored, trusted, map_location="cpu")
        except (NotSavedByTorch, TooMuch) as error:
            raise MetadataError(f"the item holds no tensor that torch.save wrote: {error}") from None
        except _NotAllowed as error:
            raise PolicyError(
                f"the tensor was not loaded: {error}. If you trust it, name the classes and functions that it needs, "
                "safe_globals=[...]"
            ) from None
        except (StreamxfError, OSError, MemoryError):
            raise
        except Exception as error:  # torch raises anything for a pickle that it cannot load
            raise MetadataError(f"torch cannot load the stored tensor: {type(error).__name__}: {error}") from error
        if not isinstance(tensor, torch.Tensor):
            raise MetadataError(f"the item holds a {type(tensor).__name__}, the metadata says a tensor")
        if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
            kind = "nested" if tensor.is_nested else "meta" if tensor.device.type == "meta" else str(tensor.layout)
            raise MetadataError(f"the stored tensor is of a kind that DCP does not save ({kind}): it was altered")
        return tensor

    def outline(self, archive: Archive, stored: int) -> Outline:
        """What a file of ``torch.save`` that takes `stored` bytes holds, without the contents of its tensors; always
        with weights_only.

        Raises
        ------
        PolicyError
            If it needs a class that is not allowed, or never loads with weights_only.
        UnsupportedError
            If it has quantized tensors, which torch cannot make without their contents.
        MetadataError
            If torch cannot read it.
        """
        if b"ctorch._utils\n_rebuild_qtensor\n" in archive.pickled:
            raise UnsupportedError("it has quantized tensors, which cannot be read in parts; save plain ones")
        try:
            with _allowed(self._given, objects=True) as trusted:
                return _unpickled(partial(Outline.of, archive), archive, stored, trusted)
        except (TooMuch, _NotAllowed) as error:
            raise PolicyError(
                f"it was not loaded: {error}. Only what torch.load(weights_only=True) takes is read here; if you trust "
                "it, load it yourself"
            ) from None
        except Exception as error:  # a pickle that torch allows may still fail in any way
            raise MetadataError(f"torch cannot load it: {type(error).__name__}: {shorten(str(error), 300)}") from error

    def _renew(self, data: bytes, stored: int) -> bytes:
        file = io.BytesIO(data)
        try:
            archive = Archive.read(file, len(data))
            plain = renew_plain(archive.pickled)
            if plain is not None:
                return plain
            with _allowed(self._given, objects=True) as trusted:
                loaded = _load(file, archive, stored, trusted)
            if isinstance(loaded, torch.Tensor):
                raise MetadataError("the item holds a tensor, the metadata says an object")
            renewed = io.BytesIO()
            torch.save(loaded, renewed)
        except NeverLoads as error:
            raise PolicyError(
                f"the object was not loaded: {error}, so it cannot be loaded with weights_only, whatever safe_globals= "
                "names. Store a list, a dict or a text in its place, or pass weights_only=False, which unpickles "
                "everything and lets whoever wrote the checkpoint run code here"
            ) from None
        except (NotSavedByTorch, TooMuch, _NotAllowed) as error:
            raise PolicyError(
                f"the object was not loaded: {error}. If you trust it, name the classes and functions that it needs, "
                "safe_globals=[...] (streamxf.unsafe_globals lists those of a whole checkpoint); weights_only=False "
                "unpickles everything, which lets whoever wrote the checkpoint run code here"
            ) from None
        except StreamxfError:
            raise
        except Exception as error:  # a pickle that torch allows may still fail in any way, and so may saving it again
            raise MetadataError(
                f"the object cannot be loaded: {type(error).__name__}: {shorten(str(error), 300)}"
            ) from error
        return renewed.getvalue()


class AsStored(Objects):
    """For who copies objects and never unpickles them: they are handed on as they are stored, whatever they need."""

    def renew(self, data: bytes, stored: int) -> bytes:
        return data


class _NotAllowed(ValueError):
    """Torch refuses the pickle under weights_only; says why."""


def _load(file: Any, archive: Archive, stored: int, trusted: Set[str], map_location: str | None = None) -> Any:
    return _unpickled(partial(load, file, archive, map_location), archive, stored, trusted)


def _unpickled(load: Callable[[], T], archive: Archive, stored: int, trusted: Set[str]) -> T:
    """What `load` makes of an archive, once it was found to be harmless."""
    names = vet(archive.pickled, archive.sizes, stored, trusted) - allowed() - trusted
    if names:  # torch may still allow them, if it put them on its list itself
        raise _NotAllowed(f"it needs {shown(sorted(names))}")
    try:
        return load()
    except pickle.UnpicklingError as error:
        raise _NotAllowed(_reason(str(error))) from None


@contextmanager
def _allowed(given: Set[Any], *, objects: bool) -> Iterator[Set[str]]:
    """Allow `given` for a while, for `objects` also what stands in for NumPy, and nobody else's meanwhile; gives the
    names of all that is trusted, which is what somebody named.

    Torch has one list for the whole process. Readers in other threads wait, so that none sees another's; what stood on
    the list before stays there, which torch's own context manager would take off. What torch put there itself is not
    trusted.
    """
    if not given and not objects:  # nobody has to wait for a tensor; an object may be loaded at the same time
        yield _names(chosen() - STAND_INS - _BASIC)
        return
    with _allowing.here():
        before = frozenset(torch.serialization.get_safe_globals())
        trusted = _names(chosen() | given)
        extra = stand_ins(trusted) | _BASIC if objects else frozenset()
        with torch.serialization.safe_globals(list((given | extra) - before)):
            yield trusted - _names(_BASIC)


@lru_cache(16)
def _names(entries: Iterable[Any]) -> Set[str]:
    return frozenset(map(name_of, entries))


def _reason(message: str) -> str:
    if found := _NAME.search(message):  # one of NumPy's, where the caller named others of them
        return f"it needs {shown([found[1]])}"
    if found := _CLASS.search(message):
        return f"it makes something of the class {shown([found[1]])}, and needs that"
    return "it uses its classes in a way that torch does not allow"
