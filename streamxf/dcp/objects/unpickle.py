"""What torch's own weights-only unpickler makes of an archive that was checked.

``torch.load`` would open the file once more. It decides by the first four bytes whether that is a zip file, which a
reader finds out from the end, and it looks for the directory on its own; so it might unpickle something else than was
checked. Here the unpickler gets the very bytes that were checked, and each storage comes from the place that was.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import _weights_only_unpickler as torchs

from streamxf.buffers import flat_view
from streamxf.dcp.objects.archive import Archive

StorageOf = Callable[[str, int, torch.dtype, Any], torch.UntypedStorage]
"""From a record's name, its bytes, the dtype of its elements and the device that the pickle names to a storage."""


def unpickle(archive: Archive, storage_of: StorageOf, map_location: str | None = None) -> Any:
    """The object of an archive whose pickle was vetted, with storages that `storage_of` gives; raises what torch's
    unpickler and `storage_of` raise.
    """
    storages: dict[str, Any] = {}

    def find_storage(reference: tuple[Any, ...]) -> Any:
        _, kind, key, location, count = reference
        if key not in storages:
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            made = storage_of(f"data/{key}", count * dtype.itemsize, dtype, location)
            storages[key] = _typed(made, dtype)
        return storages[key]

    unpickler: Any = torchs.Unpickler(io.BytesIO(archive.pickled), encoding="utf-8")
    unpickler.persistent_load = find_storage
    torchs_own: Any = torch.serialization._serialization_tls
    torchs_own.map_location = map_location  # which some of the functions that rebuild tensors ask for
    try:
        return unpickler.load()
    finally:
        torchs_own.map_location = None


def load(file: Any, archive: Archive, map_location: str | None = None) -> Any:
    """The same with the storages that `file`, which holds the archive, has; raises also what reading it raises.

    Parameters
    ----------
    map_location : str, optional
        The device of all tensors; by default that which each was saved from.
    """
    restore: Any = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]

    def read(record: str, size: int, dtype: torch.dtype, location: Any) -> Any:
        storage = torch.UntypedStorage(size, device="cpu")  # type: ignore[no-untyped-call]
        archive.read_into(file, record, storage_bytes(storage))
        if not archive.native:
            storage.byteswap(dtype)  # type: ignore[no-untyped-call]
        return restore(storage, location)

    # indices of sparse tensors that lead out of them would be found only when they are used
    with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
        loaded = unpickle(archive, read, map_location)
        torch._utils._validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    return loaded


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def storage_bytes(storage):
    return flat_view(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy().data)
