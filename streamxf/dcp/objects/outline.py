"""What a file of ``torch.save`` holds, without the contents of its tensors."""

from __future__ import annotations

import io
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import _weights_only_unpickler as torchs

from streamxf.dcp.objects.archive import Archive
from streamxf.dcp.tensors.payload import is_plain


@dataclass(frozen=True)
class Outline:
    """What ``torch.load`` would make of an archive.

    Attributes
    ----------
    root : Any
        Its tensors are on the device "meta"; those that shared memory share a storage.
    """

    root: Any
    _records: dict[int, str]
    _kept: tuple[torch.UntypedStorage, ...]

    @classmethod
    def of(cls, archive: Archive) -> Outline:
        """Unpickle an archive, which was vetted, as ``torch.load(weights_only=True)`` does; raises what that raises."""
        storages: dict[str, Any] = {}

        def find_storage(reference: tuple[Any, ...]) -> Any:
            _, kind, key, _, count = reference
            if key not in storages:
                dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
                empty = torch.UntypedStorage(count * dtype.itemsize, device="meta")  # type: ignore[no-untyped-call]
                storages[key] = _typed(empty, dtype)
            return storages[key]

        unpickler: Any = torchs.Unpickler(io.BytesIO(archive.pickled), encoding="utf-8")
        unpickler.persistent_load = find_storage
        try:
            root = unpickler.load()
        finally:
            _forget_sparse_tensors()
        kept = {key: storage._untyped_storage for key, storage in storages.items()}
        records = {storage._cdata: f"data/{key}" for key, storage in kept.items()}
        return cls(root, records, tuple(kept.values()))

    def record_of(self, tensor: torch.Tensor) -> str | None:
        """The record that holds the memory of one of the tensors; None if its elements do not stand there as they are,
        one in each place that its strides say.
        """
        if not (type(tensor) in (torch.Tensor, torch.nn.Parameter) and is_plain(tensor.data)):
            return None
        storage = tensor.untyped_storage()
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        reach = tensor.storage_offset() + steps + 1 if math.prod(tensor.shape) else 0
        inside = reach * tensor.dtype.itemsize <= storage.nbytes()
        return self._records.get(storage._cdata) if inside else None


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _forget_sparse_tensors() -> None:
    """Torch notes sparse tensors, to look at their indices after a load; here there are none to look at."""
    noted = torch._utils._sparse_tensors_to_validate
    for number in reversed(range(len(noted))):
        with suppress(IndexError):  # another thread has looked at them, and forgotten them
            if noted[number].device.type == "meta":
                del noted[number]
