"""Which save a caller expects."""

from __future__ import annotations

import re
from collections.abc import Collection

from streamxf.errors import IdentityError, ParameterError

SaveIds = str | Collection[str] | None
"""One id, or those of several ranks whose metadata is their own."""

UNKNOWN_RANKS = "how many ranks there were, each with its own metadata, and whether all are of one save"
"""What nobody can check without these ids, where ranks have metadata of their own."""

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def as_save_ids(given: SaveIds) -> frozenset[str] | None:
    """The ids that are acceptable; None for any.

    Raises
    ------
    ParameterError
        If one is not what ``writer.save_id`` gives, or there is none.
    """
    if given is None:
        return None
    found = (given,) if isinstance(given, str) or not isinstance(given, Collection) else tuple(given)
    if not found:
        raise ParameterError("expect_save_id= is empty, so no save would be the right one; leave it out for any")
    for save_id in found:
        if not is_id(save_id):
            raise ParameterError(
                f"expect_save_id={save_id!r:.80}: a save's id is 32 lower-case hexadecimal digits, as writer.save_id "
                "gives it"
            )
    return frozenset(found)


def is_id(value: object) -> bool:
    """Whether `value` is the id of a save, or of a writer."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def check_save_id(found: str, wanted: frozenset[str] | None) -> None:
    """Compare the id of an authenticated manifest.

    Raises
    ------
    IdentityError
        If it is another save's.
    """
    if wanted is not None and found not in wanted:
        raise IdentityError(
            f"this is the save {found}, and {', '.join(sorted(wanted))} was expected: another checkpoint was put in "
            "its place, or saved over it. Nothing of it was read or changed"
        )
