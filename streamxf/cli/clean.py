"""``streamxf clean``."""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError

if TYPE_CHECKING:
    from streamxf.tools.clean import CleanReport

EXAMPLES = (
    "streamxf clean /checkpoints/step-1000 --dry-run",
    "streamxf clean /checkpoints/step-1000 --min-age 2h --yes",
)


def clean(
    path: options.Path,
    dry_run: options.DryRun = False,
    min_age: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=units.seconds,
            help="The minimum age of a leftover: 90s, 30m, 2h, 1d. By default 0 where a lock keeps saves away, and "
            "1d elsewhere: object stores, network file systems.",
        ),
    ] = None,
    yes: options.Yes = False,
    *,
    keys: options.Keys,
    json: options.Json = False,
) -> int:
    """Remove what failed and killed saves left in a checkpoint's folder.

    It lists these files, and asks first. The checkpoint's own files stay, and so do files that no writer makes. The
    next save removes leftovers, too. If the checkpoint is incomplete, nothing is removed.
    """
    from streamxf.tools.clean import clean as tool

    remove = partial(tool, path, **keys, min_age=min_age)
    asks = not (dry_run or yes)
    if asks and (json or not sys.stdin.isatty()):
        raise ParameterError(
            "nothing is removed without confirmation: --yes removes, --dry-run lists what would be removed"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be removed is in the report
        report = remove(dry_run=dry_run or asks)
        if asks and (report.removed or report.uploads):
            show.console().print(str(report))
            if not typer.confirm(f"Remove {'it' if len(report.removed) + len(report.uploads) == 1 else 'them'}?"):
                show.console().print("nothing was removed")
                return FINE
            report = remove()
    _print(path, report, json)
    return FAILED if report.failed else FINE


def _print(path: str, report: CleanReport, json: bool) -> None:
    if json:
        show.as_json({"path": path, **asdict(report)})
    elif report.removed or report.uploads or report.failed or report.kept or report.recent:
        show.console().print(str(report))
    else:
        show.console().print("there is nothing to remove")
