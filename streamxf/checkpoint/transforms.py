"""Stream transforms of torch's kind, undone: torch's own ZStandard, and whatever torch's registry knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import zstandard

from streamxf.descriptor import shorten
from streamxf.errors import UnknownCodecError, UnsupportedError

_ZSTD = "stream.zstd"


def known_transform(descriptor: str, stream: Any) -> IO[bytes]:
    """Undo the transform that `descriptor` names, if it is torch's own ``ZStandard``.

    Raises
    ------
    UnknownCodecError
        If it is another one.
    """
    name, _, version = descriptor.partition("/")
    if (name, version) != (_ZSTD, "1"):
        raise UnknownCodecError(
            f"there is no codec or stream transform {shorten(descriptor)!r} here; if it is a torch extension, pass a "
            "registry that knows it to streamxf.FileSystemReader"
        )
    reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(stream)
    return reader


def undone(descriptors: Iterable[str], stream: Any, transform: Any) -> IO[bytes]:
    """What went into the transforms that made `stream`; `descriptors` stand in save order.

    Raises
    ------
    UnknownCodecError
        If one of them is not known.
    UnsupportedError
        If one does not give a stream that can be read.
    """
    for descriptor in reversed(list(descriptors)):
        stream = transform(descriptor, stream)
        if not hasattr(stream, "read"):
            raise UnsupportedError(f"the stream transform {shorten(descriptor)!r} does not give a stream to read")
    return stream  # type: ignore[no-any-return]
