"""Codecs inside torch's own writers and readers: neighbouring codecs join into one container.

Torch wraps the output stream once for each extension. When a codec is asked to wrap a stream that a codec has just
made, it joins that stream instead, and the container starts with the first write. On load it is the same: each codec
joins the stream of the one before it, and the container is opened with the first read, whose header says in which order
the codecs belong. Where it holds the elements of a tensor, torch's reader gets torch.save's frame around them.
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
from streamxf.dcp.frame import frame_of
from streamxf.errors import AbortedError, IdentityError, UnsupportedError
from streamxf.format.header import Header, Kind
from streamxf.stream.container import BlockReader, read_header, stream_info
from streamxf.stream.encoder import ContainerEncoder
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import Blocks, FileSlice
from streamxf.stream.writer import StreamWriter


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
    """A container whose codecs are still coming, until the first write."""

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
            self._writer = StreamWriter(self._raw, ContainerEncoder(Chain(codecs)))
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
    """A container whose codecs are still coming, until the first read."""

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
            blocks = BlockReader(source, header, coder)
            blocks.decode_ends()
            self._reader = StreamReader(framed(header, blocks))
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


def framed(header: Header, blocks: Blocks) -> Blocks:
    """What torch's reader is to get of a container: torch.save's frame around a tensor's elements, or the stream."""
    identity = header.identity
    if identity is None or identity.kind is not Kind.TENSOR:
        return blocks
    return _Framed(blocks, *frame_of(identity.dtype, identity.shape))


class _Framed:
    """A tensor's elements with something before and after them, in the blocks of its container, and one more each."""

    def __init__(self, blocks: Blocks, prefix: bytes, suffix: bytes) -> None:
        self._blocks = blocks
        self._prefix = prefix
        self._suffix = suffix
        self.size = len(prefix) + blocks.size + len(suffix)
        self.block_size = blocks.block_size
        self.count = max(1, -(-self.size // self.block_size))

    def size_of(self, index: int) -> int:
        return min(self.block_size, self.size - index * self.block_size)

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        start = index * self.block_size - len(self._prefix)
        parts = StreamReader(self._blocks)

        def decode(out: memoryview) -> None:
            at = 0
            if start < 0:
                at = min(-start, len(out))
                out[:at] = self._prefix[start + len(self._prefix) :][:at]
            at += parts.readinto_at(max(0, start), out[at:])
            if at < len(out):
                begin = start + at - self._blocks.size
                out[at:] = self._suffix[begin : begin + len(out) - at]

        return decode


def _in_stored_order(header: Header, codecs: list[Codec]) -> list[Codec]:
    """Put `codecs` into the order of the header's chain; stream transforms before them are applied by torch itself."""
    rest = list(codecs)
    ordered: list[Codec] = []
    for text in header.block_chain:
        codec = next((codec for codec in rest if codec.descriptor().bound == text), None)
        if codec is None:
            break
        rest.remove(codec)
        ordered.append(codec)
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
