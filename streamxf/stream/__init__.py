"""File objects over container and engine, and plain files: `streamxf.open`, `encode` and `decode`."""

from streamxf.stream.plain import decode, encode, open

__all__ = ["decode", "encode", "open"]
