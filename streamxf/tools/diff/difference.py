"""`Difference`: the result of comparing two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamxf.tools.diff.distance import Distance
from streamxf.wording import listed, many


@dataclass(frozen=True, slots=True)
class Change:
    """An item that both checkpoints have, and that is not the same.

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
    def of_dtype(self) -> bool:
        """Whether the dtype changed; from a tensor to an object, and back, does not count."""
        return self.dtypes[0] != self.dtypes[1] and not self.of_kind

    @property
    def of_shape(self) -> bool:
        """Whether the shape changed."""
        return self.shapes[0] != self.shapes[1] and not self.of_kind

    @property
    def of_kind(self) -> bool:
        """Whether a tensor became an object, or an object a tensor."""
        return (self.dtypes[0] is None) != (self.dtypes[1] is None)

    @property
    def of_values(self) -> bool:
        """Whether values changed; of another shape, or kind, that cannot be said."""
        return bool(self.text) or (self.distance is not None and self.distance.differing > 0)

    @property
    def what(self) -> str:
        """What changed, in words, without how far values are apart."""
        if self.of_kind:
            return " became ".join("an object" if dtype is None else f"a tensor of {dtype}" for dtype in self.dtypes)
        parts = [self.text] if self.text else []
        if self.of_dtype:
            parts.append(f"{self.dtypes[0]} became {self.dtypes[1]}")
        if self.of_shape:
            parts.append(f"{list(self.shapes[0])} became {list(self.shapes[1])}")
        if self.of_values and not self.text:
            parts.append("values")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f": {distance_text(self.distance)}" if self.distance else "")


@dataclass(frozen=True)
class Difference:
    """What `diff` found.

    - `first`, `second`: the paths.
    - `removed`, `added`: items that only the first has, and only the second.
    - `incomparable`: items that could not be compared, with the reason.
    - `equal`: how many items are the same: tensors bit for bit, objects by their value.
    - `elements`, `differing`: of all tensors of both that were compared; how many elements there are, and how many are
      not the same.
    - `notes`: what a reader should know, in sentences.
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
        lines = [
            verdict_of(self).replace("different:", "DIFFERENT:"),
            f"{many(self.equal, 'item')} the same; {self.differing:,} of {self.elements:,} compared elements differ",
            *listed("changed", self.changed),
            *listed("only in the first", self.removed),
            *listed("only in the second", self.added),
            *listed("not comparable", [f"{name}: {reason}" for name, reason in self.incomparable.items()]),
            *listed("not compared", self.not_compared),
            *listed("note", self.notes),
        ]
        return "\n".join(lines)


def verdict_of(found: Difference) -> str:
    """Whether the two are the same, in words; or how many items are not."""
    counts = {
        "changed": len(found.changed),
        "only in the first": len(found.removed),
        "only in the second": len(found.added),
        "not comparable": len(found.incomparable),
    }
    if found.same:
        return "the same, as far as they were compared" if found.not_compared else "the same"
    return "different: " + ", ".join(f"{many(count, 'item')} {what}" for what, count in counts.items() if count)


def distance_text(distance: Distance) -> str:
    """How far two tensors are apart, in words."""
    if not distance.differing:
        return "the same values"
    parts = [f"{distance.differing:,} of {many(distance.elements, 'element')} differ"]
    if distance.largest:
        parts.append(f"by {number_text(distance.largest)} at most and {number_text(distance.mean)} on average")
    elif distance.largest is not None:
        parts.append("in the sign of zero alone" if not distance.without else "some in the sign of zero alone")
    return ", ".join([*parts, *without_text(distance)])


def without_text(distance: Distance) -> list[str]:
    """What elements without a distance are, in words."""
    rest = distance.without - distance.to_nan - distance.from_nan - distance.other_nan
    counts = {
        "became NaN": distance.to_nan,
        "no longer NaN": distance.from_nan,
        "NaN with other bits": distance.other_nan,
        "infinitely far apart": rest,
    }
    return [f"{count:,} {what}" for what, count in counts.items() if count]


def number_text(value: float | int | None) -> str:
    """A distance as people read it: integers as they are, others with four digits."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
