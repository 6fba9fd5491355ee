"""What torch keeps elsewhere, or does not have, from one version of the range (2.7 and later) to another."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from torch.distributed.checkpoint import filesystem

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import SerializationFormat
elif hasattr(filesystem, "SerializationFormat"):
    SerializationFormat = filesystem.SerializationFormat
else:  # torch 2.7, whose writers know no other format than torch.save's

    class SerializationFormat(Enum):
        TORCH_SAVE = "torch_save"
        SAFETENSORS = "safetensors"


__all__ = ["DCP_VERSION", "SerializationFormat"]

DCP_VERSION: str = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")
