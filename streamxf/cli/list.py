"""``streamxf list``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streamxf.cli import options, show
from streamxf.cli.exits import FINE
from streamxf.wording import many, size_text, time_text

if TYPE_CHECKING:
    from streamxf.manager.record import Record


def list(run: str = options.RUN, run_id: str | None = options.RUN_ID, *, out: show.Output) -> int:
    """List the checkpoints of a training run, the oldest first.

    Kinds: own checkpoints name this run and their folder; unclaimed ones name no run, since no CheckpointManager saved
    them; foreign ones name another run or folder, since they were copied or renamed, and are never resumed from
    automatically; unfinished ones belong to a save in progress, or one that was killed. Nothing is verified.

    Checkpoints of other formats are listed only if there is no complete DCP checkpoint, as for latest.

    Examples:
    streamxf list /checkpoints/run-7
    streamxf list s3://bucket/run-7 --json
    """
    from streamxf.manager.holds import held
    from streamxf.manager.listing import list_checkpoints
    from streamxf.storage.opening import open_storage

    found = list_checkpoints(run, run_id=run_id)
    readers = held(open_storage(run))
    if out.json:
        show.as_json({"path": run, "checkpoints": [_as_dict(record) for record in found], "in_use": readers})
    elif found:
        _print(found, readers)
    else:
        show.say("there are no checkpoints")
    return FINE


def _as_dict(record: Record) -> dict[str, Any]:
    size = {} if record.bytes is None else {"bytes": record.bytes}
    return {
        "name": record.name,
        "step": record.step,
        **({} if record.time is None else {"time": record.time}),
        **size,
        "metrics": {name: value if math.isfinite(value) else None for name, value in (record.metrics or {}).items()},
        "kind": record.kind,
        **{name: value for name in ("save_id", "run", "link", "note") if (value := getattr(record, name))},
    }


def _print(found: Sequence[Record], readers: Mapping[str, str]) -> None:
    headings = ("name", "step", "saved", "age", "size", "metrics", "kind")
    table = show.TextTable(*headings, right=("step", "age", "size"), fold=("name", "metrics", "kind"))
    now = time.time()
    for each in found:
        notes = (each.kind, each.link and f"link to {each.link}", each.note, readers.get(each.name))
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
    complete = [each for each in found if each.complete]
    show.say(f"{many(len(complete), 'complete checkpoint')}, {size_text(sum(each.bytes or 0 for each in complete))}")


def _moment(seconds: float) -> str:
    """A time in the time zone of this machine; nothing for one that is in no calendar."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""
