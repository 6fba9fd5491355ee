"""``streamxf forget``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamxf.manager.listing import Run
    from streamxf.manager.retention import Retention

EXAMPLES = (
    "streamxf forget /checkpoints/run-7 --keep-last 3 --keep-every 10000 --dry-run",
    "streamxf forget /checkpoints/run-7 --keep-best 2 --metric loss --keep-daily 7 --max-size 2TB",
    "streamxf forget /checkpoints/run-7 --keep-last 3 --keep-weekly 4 --replay",
)


def _newest(name: str, short: str, text: str) -> Any:
    return typer.Option(name, short, metavar="N", parser=units.count, help=text)


def _limit(parser: Callable[[str], object], metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, parser=parser, help=text)


def forget(
    run: options.Run,
    keep_last: Annotated[
        int | None, _newest("--keep-last", "-l", "Keep the newest N by their steps, or unlimited.")
    ] = None,
    keep_hourly: Annotated[
        int | None,
        _newest(
            "--keep-hourly",
            "-H",
            "Keep the newest of each of the last N hours, in UTC, that have checkpoints. While there are fewer of "
            "these, keep the oldest checkpoint, too.",
        ),
    ] = None,
    keep_daily: Annotated[int | None, _newest("--keep-daily", "-d", "The same for days.")] = None,
    keep_weekly: Annotated[int | None, _newest("--keep-weekly", "-w", "The same for weeks, from Monday.")] = None,
    keep_monthly: Annotated[int | None, _newest("--keep-monthly", "-m", "The same for months.")] = None,
    keep_yearly: Annotated[int | None, _newest("--keep-yearly", "-y", "The same for years.")] = None,
    keep_within: Annotated[
        float | None,
        _limit(units.seconds, "TIME", "Keep what was saved within this time before the newest: 30m, 2h, 7d."),
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", metavar="K", help="Keep steps that K divides, for ever.")
    ] = None,
    keep_step: Annotated[
        list[int] | None,
        typer.Option("--keep-step", metavar="STEP", help="Keep this step for ever; may be given several times."),
    ] = None,
    keep_best: Annotated[
        int | None, _limit(units.count, "N", "Keep the N with the best values of --metric, or unlimited.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="What --keep-best compares; streamxf list shows the names.")
    ] = None,
    mode: Annotated[
        Literal["min", "max"] | None,
        typer.Option(
            metavar="MODE", help="Whether lower (min), which is the default, or higher (max) values are better."
        ),
    ] = None,
    max_size: Annotated[
        int | None,
        _limit(
            units.size,
            "SIZE",
            "Remove the oldest until the rest takes at most this, 2TB for one; the best last, and never what is kept "
            "for ever.",
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        _limit(
            units.seconds,
            "TIME",
            "Remove what was saved longer than this before the newest, 30d for one, unless --keep-every or --keep-step "
            "keeps it.",
        ),
    ] = None,
    extras: Annotated[
        Literal["keep", "remove"] | None,
        typer.Option(
            metavar="HOW",
            help="Whether other files in the folder of a checkpoint that is removed stay (keep), which is the default, "
            "or go with it (remove).",
        ),
    ] = None,
    verify: options.Verify = "sample",
    dry_run: options.DryRun = False,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Remove nothing; show what the rules would have removed after each save, of the checkpoints that are "
            "there.",
        ),
    ] = False,
    yes: options.Yes = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Count, and remove, what the given keys do not verify, too.")
    ] = False,
    *,
    keys: options.Keys,
    run_id: options.RunId = None,
    json: options.Json = False,
) -> int:
    """Remove the checkpoints of a training run that no rule keeps.

    It lists what goes, and what stays and why, and asks first. Any one rule is enough for a checkpoint to stay. In any
    case the newest stays, the newest that passes the check of --verify, what a CheckpointManager or streamxf.hold is
    reading, what a link in the run's folder leads to, and what belongs to another run or was saved under another name.
    With keys, so does what these do not verify. If nothing passes the check, nothing is removed.

    Without any rule, it lists what the job's own rules would remove, which the newest verified checkpoint has recorded;
    --yes follows them if the given keys authenticate them.

    A removal that was killed leaves nothing that could be resumed from by mistake; the next one finishes it.
    """
    from streamxf.checkpoint.access import Access
    from streamxf.manager.authority import Authority
    from streamxf.manager.forget import forget_in, recorded_rules
    from streamxf.manager.listing import Run
    from streamxf.manager.retention import Retention
    from streamxf.storage.storage import Storage, storage_errors

    if (keep_best is None) != (metric is None):
        raise ParameterError("--keep-best N and --metric NAME go together")
    keep = Retention(
        last=keep_last,
        every=keep_every,
        best=keep_best,
        metric=metric,
        mode=mode or "min",
        hourly=keep_hourly,
        daily=keep_daily,
        weekly=keep_weekly,
        monthly=keep_monthly,
        yearly=keep_yearly,
        within=keep_within,
        steps=keep_step or (),
        max_bytes=max_size,
        max_age=max_age,
        extras=extras or "keep",
    )
    recorded = keep.keeps_all
    if recorded and (mode or extras):
        raise ParameterError("--mode and --extras are no rules: give at least one of --keep-..., --max-age, --max-size")
    if replay and yes:
        raise ParameterError("--replay shows what would have been removed; --yes removes")
    shows = dry_run or replay or (recorded and not yes)
    if not (shows or yes) and (json or not sys.stdin.isatty()):
        raise ParameterError(
            "nothing is removed without confirmation: --yes removes, --dry-run lists what would be removed"
        )
    storage = Storage.of(run)
    access = Access.of(**keys)
    place = Run(storage, Authority(access, unverified=unverified), run_id)
    with storage_errors(storage.given):
        if recorded:
            keep = recorded_rules(place, dry_run=shows)
        elif metric is not None:
            _check_metric(place, metric)
        steps = _replayed(place, keep) if replay else None
        report = forget_in(place, keep, verify, dry_run=shows or not yes)
    if not (shows or yes) and report.removed:
        show.console().print(str(report))
        if not typer.confirm(f"Remove {'it' if len(report.removed) == 1 else 'them'}?"):
            show.console().print("nothing was removed")
            return FINE
        with storage_errors(storage.given):
            report = forget_in(place, keep, verify)
    if json:
        facts = asdict(report)
        replayed = {} if steps is None else {"replay": [{"name": name, "removed": gone} for name, gone in steps]}
        show.as_json({"path": run, "reasons": facts.pop("kept"), **facts, **replayed})
        return FAILED if report.failed else FINE
    if recorded:
        rules = ", ".join(f"{name}={value!r}" for name, value in keep.to_json().items()) or "keep everything"
        show.console().print(f"the job's own rules: {rules}")
    if steps is not None:
        _print_replay(steps)
    show.console().print(str(report))
    return FAILED if report.failed else FINE


def _check_metric(run: Run, metric: str) -> None:
    """Raise ParameterError if no checkpoint has it: then all the best would go because of a typing error."""
    known = {name for record in run.records() for name in record.metrics or {}}
    if known and metric not in known:
        raise ParameterError(f"no checkpoint has the metric {metric!r:.80}; there are {', '.join(sorted(known))}")


def _replayed(run: Run, keep: Retention) -> list[tuple[str, list[str]]]:
    """What the rules would have removed after each save, in each series of names."""
    from streamxf.manager.retention import settled

    records = [record for record in run.records() if record.counts]
    series = dict.fromkeys(record.series for record in records)
    return [
        step
        for each in series
        for step in keep.replay(settled([record for record in records if record.series == each], time.time()))
    ]


def _print_replay(steps: list[tuple[str, list[str]]]) -> None:
    from streamxf.manager.record import series_of

    table = show.table("saved", "kept then", "removed then", right=["kept then"])
    kept: Counter[str] = Counter()
    for name, removed in steps:
        kept[series_of(name)] += 1 - len(removed)
        show.row(table, show.ItemName(name), f"{kept[series_of(name)]:,}", ", ".join(removed))
    show.console().print(table)
