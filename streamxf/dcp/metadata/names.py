"""What a pickle of metadata can name, and what that is charged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TUPLE_CHARGE, OBJECT_CHARGE = 3, 6  # below what the shortest real ones take, with their place in the memo

Find = Callable[[str, str], Any]
"""From module and name to a `Name`, or to a constant; raises for all that do not belong there."""

Pay = Callable[[int], None]
"""Charges a number of bytes of the pickle for what is made, and raises where it has not so many."""

Fill = Callable[[Any, Any, Pay], None]
"""Gives an instance its state, or raises."""


class Name:
    """What a global name of the pickle stands for.

    Parameters
    ----------
    text : str
        The name, for errors.
    call : callable, optional
        From a `Pay` and positional arguments to an object.
    make : callable, optional
        Makes an instance that holds nothing yet.
    pure : bool
        Whether what `call` makes depends on nothing but the arguments and never changes, so that equal ones may be one.
    fields : frozenset of str
        Attributes of a new instance that `fill` takes. It raises a KeyError where a needed one is missing.
    fill : callable, optional
        A `Fill` for a new instance.
    """

    __slots__ = ("call", "fields", "fill", "make", "pure", "text")

    def __init__(
        self,
        text: str,
        call: Callable[..., Any] | None = None,
        make: Callable[[], object] | None = None,
        *,
        pure: bool = False,
        fields: frozenset[str] = frozenset(),
        fill: Fill | None = None,
    ) -> None:
        self.text = text
        self.call = call
        self.make = make
        self.pure = pure
        self.fields = fields
        self.fill = fill
