"""``streamxf diff``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import PolicyError
from streamxf.wording import many, printable

if TYPE_CHECKING:
    from streamxf.tools.diff.difference import Change, Difference

EXAMPLES = (
    "streamxf diff /checkpoints/step-1000 /checkpoints/step-2000",
    "streamxf diff /checkpoints/step-1000 model.safetensors --prefix-a model.",
    "streamxf diff before after --only '*.weight' --values",
)


def diff(
    a: options.Path,
    b: options.Path,
    only: options.Only = None,
    prefix_a: Annotated[
        str, typer.Option(metavar="TEXT", help="Only items of A with this prefix, which is removed from their names.")
    ] = "",
    prefix_b: Annotated[str, typer.Option(metavar="TEXT", help="The same for B.")] = "",
    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many items of each kind to list; --json has all.")
    ] = 20,
    values: Annotated[
        bool,
        typer.Option(
            "--values", help="Show statistics of B minus A: range, mean, standard deviation and distribution."
        ),
    ] = False,
    plain_a: Annotated[bool, typer.Option("--plain-a", help="A is not encrypted: the keys are for B alone.")] = False,
    plain_b: Annotated[bool, typer.Option("--plain-b", help="The same of B.")] = False,
    *,
    access: options.Access,
    json: options.Json = False,
) -> int:
    """Compare two checkpoints of any formats: what was added, removed or changed, and how far.

    Tensors are the same if all their bits are. An element that became NaN, or is NaN with other bits, has no distance
    and is counted separately. A folder that was packed is compared with a folder, or with another packed one, file by
    file. Otherwise only tensors and objects are compared, so a checkpoint is the same as the file that it was packed
    from; it says what was not compared. An item that cannot be read is listed with the reason, and the others are
    compared.

    Exit codes: 0 the same; 1 different, or damaged; 2 it could not start.
    """
    from streamxf.tools.diff.diff import diff as compare

    with show.progress("Comparing", json) as bar:
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
    if json:
        show.as_json({"same": found.same, **asdict(found)}, show.budget_for(access["max_expansion"], a, b))
    else:
        _print(found, top)
        if values:
            _differences(found.changed, top)
    return FINE if found.same else FAILED


def _print(found: Difference, top: int) -> None:
    from streamxf.tools.diff.difference import verdict_of

    out = show.console()
    out.print(f"{printable(found.first)} and {printable(found.second)}: {verdict_of(found)}")
    out.print(
        f"{many(found.equal, 'item')} the same, {found.differing:,} of {found.elements:,} elements compared differ"
    )
    if found.changed and top:
        _changes(found.changed, top)
    _names("-", found.removed, top)
    _names("+", found.added, top)
    _names("?", [f"{name}: {reason}" for name, reason in found.incomparable.items()], top)
    _names("not compared:", found.not_compared, top)
    for note in found.notes:
        out.print(f"note: {printable(note)}")


def _changes(changed: Sequence[Change], top: int) -> None:
    table = show.table("changed", "what", "differ", "largest", "mean", right=("differ", "largest", "mean"))
    for change in changed[:top]:
        show.row(table, show.ItemName(change.name), *_cells(change))
    show.console().print(table)
    if len(changed) > top:
        show.console().print(f"{len(changed) - top:,} more changed")


def _cells(change: Change) -> Iterable[str]:
    from streamxf.tools.diff.difference import number_text, without_text

    distance = change.distance
    if distance is None:
        return change.what, "", "", ""
    far = ("-", "-") if distance.largest is None else map(number_text, (distance.largest, distance.mean))
    return ", ".join([change.what, *without_text(distance)]), f"{distance.differing:,} of {distance.elements:,}", *far


def _differences(changed: Sequence[Change], top: int) -> None:
    """Statistics of B minus A."""
    from streamxf.cli.figures import Rows

    found = [
        (change.name, change.distance.statistics)
        for change in changed
        if change.distance is not None and change.distance.statistics is not None
    ]
    if not found or not top:
        return
    rows = Rows("B minus A")
    for name, statistics in found[:top]:
        rows.add(name, statistics)
    rows.print()


def _names(sign: str, names: Sequence[str], top: int) -> None:
    shown = list(map(printable, names[:top]))
    if len(names) > top:
        shown.append(f"{len(names) - top:,} more")
    for text in shown:
        show.console().print(f"{sign} {text}", soft_wrap=True)
