"""``progress=`` of writers and readers: an object that is called, or a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from streamxf.bar import ProgressBar, check_installed
from streamxf.errors import ParameterError
from streamxf.progress import Progress

ProgressLike = bool | Progress


def check_progress(progress: ProgressLike) -> ProgressLike:
    """Return `progress` if it can be used, or a bar can be shown.

    Raises
    ------
    ParameterError
        If it is neither a bool nor a `Progress`.
    UnsupportedError
        If it is True, and rich is not installed.
    """
    if progress is True:
        check_installed()
    elif progress is not False and not all(callable(getattr(progress, name, None)) for name in ("expect", "advance")):
        raise ParameterError(
            f"progress={progress!r:.80}: it is True, False, or an object with the methods expect and advance"
        )
    return progress


@contextmanager
def shown(progress: ProgressLike, title: str) -> Iterator[Progress | None]:
    """What to call: the object itself, a bar for True, else None. Of several ranks, rank 0 shows the bar."""
    if not isinstance(progress, bool):
        yield progress
    elif progress and (not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0):
        with ProgressBar(title) as bar:
            yield bar
    else:
        yield None
