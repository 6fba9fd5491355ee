"""What checkpoints say of the run that they belong to."""

import copy
import struct
from math import inf
from typing import Any

from tests.sealing import secret
from tests.vectors.recipes.world import BASE, put

RUN = {
    "run": secret("run").hex()[:32],
    "name": "step-7",
    "step": 7,
    "time": 1_700_000_000_123,
    "rules": {"last": 3, "metric": "loss"},
    "metrics": {"loss": "3fd0000000000000"},
}
METRICS = {
    **{name: struct.pack(">d", number).hex() for name, number in {"inf": inf, "-inf": -inf, "zero": 0.0}.items()},
    **{"-zero": "8000000000000000", "least": "0000000000000001", "largest": "7fefffffffffffff"},
    **{"nan": "7ff8000000000000", "": "3fb999999999999a", "größe": "be84e2c0a7a2b1b2"},
}


def changed(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(RUN) | changes


def nested(depth: int) -> dict[str, Any]:
    made: Any = 1
    for number in range(depth - 1):
        made = [made] if number % 2 else {"a": made}
    return {"a": made}


def files(run: Any) -> dict[str, bytes]:
    """A checkpoint of this run."""
    return BASE.files(put("run", value=run))
