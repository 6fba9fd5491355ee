"""`FsspecWriter` and `FsspecReader`: the same over any file system that fsspec knows, S3 among them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamxf.chain import Chain, ChainLike
from streamxf.dcp.compat import SerializationFormat
from streamxf.dcp.reader import ChainReaderMixin
from streamxf.dcp.showing import ProgressLike
from streamxf.dcp.writer import ChainWriterMixin
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.keys import KeysLike

if TYPE_CHECKING:
    from torch.distributed.checkpoint import _fsspec_filesystem as torch_fsspec
else:
    try:  # torch 2.15 moved the module
        from torch.distributed.checkpoint import fsspec_filesystem as torch_fsspec
    except ImportError:
        from torch.distributed.checkpoint import _fsspec_filesystem as torch_fsspec


class FsspecWriter(ChainWriterMixin, torch_fsspec.FsspecWriter):
    """Saves a checkpoint through a chain to any storage that fsspec supports.

    Parameters
    ----------
    path : str
        A URL such as ``s3://bucket/step-100``.
    single_file_per_rank, sync_files, thread_count, per_thread_copy_ahead, overwrite
        As in torch.
    _extensions, serialization_format, chain, keys, block_size, progress
        As in `FileSystemWriter`.
    **kwargs
        fsspec's storage options, such as ``key``, ``secret`` and ``endpoint_url``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        overwrite: bool = True,
        _extensions: Sequence[Any] | Chain | None = None,
        serialization_format: SerializationFormat = SerializationFormat.TORCH_SAVE,
        *,
        chain: ChainLike | None = None,
        keys: KeysLike = None,
        block_size: int = 1 << DEFAULT_BLOCK_LOG2,
        progress: ProgressLike = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            path,
            single_file_per_rank=single_file_per_rank,
            sync_files=sync_files,
            thread_count=thread_count,
            per_thread_copy_ahead=per_thread_copy_ahead,
            overwrite=overwrite,
            **kwargs,
        )
        self._storage_options = kwargs
        self._set_up_chain(_extensions, chain, keys, serialization_format, block_size, progress)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Switch to another checkpoint, with the same storage options: torch's own forgets endpoint and credentials."""
        super().reset()
        if checkpoint_id:
            self.path = self.fs.init_path(checkpoint_id, **self._storage_options)


class FsspecReader(ChainReaderMixin, torch_fsspec.FsspecReader):
    """Loads a checkpoint from any storage that fsspec supports.

    Parameters
    ----------
    path : str
        A URL such as ``s3://bucket/step-100``.
    _extension_registry, keys, trust, allow_unsigned, require, weights_only, safe_globals, max_expansion,
    expect_save_id, progress
        As in `FileSystemReader`.
    **kwargs
        fsspec's storage options.
    """

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Switch to another checkpoint, with the same storage options."""
        super().reset()
        if checkpoint_id:
            self.path = self.fs.init_path(checkpoint_id, **self._storage_options)
