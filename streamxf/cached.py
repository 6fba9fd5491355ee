"""`cached_property` without a lock."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """As in Python 3.12. Before, all share a lock: threads wait, and a process forked meanwhile waits for good."""

        def __init__(self, make: Any) -> None:
            super().__init__(make)
            self.lock = nullcontext()
