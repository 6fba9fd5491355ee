"""Names that are the same after a prefix, as those of a model and of ``{"model": ...}``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamxf.wording import many

_TRIED = 20


def prefix_notes(removed: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Say so if the names that only one checkpoint has are those that only the other has, after a prefix."""
    for these, those, which in ((removed, added, "second"), (added, removed, "first")):
        prefix, count = _prefix(these, those)
        if count:
            other = "first" if which == "second" else "second"
            yield (
                f"{many(count, 'name')} of the {which} are names of the {other} behind {prefix!r}: with that prefix of "
                f"the {which} taken off, these items are compared"
            )


def _prefix(bare: Sequence[str], prefixed: Sequence[str]) -> tuple[str, int]:
    """The prefix behind which most of the names `bare` are among `prefixed`, and how many are."""
    there = set(prefixed)
    found: dict[str, int] = {}
    for name in bare[:_TRIED]:
        for longer in there:
            if longer.endswith(name) and longer != name:
                found.setdefault(longer[: -len(name)], 0)
        if found:
            break
    for prefix in list(found)[:_TRIED]:
        found[prefix] = sum(prefix + name in there for name in bare)
    return max(found.items(), key=lambda entry: entry[1], default=("", 0))
