"""Folders as on the Hugging Face hub: shards, and an index that says which tensor is in which.

The index of ``.safetensors`` shards comes before one of ``.bin`` shards, as where such folders are loaded. Without an
index the shards are all files of the one kind, or else of the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from streamxf.descriptor import shorten
from streamxf.errors import ContainerError, UnsupportedError, located
from streamxf.formats.contents import Contents, Entry, Format
from streamxf.formats.location import Location
from streamxf.wording import many

MAX_INDEX = 100_000_000
"""Bytes."""

_MAX_TABLES = 2**20  # each takes twenty times its text in memory

SAFETENSORS, BIN = ".safetensors", ".bin"
_INDEX = ".index.json"
_LONE_BIN = "pytorch_model.bin"


@dataclass(frozen=True)
class Layout:
    """Which files of a folder are the checkpoint.

    Attributes
    ----------
    suffix : str
        Of its shards.
    index : str or None
        The file that says which tensor is in which shard.
    shards : tuple of str
        Where there is no index.
    """

    suffix: str
    index: str | None
    shards: tuple[str, ...]


def layout_of(names: Iterable[str]) -> Layout | None:
    """Find shards among the names of a folder; None if there are none."""
    names = sorted(names)
    for suffix in (SAFETENSORS, BIN):
        indices = [name for name in names if name.endswith(suffix + _INDEX)]
        usual = [name for name in indices if name in (f"model{suffix}{_INDEX}", f"pytorch_model{suffix}{_INDEX}")]
        if len(usual or indices) > 1:
            raise UnsupportedError(
                f"the folder has several indices, {', '.join(indices[:4])}: it holds several checkpoints. Give each a "
                "folder of its own"
            )
        if indices:
            return Layout(suffix, (usual or indices)[0], ())
        if suffix == SAFETENSORS:
            shards = tuple(name for name in names if name.endswith(suffix))
        else:
            shards = tuple(name for name in names if name == _LONE_BIN)
        if shards:
            return Layout(suffix, None, shards)
    return None


def shards_of(location: Location, layout: Layout) -> tuple[str, ...]:
    """The names of a folder's shards.

    Raises
    ------
    ContainerError
        If the index cannot be used.
    """
    if layout.index is None:
        return layout.shards
    placed, _ = _read_index(location, layout.index)
    return tuple(dict.fromkeys(placed.values()))


class Shard(Protocol):
    """What is in a shard.

    Attributes
    ----------
    entries : dict of str to Entry
    metadata : mapping of str to str
    """

    @property
    def entries(self) -> dict[str, Entry]: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...


def contents_of(location: Location, layout: Layout, read_shard: Callable[[str], Shard]) -> Contents:
    """What a folder holds.

    Parameters
    ----------
    read_shard : callable
        From a shard's name to what is in it.

    Raises
    ------
    ContainerError
        If the index is none, names files outside of the folder, or does not fit the shards.
    """
    extra: dict[str, str] = {}
    placed: dict[str, str] | None = None
    shards: Iterable[str] = layout.shards
    notes: list[str] = []
    if layout.index is not None:
        with located(file=location.full(layout.index)):
            placed, extra = _read_index(location, layout.index)
        shards = dict.fromkeys(placed.values())
    found: dict[str, Entry] = {}
    strays: list[str] = []
    for shard in shards:
        with located(file=location.full(shard)):
            try:
                read = read_shard(shard)
            except FileNotFoundError:
                raise ContainerError(
                    f"the index {layout.index} names this shard, and it is not there: fetch it, or restore it"
                ) from None
            for name, entry in read.entries.items():
                other = found.get(name)
                if other is not None:
                    raise ContainerError(
                        f"the tensor is in this file and in {other.parts[0].file}; one of them does not belong here",
                        item=shorten(name),
                    )
                if placed is not None and placed.get(name) != shard and entry.is_tensor:
                    if name in placed:
                        raise ContainerError(
                            f"the tensor is in this file, and the index places it in {shorten(placed[name])}",
                            item=shorten(name),
                        )
                    strays.append(name)
                found[name] = entry
            extra.update({key: value for key, value in read.metadata.items() if key not in extra})
    if placed is not None:
        if missing := placed.keys() - found.keys():
            name = min(missing)
            raise ContainerError(
                f"{many(len(missing), 'tensor')} of the index {'are' if len(missing) > 1 else 'is'} in no shard, such "
                f"as {shorten(name)!r}, which it places in {shorten(placed[name])}",
                file=location.full(layout.index or ""),
            )
        found = {name: found[name] for name in [*placed, *(name for name in found if name not in placed)]}
        if strays:
            notes.append(
                f"{many(len(strays), 'tensor')} of the shards, such as {shorten(strays[0])}, "
                f"{'are' if len(strays) > 1 else 'is'} not in the index."
            )
    return Contents(
        location.given, Format.HUGGING_FACE, found, _sizes(location, shards), notes=tuple(notes), extra=extra
    )


def _sizes(location: Location, shards: Iterable[str]) -> dict[str, int]:
    """Of all files of the folder; of those below it, only shards."""
    sizes: dict[str, int] = {}
    for name in sorted({*location.names(), *shards}):
        with suppress(FileNotFoundError):  # a link to nowhere, or removed meanwhile
            size = location.size(name)
            if size is not None:
                sizes[name] = size
    return sizes


def _read_index(location: Location, name: str) -> tuple[dict[str, str], dict[str, str]]:
    if location.size(name) is None:
        raise ContainerError("the index is no file")
    with location.open(name) as file:
        data = _read(file, MAX_INDEX + 1)
    if len(data) > MAX_INDEX:
        raise ContainerError(f"the index has more than {MAX_INDEX:,} bytes, which no model needs")
    if data.count(b"{") + data.count(b"[") > _MAX_TABLES:
        raise ContainerError("the index has more lists and tables than any model explains; it was not read")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"the index is not JSON: {error}") from None
    placed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(placed, dict) or not placed:
        raise ContainerError("the index has no 'weight_map', which says in which shard each tensor is")
    for shard in dict.fromkeys(map(_as_key, placed.values())):
        _check_inside(shard)
    metadata = content.get("metadata")
    return placed, _texts(metadata if isinstance(metadata, dict) else {})


def _as_key(shard: Any) -> str:
    if not isinstance(shard, str):
        raise ContainerError("the index places a tensor in something that is no file's name")
    return shard


def _check_inside(shard: str) -> None:
    parts = shard.split("/")
    strange = not shard.isprintable() or "\\" in shard or "://" in shard or "::" in shard or ":" in parts[0]
    if strange or len(shard) > 4096 or any(part in ("", ".", "..") for part in parts):
        raise ContainerError(f"the index names a file outside of the folder: {shorten(shard)!r}")


def _texts(metadata: dict[str, Any]) -> dict[str, str]:
    try:
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    except RecursionError:
        raise ContainerError("the index's 'metadata' is nested too deeply") from None


def _read(file: IO[bytes], most: int) -> bytes:
    """At most so many bytes: what is no regular file on the other side of a link may have no end."""
    parts = []
    while most and (part := file.read(most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)
