"""`install`: the writers and readers that frameworks and torch's own tools make for themselves use a chain.

While installed, ``__init__`` of torch's classes turns the object that is being made into one of streamxf's. This
reaches a class under whatever name it was imported before, does nothing to subclasses, and is undone exactly, because
torch's classes have an ``__init__`` of their own to be put back. A ``__new__`` could not be taken off again: Python
then refuses the class all arguments. A factory in the place of the class would break ``isinstance``.

What is relied on of torch's private parts is listed in `_points`, and looked at before anything is changed.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import wraps
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.filesystem import FileSystemReader as ReaderOfTorch

from streamxf.chain import Chains, ChainsLike
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.saving import Extensions
from streamxf.codec import Codec
from streamxf.dcp.attach import attach
from streamxf.dcp.base import StorageMixin
from streamxf.dcp.extensions import Registry
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.writer import ChainWriterMixin, FileSystemWriter, extensions_of
from streamxf.errors import ChainError, ParameterError, StreamxfError, UnsupportedError
from streamxf.keys import KeyRing, KeysLike
from streamxf.torch_private import part, path_of_async_save

_MEGATRON = "megatron.core.dist_checkpointing.strategies"
_ATTACHED = {
    f"{_MEGATRON}.filesystem_async.FileSystemWriterAsync",
    f"{_MEGATRON}.cached_metadata_filesystem_reader.CachedMetadataFileSystemReader",
}
"""Derived classes that pass items through torch's ``transforms``, and for which `attach` is tested."""
_log = logging.getLogger(__name__)


def install(
    chain: ChainsLike | None = None,
    *,
    keys: KeysLike = None,
    writer: Mapping[str, Any] | None = None,
    reader: Mapping[str, Any] | None = None,
) -> Installation:
    """Give a chain to every DCP writer and reader that is made from now on in this process, by any code.

    This includes torch's ``FileSystemWriter``, ``FileSystemReader``, ``FsspecWriter`` and ``FsspecReader``,
    ``checkpoint_id=`` of ``save``, ``async_save`` and ``load``, and tools such as ``dcp_to_torch_save``. Megatron
    Core's classes get it by `attach`. Other derived classes, streamxf's, and earlier objects stay as they are.

    An inner installation overrides an outer one. Use the result in a ``with`` statement, or call its `uninstall`.

    Parameters
    ----------
    chain : Chain, codecs or str, or a mapping
        As in `FileSystemWriter`, after extensions that a writer is made with; one that is made with codecs keeps those.
    keys : Key, location, several of them or a KeyRing
        The key for ``encrypt`` in a chain's text form, and the readers' keys. By default these are the keys of the
        chain that can read. If the chain encrypts, readers refuse unencrypted checkpoints, regardless of their keys; an
        explicit ``streamxf.FileSystemReader(path, require=None)`` loads them.
    writer, reader : dict, optional
        More arguments for writers and readers, such as ``{"thread_count": 2}`` and ``{"safe_globals": [...]}``.
        Arguments that a framework passes itself take precedence. Without ``trust``, readers trust the chain's signer.

    Raises ChainError, ParameterError if the arguments do not fit, UnsupportedError if this torch lacks a required part.
    Nothing is changed then.
    """
    given = dict(reader or {})
    trust, unsigned = given.pop("trust", None), given.pop("allow_unsigned", False)
    made = Chains.chosen(chain, keys=(ring := None if keys is None else KeyRing.of(keys)))  # asks but once
    ring = made.default.ring(ring, trust, unsigned)
    installation = Installation(made, ring, dict(writer or {}), given)
    if trust is None and ring.trust and not (isinstance(keys, KeyRing) and keys.trust):
        installation._attached = KeyRing([*ring], allow_unsigned=ring.allow_unsigned)
    return _put_in_force(installation)


def _put_in_force(installation: Installation) -> Installation:
    with _lock:
        hooks = _hooks or [_Hook(owner, name, vars(owner)[name], new) for owner, name, new in _points()]
        installation._try_arguments()
        if not _stack:  # rather than `not _hooks`: an interrupt may have left some that were not set
            _hooks[:] = hooks
            for hook in hooks:
                setattr(hook.owner, hook.name, hook.replacement)
        _stack.append(installation)
    _log.info("%r", installation)
    return installation


def installed() -> Installation | None:
    """The installation in force here, or None; StreamxfError if the variables of the environment cannot be used."""
    found = _stack[-1] if _stack else None
    if found is not None and found._error is not None:
        raise copy(found._error)  # whose traceback would grow with each
    return found


def _for_writers() -> Installation | None:
    """The installation in force, unless it is for readers alone; raises as `installed`."""
    return installed() if _stack and _stack[-1].chain is not None else None


class Installation:
    """What `install` did, until it is undone by `uninstall` or the end of a ``with`` block.

    Attributes
    ----------
    chain : Chains or None
        The writers' chain for each item; None if ``STREAMXF_KEYS`` alone was set, so that only readers are changed.
    keys : KeyRing
        The readers' keys.
    left_alone : set of str
        The classes of torch's writers, and of those derived from them, whose objects saved without any codec meanwhile.
    """

    def __init__(
        self,
        chain: Chains | None,
        keys: KeyRing,
        writer: dict[str, Any],
        reader: dict[str, Any],
        error: StreamxfError | None = None,
    ) -> None:
        self.chain = chain
        self.keys = keys
        self.left_alone: set[str] = set()
        self._writer = writer
        self._reader = reader
        self._error = error
        self._attached = keys  # a writer of `attach` cannot sign, so nobody waits there for the chain's own signer

    @classmethod
    def for_readers(
        cls, keys: KeysLike = None, error: StreamxfError | None = None, writers: bool = False
    ) -> Installation:
        """As `install` for readers alone; with an `error`, torch's raise it from now on, and its `writers`, too."""
        return _put_in_force(cls(Chains.chosen([]) if writers else None, KeyRing.of(keys), {}, {}, error))

    def uninstall(self) -> None:
        """Undo it: torch's classes are as before, or as of an outer installation. Objects made since keep their chain.

        Raises UnsupportedError if an inner installation has to be undone first, this one has been undone already, or
        somebody else has changed the same parts of torch since.
        """
        with _lock:
            if _stack[-1:] != [self]:
                why = "undo the inner one first" if self in _stack else "it is not installed any more"
                raise UnsupportedError(f"{self!r} cannot be undone: {why}")
            for hook in (going := [*_hooks] if len(_stack) == 1 else []):
                what = f"{hook.owner.__name__}.{hook.name}"
                if vars(hook.owner)[hook.name] not in (hook.replacement, hook.original):  # the latter: an interrupt
                    raise UnsupportedError(f"{what} was replaced after streamxf.install; undo that first")
            for hook in going:
                setattr(hook.owner, hook.name, hook.original)
            del _hooks[: len(going)]
            _stack.pop()
        _log.info("%r", self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self in _stack:
            self.uninstall()

    def __repr__(self) -> str:
        keys = f", keys {', '.join(key.id for key in self.keys)}" if len(self.keys) else ""
        what = ("no chain" if self.chain is None else f"chain {str(self.chain) or '(empty)'}") + keys
        if self not in _stack:
            return f"<streamxf installation, undone: {what}>"
        shadowed = "" if self is _stack[-1] else ", shadowed by another"
        names = ", ".join(sorted({hook.owner.__name__ for hook in _hooks}))
        return f"<streamxf installation{shadowed}: {what}; changed in torch {torch.__version__}: {names}>"

    def _try_arguments(self) -> None:
        """Make a writer and a reader, so that an argument that they refuse is an error now."""
        for name in {"_extensions", "chain", "keys"} & {*self._writer, *self._reader}:
            raise ParameterError(f"{name}= is an argument of install itself, and not for writer= or reader=")
        for own, made in (FileSystemWriter, self._for_writer({})), (FileSystemReader, self._for_reader({})):
            try:
                tried = own("streamxf", **made)
                if isinstance(tried, FileSystemReader):
                    self._fit(tried)
            except TypeError as error:
                raise ParameterError(f"{own.__name__} cannot be made with these arguments: {error}") from None

    def _for_writer(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of streamxf's writer, from those that torch's was given by name."""
        extensions: Any = list(given.pop("_extensions", None) or ())
        if not any(isinstance(extension, Codec) for extension in extensions):
            if len(extensions) and self.chain is not None and any(chain.raw for chain in self.chain):
                raise ChainError("chain='raw' cannot be combined with stream extensions, which change the stored bytes")
            extensions = Extensions(extensions_of(extensions).foreign, self.chain or Chains.chosen([]))
        return {**self._writer, **given, "_extensions": extensions}

    def _for_reader(self, given: dict[str, Any]) -> dict[str, Any]:
        """The same of a reader. Keys in a registry stand instead of those that are installed."""
        registry = given.get("_extension_registry")
        keys = None if isinstance(registry, Registry) and len(registry.keys) else self.keys
        return {**self._reader, **given, "keys": keys}

    def _reach(self, target: Any) -> None:
        """`attach` the chain to a derived writer, or the keys to a derived reader, if its class is known."""
        if _named(type(target)) not in _ATTACHED or _has_codecs(target):
            return
        if isinstance(target, ReaderOfTorch):
            if others := {*self._reader} - {"require", "weights_only", "safe_globals", "max_expansion"}:
                raise UnsupportedError(f"{type(target).__name__} does not know {', '.join(sorted(others))} of reader=")
            attached: Any = attach(target, keys=self._attached, **self._reader)
            self._fit(attached.transforms)
        elif self.chain is not None:
            attach(target, self.chain)

    def _fit(self, reader: Any) -> None:
        """Let a reader expect what the chain makes."""
        if self.chain is not None:
            reader.for_chain(self.chain.default)

    def _warn_of(self, writer: Any) -> None:
        """Log, once for each class, that a writer saves without codecs: of its own, from `attach`, or the chain's."""
        name = _named(type(writer))
        if isinstance(writer, StorageMixin) or _has_codecs(writer) or name in self.left_alone:
            return
        self.left_alone.add(name)
        if self.chain is not None:
            _log.warning("a %s that streamxf.install does not change is saving without the chain", name)
        else:
            text = "a %s saves without encryption, which readers refuse while STREAMXF_KEYS is set: %s"
            _log.warning(text, name, Access.of(self.keys).way_out)


def _has_codecs(writer: Any) -> bool:
    extensions = getattr(getattr(writer, "transforms", None), "extensions", ())
    return any(isinstance(extension, Codec) for extension in extensions)


class _Hook(NamedTuple):
    """A method of torch's that was replaced."""

    owner: type
    name: str
    original: Callable[..., Any]
    replacement: Callable[..., Any]


_stack: list[Installation] = []
_hooks: list[_Hook] = []
_lock = threading.RLock()  # a second thread must not take a replacement for torch's own
# nor may a child have half an installation, and a lock whose thread it lacks
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _points() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """What is replaced: the class, the method, and what makes the replacement of the original."""
    setup = _part("storage_setup")
    _check(setup, f"{setup.__module__}._storage_setup", ("storage", "checkpoint_id", "reader"))
    classes: dict[type, str] = {FileSystemWriter: "_extensions", FileSystemReader: "_extension_registry"}
    if find_spec("fsspec") is not None:  # torch does without, too
        from streamxf.dcp.fsspec import FsspecReader, FsspecWriter

        classes |= {FsspecWriter: "_extensions", FsspecReader: ""}
    for own, extensions in classes.items():
        owner = own.__bases__[1]
        original = _method(owner, "__init__", ("self", "path"), extensions)
        try:
            object.__new__(owner).__class__ = own  # type: ignore[assignment]
        except TypeError as error:
            _unknown(f"{_named(owner)} differs too much from streamxf's class ({error})")
        yield owner, "__init__", _turning(owner, own, original)
    for name in ("ThreadBasedAsyncCheckpointExecutor", "ProcessBasedAsyncCheckpointExecutor"):
        owner = _part(name)
        original = _method(owner, "execute_save", ("self",), "checkpoint_id", "storage_writer")
        yield owner, "execute_save", _making_at_once(original, setup)
    if (stager := getattr(staging, "DefaultStager", None)) is not None:  # from torch 2.9 on
        yield stager, "stage", _staging(_method(stager, "stage", ("self", "state_dict")), setup)
    owner = _part("AnyFileSystemWriter")
    original = _method(owner, "set_up_storage_writer", ("self", "is_coordinator"))
    yield owner, "set_up_storage_writer", _warning(original)


def _turning(owner: type, own: type, original: Callable[..., Any]) -> Callable[..., Any]:
    """An ``__init__`` of torch's class `owner` that makes an object of streamxf's class `own`."""
    signature = inspect.signature(original)
    writes = issubclass(own, ChainWriterMixin)

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        installation = None if isinstance(self, StorageMixin) else _for_writers() if writes else installed()
        if installation is None:
            original(self, *args, **kwargs)
            return
        given = _by_name(signature.bind(self, *args, **kwargs)) if type(self) is owner else None
        if given is None or getattr(given.get("serialization_format"), "value", "torch_save") != "torch_save":
            original(self, *args, **kwargs)
            installation._reach(self)
            return
        made = installation._for_writer(given) if writes else installation._for_reader(given)
        self.__class__ = own
        self.__init__(**made)
        if not writes:
            installation._fit(self)

    return __init__


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a call, without ``self``, by names that torch's order of them does not touch."""
    _, *rest = bound.signature.parameters.values()
    given = {one.name: bound.arguments[one.name] for one in rest if one.name in bound.arguments}
    for one in rest:
        if one.kind is one.VAR_KEYWORD:
            given.update(given.pop(one.name, {}))
    return given


def _making_at_once(original: Callable[..., Any], setup: Callable[..., Any]) -> Callable[..., Any]:
    """An ``execute_save`` that makes the writer for ``checkpoint_id=`` itself. Otherwise a thread would make it,
    perhaps after the installation was undone, or a child process that has none: either would save without the chain.
    """

    @wraps(original)
    def execute_save(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (installation := _for_writers()) is not None:
            if (writer := kwargs.get("storage_writer")) is not None:
                installation._warn_of(writer)
            elif kwargs.get("checkpoint_id"):
                kwargs["storage_writer"] = setup(None, kwargs["checkpoint_id"], reader=False)
        return original(self, *args, **kwargs)

    return execute_save


def _staging(original: Callable[..., Any], setup: Callable[..., Any]) -> Callable[..., Any]:
    """A ``stage`` that copies as the writer for ``checkpoint_id=`` does. Torch's stores other numbers for some tensors:
    of 2.13.0 those of conjugate views, and unset memory for subclasses that hold others.
    """

    @wraps(original)
    def stage(self: Any, state_dict: Any, **kwargs: Any) -> Any:
        path = None if _for_writers() is None else path_of_async_save(self)
        writer = None if path is None else setup(None, path, reader=False)
        return original(self, state_dict, **kwargs) if writer is None else writer.stage(state_dict)

    return stage


def _warning(original: Callable[..., Any]) -> Callable[..., Any]:
    """A ``set_up_storage_writer`` that tells of writers of derived classes, or made before, which were not changed."""

    @wraps(original)
    def set_up_storage_writer(self: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, StorageMixin) and _stack:
            installation = _for_writers() or _stack[-1]
            installation._reach(self)
            installation._warn_of(self)
        original(self, *args, **kwargs)

    return set_up_storage_writer


def _part(name: str) -> Any:
    try:
        return part(name)
    except (ImportError, AttributeError) as error:
        _unknown(str(error))


def _method(owner: type, name: str, first: tuple[str, ...], *named: str) -> Callable[..., Any]:
    found = vars(owner).get(name)
    if not inspect.isfunction(found):
        _unknown(f"{_named(owner)} has no method {name} of its own")
    _check(found, f"{_named(owner)}.{name}", first, *named)
    return found


def _check(function: Callable[..., Any], name: str, first: tuple[str, ...], *named: str) -> None:
    """Raise UnsupportedError unless a function has these parameters: `first` at its beginning, `named` anywhere."""
    found = inspect.signature(function).parameters
    if tuple(found)[: len(first)] != first or not all(wanted in found for wanted in named if wanted):
        wanted = ", ".join(filter(None, [*first, *named]))
        _unknown(f"{name} takes ({', '.join(found)}), not ({wanted})")


def _named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _unknown(what: str) -> NoReturn:
    raise UnsupportedError(
        f"streamxf.install does not know torch {torch.__version__}: {what}. Nothing was changed. Pass "
        "streamxf.FileSystemWriter and FileSystemReader where a writer or reader is taken"
    )
