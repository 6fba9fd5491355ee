"""A nested state dict out of a flat one, as far as it is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from streamxf.errors import shorten
from streamxf.reading import Nesting, Path
from streamxf.wording import some

MAX_LISTS = 2**20
"""Elements that all lists may have together, and 16 more for each item: what is not there takes memory, too."""


def list_lengths(paths: Collection[Path]) -> int:
    longest: dict[Path, int] = {}
    for path in paths:
        for depth, step in enumerate(path):
            if isinstance(step, int):
                longest[path[:depth]] = max(longest.get(path[:depth], 0), step + 1)
    return sum(longest.values())


def nested(flat: Mapping[str, Any], paths: Mapping[str, Path], record: Nesting | None = None) -> dict[Any, Any]:
    """Put each value where its path says: a string is a key of a dict, a number an index of a list.

    Missing places of a list are None. A value without a path, or whose path leads through another value, keeps its flat
    name. `record` is what the index says besides, of keys that are no strings and of empty dicts; what of it has
    another form, or leads nowhere, is passed over.
    """
    root: dict[str, Any] = {}
    made: dict[int, Any] = {id(root): root}
    for name, value in flat.items():
        path = paths.get(name) or (name,)
        node = _container(root, path[:-1], made, path[-1], sparse=True)
        if node is None or not _put(node, path[-1], value, sparse=True):
            root[name] = value
    if record is not None:
        _restore(root, record, made)
    return root


def _restore(root: dict[Any, Any], record: Nesting, made: dict[int, Any]) -> None:
    for path in record.empty:
        _container(root, path, made, beyond="")
    changes: dict[Path, dict[Any, Any]] = {}
    for path, key in record.keys:
        changes.setdefault(path[:-1], {})[path[-1]] = key
    for path in record.integers:
        node = _container(root, path, made)
        texts = (
            [key for key in node if isinstance(key, str) and record.is_decimal(key)] if isinstance(node, dict) else []
        )
        changes.setdefault(path, {}).update((text, int(text)) for text in texts)
    for path in sorted(changes, key=len, reverse=True):  # those below are found by the texts above
        node = _container(root, path, made)
        if isinstance(node, dict):
            _rename_keys(node, changes[path])


def _rename_keys(node: dict[Any, Any], names: Mapping[str, Any]) -> None:
    """Give keys of a dict other names, in place; none if two would be alike."""
    renamed = {names.get(key, key): value for key, value in node.items()}
    if len(renamed) == len(node):
        node.clear()
        node.update(renamed)


def _container(
    root: dict[Any, Any], path: Path, made: dict[int, Any], beyond: str | int | None = None, sparse: bool = False
) -> Any:
    """The dict or list that was made at a path; those on the way to a step `beyond` it are made."""
    node: Any = root
    for depth, step in enumerate(path, 1):
        inner = _get(node, step)
        if inner is None and beyond is not None:
            inner = {} if isinstance((*path, beyond)[depth], str) else []
            if _put(node, step, inner, sparse):
                made[id(inner)] = inner
        if id(inner) not in made:  # a value; DCP would write into it
            return None
        node = inner
    return node


def _get(node: Any, step: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    return node[step] if isinstance(step, int) and step < len(node) else None


def _put(node: Any, step: str | int, value: Any, sparse: bool) -> bool:
    """Put a value where nothing is. Lists grow by one, however large a number is, unless they may be `sparse`."""
    if isinstance(node, dict):
        fits = sparse or isinstance(step, str)
    else:
        fits = isinstance(step, int) and (sparse or step <= len(node))
    if not fits or _get(node, step) is not None:
        return False
    if isinstance(node, list):
        node.extend([None] * (int(step) + 1 - len(node)))
    node[step] = value
    return True


def say_lost(record: Nesting) -> Iterator[str]:
    """What a record says of keys that are not known any more."""
    if () in record.unknown:
        yield (
            "whoever saved this made strings of all keys and dropped empty dicts, as stock DCP does; only what torch's "
            "optimizers need was restored"
        )
    elif record.unknown:
        names = some(shorten(".".join(map(str, path))) for path in record.unknown)
        yield f"keys that were not strings before, and are now: {names}"


def restore_optimizers(node: Any, objects: Mapping[str, Any], whole: bool, path: str = "") -> Iterator[str]:
    """Make integers again of the ids of parameters in what torch's optimizers saved, and put back a dict of states that
    had none, unless things were left out on purpose, as ``load_state_dict`` needs it. `node` has the names of tensors
    and `objects`. Yields what was done.
    """
    inner = node.items() if isinstance(node, dict) else enumerate(node) if type(node) is list else ()
    for key, value in [*inner]:
        yield from restore_optimizers(value, objects, whole, f"{path}.{key}".lstrip("."))
    groups = node.get("param_groups") if isinstance(node, dict) else None
    if type(groups) is not list or not all(isinstance(group, dict) and "params" in group for group in groups):
        return
    lists = [objects.get(name) if isinstance(name := group["params"], str) else None for group in groups]
    ids = {str(each): each for some in lists if isinstance(some, list) for each in some if type(each) is int}
    state = node.get("state")
    if state is None and "state" not in node and whole:
        node["state"] = {}
        yield f"put back the empty dict {path}.state".replace(" .", " ")
    elif type(state) is dict and state and state.keys() <= ids.keys():
        _rename_keys(state, ids)
        yield f"made integers of the keys of {path}.state".replace(" .", " ")
