"""`FsspecWriter` and `FsspecReader`: the same over any file system that fsspec knows, S3 among them."""

from __future__ import annotations

from streamxf import torch_private
from streamxf.dcp.reader import ChainReaderMixin
from streamxf.dcp.writer import ChainWriterMixin


class FsspecWriter(ChainWriterMixin, torch_private.FsspecWriter):
    """Saves a checkpoint through a chain to any storage that fsspec supports.

    Parameters
    ----------
    path : str
        A URL such as ``s3://bucket/step-100``.
    single_file_per_rank, sync_files, thread_count, per_thread_copy_ahead, overwrite
        As in torch, the last by name.
    _extensions, serialization_format, chain, keys, stock, block_size, progress
        As in `FileSystemWriter`.
    **kwargs
        fsspec's storage options, such as ``key``, ``secret`` and ``endpoint_url``.
    """


class FsspecReader(ChainReaderMixin, torch_private.FsspecReader):
    """Loads a checkpoint from any storage that fsspec supports.

    Parameters
    ----------
    path : str
        A URL such as ``s3://bucket/step-100``.
    _extension_registry, keys, trust, allow_unsigned, require, weights_only, safe_globals, max_expansion,
    expect_save_id, rename, progress, read
        As in `FileSystemReader`.
    **kwargs
        fsspec's storage options.
    """
