"""``progress=`` of writers and readers: who is told, and where a bar is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from streamxf.bar import ProgressBar, check_installed
from streamxf.errors import ParameterError
from streamxf.progress import Progress

ProgressLike = bool | Progress


def check_progress(progress: ProgressLike) -> ProgressLike:
    """Give `progress` back if it can be told, or a bar can be shown.

    Raises
    ------
    ParameterError
        If it is neither a truth value nor a `Progress`.
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
    """The object that reports progress: the given one, a bar for True, or None. The bar is on rank 0, and where there
    are no ranks.
    """
    if not isinstance(progress, bool):
        yield progress
    elif progress and (not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0):
        with ProgressBar(title) as bar:
            yield bar
    else:
        yield None
