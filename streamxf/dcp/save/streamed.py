"""`Streamed`: an item whose bytes come from elsewhere while it is saved, so that it is never held whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamxf.format.header import Kind
from streamxf.stream.encoder import ByteSource

_STEP = 2**20


@dataclass(frozen=True)
class Streamed:
    """The stream of an item.

    Attributes
    ----------
    source : ByteSource
    kind : Kind
        What it is: a tensor's elements, a framed tensor, or an object.
    dtype : str
        Of a tensor.
    shape : tuple of int
        Of the shard.
    """

    source: ByteSource
    kind: Kind
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def write_framed(self, target: Any) -> None:
        """Write it as torch's own writer would: elements with torch.save's frame around them."""
        prefix = suffix = b""
        if self.kind is Kind.TENSOR:
            from streamxf.dcp.frame import frame_of

            prefix, suffix = frame_of(self.dtype, self.shape)
        target.write(prefix)
        for start in range(0, self.source.size, _STEP):
            load = self.source.load(start, min(start + _STEP, self.source.size))
            target.write(load.take(lambda size: memoryview(bytearray(size))))
            load.release()
        target.write(suffix)
