"""`ChainStorageConfig`: the files of Meta's torch_checkpointing go through a chain, whatever storage they are in."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from typing_extensions import Buffer

from streamxf.chain import Chain
from streamxf.reading import ChainLike, KeysLike
from streamxf.stream.plain import ChainFiles
from streamxf.stream.plain import open as open_plain


@dataclass
class ChainStorageConfig(StorageConfig):  # type: ignore[misc]  # torch_checkpointing is not there when types are checked
    """A storage for ``CheckpointManager.Config(storage_config=ChainStorageConfig("zstd+encrypt", keys=key))``.

    Each file has the format of `streamxf.open`. Files saved without a chain load, too, unless the chain encrypts.

    Parameters
    ----------
    chain : Chain, codecs or str
        As in `streamxf.open`.
    keys : Key, location, several of them or a KeyRing
        The key for ``encrypt`` in a chain's text form, and for loading; by default those of the chain that can read.
    storage : StorageConfig
        Where the files are; local by default, without O_DIRECT, which many file systems refuse for unaligned writes.

    Raises ChainError, ParameterError if the arguments do not fit.
    """

    chain: ChainLike | None = None
    keys: KeysLike = field(default=None, kw_only=True, repr=False)
    storage: Any = field(default_factory=partial(LocalFileSystemStorageConfig, use_direct_io=False), kw_only=True)

    def __post_init__(self) -> None:
        self._chain = Chain.chosen(self.chain, keys=self.keys)

    def create_storage(self) -> Storage:
        return ChainStorage(self.storage.create_storage(), ChainFiles(self._chain, keys=self.keys))


def _passed_on(name: str) -> Any:
    """A method that the storage below answers."""
    return lambda self, *args, **kwargs: getattr(self._storage, name)(*args, **kwargs)


class ChainStorage(Storage):  # type: ignore[misc]
    def __init__(self, storage: Any, files: ChainFiles) -> None:
        self._storage, self._files = storage, files

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> io.RawIOBase:
        # the size that the caller knows is that of what is decoded, and of an encoded file only parts are read
        args = replace(read_args or ReadArgs(), pre_read_full_file=False, known_size_bytes=None)
        raw = self._storage.stream_read(path, args)
        begins: Any = {} if path.suffix == ".pt" else {"begins": (b"",)}
        try:
            return self._files.reader(raw, str(path), finish=raw.close, **begins)  # type: ignore[no-any-return]
        except BaseException:
            raw.close()
            raise

    @contextmanager
    def stream_write(self, path: Path) -> Iterator[io.IOBase]:
        with self._storage.stream_write(path) as raw, open_plain(raw, "wb", chain=self._files.chain) as file:
            yield file

    def write(self, path: Path, data: Buffer) -> None:
        with self.stream_write(path) as file:
            file.write(data)

    def getsize(self, path: Path) -> int:
        with self.stream_read(path) as file:
            return file.seek(0, io.SEEK_END)

    # what is the same with a chain as without one
    delete, mkdir, rmdir, rename = map(_passed_on, ("delete", "mkdir", "rmdir", "rename"))
    ls, exists, glob, isdir, remap_path = map(_passed_on, ("ls", "exists", "glob", "isdir", "remap_path"))
