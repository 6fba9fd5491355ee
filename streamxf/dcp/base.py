"""What streamxf's writers and readers share: the checkpoint's place, progress, and only errors that all ranks can read.

DCP sends an error from rank to rank by pickle. One that cannot be pickled, or that another rank cannot unpickle, does
not arrive: that rank fails with something else or dies, and the rest wait for their time-out. A cause gets lost, too.
"""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch.distributed as dist

from streamxf.errors import ParameterError, UnsupportedError, sendable
from streamxf.progress import Progress, ProgressBar, check_progress
from streamxf.storage.opening import Location, open_storage, storage_over
from streamxf.storage.storage import Storage, check_local
from streamxf.torch_private import flattening

P = ParamSpec("P")
T = TypeVar("T")
ProgressLike = bool | Progress


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
