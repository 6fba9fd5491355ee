"""``streamxf latest``."""

from __future__ import annotations

import sys
import warnings

from streamxf.cli import options, show, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import escaped
from streamxf.wording import printable


def latest(
    run: str = options.RUN,
    verify: options.Verify = options.VERIFY,
    best: str | None = options.value(
        "METRIC[:max]",
        "Instead of the newest, the one with the lowest value of this metric, or with METRIC:max the highest.",
    ),
    *,
    keys: options.Group,
    ranks: int | None = options.value("N", "Number of ranks that saved, if each has its own metadata.", min=1),
    run_id: str | None = options.RUN_ID,
    out: show.Output,
) -> int:
    """Print the path of the newest checkpoint of a run that can be resumed from.

    It tries complete checkpoints, the newest first, until one passes the check, and reports on stderr which it passed
    over and why. The exit code is 1 if there is none.

    Examples:
    streamxf latest /checkpoints/run-7
    streamxf latest /checkpoints/run-7 --best accuracy:max
    streamxf verify $(streamxf latest s3://bucket/run-7)
    """
    from streamxf.manager.latest import latest_in
    from streamxf.manager.listing import Run

    place = Run.at(run, run_id=run_id, **keys)
    wanted = None if best is None else units.metric(best)
    choice = latest_in(place, verify, best=wanted, ranks=ranks)
    path = None if choice.record is None else place.storage.location(choice.record.name)
    if out.json:
        show.as_json({"path": run, "latest": path, "skipped": choice.skipped})
    elif path is not None:
        print(escaped(path))
    for name, reason in choice.skipped.items():
        warnings.warn(f"{name} is passed over: {reason}", stacklevel=2)
    if path is None:
        text = "no complete checkpoint passes the check" if choice.skipped else "there is no complete checkpoint"
        if wanted is not None and not choice.skipped:
            text += f" with a value of {wanted[0]!r:.80}"
        print(show.wrapped(f"streamxf latest: {printable(run)}: {text}", sys.stderr), file=sys.stderr)
    return FINE if path is not None else FAILED
