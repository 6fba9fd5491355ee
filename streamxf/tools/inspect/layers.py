"""Layers side by side: what each part of a layer takes in each of the layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamxf.format.items import Item, TensorItem
from streamxf.tools.inspect.tree import MAX_DEPTH, number_of


@dataclass(frozen=True)
class Stack:
    """Layers on top of one another.

    A role is what a tensor is inside of a layer, as in ``self_attn.q_proj.weight``; numbers in it are stars, so that
    all experts are one.
    """

    name: str  # of what holds them: ``model.layers``
    layers: list[int]
    roles: list[str]
    cells: dict[tuple[int, str], list[TensorItem]]  # by layer and role

    @property
    def stored_bytes(self) -> int:
        """Of all cells."""
        return sum(item.stored_bytes for items in self.cells.values() for item in items)


def stacks_of(items: Iterable[Item]) -> list[Stack]:
    """All stacks of at least two layers, the largest first; a tensor is in one of them or in none.

    Of several numbers in a name, the first one counts that has others beside it: that of the layer, and not that of
    the expert in it.
    """
    names = [(item, item.name.split(".", MAX_DEPTH - 1)) for item in items if isinstance(item, TensorItem)]
    numbers: dict[tuple[str, ...], set[int]] = {}
    for _, parts in names:
        for place, part in enumerate(parts):
            if (number := number_of(part)) is not None:
                numbers.setdefault(tuple(parts[:place]), set()).add(number)
    cells: dict[tuple[str, ...], dict[tuple[int, str], list[TensorItem]]] = {}
    for item, parts in names:
        for place, part in enumerate(parts):
            number, holder = number_of(part), tuple(parts[:place])
            if number is None or len(numbers[holder]) < 2:
                continue
            role = ".".join("*" if number_of(inner) is not None else inner for inner in parts[place + 1 :])
            stack = cells.setdefault(holder, {})
            stack.setdefault((number, role), []).append(item)
            break
    found = []
    for holder, stack in cells.items():
        roles = list(dict.fromkeys(role for _, role in stack))
        found.append(Stack(".".join(holder), sorted({layer for layer, _ in stack}), roles, stack))
    return sorted(found, key=lambda stack: stack.stored_bytes, reverse=True)
