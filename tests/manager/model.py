"""What retention and removal of checkpoints mean, in plain Python that shares nothing with streamxf: where the two
disagree, one of them is wrong.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

FORMATS = {"hourly": "%Y-%m-%d %H", "daily": "%Y-%m-%d", "weekly": "%G week %V", "monthly": "%Y-%m", "yearly": "%Y"}


class Saved(NamedTuple):
    """A complete checkpoint."""

    step: int
    time: float
    size: int
    metrics: dict[str, float]


def keep(saved: list[Saved], rules: dict[str, Any]) -> set[int]:
    """The steps of the checkpoints that stay."""
    newest_first = sorted(saved, reverse=True, key=lambda one: one.step)
    if not saved:
        return set()
    stay = {newest_first[0].step}
    if not rules.keys() - {"max_bytes", "mode"}:
        stay |= {one.step for one in saved}
    stay |= {one.step for one in first(rules.get("last", 0), newest_first)}
    stay |= {one.step for one in first(rules.get("best", 0), best_first(newest_first, rules))}
    for rule, form in FORMATS.items():
        by_bucket: dict[str, Saved] = {}
        for one in newest_first:
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=one.time)
            by_bucket.setdefault(at.strftime(form), one)
        wanted = rules.get(rule, 0)
        stay |= {one.step for one in first(wanted, list(by_bucket.values()))}
        if wanted == -1 or wanted > len(by_bucket):
            stay.add(newest_first[-1].step)
    if "within" in rules:
        stay |= {one.step for one in saved if newest_first[0].time - one.time <= rules["within"]}
    stay |= {one.step for one in saved if is_for_ever(one, rules)}
    if "max_bytes" in rules:
        best = best_first(newest_first, rules)[: None if rules.get("best") == -1 else rules.get("best", 0)]
        others = [one for one in newest_first if one not in best]
        for one in others[::-1] + best[::-1]:
            too_much = sum(other.size for other in saved if other.step in stay) > rules["max_bytes"]
            if too_much and one is not newest_first[0] and not is_for_ever(one, rules):
                stay.discard(one.step)
    return stay


def first(count: int, ordered: list[Saved]) -> list[Saved]:
    return ordered if count == -1 else ordered[:count]


def best_first(newest_first: list[Saved], rules: dict[str, Any]) -> list[Saved]:
    measured = [one for one in newest_first if not math.isnan(one.metrics.get(rules.get("metric"), math.nan))]
    sign = -1 if rules.get("mode") == "max" else 1
    return sorted(measured, key=lambda one: (sign * one.metrics[rules["metric"]], -one.step))


def is_for_ever(one: Saved, rules: dict[str, Any]) -> bool:
    return one.step in rules.get("steps", ()) or ("every" in rules and one.step % rules["every"] == 0)
