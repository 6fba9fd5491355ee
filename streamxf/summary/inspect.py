"""`inspect`: a checkpoint of any format, in figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from streamxf.formats.opening import contents_of, open_source
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.summary.summary import Summary
from streamxf.summary.values import Values


def inspect(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Literal["published", "bound", "encrypted"] | None = None,
    values: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Add up what is in a checkpoint: by dtype, by chain, item by item. Only metadata is read, unless `values` is set.

    Parameters
    ----------
    path : path or str
        A checkpoint of streamxf or of stock DCP, a ``.safetensors`` or ``torch.save`` file, or a folder of Hugging
        Face; or the URL of one.
    keys, trust, allow_unsigned
        As in `FileSystemReader`. An encrypted checkpoint is shown without keys, too; with them its metadata has to be
        authentic.
    require
        As in `FileSystemReader`; for `values` only.
    values : bool
        Whether to read all tensors as well, for `Summary.values`. That takes about as long as a load, and little
        memory; an encrypted checkpoint then needs keys.
    storage_options : mapping, optional
        fsspec's, for a URL.
    progress : Progress, optional
        Is told the size of the tensors as they are counted.

    Raises
    ------
    FileNotFoundError, NoCheckpointError, UnsupportedError
        If there is nothing that can be shown.
    MetadataError, ContainerError
        If it is damaged, or half a checkpoint.
    WrongKeyError, KeyMissingError, AuthenticationError, PolicyError
        If there are keys, and they do not fit; with `values` also if keys are missing.
    StreamxfError
        With `values`, if a tensor cannot be read.
    OSError, ForeignError
        If the storage cannot be read.
    """
    if not values:
        return Summary.of(
            contents_of(path, keys=keys, trust=trust, allow_unsigned=allow_unsigned, storage_options=storage_options)
        )
    from streamxf.values.survey import statistics_of  # imports torch, which takes seconds

    ring = KeyRing.of(keys, trust, allow_unsigned)
    with open_source(path, keys=ring, require=require, storage_options=storage_options) as source:
        entries = source.contents.entries.values()
        return Summary.of(source.contents, Values(statistics_of(source, entries, progress)))
