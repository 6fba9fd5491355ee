"""``streamxf clean``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from functools import partial

from streamxf.cli import options, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.cli.show import Output


def clean(
    path: str = options.PATH,
    dry_run: bool = options.DRY_RUN,
    min_age: float | None = options.value(
        "TIME",
        "Minimum age of a leftover: 90s, 30m, 2h, 1d. By default 0 where a lock keeps saves away, and 1d in object "
        "stores and network file systems.",
        parser=units.seconds,
    ),
    yes: bool = options.YES,
    *,
    keys: options.Group,
    out: Output,
) -> int:
    """Remove leftovers of failed and killed saves from a checkpoint's folder.

    It lists these files, and asks first. The checkpoint's own files stay, and so do files that streamxf did not write.
    The next save removes leftovers, too. If the checkpoint is incomplete, nothing is removed.

    Examples:
    streamxf clean /checkpoints/step-1000 --dry-run
    streamxf clean /checkpoints/step-1000 --min-age 2h --yes
    """
    from streamxf.tools.clean import clean as tool

    remove = partial(tool, path, **keys, min_age=min_age)
    asks = out.asks(dry_run, yes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be removed is in the report
        report = remove(dry_run=dry_run or asks)
        if asks and (found := len(report.removed) + len(report.uploads)):
            if not out.confirmed(str(report), found):
                return FINE
            report = remove()
    something = report.removed or report.uploads or report.failed or report.kept or report.recent
    out.result({"path": path, **asdict(report)}, str(report) if something else "there is nothing to remove")
    return FAILED if report.failed else FINE
