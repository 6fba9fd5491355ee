"""What ranks have under the same names, of which DCP stores one rank's each, and nobody would hear of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from streamxf.checkpoint.sources import check_memory, dtype_name, has_elements
from streamxf.checkpoint.staging import flat_bytes
from streamxf.dcp.columns import PlannedItems, Shared, packed, unpacked
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.torchsave.writing import alike_pickle
from streamxf.wording import some

SMALL = 2**16
"""Bytes up to which a tensor is compared as a whole, and an object at all."""
_SAMPLE = 2**12  # of a larger one, from its beginning
_MOST = 2**24  # of all tensors of a rank
_NOTHING = bytes(4)


@dataclass
class Values:
    """What one rank has.

    - `about`: by name, dtype and whole shape of a tensor, and None for an object; those that ranks have alike are one.
    - `digests`: 4 bytes for each name, zeros where nothing can be compared; None if the planner cannot be asked.
    """

    about: Shared
    digests: bytes | None

    @classmethod
    def of(cls, plan: SavePlan, planner: SavePlanner | None) -> Values:
        """Those of a rank's own plan; without a planner only what this has."""
        columns = isinstance(plan.items, PlannedItems)  # whose planner compares shards
        items = PlannedItems.of(plan.items).objects() if columns else plan.items
        about = Shared({item.index.fqn: _about(item) for item in items if not columns or _is_whole(item)})
        if planner is None:
            return cls(about, None)
        found = dict(_digests(filter(_is_whole, items), planner))
        return cls(about, packed(b"".join(found.get(name, _NOTHING) for name in about)))


def _about(item: WriteItem) -> Any:
    data = item.tensor_data
    return None if data is None else (dtype_name(data.properties.dtype), tuple(data.size))


def _is_whole(item: WriteItem) -> bool:
    return item.tensor_data is None or item.tensor_data.chunk.sizes == item.tensor_data.size


def _digests(items: Iterable[WriteItem], planner: Any) -> Iterator[tuple[str, bytes]]:
    left = _MOST
    for item in items:
        data: Any = b""
        if item.tensor_data is None:
            with suppress(Exception):  # that an object's own code raises: if it cannot be saved, the save says so
                data = alike_pickle(planner.lookup_object(item.index))
        elif left > 0 and (sample := _sample(planner.resolve_data(item))) is not None:
            left -= len(sample)
            data = sample.cpu().numpy().data
        if 0 < len(data) <= SMALL:
            yield item.index.fqn, blake2b(data, digest_size=len(_NOTHING)).digest()


def _sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Bytes of a tensor, where it is; None if it has no elements that can be read."""
    tensor = tensor.detach()
    if not has_elements(tensor) or tensor.is_meta or not tensor.numel():
        return None
    with suppress(UnsupportedError):  # which the save raises when it comes to it
        check_memory(tensor)
        if tensor.nbytes > SMALL:
            if not tensor.is_contiguous():
                return None
            tensor = tensor.reshape(-1)[: _SAMPLE // tensor.itemsize]
        return flat_bytes(tensor.resolve_conj().resolve_neg().contiguous())
    return None


def check_alike(ranks: Sequence[Values | None]) -> None:
    """Raise MetadataError if ranks have tensors of other dtypes or shapes under one name."""
    first: dict[str, tuple[int, Any]] = {}
    seen: set[int] = set()
    for rank, values in enumerate(ranks):
        if values is None or id(values.about) in seen:
            continue
        seen.add(id(values.about))
        for name, own in values.about.items():
            other, theirs = first.setdefault(name, (rank, own))
            if own != theirs:
                raise MetadataError(
                    f"it is {_text(theirs)} on rank {other}, and {_text(own)} on rank {rank}; DCP would store one of "
                    f"them. Nothing was written. {WAY_OUT}",
                    item=name,
                )


WAY_OUT = 'Save what belongs to a rank under a name of its own, such as f"rng.{rank}"'


def _text(about: Any) -> str:
    return "an object" if about is None else f"{about[0]} {about[1]}"


def differing(ranks: Iterable[Values]) -> list[str]:
    """The names under which ranks have different values, as far as they are compared."""
    first: dict[str, bytes] = {}
    names: dict[str, None] = {}
    for values in {(id(values.about), values.digests): values for values in ranks}.values():
        digests = unpacked(values.digests) if values.digests is not None else b""
        for name, at in zip(values.about, range(0, len(digests), len(_NOTHING)), strict=False):
            own = digests[at : at + len(_NOTHING)]
            if own != _NOTHING and first.setdefault(name, own) != own:
                names[name] = None
    return [*names]


def differing_text(names: Sequence[str]) -> str:
    """A warning that names them."""
    return (
        f"ranks have different values under the same names: {some(names, most=5)}. Of each, the checkpoint has one "
        f"rank's, and every rank loads that. {WAY_OUT}, or make the values equal before the save"
    )
