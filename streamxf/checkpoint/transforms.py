"""Stream transforms of torch's kind, undone: torch's own ZStandard, and whatever torch's registry knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import IO, Any

import zstandard

from streamxf.descriptor import shorten
from streamxf.errors import ContainerError, StreamxfError, UnknownCodecError, UnsupportedError
from streamxf.registry import Provider, what_to_install

Transform = Callable[[str, Any], IO[bytes] | None]
"""From a stream transform's descriptor and a stream that it made to what went into it; None if it is not known."""


def known_transform(descriptor: str, stream: Any) -> IO[bytes] | None:
    """Undo the transform that `descriptor` names, if it is torch's own ``ZStandard``."""
    if descriptor != "stream.zstd/1":
        return None
    reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(stream)
    return reader


class Undone:
    """What went into stream transforms, read once from its beginning to its end.

    Raises
    ------
    UnknownCodecError
        If one of them is not known.
    UnsupportedError
        If one does not give a stream that can be read.
    """

    def __init__(
        self, descriptors: Iterable[str], stream: Any, transform: Transform, providers: Iterable[Provider] = ()
    ) -> None:
        for descriptor in reversed(list(descriptors)):
            stream = transform(descriptor, stream)
            if stream is None:
                raise UnknownCodecError(
                    f"{what_to_install(descriptor.partition('/')[0], providers)}. If it is a torch extension, pass a "
                    "registry that knows it"
                )
            if not hasattr(stream, "read"):
                raise UnsupportedError(
                    f"the stream transform {shorten(descriptor)!r} does not return a readable stream"
                )
        self._stream = stream

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` and none at the end only; raises ContainerError if they are damaged."""
        try:
            return self._stream.read(size) or b""
        except (StreamxfError, MemoryError):
            raise
        except Exception as error:  # whatever a third party's transform raises
            raise ContainerError(
                f"a stream transform cannot be undone: {type(error).__name__}: {error!s:.200}"
            ) from error
