"""The items as a tree of modules, in which layers of the same structure share a line; and layers side by side.

Names are split at dots. What a user of large models looks at is one of many equal layers, so siblings whose names are
numbers, and which hold items of the same names, dtypes and shapes, become one module ``[0-31]`` with their sums; and a
module that holds nothing but one other is joined with it: ``model.layers.[0-31]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from streamxf.buffers import collector_paused
from streamxf.reading import Item, TensorItem
from streamxf.tools.inspect.inspect import ItemTotals

# Deeper than any model; the rest of a longer name is one piece. Without, a name of dots would exhaust the stack.
MAX_DEPTH = 32
_FREE_NODES, _NODES_EACH = 2**16, 2  # modules besides an item; a model's layers share most of theirs
_MAX_RUNS = 5
_MAX_DIGITS = 9
_NUMBERS = 4  # in a name, that may be those of layers: what is before each is kept


@dataclass(slots=True)
class Module:
    """A module, several that are built alike, or an item."""

    name: str  # one or more parts of the items' names, as in ``layers.[0-31]``
    totals: ItemTotals
    item: Item | None  # that has just this name; the first of several
    children: list[Module]
    times: int = 1  # how many of them are shown as this one


@dataclass(slots=True)
class _Node:
    item: Item | None = None
    children: dict[str, _Node] = field(default_factory=dict)


@collector_paused()
def tree_of(items: Iterable[Item]) -> Module:
    """The tree; its root has no name."""
    items = list(items)
    depth = MAX_DEPTH
    while (root := _grown(items, depth)) is None:
        depth //= 2
    return _fold("", root, {})[0]


def _grown(items: list[Item], depth: int) -> _Node | None:
    """The tree, names split no deeper than `depth`; None if it has far more modules than items."""
    root, left = _Node(), _FREE_NODES + _NODES_EACH * len(items)
    for item in items:
        node = root
        for part in item.name.split(".", depth - 1):
            if part not in node.children:
                node.children[part] = _Node()
                left -= 1
            node = node.children[part]
        node.item = item
        if left < 0:
            return None
    return root


def walk(module: Module, depth: int | None = None) -> Iterator[tuple[int, Module]]:
    """Everything in a module, each before what it holds, with its level from 0; `depth` is how many levels."""
    for child in module.children:
        yield 0, child
        if depth is None or depth > 1:
            yield from ((level + 1, inner) for level, inner in walk(child, None if depth is None else depth - 1))


def _fold(name: str, node: _Node, numbers: dict[object, int]) -> tuple[Module, int]:
    """Bottom-up, with a number for each structure: two modules are alike if their numbers are equal."""
    inner: Iterable[str] = node.children
    if all(number_of(part) is not None for part in inner):
        inner = sorted(inner, key=int)  # some formats sort names as strings
    made = [_fold(part, node.children[part], numbers) for part in inner]
    children = _collapsed(made)
    for place, module in enumerate(children):
        if module.item is None and len(module.children) == 1:  # joined with the only one in it
            (child,) = module.children
            children[place] = replace(child, name=f"{module.name}.{child.name}")
    totals = ItemTotals.of(() if node.item is None else (node.item,))
    for child in children:
        totals.merge(child.totals)
    about = (node.item.dtype, node.item.shape) if isinstance(node.item, TensorItem) else node.item is None
    build = tuple((module.name, number) for module, number in made)
    return Module(name, totals, node.item, children), numbers.setdefault((about, build), len(numbers))


@lru_cache(1 << 16)  # names have few different parts
def number_of(part: str) -> int | None:
    """The number that a part of a name is, as layers have; else None."""
    if not part.isascii() or not part.isdigit() or len(part) > _MAX_DIGITS or (part[0] == "0" and part != "0"):
        return None
    return int(part)


def _collapsed(made: list[tuple[Module, int]]) -> list[Module]:
    """Modules that are numbered and built alike become one, where the first of them stands."""
    groups: dict[object, list[Module]] = {}
    for module, number in made:
        alike: object = module.name if number_of(module.name) is None else number
        groups.setdefault(alike, []).append(module)
    return [
        group[0] if len(group) == 1 else _merged(f"[{_ranges([int(module.name) for module in group])}]", group)
        for group in groups.values()
    ]


def _merged(name: str, alike: list[Module]) -> Module:
    totals = ItemTotals()
    for module in alike:
        totals.merge(module.totals)
    inner = zip(*(module.children for module in alike), strict=True)
    children = [_merged(group[0].name, list(group)) for group in inner]
    return Module(name, totals, alike[0].item, children, sum(module.times for module in alike))


def _ranges(numbers: list[int]) -> str:
    """``0-5,7``; where there would be many runs, the first ones and the last."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    parts = ["-".join(map(str, run)) for run in runs]
    return ",".join(parts if len(parts) <= _MAX_RUNS else [*parts[: _MAX_RUNS - 2], "...", parts[-1]])


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
