"""Torch's list of what weights-only pickles may use besides: what the caller put there, and what a load lends it.

There is one list for the whole process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from streamxf.errors import ParameterError
from streamxf.stream.locks import ForkLock

_lending = ForkLock()
_lent: set[Any] = set()


@contextmanager
def lent(entries: Set[Any]) -> Iterator[None]:
    """Have `entries` on the list for a while. Other loads wait, so that none gets what was lent to another; what is on
    the list already stays there, which torch's own context manager would take off.
    """
    import torch

    if not entries:
        yield
        return
    with _lending.here():
        new = entries - frozenset(torch.serialization.get_safe_globals())
        _lent.update(new)
        try:
            with torch.serialization.safe_globals(list(new)):
                yield
        finally:
            _lent.difference_update(new)


def chosen() -> Set[str]:
    """The names that were passed to ``torch.serialization.add_safe_globals``.

    What torch put there itself does not count: importing DCP makes it allow DeviceMesh, for instance, which opens
    sockets when it is made.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return frozenset()
    found = frozenset(torch.serialization.get_safe_globals()) - _lent
    return names_of(entry for entry in found if not _module_of(entry).startswith("torch."))


def names_of(entries: Iterable[Any]) -> Set[str]:
    """The names by which pickles ask for what a list of ``safe_globals`` holds; raises ParameterError for what is
    neither a class nor a function, nor a pair of one and its name.
    """
    return frozenset(map(_name_of, entries))


@lru_cache(1024)
def _name_of(entry: Any) -> str:
    if isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0]) and isinstance(entry[1], str):
        return entry[1]
    if not callable(entry) or not hasattr(entry, "__qualname__"):
        raise ParameterError(
            f"safe_globals takes classes and functions, or pairs of one and its name; {entry!r:.80} is neither"
        )
    return f"{entry.__module__}.{entry.__qualname__}"


def _module_of(entry: Any) -> str:
    return f"{getattr(entry[0] if isinstance(entry, tuple) else entry, '__module__', '')}."
