"""`diff`: two checkpoints of any formats, compared item by item, box by box."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from streamxf.compare.difference import Difference
from streamxf.compare.items import compare
from streamxf.dcp.load.items import Require
from streamxf.formats.opening import open_source
from streamxf.formats.source import Source
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress


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
    none is held whole. See `streamxf.compare.values` for what counts as the same.

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

    def opened(path: str | os.PathLike[str], with_keys: bool) -> Source:
        if not with_keys:
            return open_source(path, storage_options=storage_options)
        return open_source(path, keys=ring, require=require, storage_options=storage_options)

    with opened(first, encrypted[0]) as one, opened(second, encrypted[1]) as other:
        return compare(one, other, only=only, prefixes=prefixes, values=values, progress=progress)
