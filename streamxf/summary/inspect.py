"""`inspect`: a checkpoint of any format, in figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamxf.formats.opening import contents_of
from streamxf.keys import KeysLike, TrustLike
from streamxf.summary.summary import Summary


def inspect(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Summary:
    """Add up what is in a checkpoint: by dtype, by chain, item by item. Only metadata is read.

    Parameters
    ----------
    path : path or str
        A checkpoint of streamxf or of stock DCP, a ``.safetensors`` or ``torch.save`` file, or a folder of Hugging
        Face; or the URL of one.
    keys, trust, allow_unsigned
        As in `FileSystemReader`. An encrypted checkpoint is shown without keys, too; with them its metadata has to be
        authentic.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Raises
    ------
    FileNotFoundError, NoCheckpointError, UnsupportedError
        If there is nothing that can be shown.
    MetadataError, ContainerError
        If it is damaged, or half a checkpoint.
    WrongKeyError, KeyMissingError, AuthenticationError, PolicyError
        If there are keys, and they do not fit.
    OSError, ForeignError
        If the storage cannot be read.
    """
    return Summary.of(
        contents_of(path, keys=keys, trust=trust, allow_unsigned=allow_unsigned, storage_options=storage_options)
    )
