"""Codecs inside torch's own writers and readers: neighbouring codecs join into one container.

Torch wraps the output stream once for each extension. When a codec is asked to wrap a stream that a codec has just
made, it joins that stream instead, and the container starts with the first write. On load it is the same: each codec
joins the stream of the one before it, and the container is opened with the first read, whose header says in which order
the codecs belong.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import IO, Any, cast

from torch.distributed.checkpoint._extension import StreamTransformExtension
from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms

from streamxf.chain import Chain
from streamxf.codec import Codec
from streamxf.coder import StreamCoder
from streamxf.container.header import Header
from streamxf.errors import AbortedError, IdentityError, UnsupportedError
from streamxf.fileio.blocks import BlockReader, read_header, stream_info
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.source import FileSlice
from streamxf.fileio.writer import StreamWriter
from streamxf.registry import CodecRegistry


def save_stream(codec: Codec, output: IO[bytes]) -> IO[bytes]:
    """Wrap `output` with `codec`, or let `codec` join the container that `output` already is.

    Raises
    ------
    UnsupportedError
        If the writer's list also holds a foreign extension, which cannot be told from the data there.
    ChainError
        If the writer's list breaks a rule of order.
    """
    _check_writer(sys._getframe(2).f_locals.get("self"))
    if isinstance(output, JoinedWriter):
        output.join(codec)
        return cast("IO[bytes]", output)
    return cast("IO[bytes]", JoinedWriter(output, codec))


def load_stream(codec: Codec, input: IO[bytes]) -> IO[bytes]:
    """Wrap `input` with `codec`, or let `codec` join the stream that `input` already is."""
    if isinstance(input, JoinedReader):
        input.join(codec)
        return cast("IO[bytes]", input)
    return cast("IO[bytes]", JoinedReader(input, codec))


class JoinedWriter(io.RawIOBase):
    """A container whose codecs are still coming, until the first write.

    Parameters
    ----------
    raw : file
        Torch's stream; closing this closes it.
    codec : Codec
        The first to be asked.
    """

    def __init__(self, raw: IO[bytes], codec: Codec) -> None:
        super().__init__()
        self._raw = raw
        self._codecs = [codec]
        self._writer: StreamWriter | None = None
        self._pid = os.getpid()

    def join(self, codec: Codec) -> None:
        """Let the next codec in."""
        if self._writer is not None:
            raise AbortedError("a codec cannot join a stream that was written to already")
        self._codecs.append(codec)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._writer is None:
            codecs = self._codecs if wraps_in_list_order() else self._codecs[::-1]
            self._writer = StreamWriter(self._raw, Chain(codecs))
        return self._writer.write(data)

    def close(self) -> None:
        """Finish the container and close torch's stream.

        Raises
        ------
        UnsupportedError
            If nothing was ever written: torch wrote the tensors past the extensions.
        """
        if self.closed:
            return
        if self._writer is None:
            raise UnsupportedError(
                "torch wrote nothing to the extensions' stream: with SerializationFormat.SAFETENSORS it writes the "
                "tensors past them, which makes a corrupt file. "
                "Use SerializationFormat.TORCH_SAVE"
            )
        self._writer.close()
        super().close()
        self._raw.close()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        elif self._writer is not None:
            self._writer.abort()

    def __del__(self) -> None:
        """io.IOBase would close, which means finish; the inner stream aborts by itself."""


class JoinedReader(io.RawIOBase):
    """A container whose codecs are still coming, until the first read.

    Parameters
    ----------
    raw : seekable file
        Torch's view of the item.
    codec : Codec
        The first to be asked.
    """

    def __init__(self, raw: IO[bytes], codec: Codec) -> None:
        super().__init__()
        self._raw = raw
        self._codecs = [codec]
        self._reader: StreamReader | None = None

    def join(self, codec: Codec) -> None:
        """Let the next codec in."""
        if self._reader is not None:
            raise AbortedError("a codec cannot join a stream that was read from already")
        self._codecs.append(codec)

    @property
    def _opened(self) -> StreamReader:
        if self._reader is None:
            source = FileSlice(self._raw)
            header = read_header(source)
            chain = Chain(_in_stored_order(header, self._codecs))
            coder = StreamCoder.open(chain, stream_info(header), header.seal)
            self._reader = StreamReader(BlockReader(source, header, coder))
        return self._reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._opened.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._opened.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        return self._opened.readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._opened.read(size)

    def readall(self) -> bytes:
        return self._opened.read()


def _in_stored_order(header: Header, codecs: list[Codec]) -> list[Codec]:
    """Put `codecs` into the order of the header's chain, which may begin with foreign extensions that torch applies
    itself.
    """
    rest = list(codecs)
    registry = CodecRegistry()
    ordered: list[Codec] = []
    for text in header.chain:
        codec = next((codec for codec in rest if codec.descriptor().bound == text), None)
        if codec is not None:
            rest.remove(codec)
            ordered.append(codec)
        elif ordered or registry.knows(text.partition("/")[0]):
            break
    else:
        if not rest:
            return ordered
    given = " > ".join(codec.descriptor().bound for codec in reversed(codecs))
    raise IdentityError(
        f"the stored chain is {' > '.join(header.chain)}, the metadata says {given}: one of them was altered"
    )


@cache
def wraps_in_list_order() -> bool:
    """Whether this torch asks the first extension of a list first; found out by asking it."""
    asked: list[int] = []
    probes: Any = [_Probe(lambda number=number: asked.append(number)) for number in (0, 1)]  # type: ignore[misc]
    _StorageWriterTransforms(probes).transform_save_stream(cast("Any", None), io.BytesIO())
    if sorted(asked) != [0, 1]:
        raise UnsupportedError(
            "this torch does not ask each extension once to wrap a stream; use streamxf.FileSystemWriter"
        )
    return asked == [0, 1]


class _Probe(StreamTransformExtension):
    def __init__(self, asked: Callable[[], None]) -> None:
        self._asked = asked

    @staticmethod
    def registry_name() -> str:
        return "streamxf.probe"

    @staticmethod
    def from_descriptor(version: str) -> _Probe:
        raise UnsupportedError("a probe is never stored")

    def get_descriptor(self) -> str:
        return "streamxf.probe/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        self._asked()
        return output

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        return input


def _check_writer(transforms: Any) -> None:
    extensions = getattr(transforms, "extensions", None)
    if extensions is None:
        return
    foreign = [type(extension).__name__ for extension in extensions if not isinstance(extension, Codec)]
    if foreign:
        raise UnsupportedError(
            f"{', '.join(foreign)} stands beside streamxf codecs in torch's own writer, which would save it and "
            "could not load it: use streamxf.FileSystemWriter, "
            "where a foreign extension may stand before the first codec"
        )
    Chain(extensions)  # raises where the codecs break a rule of order, before anything is written
