"""`Difference`: the result of comparing two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamxf.tools.diff.distance import Distance
from streamxf.wording import SHOWN, listed, many


@dataclass(frozen=True, slots=True)
class Change:
    """An item of both checkpoints that differs.

    - `dtypes`, `shapes`: of both; the dtypes as torch names them, None for an object.
    - `distance`: how far their values are apart. None where the shapes differ, where one is an object, and where the
      elements of two different dtypes are not numbers.
    - `text`: of objects, where they differ first; else empty.
    """

    name: str
    dtypes: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    distance: Distance | None = None
    text: str = ""

    @property
    def what(self) -> str:
        """What changed, in words, without how far values are apart."""
        if None in self.dtypes and self.dtypes != (None, None):
            return " became ".join("an object" if dtype is None else f"a tensor of {dtype}" for dtype in self.dtypes)
        parts = [self.text] if self.text else []
        if self.dtypes[0] != self.dtypes[1]:
            parts.append(f"{self.dtypes[0]} became {self.dtypes[1]}")
        if self.shapes[0] != self.shapes[1]:
            parts.append(f"{list(self.shapes[0])} became {list(self.shapes[1])}")
        if self.distance is not None and self.distance.differing:
            parts.append("values")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f": {distance_text(self.distance)}" if self.distance else "")


@dataclass(frozen=True)
class Difference:
    """The result of `diff`.

    - `first`, `second`: the paths.
    - `removed`, `added`: items that only the first has, and only the second.
    - `incomparable`: items that could not be compared, with the reason.
    - `equal`: how many items are the same: tensors bit for bit, objects by their value.
    - `elements`, `differing`: of all tensors of both that were compared; how many elements there are, and how many are
      not the same.
    - `notes`: remarks, in sentences.
    - `not_compared`: other contents of the two paths, such as files beside tensors.
    """

    first: str
    second: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[Change, ...]
    incomparable: Mapping[str, str]
    equal: int
    elements: int
    differing: int
    notes: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every item that was compared is known to be the same."""
        return not (self.removed or self.added or self.changed or self.incomparable)

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int = SHOWN) -> str:
        """A verdict, counts, and of each kind `most` items at the most."""
        kinds = {
            "changed": self.changed,
            "only in the first": self.removed,
            "only in the second": self.added,
            "not comparable": [f"{name}: {reason}" for name, reason in self.incomparable.items()],
        }
        counts = ", ".join(f"{many(len(entries), 'item')} {kind}" for kind, entries in kinds.items() if entries)
        same = "the same, as far as they were compared" if self.not_compared else "the same"
        lines = [
            same if self.same else f"DIFFERENT: {counts}",
            f"{many(self.equal, 'item')} the same; {self.differing:,} of {self.elements:,} compared elements differ",
            *(line for kind, entries in kinds.items() for line in listed(kind, entries, most=most)),
            *listed("not compared", self.not_compared),
            *listed("note", self.notes),
        ]
        return "\n".join(lines)


def distance_text(distance: Distance) -> str:
    """How far two tensors are apart, in words."""
    if not distance.differing:
        return "the same values"
    parts = [f"{distance.differing:,} of {many(distance.elements, 'element')} differ"]
    if distance.largest:
        parts.append(f"by {_number(distance.largest)} at most and {_number(distance.mean)} on average")
    elif distance.largest is not None:
        parts.append("in the sign of zero alone" if not distance.without else "some in the sign of zero alone")
    without = {
        "became NaN": distance.to_nan,
        "no longer NaN": distance.from_nan,
        "NaN with other bits": distance.other_nan,
        "infinitely far apart": distance.without - distance.to_nan - distance.from_nan - distance.other_nan,
    }
    return ", ".join([*parts, *(f"{count:,} {what}" for what, count in without.items() if count)])


def _number(value: float | int | None) -> str:
    """A distance as people read it: integers as they are, others with four digits."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
