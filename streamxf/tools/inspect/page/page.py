"""`html_page`: the files next to this one, with what needs no script: figures, tables, and who wrote it; and with
`page_data`, which the script draws: a tree of tensors, layers side by side, and the ends of the scale of ratios.

A page stays a few mebibytes large, whatever is in the checkpoint: the largest items are there one by one, and the
others are added up in the module that they are in, as far as the page knows it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from html import escape
from importlib.resources import files
from itertools import accumulate
from string import Template
from typing import TYPE_CHECKING, Any

from streamxf.buffers import collector_paused
from streamxf.reading import Item, TensorItem
from streamxf.tools.inspect.inspect import (
    MAX_DEPTH,
    ItemTotals,
    chain_text,
    chains_of,
    memory_of,
    number_of,
    ratio_of,
    ratio_text,
)
from streamxf.tools.values.statistics import Moments, Statistics
from streamxf.version import __version__
from streamxf.wording import many, printable, size_text

if TYPE_CHECKING:
    from streamxf.tools.inspect.inspect import Summary, TensorStatistics

MAX_ITEMS = 20_000
MAX_NAME = 300
MAX_STACKS = 12
MAX_LAYERS = 160
MAX_ROLES = 40
SMALL_ROLE = 0.002  # of the bytes of a stack in memory: several roles below it share a row

_OUTLIERS = 0.01  # of the bytes, at either end of the scale
_SLACK = 0.1  # of what is between these
_LEAST = 5  # hundredths that a scale is wide: smaller differences would look like large ones
_NUMBERS = 4  # in a name, that may be those of layers: what is before each is kept
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Node = dict[str, Any]
"""A module: ``name``, ``children``, ``items`` (a list of facts each) and, where some were left out, ``rest``."""
MAX_LINES = 40
_MAX_FLAGGED = 20
SCRIPTS = ("base.js", "colours.js", "layout.js", "labels.js", "treemap.js", "layers.js", "tensors.js")


@collector_paused()
def page_data(summary: Summary, max_items: int = MAX_ITEMS) -> dict[str, Any]:
    """Everything that the script needs, for JSON."""
    contents = summary.contents
    items = list(contents.items.values())
    shown = nlargest(max_items, items, key=lambda item: item.stored_bytes)
    return {
        "dtypes": list(summary.dtypes),
        "chains": [printable(chain_text(chain), MAX_NAME) for chain in summary.chains],
        "tree": _Tree(summary).of(items, {item.name for item in shown}),
        "left_out": len(items) - len(shown),
        "scale": scale_of((ratio_of(item), memory_of(item)) for item in contents.tensors.values()),
        "values": summary.values is not None,
        "stacks": [_stack(stack, summary.values) for stack in stacks_of(items)[:MAX_STACKS]],
    }


def scale_of(ratios: Iterable[tuple[float | None, int]]) -> tuple[float, float]:
    """The ends of a colour scale for ratios, each weighted by bytes; ratios beyond the ends have colours of their own.

    All but a hundredth of the bytes at either end are within the scale, so that a few tiny tensors, each of which is
    mostly framing, do not stretch it. Ratios that are only just beyond it are included, too.
    """
    found = sorted((ratio, weight) for ratio, weight in ratios if ratio is not None)
    if not found:
        return 0.0, 1.0
    low, high = _quantile(found, _OUTLIERS), _quantile(found, 1 - _OUTLIERS)
    slack = max(_SLACK * (high - low), _LEAST / 200)
    first = math.floor(round(100 * min(ratio for ratio, _ in found if ratio >= low - slack), 6))
    last = math.ceil(round(100 * max(ratio for ratio, _ in found if ratio <= high + slack), 6))
    spare = max(0, _LEAST - (last - first))
    return (first - spare // 2) / 100, (last + spare - spare // 2) / 100


def _quantile(weights: list[tuple[float, int]], part: float) -> float:
    sums = list(accumulate(weight for _, weight in weights))
    return weights[min(bisect_left(sums, part * sums[-1]), len(sums) - 1)][0]


class _Tree:
    """Nested modules; dtypes and chains are given by their numbers in the page's lists."""

    def __init__(self, summary: Summary) -> None:
        self._dtypes = {dtype: number for number, dtype in enumerate(summary.dtypes)}
        self._chains = {chain: number for number, chain in enumerate(summary.chains)}
        self._modules: dict[tuple[str, ...], Node] = {(): {"name": "", "children": [], "items": []}}
        self._values = summary.values

    def of(self, items: list[Item], shown: set[str]) -> Node:
        left: list[tuple[Item, tuple[str, ...]]] = []
        for item in items:
            *module, name = item.name.split(".", MAX_DEPTH - 1)
            if item.name in shown:
                self._module(tuple(module))["items"].append(self._item(item, name))
            else:
                left.append((item, tuple(module)))
        for item, place in left:  # when it is known which modules the page has
            while place not in self._modules:
                place = place[:-1]
            rest = self._modules[place].setdefault("rest", [0, 0, 0, 0, 0, 0])
            one = ItemTotals.of([item])
            more = (1, one.raw_bytes, one.stored_bytes, one.object_bytes, *_flags([item], self._values))
            rest[:] = map(int.__add__, rest, more)
        return self._modules[()]

    def _module(self, place: tuple[str, ...]) -> Node:
        if place not in self._modules:
            self._modules[place] = {"name": printable(place[-1], MAX_NAME), "children": [], "items": []}
            self._module(place[:-1])["children"].append(self._modules[place])
        return self._modules[place]

    def _item(self, item: Item, name: str) -> list[Any]:
        """Name, dtype (-1: an object), shape, raw bytes, stored bytes, parts, chain; and its values, if it has any."""
        about: list[Any] = [-1, [], 0]
        if isinstance(item, TensorItem):
            about = [self._dtypes[item.dtype], list(item.shape), memory_of(item)]
        chain = self._chains[next(iter(chains_of(item)))] if item.places else -1
        found = [printable(name, MAX_NAME), *about, item.stored_bytes, len(item.places), chain]
        statistics = self._values.statistics.get(item.name) if self._values is not None else None
        return found if statistics is None else [*found, _numbers(statistics)]


@dataclass(frozen=True)
class Stack:
    """Layers on top of one another: what each part of a layer takes in each of them.

    A role is a tensor's name in a layer, ``self_attn.q_proj.weight``; numbers in it are stars: all experts are one.
    """

    name: str  # of what holds them: ``model.layers``
    layers: list[int]
    roles: list[str]
    cells: dict[tuple[int, str], list[TensorItem]]  # by layer and role

    @property
    def stored_bytes(self) -> int:
        return sum(item.stored_bytes for items in self.cells.values() for item in items)


def stacks_of(items: Iterable[Item]) -> list[Stack]:
    """All stacks of at least two layers, the largest first; a tensor is in one of them or in none.

    Of several numbers in a name, the first counts that has others beside it: that of the layer, not of an expert in it.
    """
    names = [(item, item.name.split(".", MAX_DEPTH - 1)) for item in items if isinstance(item, TensorItem)]
    numbers: dict[str, set[int]] = {}
    for item, parts in names:
        for holder, _, number in _numbered(item.name, parts):
            numbers.setdefault(holder, set()).add(number)
    cells: dict[str, dict[tuple[int, str], list[TensorItem]]] = {}
    for item, parts in names:
        for holder, place, number in _numbered(item.name, parts):
            if len(numbers[holder]) < 2:
                continue
            role = ".".join("*" if number_of(inner) is not None else inner for inner in parts[place + 1 :])
            stack = cells.setdefault(holder, {})
            stack.setdefault((number, role), []).append(item)
            break
    found = []
    for holder, stack in cells.items():
        roles = list(dict.fromkeys(role for _, role in stack))
        found.append(Stack(holder[:-1], sorted({layer for layer, _ in stack}), roles, stack))
    return sorted(found, key=lambda stack: stack.stored_bytes, reverse=True)


def _numbered(name: str, parts: list[str]) -> Iterator[tuple[str, int, int]]:
    """The first of a name's parts that are numbers: what is before each, with its dot, its place, and the number."""
    at, left = 0, _NUMBERS
    for place, part in enumerate(parts):
        if left and (number := number_of(part)) is not None:
            left -= 1
            yield name[:at], place, number
        at += len(part) + 1


def _stack(stack: Stack, values: TensorStatistics | None) -> dict[str, Any]:
    """Layers are columns and roles are rows; where there are too many of either, several share one."""
    step = -(-len(stack.layers) // MAX_LAYERS)
    columns = [stack.layers[start : start + step] for start in range(0, len(stack.layers), step)]
    column_of = {layer: index for index, column in enumerate(columns) for layer in column}
    roles = _rows(stack)
    row_of = {role: row for row, role in enumerate(roles)}
    cells: dict[tuple[int, int], list[TensorItem]] = {}
    for (layer, role), items in stack.cells.items():
        cells.setdefault((row_of.get(role, len(roles)), column_of[layer]), []).extend(items)
    more = len(stack.roles) - len(roles)
    return {
        "name": printable(stack.name, MAX_NAME) or "layers",
        "layers": ["-".join(map(str, dict.fromkeys((column[0], column[-1])))) for column in columns],
        "roles": [printable(role, MAX_NAME) or "tensor" for role in roles] + ([f"{more:,} small ones"] if more else []),
        "cells": [[row, column, *_cell(items, values)] for (row, column), items in cells.items()],
    }


def _cell(items: list[TensorItem], values: TensorStatistics | None) -> list[Any]:
    """Tensors, raw bytes, stored bytes; and of their values flags, count, mean and standard deviation."""
    totals = ItemTotals.of(items)
    sums = [totals.tensors, totals.raw_bytes, totals.stored_bytes]
    if values is None:
        return sums
    moments = Moments()
    for item in items:
        found = values.statistics[item.name]
        if found is not None and found.mean is not None and found.std is not None:
            moments.merge(Moments.of(found.elements - found.nan - found.inf, found.mean, found.std))
    return [*sums, *_flags(items, values), moments.count, _rounded(moments.mean), _rounded(moments.deviation)]


def _rows(stack: Stack) -> list[str]:
    """The roles that get a row each: biases and gains, which are mostly framing, would take half of the picture."""
    sizes: dict[str, int] = dict.fromkeys(stack.roles, 0)
    for (_, role), items in stack.cells.items():
        sizes[role] += sum(map(memory_of, items))
    least = SMALL_ROLE * sum(sizes.values())
    small = {role for role, size in sizes.items() if size < least}
    kept = set(nlargest(MAX_ROLES, sizes, key=lambda role: sizes[role])) - (small if len(small) > 1 else set())
    return [role for role in stack.roles if role in kept]


def _numbers(statistics: Statistics) -> list[Any]:
    """Counts of elements, NaN, infinities and zeros; minimum, maximum, mean, standard deviation; and the histogram: its
    ends, its bars, each a digit to base 36, and how many numbers are below and above it.
    """
    figures = (statistics.min, statistics.max, statistics.mean, statistics.std)
    counts = [statistics.elements, statistics.nan, statistics.inf, statistics.zeros, *map(_rounded, figures)]
    if (shown := statistics.histogram) is None:
        return counts
    most = max(shown.counts) or 1
    heights = "".join(_DIGITS[-(-count * (len(_DIGITS) - 1) // most)] for count in shown.counts)
    end = shown.start + len(shown.counts) * shown.width
    return [*counts, _rounded(shown.start), _rounded(end), heights, shown.below, shown.above]


def _flags(items: Iterable[Item], values: TensorStatistics | None) -> tuple[int, int]:
    """How many tensors have NaN or infinities, and how many are all zeros."""
    if values is None:
        return 0, 0
    found = [each for item in items if (each := values.statistics.get(item.name)) is not None]
    return sum(each.nan + each.inf > 0 for each in found), sum(each.all_zero for each in found)


def _rounded(number: int | float | None) -> int | float | None:
    """To six digits, of which the page shows three; small integers exactly."""
    if number is None or (isinstance(number, int) and abs(number) < 10**7):
        return number
    return float(f"{number:.6g}")


def html_page(summary: Summary, max_items: int = MAX_ITEMS) -> str:
    """A self-contained page of HTML, with `max_items` items one by one; the others are added up.

    Names come from the checkpoint, which may be hostile: they are escaped here, and the script only ever makes text of
    them. The policy in the page's head allows this one script and this one style sheet, by their digests, and nothing
    else; so even a mistake in that could neither run nor fetch anything.
    """
    contents = summary.contents
    data = page_data(summary, max_items)
    left_out = data["left_out"]
    note = f"{many(left_out, 'smaller item')} of this checkpoint are added up by module." if left_out else ""
    return _page(
        "\n".join(map(_asset, SCRIPTS)),
        title=_text(contents.path.rstrip("/").rpartition("/")[2] or contents.path),
        path=_text(contents.path),
        format=_text(str(contents.format)),
        figures=_figures(summary),
        attention=_attention(summary.values) if summary.values is not None and summary.values.flagged else "",
        groups=_table("dtype", [(dtype, dtype, totals) for dtype, totals in summary.dtypes.items()])
        + _table("chain", [(chain_text(chain), " + ".join(chain), totals) for chain, totals in summary.chains.items()]),
        facts=_facts(summary),
        note=escape(note),
        source="the checkpoint's own metadata" + (" and its tensors" if summary.values is not None else ""),
        # a ``</script`` anywhere in it would end the script element
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e"),
    )


def viewer_page() -> str:
    """A page that opens folders in a browser with the reader in JavaScript, and shows what `html_page` shows of them,
    and the values of tensors. It fetches nothing and sends nothing, which its policy enforces.
    """
    drawing = ["function drawCheckpoint() {", *map(_asset, SCRIPTS), "}"]
    script = "\n".join([_asset("zstd.js"), _asset("reader.js"), *drawing, _asset("viewer.js")])
    empty = dict.fromkeys(("path", "figures", "groups", "facts", "note"), "")
    about = {"title": "Checkpoints", "format": "viewer", "source": "the folder that is opened in it", "data": "{}"}
    return _page(script, attention=_asset("viewer.html"), **empty, **about)


def _page(script: str, **parts: str) -> str:
    style = _asset("style.css")
    policy = (
        f"default-src 'none'; connect-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    template = Template(_asset("page.html"))
    return template.substitute(parts, policy=policy, version=escape(__version__), style=style, script=script)


def _asset(name: str) -> str:
    return files("streamxf.tools.inspect.page").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _figures(summary: Summary) -> str:
    """The tiles at the top."""
    total, contents = summary.total, summary.contents
    stored = total.stored_bytes + total.object_bytes
    saved = total.raw_bytes - total.stored_bytes
    less = f"{size_text(abs(saved))} {'less' if saved >= 0 else 'more'}" if total.raw_bytes else "no tensors"
    shown = [
        ("Stored", size_text(stored), many(len(contents.files), "file")),
        ("In memory", size_text(total.raw_bytes), f"{_count(total.elements)} elements"),
        ("Stored / in memory", ratio_text(total.ratio), less),
        ("Tensors", f"{total.tensors:,}", many(summary.shards, "shard")),
        ("Other objects", f"{total.objects:,}", size_text(total.object_bytes)),
    ]
    if (values := summary.values) is not None:
        broken = len({*values.nan, *values.inf})
        zeros = f"{many(len(values.zeros), 'tensor')} of zeros" if values.zeros else "no tensor of zeros"
        shown.append(("NaN or infinities", f"in {many(broken, 'tensor')}" if broken else "none", zeros))
    return "".join(
        f"<div class=figure><dt>{escape(label)}</dt><dd>{escape(value)}</dd><dd class=more>{escape(more)}</dd></div>"
        for label, value, more in shown
    )


def _facts(summary: Summary) -> str:
    contents = summary.contents
    shown: list[tuple[str, list[str]]] = [
        ("Format", [str(contents.format)]),
        ("Written by", [f"{name} {version}" for name, version in contents.packages.items()]),
        ("Save", list(contents.save_ids)),
        ("Opened by keys", list(contents.key_ids)),
        ("Signed by", list(contents.signers)),
        ("Metadata", [f"{name}: {value}" for name, value in contents.extra.items()]),
        ("Notes", list(summary.notes)),
    ]
    return "".join(
        f"<dt>{escape(label)}</dt>" + "".join(f"<dd>{_text(line)}</dd>" for line in _cut(lines))
        for label, lines in shown
        if lines
    )


def _count(number: int) -> str:
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale:
            return f"{number / scale:,.1f} {unit}"
    return str(number)


def _table(heading: str, rows: Iterable[tuple[str, str, ItemTotals]]) -> str:
    cells = "".join(
        f'<tr><th scope=row title="{_text(whole)}">{_text(label)}</th><td>{sums.items:,}</td>'
        f"<td class=wide>{size_text(sums.raw_bytes)}</td><td>{size_text(sums.stored_bytes + sums.object_bytes)}</td>"
        f"<td>{ratio_text(sums.ratio)}</td></tr>"
        for label, whole, sums in rows
    )
    heads = (
        f"<th scope=col>{heading}</th><th scope=col>items</th><th scope=col class=wide>in memory</th>"
        "<th scope=col>stored</th><th scope=col>ratio</th>"
    )
    return f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_LINES else [*lines[: MAX_LINES - 1], f"{len(lines) - MAX_LINES + 1:,} more"]


def _attention(values: TensorStatistics) -> str:
    """A card that lists tensors with NaN or infinities, and tensors of nothing but zeros."""
    count = len(values.flagged)
    lines = [_flagged(name, values.statistics[name]) for name in values.flagged[:_MAX_FLAGGED]]
    if count > _MAX_FLAGGED:
        lines.append(f"<li>{count - _MAX_FLAGGED:,} more</li>")
    return (
        f'<section class="card alert {"bad" if values.nan or values.inf else "odd"}" aria-labelledby="alert-title">'
        f'<h2 id="alert-title">{many(count, "tensor")} {"needs" if count == 1 else "need"} attention</h2>'
        f"<ul>{''.join(lines)}</ul></section>"
    )


def _flagged(name: str, statistics: Statistics | None) -> str:
    assert statistics is not None  # else nothing of it would be known
    counts = {"NaN": statistics.nan, "Inf": statistics.inf}
    flags = [f'<span class="flag bad">{count:,} {what}</span>' for what, count in counts.items() if count]
    flags.append(
        '<span class="flag odd">all zeros</span> '
        if statistics.all_zero
        else f"<span class=quiet>of {many(statistics.elements, 'element')}</span>"
    )
    return f"<li><code>{_text(name)}</code> {' '.join(flags)}</li>"
