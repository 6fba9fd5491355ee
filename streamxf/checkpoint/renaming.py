"""Other names for items, where a checkpoint is read or in its index; containers keep the names of the save."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from streamxf.errors import MetadataError, ParameterError
from streamxf.format.items import Item, Path, check_name
from streamxf.format.limits import MAX_STEP
from streamxf.wording import some

Names = Mapping[str, str]
"""From old names of items to new ones. One ``*`` in both stands for the same text, however long: ``{"module.*": "*"}``
removes a prefix. A whole name counts before a pattern, and the first pattern that fits before others.
"""


class Renaming:
    """Raises ParameterError if `names` are not a mapping as `Names` says."""

    def __init__(self, names: Names) -> None:
        if not isinstance(names, Mapping) or not all(isinstance(each, str) for pair in names.items() for each in pair):
            raise ParameterError("names are given as a mapping from old names to new ones")
        self._names = dict(names)
        for old, new in names.items():
            if (old.count("*"), new.count("*")) not in ((0, 0), (1, 1)):
                raise ParameterError(f"{old!r} to {new!r}: both names have one '*', or none has any")
        parts = {old: map(re.escape, old.split("*")) for old in names if "*" in old}
        self._patterns = {old: re.compile("(.*)".join(each), re.DOTALL) for old, each in parts.items()}

    def of(self, names: Collection[str]) -> dict[str, str]:
        """The new name of each, in their order. Raises ParameterError if an item's would be empty or another's, too."""
        olds: dict[str, list[str]] = {}
        for old in names:
            try:
                olds.setdefault(check_name(self._new(old)), []).append(old)
            except MetadataError:
                raise ParameterError(f"the new name of {old!r} would be empty, or not valid Unicode") from None
        for new, shared in olds.items():
            if len(shared) > 1:
                raise ParameterError(f"several items would be named {new!r}: {some(shared)}")
        return {old: new for new, (old,) in olds.items()}

    def unused(self, names: Collection[str], *, patterns: bool = False) -> list[str]:
        """Whole names that are not among `names`, unless the new ones are already, and `patterns` that fit none."""
        free = [old for old, new in self._names.items() if "*" not in old and old not in names and new not in names]
        wanted = self._patterns.items() if patterns else ()
        return free + [old for old, pattern in wanted if not any(map(pattern.fullmatch, names))]

    def _new(self, name: str) -> str:
        if name in self._names:
            return self._names[name]
        for old, pattern in self._patterns.items():
            if (match := pattern.fullmatch(name)) is not None:
                return self._names[old].replace("*", match[1])
        return name


def renamed(items: Mapping[str, Item], names: Mapping[str, str]) -> dict[str, Item]:
    """Items by new names, which their paths in a nested state dict follow; an item itself keeps its `name`."""
    moved = {old: _path(item.path, old, names[old]) for old, item in items.items() if item.path and names[old] != old}
    return {names[old]: replace(item, path=moved[old]) if old in moved else item for old, item in items.items()}


def _path(path: Path, old: str, new: str) -> Path:
    """Where an item stands once it has another name. The steps at either end that both names have stay; what is between
    them is one step. Steps that the old name does not have stay, too.
    """
    begin = last = len(path)
    length = -1
    while begin and length < len(old):
        begin -= 1
        length += 1 + len(str(path[begin]))
    if ".".join(map(str, path[begin:])) != old:
        return path
    while begin < last - 1 and new.startswith(f"{path[begin]}."):
        new = new.removeprefix(f"{path[begin]}.")
        begin += 1
    while last > begin and new.endswith(f".{path[last - 1]}"):
        last -= 1
        new = new.removesuffix(f".{path[last]}")
    if last > begin and new == str(path[last - 1]):
        return path[:begin] + path[last - 1 :]
    numbered = last - begin == 1 and isinstance(path[begin], int) and new.isdecimal() and new.isascii()
    return (*path[:begin], int(new) if numbered and len(new) < len(str(MAX_STEP)) else new, *path[last:])


def check_nesting(items: Collection[Item]) -> None:
    """Raise ParameterError if two items do not fit into one nested state dict: they would stand in one place, one below
    the other, or in a list that has keys, too.
    """
    placed: dict[Path, tuple[object, str]] = {}
    for item in items:
        path = item.path or ()
        steps = [type(step) for step in path] + [item.name] * bool(path)
        for depth, what in enumerate(steps):
            found, other = placed.setdefault(path[:depth], (what, item.name))
            if found != what:
                raise ParameterError(f"{item.name!r} and {other!r} would not fit into one nested state dict")
