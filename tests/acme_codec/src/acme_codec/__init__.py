"""Byte-wise delta coding for streamxf."""

from acme_codec.delta import Delta

__all__ = ["Delta"]
