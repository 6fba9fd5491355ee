"""What a file of ``torch.save`` holds, without the contents of its tensors."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from streamxf.dcp.objects.archive import Archive
from streamxf.dcp.objects.unpickle import unpickle


def is_plain(tensor):
    return type(tensor) is torch.Tensor and tensor.layout == torch.strided and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


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
        storages: dict[str, torch.UntypedStorage] = {}

        def hollow(record: str, size: int, *_: Any) -> torch.UntypedStorage:
            storages[record] = torch.UntypedStorage(size, device="meta")  # type: ignore[no-untyped-call]
            return storages[record]

        try:
            root = unpickle(archive, hollow)
        finally:
            _forget_sparse_tensors()
        records = {storage._cdata: record for record, storage in storages.items()}
        return cls(root, records, tuple(storages.values()))

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


def _forget_sparse_tensors() -> None:
    """Torch notes sparse tensors, to look at their indices after a load; here there are none to look at."""
    noted = torch._utils._sparse_tensors_to_validate
    for number in reversed(range(len(noted))):
        with suppress(IndexError):  # another thread has looked at them, and forgotten them
            if noted[number].device.type == "meta":
                del noted[number]
