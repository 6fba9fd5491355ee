"""What the page's script draws: a tree of tensors, layers side by side, and the ends of the colour scale.

A page stays a few mebibytes large, whatever is in the checkpoint: the largest items are there one by one, and the
others are added up in the module that they are in, as far as the page knows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from streamxf.collector import collector_paused
from streamxf.formats.contents import Entry
from streamxf.summary.layers import Stack, stacks_of
from streamxf.summary.summary import Summary, chain_text, ratio_of
from streamxf.summary.tally import Tally
from streamxf.summary.tree import MAX_DEPTH
from streamxf.wording import printable

MAX_ITEMS = 20_000
MAX_NAME = 300
MAX_STACKS = 12
MAX_LAYERS = 160
MAX_ROLES = 40
SMALL_ROLE = 0.002  # of the bytes of a stack in memory: several roles below it share a row

_OUTLIERS = 0.01  # of the bytes, at either end of the scale
_LEAST = 5  # hundredths that a scale is wide: smaller differences would look like large ones

Node = dict[str, Any]
"""A module: ``name``, ``children``, ``items`` (a list of facts each) and, where some were left out, ``rest``."""


@collector_paused()
def page_data(summary: Summary, max_items: int = MAX_ITEMS) -> dict[str, Any]:
    """Everything that the script needs, for JSON."""
    contents = summary.contents
    entries = list(contents.entries.values())
    shown = nlargest(max_items, entries, key=lambda entry: entry.stored_bytes)
    return {
        "dtypes": list(summary.dtypes),
        "chains": [printable(chain_text(chain), MAX_NAME) for chain in summary.chains],
        "tree": _Tree(summary).of(entries, {entry.name for entry in shown}),
        "left_out": len(entries) - len(shown),
        "scale": scale_of((ratio_of(entry), entry.raw_bytes or 0) for entry in contents.tensors),
        "stacks": [_stack(stack) for stack in stacks_of(entries)[:MAX_STACKS]],
    }


def scale_of(ratios: Iterable[tuple[float | None, int]]) -> tuple[float, float, bool, bool]:
    """The ends of a colour scale of ratios, each of so many bytes, and whether there are ratios below and above it.

    All but a hundredth of the bytes at either end lie between them, so that a few tiny tensors, each of which is mostly
    framing, do not take all colours for themselves.
    """
    found = sorted((ratio, weight) for ratio, weight in ratios if ratio is not None)
    if not found:
        return 0.0, 1.0, False, False
    low = math.floor(round(100 * _quantile(found, _OUTLIERS), 6))
    high = math.ceil(round(100 * _quantile(found, 1 - _OUTLIERS), 6))
    spare = max(0, _LEAST - (high - low))
    ends = (low - spare // 2) / 100, (high + spare - spare // 2) / 100
    return *ends, found[0][0] < ends[0], found[-1][0] > ends[1]


def _quantile(weights: list[tuple[float, int]], part: float) -> float:
    wanted = part * sum(weight for _, weight in weights)
    for value, weight in weights:
        wanted -= weight
        if wanted <= 0:
            return value
    return weights[-1][0]


class _Tree:
    """Modules as they are nested; dtypes and chains stand in it as their numbers in the page's lists of them."""

    def __init__(self, summary: Summary) -> None:
        self._dtypes = {dtype: number for number, dtype in enumerate(summary.dtypes)}
        self._chains = {chain: number for number, chain in enumerate(summary.chains)}
        self._modules: dict[tuple[str, ...], Node] = {(): _module("")}

    def of(self, entries: list[Entry], shown: set[str]) -> Node:
        left: list[tuple[Entry, tuple[str, ...]]] = []
        for entry in entries:
            *module, name = entry.name.split(".", MAX_DEPTH - 1)
            if entry.name in shown:
                self._module(tuple(module))["items"].append(self._item(entry, name))
            else:
                left.append((entry, tuple(module)))
        for entry, place in left:  # when it is known which modules the page has
            while place not in self._modules:
                place = place[:-1]
            rest = self._modules[place].setdefault("rest", [0, 0, 0, 0])
            one = Tally.of([entry])
            for index, value in enumerate((1, one.raw_bytes, one.stored_bytes, one.object_bytes)):
                rest[index] += value
        return self._modules[()]

    def _module(self, place: tuple[str, ...]) -> Node:
        if place not in self._modules:
            self._modules[place] = _module(place[-1])
            self._module(place[:-1])["children"].append(self._modules[place])
        return self._modules[place]

    def _item(self, entry: Entry, name: str) -> list[Any]:
        """Name, dtype (-1: an object), shape, raw bytes, stored bytes, parts, chain."""
        return [
            printable(name, MAX_NAME),
            -1 if entry.dtype is None else self._dtypes[entry.dtype],
            list(entry.shape),
            entry.raw_bytes or 0,
            entry.stored_bytes,
            len(entry.parts),
            self._chains[entry.parts[0].chain] if entry.parts else -1,
        ]


def _module(name: str) -> Node:
    return {"name": printable(name, MAX_NAME), "children": [], "items": []}


def _stack(stack: Stack) -> dict[str, Any]:
    """Layers are columns and roles are rows; where there are too many of either, several share one."""
    step = -(-len(stack.layers) // MAX_LAYERS)
    columns = [stack.layers[start : start + step] for start in range(0, len(stack.layers), step)]
    column_of = {layer: index for index, column in enumerate(columns) for layer in column}
    roles = _rows(stack)
    row_of = {role: row for row, role in enumerate(roles)}
    cells: dict[tuple[int, int], Tally] = {}
    for (layer, role), tally in stack.cells.items():
        cells.setdefault((row_of.get(role, len(roles)), column_of[layer]), Tally()).merge(tally)
    more = len(stack.roles) - len(roles)
    return {
        "name": printable(stack.name, MAX_NAME) or "layers",
        "layers": [_span(column) for column in columns],
        "roles": [printable(role, MAX_NAME) or "tensor" for role in roles] + ([f"{more:,} small ones"] if more else []),
        "cells": [
            [row, column, tally.tensors, tally.raw_bytes, tally.stored_bytes] for (row, column), tally in cells.items()
        ],
        "scale": scale_of((tally.ratio, tally.raw_bytes) for tally in cells.values()),
    }


def _rows(stack: Stack) -> list[str]:
    """The roles that get a row each: biases and gains, which are mostly framing, would take half of the picture."""
    sizes: dict[str, int] = dict.fromkeys(stack.roles, 0)
    for (_, role), tally in stack.cells.items():
        sizes[role] += tally.raw_bytes
    least = SMALL_ROLE * sum(sizes.values())
    small = {role for role, size in sizes.items() if size < least}
    kept = set(nlargest(MAX_ROLES, sizes, key=lambda role: sizes[role])) - (small if len(small) > 1 else set())
    return [role for role in stack.roles if role in kept]


def _span(layers: list[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
