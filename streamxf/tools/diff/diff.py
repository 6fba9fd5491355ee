"""`diff`: two checkpoints of any formats, compared item by item, box by box."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from streamxf.convert.files.huggingface import INDEX
from streamxf.convert.origin import Origin, origin_of
from streamxf.convert.tree import paths_in
from streamxf.convert.whole import Whole, open_whole
from streamxf.dcp.load.items import Require
from streamxf.formats.location import Location
from streamxf.formats.opening import is_checkpoint, open_source
from streamxf.formats.raw import RawSource
from streamxf.formats.source import Source
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.tools.diff.difference import Difference
from streamxf.tools.diff.items import compare
from streamxf.wording import many


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    encrypted: tuple[bool, bool] = (True, True),
    only: Sequence[str] = (),
    prefixes: tuple[str, str] = ("", ""),
    values: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Difference:
    """Compare two checkpoints: which items are not the same, and how far apart they are.

    Either may have any of the formats that streamxf reads, and be sharded in any way; tensors are read box by box, and
    none is held whole. See `streamxf.tools.diff.values` for what counts as the same.

    A folder that was packed is compared with a folder, or with another packed one, file by file, permissions and links
    included. Otherwise only tensors and objects are compared, and `Difference.not_compared` says what was not.

    Parameters
    ----------
    first, second : path or str
        Each a file, a folder, or a URL that fsspec knows.
    keys, trust, allow_unsigned, require
        As in `FileSystemReader`, for both.
    encrypted : tuple of bool
        One for each: whether the keys are for it. With keys a checkpoint of DCP that is not encrypted is refused.
    only : sequence of str
        Shell patterns; only items whose names match one of them are compared.
    prefixes : tuple of str
        One for each: only items whose names begin with it are compared, by the rest of their names. So a model that was
        saved as ``{"model": ...}`` can be compared with the model alone: ``("model.", "")``.
    values : bool
        Whether to compute `Distance.statistics`: what `inspect` shows of tensors, of the second minus the first.
    storage_options : mapping, optional
        fsspec's, for both.
    progress : Progress, optional
        Is told the bytes of the tensors that are compared, those of both.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If one is no checkpoint, or nothing that streamxf can read.
    StreamxfError
        If the metadata of one is damaged or needs another key, or nothing in it can be read. A single item that cannot
        be read is not comparable, and the others are compared.
    OSError
        If the storage does not give it.
    """
    ring = KeyRing.of(keys, trust, allow_unsigned)
    locations = [Location.of(path, storage_options) for path in (first, second)]
    options = [{"keys": ring, "require": require} if with_keys else {} for with_keys in encrypted]
    sides: dict[int, Source] = {}
    origins: dict[int, Origin | None] = {}
    with ExitStack() as stack:
        # checkpoints first: what was packed says what has to be read of the folder that it is compared with
        for number in sorted((0, 1), key=lambda number: not is_checkpoint(locations[number])):
            packed = next((origin for origin in origins.values() if origin is not None), None)
            side = _opened(locations[number], packed, options[number])
            sides[number] = stack.enter_context(side)
            origins[number] = origin_of(side)
        files = all(origin is not None and origin.is_folder for origin in origins.values())
        chosen: dict[str, Any] = {"only": only, "prefixes": prefixes, "values": values, "files": files}
        found = compare(sides[0], sides[1], **chosen, progress=progress)
        if only or any(prefixes):
            return found
        left = [_not_compared(locations[number], sides[number], origins[number], files) for number in (0, 1)]
        return replace(found, not_compared=tuple(text for text in left if text))


def _opened(location: Location, packed: Origin | None, options: dict[str, Any]) -> Source:
    """One side; a folder with all that is in it, where the other side is a folder that was packed."""
    if packed is not None and packed.is_folder and location.is_folder() and not is_checkpoint(location):
        return open_whole(location, packed.excluded, follow_links=True)
    return open_source(location.given, storage_options=location.storage_options, **options)


def _not_compared(location: Location, side: Source, origin: Origin | None, files: bool) -> str:
    """What one side has besides tensors and objects, if that was not compared."""
    if origin is not None and origin.is_folder and not files:
        return f"{location.given}: what {many(len(origin.files), 'file')} of the folder that was packed hold besides"
    if origin is not None and origin.excluded and not isinstance(side, Whole):
        return f"{location.given}: what was left out when it was packed, {', '.join(origin.excluded)}"
    if origin is None and isinstance(side, RawSource) and location.is_folder():
        others = [
            path for path in paths_in(location, (), set()) if path not in side.shards and not path.endswith(INDEX)
        ]
        return f"{location.given}: what else is in the folder, such as {others[0]}" if others else ""
    return ""
