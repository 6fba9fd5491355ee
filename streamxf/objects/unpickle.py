"""What torch's own weights-only unpickler makes of an archive that was checked.

``torch.load`` would open the file once more. It decides by the first four bytes whether that is a zip file, and looks
for the directory on its own; so it might unpickle something else than was checked. Here the unpickler gets the very
bytes that were checked, and each storage comes from the place that was.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from streamxf.buffers import flat_view
from streamxf.torchsave.archive import Archive


def unpickle(archive: Archive, map_location: str | None = None) -> Any:
    """The object of an archive, all tensors on `map_location`, by default where each was saved from; raises whatever
    torch's unpickler and reading raise.
    """
    import torch

    from streamxf.torch_private import (
        Unpickler,
        get_restore_location,
        serialization_tls,
        typed_storage,
        validate_loaded_sparse_tensors,
    )

    storages: dict[str, Any] = {}
    restore: Any = get_restore_location(map_location)  # type: ignore[no-untyped-call]

    def find_storage(reference: tuple[Any, ...]) -> Any:
        _, kind, key, location, count = reference
        if key not in storages:
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            made: Any = torch.UntypedStorage(count * dtype.itemsize, device="cpu")  # type: ignore[no-untyped-call]
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(made).numpy()
            archive.read_into(f"data/{key}", flat_view(memory.data))
            if archive.little != (sys.byteorder == "little"):
                made.byteswap(dtype)
            storages[key] = typed_storage(restore(made, location), dtype)
        return storages[key]

    unpickler: Any = Unpickler(io.BytesIO(archive.pickled), encoding="utf-8")
    unpickler.persistent_load = find_storage
    torchs_own: Any = serialization_tls
    torchs_own.map_location = map_location  # which some of the functions that rebuild tensors ask for
    try:
        # indices of sparse tensors that lead out of them would be found only when they are used
        with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
            loaded = unpickler.load()
            validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    finally:
        torchs_own.map_location = None
    return loaded
