"""`inspect`: a checkpoint of any format, in figures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from streamxf.budget import MAX_EXPANSION
from streamxf.checkpoint.access import Access, Require
from streamxf.formats.opening import contents_of, open_source
from streamxf.keys import KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import storage_errors
from streamxf.tools.inspect.summary import Summary, TensorStatistics


def inspect(
    path: Location,
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    values: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> Summary:
    """Summarize a checkpoint: by dtype, by chain, item by item. Only metadata is read, unless `values` is set.

    Parameters
    ----------
    path : path, str or Storage
        A checkpoint of streamxf or of stock DCP, a ``.safetensors`` or ``torch.save`` file, or a Hugging Face folder;
        or the URL of one.
    keys, trust, allow_unsigned, require
        As in `FileSystemReader`. An encrypted checkpoint is shown without keys, too; with keys its metadata must be
        authentic.
    values : bool
        Whether to read all tensors as well, for `Summary.values`. That takes about as long as a load, and little
        memory; an encrypted checkpoint then needs keys.
    storage_options : mapping, optional
        fsspec's, for a URL.
    max_expansion : int
        As in `diff`; for `values` only.
    progress : Progress, optional
        Receives the size of the tensors as they are counted.

    Raises
    ------
    StreamxfError, OSError
        If the path is not a checkpoint that can be read, its metadata is damaged, or the keys do not fit; with `values`
        also if keys are missing, or a tensor cannot be read.
    """
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned, require=require, max_expansion=max_expansion)
    storage = open_storage(path, storage_options)
    with ExitStack() as stack:
        with storage_errors(storage.given):
            source = open_source(storage, access, listing=not values)
            stack.enter_context(source)
            contents = contents_of(source)
        if not values:
            return Summary.of(contents)
        from streamxf.tools.values.counting import statistics_of

        return Summary.of(contents, TensorStatistics(statistics_of(source, progress)))
