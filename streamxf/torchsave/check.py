"""What an object's pickle would do, found out before anything is made of it.

A list of allowed names decides which a pickle may use, and hardly how: a few bytes can ask for a ``bytearray`` of any
size, make a set of a tensor that is one number expanded to a million, resize a storage to whatever a tensor's shape
says, or use as a key a tuple of tuples that share their parts, which takes forever to hash. Here records stand for what
is named, and what all of it takes is counted. A pickle that names nothing is complete then.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar

from streamxf.budget import ELEMENT
from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.errors import ParameterError
from streamxf.lazy import numpy as np
from streamxf.lazy import pattern
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.calls import BYTES_IO, CALLS, KINDS, NUMPY, OUTLINED, find_storage, scalar
from streamxf.torchsave.unpickler import ACTIONS, Actions, Foreign, Name, Unpickler

_TENSOR = 16  # opcodes: torch takes a kilobyte for each tensor, and as much again to save it
# Names that mean nothing without one another: who allows one of them means the real ones.
_GROUPS = {**dict.fromkeys(NUMPY, NUMPY.keys()), BYTES_IO: {BYTES_IO}}
_BLOCKED = ("sys.", "os.", "posix.", "nt.")  # as by torch, whoever allows them


def chosen() -> dict[str, Any]:
    """What was passed to ``torch.serialization.add_safe_globals``, by name. What torch put there itself does not count:
    importing DCP makes it allow DeviceMesh, for instance, which opens sockets when it is made; from torch 2.14 on it
    allows Python's exceptions, and the frames of their tracebacks.
    """
    torch: Any = sys.modules.get("torch")
    found = torch.serialization.get_safe_globals() if torch is not None else ()
    homes = {entry: getattr(entry[0] if isinstance(entry, tuple) else entry, "__module__", "") for entry in found}
    return by_name(entry for entry, home in homes.items() if not _of_torch(entry, f"{home}."))


def _of_torch(entry: Any, home: str) -> bool:
    is_error = home == "builtins." and isinstance(entry, type) and issubclass(entry, BaseException)
    return is_error or home.startswith(("torch.", "traceback."))


def by_name(entries: Iterable[Any]) -> dict[str, Any]:
    """What a list of ``safe_globals`` holds, by the names with which pickles ask for it; raises ParameterError."""
    return dict(map(_named, entries))


def _named(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0]) and isinstance(entry[1], str):
        return entry[1], entry[0]
    if not callable(entry) or not hasattr(entry, "__qualname__"):
        raise ParameterError(
            f"safe_globals takes classes and functions, or pairs of one and its name; {entry!r:.80} is neither"
        )
    return f"{entry.__module__}.{entry.__qualname__}", entry


def mapped(module: str, name: str) -> str:
    """A name as it is looked up, which a pickle has as Python 2 had it."""
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    else:
        module = IMPORT_MAPPING.get(module, module)
    return f"{module}.{name}"


class _Archived(Unpickler):
    """A pickle in an archive whose records have these `sizes`, in bytes; `kinds` are those of its storages, by key."""

    def __init__(self, pickled: bytes, sizes: dict[str, int], stored: int, more: int = 0) -> None:
        super().__init__(pickled, stored, more)
        self.sizes = sizes
        self.kinds: dict[str, str] = {}
        self._tensors = 0

    def call(self, function: Any, arguments: Any) -> Any:
        made = super().call(function, arguments)
        if isinstance(made, KINDS):  # one that was made before may be called for again by a few bytes
            self._tensors += 1
            if self._tensors * _TENSOR > self.limit:
                raise NotSavedByTorch(f"its pickle makes more than {self.limit // _TENSOR} tensors")
        return made

    def persistent_load(self, reference: Any) -> Any:
        return find_storage(self.sizes, self.kinds, reference)

    def new(self, function: Any, arguments: Any) -> Any:
        if type(function) is Name and function.make is not None and function.name != BYTES_IO:
            return self.refuse(function.name, arguments)  # a set, for one, would stay empty
        return self.call(function, arguments)


class Check(_Archived):
    """One pass over a pickle of ``torch.save``.

    - `sizes`: bytes of the archive's records; `stored`: bytes that the item takes in storage.
    - `allowed`: gives what the caller allows, by name, whose calls are the caller's business.
    - `names`: what it asks for, each with what the caller allows for it, or None; `unknown`: those that nobody allows.
    """

    # Those of torch.save's own protocol, 2. C's unpickler reads frames, for one, in another way: an opcode that crosses
    # the end of one loses the bytes before it.
    actions: ClassVar[Actions] = {
        opcode: ACTIONS[opcode] for opcode in b".(NKMGJXUqrhj]})tcQaesuRb\x80\x81\x85\x86\x87\x88\x89\x8a\x8b"
    }

    def __init__(
        self, pickled: bytes, sizes: dict[str, int], stored: int, allowed: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        super().__init__(pickled, sizes, stored, sum(sizes.values()) * 4 // ELEMENT)
        self.names: dict[str, Any] = {}
        self.unknown: set[str] = set()
        self._allow = allowed

    @cached_property
    def allowed(self) -> Mapping[str, Any]:
        return self._allow()

    def find_class(self, module: str, name: str) -> Name:
        full = mapped(module, name)
        function = CALLS.get(full)
        if function is not None and (full not in _GROUPS or _GROUPS[full].isdisjoint(self.allowed)):
            self.names[full] = None
            return Name(full, partial(function, self))
        self.names[full] = self.allowed.get(full)
        if full not in self.allowed or full.startswith(_BLOCKED):
            self.unknown.add(full)
        return Name(full)


class Outline(_Archived):
    """Of what is not made here, it keeps the parts."""

    def find_class(self, module: str, name: str) -> Name:
        full = f"{module:.200}.{name:.200}"
        function = OUTLINED.get(full)
        return Name(full, None if function is None else partial(function, self))

    def refuse(self, name: str, arguments: tuple[Any, ...]) -> Foreign:
        return Foreign(name, *arguments)


@collector_paused()
def read_outline(pickled: bytes, sizes: dict[str, int]) -> Any:
    """Read a pickle of ``torch.save``, whose archive has records of these sizes.

    Returns lists, tuples, dicts and plain values, with a `StoredTensor` in the place of each plain tensor, and another
    record, a `Size` or an OrderedDict in that of everything else. Parts may be shared.

    Raises NotSavedByTorch if it is not such a pickle, or has a tensor that does not fit its record.
    """
    unpickler = Outline(pickled, sizes, len(pickled))
    root = unpickler.load()
    if not unpickler.at_end:
        raise NotSavedByTorch("something follows its pickle")
    return root


class Maker(pickle.Unpickler):
    """Python's own unpickler, for a pickle that was checked, with what it names. `find_storage` gives tensors' memory.
    What is not allowed is left out: something that does nothing stands in its place.

    It may fill what a class of the caller's made, and nothing else that a function of the caller's gives. Raises
    NotAllowed, and whatever these raise.
    """

    def __init__(self, pickled: bytes, check: Check, find_storage: Callable[[Any], Any] | None = None) -> None:
        super().__init__(io.BytesIO(pickled), encoding="utf-8")
        self._check = check
        self._find_storage = find_storage

    def find_class(self, module: str, name: str) -> Any:
        full = mapped(module, name)
        allowed = self._check.names[full]
        if full in self._check.unknown:
            return _Inert
        if full in _OF_KINDS:
            return partial(_made_of, _import(full))
        if allowed is None:
            return scalar if full in NUMPY and full.endswith(".scalar") else _import(full)
        if full not in self._check.filled or isinstance(allowed, type):
            return allowed

        def make(*arguments: Any) -> Any:
            made = allowed(*arguments)
            if type(made) not in self._check.allowed.values():
                raise NotAllowed(f"it fills what {full} gives, a {_named(type(made))[0]}, which is not allowed")
            return made

        return make

    def persistent_load(self, reference: Any) -> Any:
        return self._find_storage(reference) if self._find_storage is not None else None


class _Inert:
    def __init__(self, *arguments: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def __reduce__(self) -> Any:
        raise NotAllowed("it holds something that was not made")

    append = extend = __setstate__


_OF_KINDS = ("torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_wrapper_subclass")


def _made_of(function: Callable[..., Any], *arguments: Any) -> Any:
    return _Inert() if any(each is _Inert for each in arguments) else function(*arguments)


def lacks(value: Any, known: dict[int, bool]) -> bool:
    """Whether something was left out of what a `Maker` made; `known` are containers in it."""
    if not isinstance(value, list | tuple | dict | set | frozenset):
        return value is _Inert or type(value) is _Inert
    if id(value) not in known:
        known[id(value)] = False  # in case it holds itself
        parts = chain(value.keys(), value.values()) if isinstance(value, dict) else value
        known[id(value)] = any(lacks(each, known) for each in parts)
    return known[id(value)]


# Numbers, tuples and lists of them: opcodes that make one thing at most, and neither hash nor name anything. C's
# unpickler lets nothing be appended to whatever there is.
_NUMBERS = pattern(rb"\x80\x02(?:[N)\]tea\x85-\x89]|\((?!e)|[Kq].|M..|J.{4}|G.{8}){,2048}\.", re.DOTALL)


def numbers_in(pickled: bytes) -> tuple[Any] | None:
    """What a short pickle of nothing but numbers makes, which needs no `Check`; None for any other."""
    try:
        return (pickle.loads(pickled),) if _NUMBERS.fullmatch(pickled) else None
    except Exception:  # a `Check` says what is wrong with it
        return None


class NotAllowed(ValueError):
    """It is more than weights_only allows; says what."""


@cache  # of names that are known here
def _import(name: str) -> Any:
    if name.endswith("._reconstruct"):  # whose module is another one in NumPy 1
        return np.empty(0).__reduce__()[0]
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{name}, which it needs, is not in the packages that are installed here") from error


_DTYPE = pattern("[biufcSUMmOV][0-9]{1,9}", re.ASCII)
MAX_LOOKED_AT = 2**20  # bytes of a pickle; the opcodes of a larger one would take a save noticeably longer


def needs(data: Any) -> tuple[tuple[str, ...], str]:
    """What the bytes of an object need: names to allow, and why it does not load then either, or ""."""
    try:
        archive = Archive(io.BytesIO(data), len(data))
    except NotSavedByTorch as error:
        return (), str(error)
    names, reason = _needs(Check(archive.pickled, archive.sizes, len(data), chosen))
    if reason:  # NumPy's functions do more where they are named
        wider, still = _needs(_WithNumPy(archive.pickled, archive.sizes, len(data), chosen))
        return (names, reason) if still else (wider, "")
    return names, ""


def _needs(check: Check) -> tuple[tuple[str, ...], str]:
    reason = ""
    try:
        check.load()
    except NotSavedByTorch as error:
        reason = str(error)
    return tuple(sorted(check.unknown)), reason


class _WithNumPy(Check):
    """As if no NumPy were known here. What fills a dtype needs the class of that dtype, too."""

    def find_class(self, module: str, name: str) -> Name:
        full = mapped(module, name)
        if full not in NUMPY:
            return super().find_class(module, name)
        self.unknown |= {full} - self.allowed.keys()
        return Name(full)

    def call(self, function: Any, arguments: Any) -> Any:
        if type(function) is Name and function.name == "numpy.dtype" and _DTYPE.fullmatch(str(arguments[0])):
            kind = type(np.dtype(arguments[0]))
            self.unknown |= {f"{kind.__module__}.{kind.__qualname__}"} - self.allowed.keys()
        return super().call(function, arguments)


def quick_needs(data: memoryview) -> tuple[tuple[str, ...], str]:
    """As `needs`, for a save: only what it can find out at no cost that anyone would notice, of its own pickle."""
    pickled = _first_record(bytes(data[:MAX_LOOKED_AT]))
    if pickled is None or _NUMBERS.fullmatch(pickled):
        return (), ""
    unpickler = _Names(io.BytesIO(pickled))
    try:
        unpickler.load()
    except Exception:  # it calls or fills what nothing here stands for
        return needs(data)
    return needs(data) if unpickler.names - CALLS.keys() or unpickler.names & NUMPY.keys() else ((), "")


def _first_record(head: bytes) -> bytes | None:
    """The pickle of what torch has just saved, found without reading the directory; None if that takes more."""
    stop = head.find(b"PK\x07\x08")  # the record's end, followed by its checksum and its size
    # where there is none, or less than a header before it, what follows would be a negative size
    start = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return head[start:stop] if int.from_bytes(head[stop + 8 : stop + 12], "little") == stop - start else None


class _Names(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")
        self.names: set[str] = set()

    def find_class(self, module: str, name: str) -> type[_Inert]:
        self.names.add(mapped(module, name))
        return _Inert

    def persistent_load(self, reference: object) -> None: ...
