"""What checkpoints say of the run that they belong to."""

from __future__ import annotations

import copy
import json
import struct
from math import inf
from typing import Any

from tests.sealing import secret
from tests.vectors.recipes.vector import NOTHING, Reader, Vector, holding
from tests.vectors.recipes.world import BASE, PIECES, SIGNED, World, content_of, put

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


def _holds(name: str, about: str, run: dict[str, Any], made: World = BASE, reader: Reader = NOTHING) -> Vector:
    return Vector(
        f"run-{name}",
        about,
        lambda: made.files(put("run", value=run)),
        {"holds": content_of(PIECES)},
        reader,
        {"run": run},
    )


def _breaks(rule: str, name: str, about: str, run: Any, rank: int | None = None) -> Vector:
    def change(index: dict[str, Any]) -> None:
        index |= {"run": run, "rank": rank}

    facts = {} if rank is None else {"rank": rank}
    return Vector(f"{rule}-run-{name}", about, lambda: BASE.files(change, rank=rank), {"breaks": rule}, NOTHING, facts)


def vectors() -> list[Vector]:
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
    values: list[tuple[str, str, dict[str, Any]]] = [
        ("rule-null", "null in the rules", {"rules": {"last": None}}),
        ("rule-underscore", "the same under a name that begins with _", {"rules": {"_a": None}}),
        ("rules-deep", "9 objects and arrays in each other", {"rules": _nested(9)}),
        ("name-empty", "an empty name", {"name": ""}),
        ("name-dot", "the name .", {"name": "."}),
        ("name-up", "the name ..", {"name": ".."}),
        ("name-slash", "a name of two parts", {"name": "a/b"}),
        ("name-256", "a name of 256 characters", {"name": "é" * 256}),
        ("name-newline", "a newline in the name", {"name": "a\n"}),
        ("name-delete", "U+007F in the name", {"name": "a\x7f"}),
        ("name-c1", "U+009B in the name", {"name": "\x9b2J"}),
        ("rule-control", "an escape in a rule", {"rules": {"a": ["\x1b[2J"]}}),
        ("rule-name-control", "a control character in a rule's name", {"rules": {"\0": 1}}),
        ("metric-name-control", "a control character in a metric's name", {"metrics": {"\t": "3fd0000000000000"}}),
    ]
    types: list[tuple[str, str, Any]] = [
        ("null", "null", None),
        ("array", "an array", [RUN]),
        ("without-rules", "a member is missing", without),
        ("unknown", "a member that is unknown", _of(host="a")),
        ("name-number", "the name as a number", _of(name=7)),
        ("step-string", "the step as a string", _of(step="7")),
        ("step-true", "true for the step", _of(step=True)),
        ("rules-array", "the rules as an array", _of(rules=[])),
        ("metrics-array", "the metrics as an array", _of(metrics=[])),
        ("metric-number", "a metric as a number", _of(metrics={"loss": 1})),
        ("metric-null", "null for a metric", _of(metrics={"loss": None})),
        ("surrogate", "a lone surrogate in a rule", _of(rules={"a": "\ud800"})),
        ("step", "2^53", _of(step=2**53)),
        ("time", "2^53", _of(time=2**53)),
        ("rule-2-53", "2^53 in the rules", _of(rules={"last": [2**53]})),
    ]
    return [
        _holds("usual", "a run, with rules and a metric", RUN),
        Vector(
            "run-ignored",
            "members that readers ignore, for which no rule of runs holds",
            lambda: BASE.files(put("run", value=RUN | {"_a\n": [None, "\x1b"], "_b": "x" * 70_000})),
            {"holds": content_of(PIECES)},
            NOTHING,
            {"run": RUN},
        ),
        _holds("signed", "the same, signed", RUN, SIGNED, holding("aeskw")),
        _holds("least", "a run without rules and metrics", _of(rules={}, metrics={}, step=0, time=0, name="é" * 255)),
        _holds("rules", "all that rules may be", _of(rules=rules)),
        _holds("metrics", "metrics in their only spelling", _of(metrics=_METRICS)),
        _holds("largest-numbers", "2^53 - 1", _of(step=2**53 - 1, time=2**53 - 1)),
        _holds("nested", "8 objects and arrays in each other", _of(rules=_nested(8))),
        _holds("65536", "65,536 bytes", _sized(_LIMIT)),
        *(_breaks("M1", name, about, run) for name, about, run in types),
        _breaks("M1", "rank", "in a rank's own metadata", RUN, 0),
        _breaks("index", "id-number", "the id as a number", _of(run=7)),
        _breaks("index", "id-short", "an id of 31 digits", _of(run=str(RUN["run"])[:-1])),
        _breaks("index", "id-capitals", "an id in capitals", _of(run="A" * 32)),
        *(_breaks("M13", name, about, _of(**changes)) for name, about, changes in values),
        *(
            _breaks("M14", f"metric-{number}", f"a metric as {text!a}", _of(metrics={"loss": text}))
            for number, text in enumerate(spellings)
        ),
        _breaks("M14", "metric-underscore", "a metric whose name begins with _", _of(metrics={"_a": "0.5"})),
        _breaks("M15", "65537", "65,537 bytes", _sized(_LIMIT + 1)),
    ]
