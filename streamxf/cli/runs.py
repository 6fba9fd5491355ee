"""``streamxf list``, ``latest`` and ``forget``."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

import typer

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE, with_options
from streamxf.errors import ParameterError, escaped
from streamxf.manager.record import Record, Taken
from streamxf.wording import by_reason, listed, many, printable, size_text, some, time_text

_COUNTED = ("last", "best", "hourly", "daily", "weekly", "monthly", "yearly")
_RULES = {**dict.fromkeys(_COUNTED, options.count), "every": options.number, "step": options.number}


def list_(run: str = options.RUN, run_id: str | None = options.RUN_ID, *, out: show.Output) -> int:
    """List the checkpoints of a training run, oldest first.

    Kinds: own checkpoints name this run and their folder; unclaimed ones name no run, since no CheckpointManager saved
    them; foreign ones name another run or folder, since they were copied or renamed, and are never resumed from
    automatically; versions are weights that a Publisher has published; unfinished ones belong to a save that is in
    progress or was killed; the metadata of damaged ones cannot be read. Data files are not examined: use verify or
    latest for that.

    As with latest, checkpoints of other formats are listed only if there is no complete DCP checkpoint.

    Examples:
    streamxf list /checkpoints/run-7
    streamxf list s3://bucket/run-7 --json
    """
    from streamxf.manager.holds import active_holds
    from streamxf.manager.listing import list_checkpoints
    from streamxf.manager.record import is_numbered
    from streamxf.places import open_storage

    found = list_checkpoints(run, run_id=run_id)
    storage = open_storage(run)
    readers, needed = active_holds(storage), {base for record in found for base in record.needs}
    lost = needed.difference(storage.folders()) if needed else needed
    alike = {name: name.encode(errors="replace").decode() for name in (storage.folders() if storage.near else ())}
    if odd := sorted(name for name, text in alike.items() if is_numbered(text) and not is_numbered(name)):
        text = f"{many(len(odd), 'folder')} left out: the names are not UTF-8; rename {some(odd)} to list what is there"
        warnings.warn(text, stacklevel=2)
    if out.json:
        show.as_json({"path": run, "checkpoints": [_as_dict(record, lost) for record in found], "in_use": readers})
    elif found:
        _print(found, readers, lost)
    else:
        show.say("there are no checkpoints")
    return FINE


def _as_dict(record: Record, lost: Set[str]) -> dict[str, Any]:
    kind = record.kind if record.version is None else "published"
    missing = [base for base in record.needs if base in lost]
    return {
        "name": record.name,
        "step": record.step,
        **({} if record.time is None else {"time": record.time}),
        **({} if record.bytes is None else {"bytes": record.bytes}),
        "metrics": {name: value if math.isfinite(value) else None for name, value in (record.metrics or {}).items()},
        "kind": "damaged" if record.damaged else "unread" if record.unread else kind,
        **({} if record.version is None else {"number": record.version}),
        **{name: value for name in ("save_id", "run", "link", "abandoned", "note") if (value := getattr(record, name))},
        **({"needs": [*record.needs]} if record.needs else {}),
        **({"missing": missing} if missing else {}),
    }


def _print(found: Sequence[Record], readers: Mapping[str, str], lost: Set[str]) -> None:
    headings = ("name", "step", "saved", "age", "size", "metrics", "kind")
    table = show.TextTable(*headings, right=("step", "age", "size"), fold=("name", "metrics", "kind"))
    now, needed = time.time(), {base: each.name for each in found if each.complete for base in each.needs}
    shares = any(each.increment for each in found)
    for each in found:
        kind = [f"version {each.version:,}", f"run {each.run}"] if each.version is not None else [each.kind, each.note]
        kind = ["damaged"] if each.damaged else ["not read"] if each.unread else kind
        notes = (
            *kind,
            ("increment" if each.increment else "full") if shares and each.complete and not each.damaged else "",
            each.abandoned and f"abandoned: {each.abandoned}",
            "metrics may be missing, since notes beside it do not count" if each.other_notes else "",
            f"needs {some(_said(each.needs, lost))}" if each.needs else "",
            f"{needed[each.name]} needs it" if each.name in needed else "",
            each.link and f"link to {each.link}",
            readers.get(each.name),
        )
        table.row(
            each.name,
            f"{each.step:,}",
            "" if each.time is None else _moment(each.time),
            "" if each.time is None else time_text(now - each.time),
            "" if each.bytes is None else size_text(each.bytes),
            ", ".join(f"{name} {value:.4g}" for name, value in (each.metrics or {}).items()),
            "; ".join(filter(None, notes)),
        )
    table.print()
    whole = [each for each in found if each.complete and lost.isdisjoint(each.needs)]
    complete = [each for each in whole if not (each.damaged or each.unread)]
    total = f"{many(len(complete), 'complete checkpoint')}, {size_text(Taken(complete).bytes)}"
    damaged = [f"{each.name}: {each.note}" for each in found if each.damaged]
    unread = [f"{each.name}: {each.note}" for each in found if each.unread]
    reports = (*listed("damaged", damaged), *listed("not read", unread))
    show.say("\n".join([f"{total}, by their metadata alone", *reports]))


def _said(bases: Sequence[str], lost: Set[str]) -> list[str]:
    return [f"{base}, which is missing" if base in lost else base for base in bases]


def _moment(seconds: float) -> str:
    """A time in the time zone of this machine; nothing for one that is in no calendar."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""


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

    It tries complete checkpoints, newest first, until one passes the check, and reports on stderr which it passed over
    and why. The exit code is 1 if none passes.

    Examples:
    streamxf latest /checkpoints/run-7
    streamxf latest /checkpoints/run-7 --best accuracy:max
    streamxf verify $(streamxf latest s3://bucket/run-7)
    """
    from streamxf.manager.latest import latest_in
    from streamxf.manager.listing import Run

    place = Run.at(run, run_id=run_id, **keys)
    wanted = None if best is None else options.metric(best)
    choice = latest_in(place, verify, best=wanted, ranks=ranks)
    path = None if choice.record is None else place.storage.location(choice.record.name)
    if out.json:
        skipped = {name: with_options(reason) for name, reason in choice.skipped.items()}
        show.as_json({"path": run, "latest": path, "skipped": skipped})
    elif path is not None:
        print(escaped(path))
    for text in by_reason(choice.skipped):
        warnings.warn(f"passed over: {text}", stacklevel=2)
    if path is None:
        text = "no complete checkpoint passes the check" if choice.skipped else "there is no complete checkpoint"
        if wanted is not None and not choice.skipped:
            text += f" with a value of {wanted[0]!r:.80}"
        print(show.wrapped(f"streamxf latest: {printable(run)}: {text}", sys.stderr), file=sys.stderr)
    return FINE if path is not None else FAILED


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
            steps.append(options.number(value))
        else:
            found[name] = _RULES[name](value)
    return found | {"steps": steps}


def forget(
    run: str = options.RUN,
    keep: list[str] | None = options.value(
        "RULES",
        "What to keep, such as last=3,every=1000; repeatable. last=N: the newest N, by step. hourly=N: the newest of "
        "each of the last N hours (UTC) with checkpoints, and the oldest checkpoint while there are fewer; daily, "
        "weekly (from Monday), monthly and yearly likewise. best=N: the N best by --metric. every=K: steps divisible "
        "by K, permanently; step=N: this step, permanently. N may be unlimited.",
        callback=lambda texts: _rules(texts) and texts,  # which are checked
    ),
    metric: str | None = options.value(
        "NAME[:max]", "The metric for best=N; lower is better, or with NAME:max higher. streamxf list shows the names."
    ),
    max_size: int | None = options.value(
        "SIZE",
        "Remove the oldest until the rest takes at most this, such as 2TB; the best go last, permanent ones never.",
        parser=options.size,
    ),
    max_age: float | None = options.value(
        "TIME",
        "Remove checkpoints saved longer than this before the newest, such as 30d, except permanent ones.",
        parser=options.seconds,
    ),
    extras: Literal["keep", "remove"] | None = options.value(
        "HOW", "What happens to other files in the folder of a removed checkpoint: keep, the default, or remove."
    ),
    verify: options.Verify = options.VERIFY,
    dry_run: bool = options.DRY_RUN,
    yes: bool = options.YES,
    unverified: bool = options.flag("Also count and remove checkpoints that the given keys do not verify."),
    abandoned: bool = options.flag(
        "Remove checkpoints that training has given up by going back to an earlier one; without rules, only these."
    ),
    *,
    keys: options.Group,
    run_id: str | None = options.RUN_ID,
    out: show.Output,
) -> int:
    """Remove the checkpoints of a training run that no rule keeps.

    It lists what goes and what stays, with reasons, and asks first. One rule suffices to keep a checkpoint. These
    always stay: the newest; the newest that passes --verify; checkpoints that a CheckpointManager or streamxf.hold is
    reading; targets of links in the run's folder; checkpoints of other runs, or saved under another name; with keys,
    those that the keys do not verify. If no checkpoint passes the check, nothing is removed.

    Without rules, it lists what the job's own rules would remove, as recorded in the newest verified checkpoint; --yes
    applies them if the given keys authenticate them.

    An interrupted removal leaves nothing that a job could resume from by mistake; the next one finishes it.

    Examples:
    streamxf forget /checkpoints/run-7 --keep last=3,every=10000 --dry-run
    streamxf forget /checkpoints/run-7 --keep best=2,daily=7 --metric loss --max-size 2TB
    """
    from streamxf.manager.forget import forget_in, recorded_rules
    from streamxf.manager.listing import Run
    from streamxf.manager.retention import Retention

    rules = _rules(keep or ()) | {"max_bytes": max_size, "max_age": max_age, "extras": extras or "keep"}
    if (rules.get("best") is None) != (metric is None):
        raise ParameterError("--keep best=N and --metric NAME go together")
    if metric is not None:
        rules["metric"], rules["mode"] = options.metric(metric)
    kept = Retention(**rules)
    recorded = kept.keeps_all and not abandoned
    if recorded and extras:
        raise ParameterError("--extras is no rule: give at least one of --keep, --max-age, --max-size")
    shows = dry_run or (recorded and not yes)
    asks = out.asks(shows, yes)
    place = Run.at(run, run_id=run_id, unverified=unverified, **keys)
    if recorded:
        kept = recorded_rules(place, dry_run=shows)
    elif kept.metric is not None:
        known = {name for record in place.read().records for name in record.metrics or {}}
        if known and kept.metric not in known:  # or all the best would go because of a typing error
            text = f"no checkpoint has the metric {kept.metric!r:.80}; there are {', '.join(sorted(known))}"
            raise ParameterError(text)
    report = forget_in(place, kept, verify, dry_run=shows or asks, abandoned=abandoned)
    if asks and report.removed:
        if not out.confirmed(str(report), len(report.removed)):
            return FINE
        report = forget_in(place, kept, verify, abandoned=abandoned)
    facts = {"path": run, **asdict(report)}
    facts["reasons"] = {name: [*map(with_options, why)] for name, why in facts.pop("kept").items()}
    if recorded and not out.json:
        named = ", ".join(f"{name}={value!r}" for name, value in kept.to_json().items()) or "keep everything"
        show.say(f"the job's own rules: {named}")
    out.result(facts, str(report))
    return FAILED if report.failed else FINE
