"""``streamxf forget``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError

if TYPE_CHECKING:
    from streamxf.manager.forget import ForgetReport

EXAMPLES = (
    "streamxf forget /checkpoints/run-7 --keep-last 3 --keep-every 10000 --dry-run",
    "streamxf forget /checkpoints/run-7 --keep-best 2 --metric loss --keep-daily 7 --max-size 2TB",
)


def forget(
    run: options.Run,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last", "-l", metavar="N", parser=units.count, help="Keep the newest N by their steps, or unlimited."
        ),
    ] = None,
    keep_hourly: Annotated[
        int | None,
        typer.Option(
            "--keep-hourly",
            "-H",
            metavar="N",
            parser=units.count,
            help="Keep the newest of each of the last N hours, in UTC, that have checkpoints. While there are fewer of "
            "these, keep the oldest checkpoint, too.",
        ),
    ] = None,
    keep_daily: Annotated[
        int | None,
        typer.Option("--keep-daily", "-d", metavar="N", parser=units.count, help="The same for days."),
    ] = None,
    keep_weekly: Annotated[
        int | None,
        typer.Option("--keep-weekly", "-w", metavar="N", parser=units.count, help="The same for weeks, from Monday."),
    ] = None,
    keep_monthly: Annotated[
        int | None,
        typer.Option("--keep-monthly", "-m", metavar="N", parser=units.count, help="The same for months."),
    ] = None,
    keep_yearly: Annotated[
        int | None,
        typer.Option("--keep-yearly", "-y", metavar="N", parser=units.count, help="The same for years."),
    ] = None,
    keep_within: Annotated[
        float | None,
        typer.Option(
            "--keep-within",
            metavar="TIME",
            parser=units.seconds,
            help="Keep what was saved within this time before the newest: 30m, 2h, 7d.",
        ),
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", metavar="K", help="Keep steps that K divides, for ever.")
    ] = None,
    keep_step: Annotated[
        list[int] | None,
        typer.Option("--keep-step", metavar="STEP", help="Keep this step for ever; may be given several times."),
    ] = None,
    keep_best: Annotated[
        int | None,
        typer.Option(
            "--keep-best",
            metavar="N",
            parser=units.count,
            help="Keep the N with the best values of --metric, or unlimited.",
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="What --keep-best compares; streamxf list shows the names.")
    ] = None,
    mode: Annotated[
        Literal["min", "max"], typer.Option(metavar="MODE", help="Whether lower (min) or higher (max) is better.")
    ] = "min",
    max_size: Annotated[
        int | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            parser=units.size,
            help="Remove the oldest until the rest takes at most this, 2TB for one; the best last, and never what is "
            "kept for ever.",
        ),
    ] = None,
    verify: options.Verify = "sample",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Remove nothing; list what would be removed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    key: options.Key = None,
    trust: options.Trust = None,
    allow_unsigned: options.Unsigned = False,
    json: options.Json = False,
) -> int:
    """Remove the checkpoints of a training run that no rule keeps.

    It lists what goes, and what stays and why, and asks first. Any one rule is enough for a checkpoint to stay. In any
    case the newest stays, the newest that passes the check of --verify, what a CheckpointManager or streamxf.hold is
    reading, and what a link in the run's folder leads to. If nothing passes the check, nothing is removed.

    A removal that was killed leaves nothing that could be resumed from by mistake; the next one finishes it.
    """
    from streamxf.manager.forget import forget as tool
    from streamxf.manager.retention import Retention

    if (keep_best is None) != (metric is None):
        raise ParameterError("--keep-best N and --metric NAME go together")
    keep = Retention(
        last=keep_last,
        every=keep_every,
        best=keep_best,
        metric=metric,
        mode=mode,
        hourly=keep_hourly,
        daily=keep_daily,
        weekly=keep_weekly,
        monthly=keep_monthly,
        yearly=keep_yearly,
        within=keep_within,
        steps=keep_step or (),
        max_bytes=max_size,
    )
    if keep.keeps_all:
        raise ParameterError("nothing says what is to stay: give at least one of the options --keep-... or --max-size")
    if keep_best is not None and metric is not None:
        _check_metric(run, metric)
    remove = partial(tool, run, keep, keys=key, trust=trust, allow_unsigned=allow_unsigned, verify=verify)
    asks = not (dry_run or yes)
    if asks and (json or not sys.stdin.isatty()):
        raise ParameterError(
            "nothing is removed without confirmation: --yes removes, --dry-run lists what would be removed"
        )
    report = remove(dry_run=dry_run or asks)
    if asks and report.removed:
        show.console().print(str(report))
        if not typer.confirm(f"Remove {'it' if len(report.removed) == 1 else 'them'}?"):
            show.console().print("nothing was removed")
            return FINE
        report = remove()
    if json:
        _print_json(run, report)
    else:
        show.console().print(str(report))
    return FAILED if report.failed else FINE


def _check_metric(run: str, metric: str) -> None:
    """Raise ParameterError if no checkpoint has it: then all the best would go because of a typing error."""
    from streamxf.manager.listing import list_checkpoints

    known = {name for record in list_checkpoints(run) for name in record.metrics or {}}
    if known and metric not in known:
        raise ParameterError(f"no checkpoint has the metric {metric!r:.80}; there are {', '.join(sorted(known))}")


def _print_json(run: str, report: ForgetReport) -> None:
    facts = asdict(report)
    show.as_json({"path": run, "reasons": facts.pop("kept"), **facts})
