"""`diff`: two checkpoints of any formats, compared item by item, box by box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from streamxf.checkpoint.access import Access, Require
from streamxf.checkpoint.reading import BoxReader
from streamxf.errors import DAMAGE
from streamxf.formats.huggingface import INDEX
from streamxf.formats.opening import is_checkpoint, open_source
from streamxf.formats.reader import FileReader
from streamxf.keys import KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.proportion import MAX_EXPANSION
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import Storage
from streamxf.tools.convert.origin import Origin, origin_of
from streamxf.tools.convert.tree import Tree
from streamxf.tools.convert.whole import Whole, open_whole
from streamxf.tools.diff.difference import Difference
from streamxf.tools.diff.items import compare
from streamxf.wording import many, some


def diff(
    first: Location,
    second: Location,
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
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> Difference:
    """Compare two checkpoints: which items are not the same, and how far apart they are.

    Either may have any of the formats that streamxf reads, and be sharded in any way; tensors are read in parts. See
    `streamxf.tools.diff.distance` for what counts as the same.

    A folder that was packed is compared with a folder, or with another packed one, file by file. Otherwise only tensors
    and objects are compared; `Difference.not_compared` says what was not.

    Parameters
    ----------
    first, second : path, str or Storage
        Each a file, a folder, or a URL that fsspec knows.
    keys, trust, allow_unsigned, require
        As in `FileSystemReader`, for both.
    encrypted : tuple of bool
        One for each: whether the keys are for it. With keys a checkpoint of DCP that is not encrypted is refused.
    only : sequence of str
        Shell patterns; only items whose names match one of them are compared.
    prefixes : tuple of str
        One for each: only items whose names begin with it are compared, without it; ``("model.", "")`` compares a model
        that was saved as ``{"model": ...}`` with the model alone.
    values : bool
        Whether to compute `Distance.statistics`: what `inspect` shows of tensors, of the second minus the first.
    storage_options : mapping, optional
        fsspec's, for both.
    max_expansion : int
        How many times what a checkpoint's storage holds may be compared of it; 256 MiB is always allowed. What lies in
        blocks counts as it is stored. More is not comparable, such as tensors whose strides repeat elements.
    progress : Progress, optional
        Receives the bytes of the compared tensors, of both checkpoints.

    Raises
    ------
    StreamxfError, OSError
        If one is not a checkpoint that streamxf can read, its metadata is damaged or needs another key, or nothing in
        it can be read. A single item that cannot be read is not comparable, and the others are compared.
    """
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned, require=require, max_expansion=max_expansion)
    plain = Access.of(max_expansion=max_expansion)
    storages = [open_storage(path, storage_options) for path in (first, second)]
    sides: dict[int, BoxReader] = {}
    origins: dict[int, Origin] = {}
    unknown: dict[int, str] = {}
    with ExitStack() as stack:
        # checkpoints first: what was packed says what has to be read of the folder that it is compared with
        for number in sorted((0, 1), key=lambda number: not is_checkpoint(storages[number])):
            packed = next(iter(origins.values()), None)
            side = _opened(storages[number], packed, access if encrypted[number] else plain)
            sides[number] = stack.enter_context(side)
            try:
                if (origin := origin_of(side)) is not None:
                    origins[number] = origin
            except DAMAGE as error:
                unknown[number] = f"{storages[number].given}: what else was packed, since this cannot be read: {error}"
        files = len(origins) == 2 and all(origin.is_folder for origin in origins.values())
        given = storages[0].given, storages[1].given
        options: Any = {"only": only, "prefixes": prefixes, "values": values, "files": files, "progress": progress}
        found = compare(sides[0], sides[1], given, **options)
        left = [unknown.get(number, "") for number in (0, 1)]
        if not only and not any(prefixes):
            for number in {0, 1} - unknown.keys():
                left[number] = _not_compared(storages[number], sides[number], origins.get(number), files)
        return replace(found, not_compared=tuple(text for text in left if text))


def _opened(storage: Storage, packed: Origin | None, access: Access) -> BoxReader:
    """One side; a folder with all files in it, where the other side is a folder that was packed."""
    if packed is not None and packed.is_folder and storage.is_folder() and not is_checkpoint(storage):
        return open_whole(Tree.of(storage), access.objects.max_expansion)
    return open_source(storage, access)


def _not_compared(storage: Storage, side: BoxReader, origin: Origin | None, files: bool) -> str:
    """What one side has besides tensors and objects, if that was not compared."""
    if origin is not None:
        if origin.is_folder and not files:
            return f"{storage.given}: what {many(len(origin.files), 'file')} of the folder that was packed hold besides"
        if origin.left_out and not isinstance(side, Whole):
            return f"{storage.given}: what was left out when it was packed, {some(origin.left_out)}"
    elif isinstance(side, FileReader) and storage.is_folder():
        tree = Tree.of(storage)
        others = (path for path in (*tree.files, *tree.left_out) if path not in side.shards)
        other = next((path for path in others if not path.endswith(INDEX)), None)
        return f"{storage.given}: what else is in the folder, such as {other}" if other else ""
    return ""
