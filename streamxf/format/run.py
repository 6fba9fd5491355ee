"""A checkpoint's statement about its run; docs/format.md, "Metadata"."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamxf.errors import MetadataError
from streamxf.format import limits
from streamxf.format.sections import bad, digits, exact, integer, mapping, string
from streamxf.lazy import pattern

_MEMBERS = {"run", "name", "step", "time", "rules", "metrics"}
_OPTIONAL = frozenset({"continues", "line"})
_NAN = "7ff8000000000000"  # the bits of every NaN, so that what is read and written again stays the same
_CONTROL = pattern(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class RunFacts:
    """A checkpoint's place in a run.

    - `run`: the run's id, 32 hexadecimal digits.
    - `name`: that of the checkpoint's folder, as saved.
    - `time`: seconds since 1970, of which milliseconds are stored.
    - `rules`: of the job that saved: plain JSON without floats and nulls.
    - `metrics`: those that were known then.
    - `continues`: step and save id of the checkpoint that the job had loaded.
    - `line`: of each earlier line, in order, the first step from which its checkpoints are no part of this history.
    """

    run: str
    name: str
    step: int
    time: float
    rules: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    continues: tuple[int, str] | None = None
    line: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is stored. Raises MetadataError if readers would refuse it."""
        try:
            time = round(self.time * 1000)
            content = {**vars(self), "time": time, "rules": dict(self.rules)}
            content["metrics"] = self.metrics_json(self.metrics)
            content["continues"] = self.continues and dict(zip(("step", "save_id"), self.continues, strict=True))
            content = {name: value for name, value in content.items() if value or name in _MEMBERS}
            made: dict[str, Any] = json.loads(json.dumps(content))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise MetadataError(f"the facts about the run are malformed: {error!s:.200}") from None
        RunFacts.of_json(made)
        return made

    @classmethod
    def of_json(cls, value: Any) -> RunFacts:
        """Read parsed JSON; raises MetadataError if that is malformed."""
        entry = exact(value, _MEMBERS, _OPTIONAL, "run")
        name = _text(entry["name"], "a run's name")
        if not 1 <= len(name.encode()) <= limits.MAX_NAME or name in (".", "..") or "/" in name:
            bad("a run's name cannot be that of a folder")
        rules = mapping(entry["rules"], "a run's rules")
        _check_rules(rules, limits.MAX_RULES_DEPTH)
        metrics = cls.metrics_of(entry["metrics"])
        step, time = (integer(entry[each], f"a run's {each}") for each in ("step", "time"))
        continues = None
        if "continues" in entry:
            told = exact(entry["continues"], {"step", "save_id"}, frozenset(), "what a run continues")
            step_before = integer(told["step"], "the step that a run continues")
            continues = step_before, digits(told["save_id"], 32, "a save's id")
        run, line = digits(entry["run"], 32, "a run's id"), _line(entry["line"]) if "line" in entry else ()
        return cls(run, name, step, time / 1000, rules, metrics, continues, line)

    @staticmethod
    def metrics_json(metrics: Mapping[str, float]) -> dict[str, str]:
        """Metrics as they are stored."""
        numbers = {name: float(each) for name, each in metrics.items()}
        return {name: _NAN if math.isnan(each) else struct.pack(">d", each).hex() for name, each in numbers.items()}

    @staticmethod
    def metrics_of(value: Any) -> dict[str, float]:
        """The same read again; raises MetadataError if they are malformed."""
        texts = mapping(value, "a run's metrics")
        return {_text(name, "a metric's name"): _number(text) for name, text in texts.items()}


def _line(value: Any) -> tuple[int, ...]:
    if type(value) is not list or not value:
        bad("a run's line is no array, or an empty one")
    return tuple(integer(each, "a run's line") for each in value)


def _text(value: Any, what: str) -> str:
    return bad(f"{what} has control characters") if _CONTROL.search(string(value, what)) else str(value)


def _number(text: Any) -> float:
    number: float = struct.unpack(">d", bytes.fromhex(digits(text, 16, "a metric")))[0]
    return number if text == _NAN or not math.isnan(number) else bad("a metric is a NaN of other bits")


def _check_rules(value: Any, depth: int) -> None:
    if type(value) is str:
        _text(value, "a run's rules")
    elif type(value) is int:
        integer(value, "a run's rules")
    elif type(value) in (dict, list) and depth:
        for inner in value if type(value) is list else (*value, *value.values()):
            _check_rules(inner, depth - 1)
    elif type(value) is not bool:
        bad("a run's rules have a float or a null, or nest too deep")
