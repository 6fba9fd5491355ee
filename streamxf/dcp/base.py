"""What streamxf's writers and readers share: the checkpoint's place, progress, and only errors that all ranks can read.

DCP sends an error from rank to rank by pickle. One that cannot be pickled, or that another rank cannot unpickle, does
not arrive: that rank fails with something else or dies, and the rest wait for their time-out. A cause gets lost, too.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch.distributed as dist

from streamxf.errors import ForeignError, ParameterError, StreamxfError, UnsupportedError, add_note, notes_of, text_of
from streamxf.progress import Progress, ProgressBar, check_progress
from streamxf.storage.opening import Location, open_storage, storage_over
from streamxf.storage.storage import Storage, check_local
from streamxf.torch_private import flattening

P = ParamSpec("P")
T = TypeVar("T")
ProgressLike = bool | Progress

MAX_BYTES = 1 << 16
_MAX_TEXT = 1 << 13
_MAX_CAUSES = 8
_PLACE: dict[str, type] = {"file": str, "item": str, "block": int}
_EVERYWHERE = sys.stdlib_module_names | {"streamxf"}


class StorageMixin(ABC):
    """The checkpoint that a torch writer or reader has; the class beside it makes `fs` and `path`.

    ``ABC`` is the base that torch's classes have, too. Python lets an object change its class only between classes that
    lie in memory alike, down to such a base, and `install` turns torch's writers and readers into ours.
    """

    fs: Any
    path: Any
    #: Of a class for folders, the name of the one for URLs.
    for_urls: ClassVar[str] = ""

    def __init__(self, path: Location, progress: ProgressLike, options: dict[str, Any], **own: Any) -> None:
        if self.for_urls:
            check_local(path, self.for_urls)
        elif isinstance(path, Storage):
            open_storage(path, options)  # refuses these
        # torch's class makes a path of what it is given, and reads nothing there
        super().__init__("." if isinstance(path, Storage) else path, **own, **options)  # type: ignore[call-arg]
        self._options = options  # torch's own reset forgets endpoint and credentials
        self._progress = progress if progress is False else check_progress(progress)
        if isinstance(path, Storage):
            self.path = path

    def reset(self, checkpoint_id: Location | None = None) -> None:
        """Switch to another checkpoint, same storage options. ParameterError for a path where this has a `Storage`."""
        if self.for_urls:
            check_local(checkpoint_id, self.for_urls)
        super().reset()  # type: ignore[misc]
        if isinstance(checkpoint_id, Storage):
            self.path = checkpoint_id
        elif checkpoint_id:
            if isinstance(self.path, Storage):
                raise ParameterError(f"{checkpoint_id!r:.200} is a path, and this was made for a Storage: give it one")
            self.path = self.fs.init_path(checkpoint_id, **({} if self.for_urls else self._options))

    @property
    def _storage(self) -> Storage:
        if isinstance(self.path, Storage):
            return self.path
        path = os.fspath(self.path)
        if "::" in path and not self.for_urls:  # of which torch takes the whole for a path of the first link
            return open_storage(path, self._options)
        return storage_over(getattr(self.fs, "fs", None), path, path)


def rank_here() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def ranks_here() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def progress_on(progress: ProgressLike, title: str) -> Iterator[Progress | None]:
    """What to call: the object itself, a bar for True, else None. Of several ranks, rank 0 shows the bar."""
    if not isinstance(progress, bool):
        yield progress
    elif progress and rank_here() == 0:
        with ProgressBar(title) as bar:
            yield bar
    else:
        yield None


def errors_reach_all_ranks(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that DCP calls on every rank: whatever it raises can be sent to the others.

    Errors of Python, torch and streamxf stay as they are and get their causes as notes. Others are replaced by the
    nearest class that every rank has, `ForeignError` if there is none, with the same text; the original is the cause.
    """

    @wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            made = sendable(error)
            if made is error:
                raise
            raise made.with_traceback(error.__traceback__) from error

    return guarded


def sendable(error: BaseException) -> BaseException:
    """The error itself, or what can be sent to other ranks in its place."""
    causes = [note for note in _causes(error) if note not in notes_of(error)]
    if _is_known(type(error)):
        for note in causes:
            add_note(error, note)
        if _survives(error):
            return error
        causes = []
    made = _stand_in(error)
    for note in [*notes_of(error), *causes]:
        made.add_note(note[:_MAX_TEXT])
    return made if _survives(made) else ForeignError(_named(error)[: MAX_BYTES // 8])


def _stand_in(error: BaseException) -> BaseException:
    """An error of the nearest class that all ranks have, with the text of `error`."""
    nearest = next(cls for cls in type(error).__mro__ if issubclass(cls, BaseException) and _is_known(cls))
    named = _text(error) if nearest is type(error) else _named(error)
    made: BaseException | None = None
    if issubclass(nearest, StreamxfError):
        place: dict[str, Any] = {name: getattr(error, name, None) for name in _PLACE}
        made = nearest(named, **{name: place[name] for name in place if type(place[name]) is _PLACE[name]})
    elif isinstance(error, OSError) and type(error.errno) is int:
        made = OSError(error.errno, named)
    elif nearest not in (BaseException, Exception):
        with suppress(Exception):  # it is not made of a text
            made = nearest(named)
    return made if made is not None and _survives(made) else ForeignError(_named(error))


def _survives(error: BaseException) -> bool:
    """Whether the error comes out of a pickle as it went in, and needs nothing for it that another rank may lack."""
    sink = io.BytesIO()
    try:
        _Sender(sink).dump(error)
        if sink.tell() > MAX_BYTES:
            return False
        again = pickle.loads(sink.getvalue())
        return type(again) is type(error) and str(again) == str(error) and notes_of(again) == notes_of(error)
    except Exception:  # an error's own code may raise anything
        return False


class _Sender(pickle.Pickler):
    """Takes what is made of classes and functions that every rank has."""

    def reducer_override(self, obj: Any) -> Any:
        function = isinstance(obj, FunctionType | BuiltinFunctionType)
        if not _is_known(obj if function or isinstance(obj, type) else type(obj)):
            raise pickle.PicklingError(f"{type(obj).__name__} may not be known everywhere")
        return NotImplemented


def _is_known(named: Any) -> bool:
    root = str(named.__module__).partition(".")[0]
    return root in _EVERYWHERE or (root == "torch" and isinstance(named, type) and issubclass(named, BaseException))


def _named(error: BaseException) -> str:
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    text = _text(error)
    return f"{name}: {text}" if text else name


def _text(error: BaseException) -> str:
    message = getattr(error, "message", None) if isinstance(error, StreamxfError) else None
    return (message if isinstance(message, str) else text_of(error))[:_MAX_TEXT]


def _causes(error: BaseException) -> Iterator[str]:
    seen = {id(error)}
    for _ in range(_MAX_CAUSES):
        cause, how = error.__cause__, "caused by"
        if cause is None and not error.__suppress_context__:
            cause, how = error.__context__, "raised while this was handled:"
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield f"{how} {_named(cause)}"
        error = cause


def keys_by_text(keys: Iterable[Any]) -> dict[str, Any]:
    """A dict's keys by their texts, of which paths are made; UnsupportedError if two have the same text."""
    found: dict[str, Any] = {}
    for key in keys:
        if found.setdefault(str(key), key) is not key:
            raise UnsupportedError(
                f"the keys {found[str(key)]!r} and {key!r} of one dict have the same text, by which alone DCP tells "
                "them apart, so their values would be mixed up: rename one"
            )
    return found


def reset_names() -> None:
    """Undo what a load by torch's planner leaves that fails while it looks for names of torch before 2.4."""
    flattening._derived_version = None


def is_own(planner: Any, methods: Mapping[str, Any]) -> bool:
    """Whether a planner's methods of these names are torch's, as imported: what is in their place may do anything."""
    return [getattr(getattr(planner, name, None), "__func__", None) for name in methods] == [*methods.values()]
