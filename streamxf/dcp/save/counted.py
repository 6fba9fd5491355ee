"""`CountedOutlet`: an outlet whose blocks are counted as they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from streamxf.fileio.outlet import Outlet
from streamxf.progress import Share

T = TypeVar("T")


class CountedOutlet(Outlet):
    """Tells shares what has left.

    Attributes
    ----------
    share : Share or None
        Of the item whose stream is open.
    """

    share: Share | None = None

    def submit(self, encode: Callable[[], T], size: int, leave: Callable[[T], None]) -> None:
        super().submit(encode, size, self._telling(size, leave))

    def put(self, encoded: T, size: int, leave: Callable[[T], None]) -> None:
        super().put(encoded, size, self._telling(size, leave))

    def _telling(self, size: int, leave: Callable[[T], None]) -> Callable[[T], None]:
        share = self.share

        def leave_and_tell(encoded: T) -> None:
            leave(encoded)
            if share is not None:
                share.advance(size)

        return leave_and_tell
