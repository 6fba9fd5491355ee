"""``streamxf forget``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError

if TYPE_CHECKING:
    from streamxf.manager.listing import Run
    from streamxf.manager.retention import Retention


_COUNTED = ("last", "best", "hourly", "daily", "weekly", "monthly", "yearly")
_RULES = {**dict.fromkeys(_COUNTED, units.count), "within": units.seconds, "every": units.number, "step": units.number}


def _checked(texts: Sequence[str]) -> Sequence[str]:
    _rules(texts)
    return texts


def _rules(texts: Sequence[str]) -> dict[str, Any]:
    """``last=3,every=1000`` as arguments of `Retention`; raises BadParameter for anything else."""
    found: dict[str, Any] = {}
    steps: list[int] = []
    for word in ",".join(texts).split(",") if texts else ():
        name, _, value = word.strip().partition("=")
        if name not in _RULES:
            raise typer.BadParameter(f"{word!r:.40} is not a rule; write last=3, with one of {', '.join(_RULES)}")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice")
        if name == "step":
            steps.append(units.number(value))
        else:
            found[name] = _RULES[name](value)
    return found | {"steps": steps}


def forget(
    run: str = options.RUN,
    keep: list[str] | None = options.value(
        "RULES",
        "What stays, as in last=3,every=1000. last=N: the newest N by their steps. hourly=N: the newest of each of the "
        "last N hours, in UTC, that have checkpoints, and while there are fewer of these, the oldest checkpoint, too; "
        "daily, weekly (from Monday), monthly and yearly likewise. within=TIME: what was saved within this time before "
        "the newest, as 30m, 2h, 7d. best=N: the N with the best values of --metric. every=K: steps that K divides, "
        "for ever; step=N: this step, for ever. N may be unlimited. May be given several times.",
        callback=_checked,
    ),
    metric: str | None = options.value(
        "NAME[:max]",
        "What best=N compares, the lowest values being the best, or with NAME:max the highest; streamxf list shows the "
        "names.",
    ),
    max_size: int | None = options.value(
        "SIZE",
        "Remove the oldest until the rest takes at most this, 2TB for one; the best last, and never what is kept for "
        "ever.",
        parser=units.size,
    ),
    max_age: float | None = options.value(
        "TIME",
        "Remove what was saved longer than this before the newest, 30d for one, unless it is kept for ever.",
        parser=units.seconds,
    ),
    extras: Literal["keep", "remove"] | None = options.value(
        "HOW",
        "Whether other files in the folder of a checkpoint that is removed stay (keep), which is the default, or go "
        "with it (remove).",
    ),
    verify: options.Verify = options.VERIFY,
    dry_run: bool = options.DRY_RUN,
    replay: bool = options.flag(
        "Remove nothing; show what the rules would have removed after each save, of the checkpoints that are there."
    ),
    yes: bool = options.YES,
    unverified: bool = options.flag("Count, and remove, what the given keys do not verify, too."),
    *,
    keys: options.Keys,
    run_id: str | None = options.RUN_ID,
    out: show.Output,
) -> int:
    """Remove the checkpoints of a training run that no rule keeps.

    It lists what goes, and what stays and why, and asks first. Any one rule is enough for a checkpoint to stay. In any
    case the newest stays, the newest that passes the check of --verify, what a CheckpointManager or streamxf.hold is
    reading, what a link in the run's folder leads to, and what belongs to another run or was saved under another name.
    With keys, so does what these do not verify. If nothing passes the check, nothing is removed.

    Without any rule, it lists what the job's own rules would remove, which the newest verified checkpoint has recorded;
    --yes follows them if the given keys authenticate them.

    A removal that was killed leaves nothing that could be resumed from by mistake; the next one finishes it.

    Examples:
    streamxf forget /checkpoints/run-7 --keep last=3,every=10000 --dry-run
    streamxf forget /checkpoints/run-7 --keep best=2,daily=7 --metric loss --max-size 2TB
    streamxf forget /checkpoints/run-7 --keep last=3,weekly=4 --replay
    """
    from streamxf.manager.forget import forget_in, recorded_rules
    from streamxf.manager.listing import Run
    from streamxf.manager.retention import Retention
    from streamxf.storage.storage import storage_errors

    rules = _rules(keep or ()) | {"max_bytes": max_size, "max_age": max_age, "extras": extras or "keep"}
    if (rules.get("best") is None) != (metric is None):
        raise ParameterError("--keep best=N and --metric NAME go together")
    if metric is not None:
        rules["metric"], rules["mode"] = units.metric(metric)
    kept = Retention(**rules)
    recorded = kept.keeps_all
    if recorded and extras:
        raise ParameterError("--extras is no rule: give at least one of --keep, --max-age, --max-size")
    if replay and yes:
        raise ParameterError("--replay shows what would have been removed; --yes removes")
    shows = dry_run or replay or (recorded and not yes)
    asks = out.asks(shows, yes)
    place = Run.at(run, run_id=run_id, unverified=unverified, **keys)
    with storage_errors(place.storage.given):
        if recorded:
            kept = recorded_rules(place, dry_run=shows)
        elif kept.metric is not None:
            _check_metric(place, kept.metric)
        steps = _replayed(place, kept) if replay else []
        report = forget_in(place, kept, verify, dry_run=shows or asks)
    if asks and report.removed:
        if not out.confirmed(str(report), len(report.removed)):
            return FINE
        with storage_errors(place.storage.given):
            report = forget_in(place, kept, verify)
    facts = {"path": run, **asdict(report)}
    facts["reasons"] = facts.pop("kept")
    if replay:
        facts["replay"] = [{"name": name, "removed": gone} for name, gone in steps]
    if recorded and not out.json:
        named = ", ".join(f"{name}={value!r}" for name, value in kept.to_json().items()) or "keep everything"
        show.say(f"the job's own rules: {named}")
    if steps and not out.json:
        _print_replay(steps)
    out.result(facts, str(report))
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

    table = show.TextTable("saved", "kept then", "removed then", right=["kept then"], fold=["saved", "removed then"])
    kept: Counter[str] = Counter()
    for name, removed in steps:
        kept[series_of(name)] += 1 - len(removed)
        table.row(name, f"{kept[series_of(name)]:,}", ", ".join(removed))
    table.print()
