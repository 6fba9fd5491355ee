"""What checkpoints say of the run that they belong to."""

from __future__ import annotations

import copy
import json
import struct
from math import inf
from typing import Any

from tests.sealing import secret
from tests.vectors.recipes.vector import Made, under
from tests.vectors.recipes.world import BASE, SIGNED, put

RUN = {
    "run": secret("run").hex()[:32],
    "name": "step-7",
    "step": 7,
    "time": 1_700_000_000_123,
    "rules": {"last": 3, "metric": "loss"},
    "metrics": {"loss": "3fd0000000000000"},
}
_LIMIT = 65536
_METRICS = {
    **{name: struct.pack(">d", number).hex() for name, number in {"inf": inf, "-inf": -inf, "zero": 0.0}.items()},
    **{"-zero": "8000000000000000", "least": "0000000000000001", "largest": "7fefffffffffffff"},
    **{"nan": "7ff8000000000000", "": "3fb999999999999a", "größe": "be84e2c0a7a2b1b2"},
}


def _of(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(RUN) | changes


def _sized(size: int) -> dict[str, Any]:
    """A run of this many bytes."""
    made = _of(rules={"a": ["ü\\"] * 5000, "b": ""})
    made["rules"]["b"] = "x" * (size - len(json.dumps(made, separators=(",", ":"))))
    return made


def _nested(depth: int) -> dict[str, Any]:
    made: Any = 1
    for number in range(depth - 1):
        made = [made] if number % 2 else {"a": made}
    return {"a": made}


def vectors() -> Made:
    """All of them."""
    rules = {"last": 3, "steps": [1, 2], "mode": "min", "on": True, "off": False, "": {}, "größe": 2**53 - 1}
    without = {name: value for name, value in RUN.items() if name != "rules"}
    spellings = [
        "",
        "3fd000000000000",
        "3fd00000000000000",
        "3FD0000000000000",
        "3fd000000000000g",
        "0.25",
        "inf",
        "nan",
    ]
    spellings += [" fd0000000000000", "0x3fd00000000000", "\uff13fd000000000000"]
    spellings += ["7ff8000000000001", "fff8000000000000", "7ff0000000000001", "7fffffffffffffff", "fff0000000000001"]
    values = {
        "rule-null": {"rules": {"last": None}},
        "rule-underscore": {"rules": {"_a": None}},
        "rules-deep": {"rules": _nested(9)},
        "name-empty": {"name": ""},
        "name-dot": {"name": "."},
        "name-up": {"name": ".."},
        "name-slash": {"name": "a/b"},
        "name-256": {"name": "é" * 256},
        "name-newline": {"name": "a\n"},
        "name-delete": {"name": "a\x7f"},
        "name-c1": {"name": "\x9b2J"},
        "rule-control": {"rules": {"a": ["\x1b[2J"]}},
        "rule-name-control": {"rules": {"\0": 1}},
        "metric-name-control": {"metrics": {"\t": "3fd0000000000000"}},
    }
    types = {
        "null": None,
        "array": [RUN],
        "without-rules": without,
        "unknown": _of(host="a"),
        "name-number": _of(name=7),
        "step-string": _of(step="7"),
        "step-true": _of(step=True),
        "rules-array": _of(rules=[]),
        "metrics-array": _of(metrics=[]),
        "metric-number": _of(metrics={"loss": 1}),
        "metric-null": _of(metrics={"loss": None}),
        "surrogate": _of(rules={"a": "\ud800"}),
        "step": _of(step=2**53),
        "time": _of(time=2**53),
        "rule-2-53": _of(rules={"last": [2**53]}),
    }
    runs = {
        "run-usual": RUN,
        "run-ignored": RUN | {"_a\n": [None, "\x1b"], "_b": "x" * 70_000},
        "run-least": _of(rules={}, metrics={}, step=0, time=0, name="é" * 255),
        "run-rules": _of(rules=rules),
        "run-metrics": _of(metrics=_METRICS),
        "run-largest-numbers": _of(step=2**53 - 1, time=2**53 - 1),
        "run-nested": _of(rules=_nested(8)),
        "run-65536": _sized(_LIMIT),
        **under("M1-run", types),
        "index-run-id-number": _of(run=7),
        "index-run-id-short": _of(run=str(RUN["run"])[:-1]),
        "index-run-id-capitals": _of(run="A" * 32),
        **under("M13-run", {name: _of(**changes) for name, changes in values.items()}),
        **{f"M14-run-metric-{number}": _of(metrics={"loss": text}) for number, text in enumerate(spellings)},
        "M14-run-metric-underscore": _of(metrics={"_a": "0.5"}),
        "M15-run-65537": _sized(_LIMIT + 1),
    }
    files = {name: BASE.files(put("run", value=run)) for name, run in runs.items()}
    of_rank = BASE.files(lambda index: index.update(run=RUN, rank=0), rank=0)
    return {**files, "run-signed": SIGNED.files(put("run", value=RUN)), "M1-run-rank": of_rank}
