"""``streamxf diff``."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import PolicyError
from streamxf.wording import printable


def diff(
    a: str = options.PATH,
    b: str = options.PATH,
    only: list[str] | None = options.ONLY,
    prefix_a: str = options.value("TEXT", "Only items of A with this prefix, which is removed from their names.", ""),
    prefix_b: str = options.value("TEXT", "The same for B.", ""),
    top: int = options.value("N", "How many items of each kind to list; --json has all.", 20, min=0),
    values: bool = options.flag("Show statistics of B minus A: range, mean, standard deviation and distribution."),
    plain_a: bool = options.flag("A is not encrypted: the keys are for B alone."),
    plain_b: bool = options.flag("The same for B."),
    *,
    access: options.Group,
    out: show.Output,
) -> int:
    """Compare two checkpoints of any formats: what was added, removed or changed, and by how much.

    Tensors are the same if all their bits are. An element that became NaN, or is NaN with other bits, has no distance
    and is counted separately. A packed folder is compared with a folder, or with another packed one, file by file.
    Otherwise only tensors and objects are compared, so a checkpoint equals the file that it was packed from; the report
    lists anything not compared. An item that cannot be read is listed with the reason.

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
        show.say(f"{printable(a)} and {printable(b)}: {found.text(top)}")
        if values and top:
            from streamxf.cli.figures import ValueTable

            rows = ValueTable("B minus A")
            counted = ((one.name, one.distance.statistics) for one in found.changed if one.distance)
            for name, statistics in islice((each for each in counted if each[1]), top):
                rows.add(name, statistics)
            rows.print()
    return FINE if found.same else FAILED
