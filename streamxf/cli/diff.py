"""``streamxf diff``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import PolicyError
from streamxf.wording import many, printable

if TYPE_CHECKING:
    from streamxf.tools.diff.difference import Change, Difference


def diff(
    a: str = options.PATH,
    b: str = options.PATH,
    only: list[str] | None = options.ONLY,
    prefix_a: str = options.value("TEXT", "Only items of A with this prefix, which is removed from their names.", ""),
    prefix_b: str = options.value("TEXT", "The same for B.", ""),
    top: int = options.value("N", "How many items of each kind to list; --json has all.", 20, min=0),
    values: bool = options.flag("Show statistics of B minus A: range, mean, standard deviation and distribution."),
    plain_a: bool = options.flag("A is not encrypted: the keys are for B alone."),
    plain_b: bool = options.flag("The same of B."),
    *,
    access: options.Access,
    out: show.Output,
) -> int:
    """Compare two checkpoints of any formats: what was added, removed or changed, and how far.

    Tensors are the same if all their bits are. An element that became NaN, or is NaN with other bits, has no distance
    and is counted separately. A folder that was packed is compared with a folder, or with another packed one, file by
    file. Otherwise only tensors and objects are compared, so a checkpoint is the same as the file that it was packed
    from; it says what was not compared. An item that cannot be read is listed with the reason, and the others are
    compared.

    Exit codes: 0 the same; 1 different, or damaged; 2 it could not start.

    Examples:
    streamxf diff /checkpoints/step-1000 /checkpoints/step-2000
    streamxf diff /checkpoints/step-1000 model.safetensors --prefix-a model.
    streamxf diff before after --only '*.weight' --values
    """
    from streamxf.tools.diff.diff import diff as compare

    with out.progress("Comparing") as bar:
        try:
            found = compare(
                a,
                b,
                **access,
                encrypted=(not plain_a, not plain_b),
                only=only or (),
                prefixes=(prefix_a, prefix_b),
                values=values,
                progress=bar,
            )
        except PolicyError as error:
            if access["keys"] and not (plain_a or plain_b):
                error.add_note("where only one of the two is encrypted, say which is not: --plain-a or --plain-b")
            raise
    if out.json:
        show.as_json({"same": found.same, **asdict(found)}, show.budget_for(access["max_expansion"], a, b))
    else:
        _print(found, top)
        if values and top:
            _differences(found.changed, top)
    return FINE if found.same else FAILED


def _print(found: Difference, top: int) -> None:
    from streamxf.tools.diff.difference import verdict_of

    show.say(f"{printable(found.first)} and {printable(found.second)}: {verdict_of(found)}")
    show.say(
        f"{many(found.equal, 'item')} the same, {found.differing:,} of {found.elements:,} elements compared differ"
    )
    if found.changed and top:
        _changes(found.changed, top)
    _names("-", found.removed, top)
    _names("+", found.added, top)
    _names("?", [f"{name}: {reason}" for name, reason in found.incomparable.items()], top)
    _names("not compared:", found.not_compared, top)
    for note in found.notes:
        show.say(f"note: {printable(note)}")


def _changes(changed: Sequence[Change], top: int) -> None:
    table = show.TextTable(
        "changed", "what", "differ", "largest", "mean", right=("differ", "largest", "mean"), fold=("changed", "what")
    )
    for change in changed[:top]:
        table.row(change.name, *_cells(change))
    table.print()
    if len(changed) > top:
        show.say(f"{len(changed) - top:,} more changed")


def _cells(change: Change) -> Iterable[str]:
    from streamxf.tools.diff.difference import number_text, without_text

    distance = change.distance
    if distance is None:
        return change.what, "", "", ""
    far = ("-", "-") if distance.largest is None else map(number_text, (distance.largest, distance.mean))
    return ", ".join([change.what, *without_text(distance)]), f"{distance.differing:,} of {distance.elements:,}", *far


def _differences(changed: Sequence[Change], top: int) -> None:
    """Statistics of B minus A."""
    from streamxf.cli.figures import ValueTable

    rows = ValueTable("B minus A")
    distances = ((change.name, change.distance) for change in changed)
    for name, distance in islice((each for each in distances if each[1] and each[1].statistics), top):
        rows.add(name, distance.statistics if distance else None)
    rows.print()


def _names(sign: str, names: Sequence[str], top: int) -> None:
    shown = list(map(printable, names[:top]))
    if len(names) > top:
        shown.append(f"{len(names) - top:,} more")
    for text in shown:
        show.say(f"{sign} {text}", wrap=False)
