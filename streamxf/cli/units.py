"""Quantities as people write them: ``2h``, ``2GB/s``, ``256MiB``."""

from __future__ import annotations

import math
import re

import typer

from streamxf.manager.retention import duration

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _BYTES |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?) *([a-z]*)", re.ASCII | re.IGNORECASE)


def seconds(text: str) -> float:
    """``90``, ``90s``, ``30m``, ``2h`` or ``7d`` in seconds; raises BadParameter for anything else."""
    found = duration(text)
    if found is None:
        raise typer.BadParameter(f"{text!r:.40} is not a time; write 90s, 30m, 2h or 7d")
    return found


def size(text: str) -> int:
    """``256MiB``, ``2GB`` or a number of bytes in bytes; raises BadParameter for anything else, and for nothing."""
    match = _QUANTITY.fullmatch(text.strip())
    found = float(match[1]) * _BYTES.get(match[2].lower(), 0) if match is not None else 0
    if not 1 <= found < math.inf:
        raise typer.BadParameter(f"{text!r:.40} is not a size; write 256MiB, 2GB or a number of bytes")
    return int(found)


def count(text: str) -> int:
    """``3``, or ``unlimited``, which is -1; raises BadParameter for anything else, and for 0."""
    if text in ("unlimited", "-1"):
        return -1
    if not re.fullmatch("0*[1-9][0-9]*", text, re.ASCII):
        raise typer.BadParameter(f"{text!r:.40} is not a count; write a number from 1, or unlimited (or -1)")
    return int(text)


def number(text: str) -> int:
    """A whole number from 0; raises BadParameter for anything else."""
    if not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        raise typer.BadParameter(f"{text!r:.40} is not a whole number")
    return int(text)


def metric(text: str) -> tuple[str, str]:
    """``loss`` or ``accuracy:max``: the name of a metric, and whether lower (min) or higher values are better."""
    name, _, mode = text.rpartition(":")
    return (name, mode) if name and mode in ("min", "max") else (text, "min")
