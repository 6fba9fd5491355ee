"""HTTP/1.1 as far as a proxy needs it: heads, and where bodies end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

PIECE = 128 * 1024  # bytes that are passed on at a time


@dataclass(frozen=True)
class Head:
    """What precedes a body, as it came, its first line in words, and its fields by their names in lower case."""

    raw: bytes
    first: list[str]
    fields: dict[str, str]

    @classmethod
    async def read(cls, stream: asyncio.StreamReader) -> Head | None:
        """None if the other side has closed the connection."""
        try:
            raw = await stream.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ConnectionResetError("the connection was closed within a head") from None
            return None
        first, *lines = raw.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return cls(raw, first.split(" ", 2), {name.strip().lower(): value.strip() for name, _, value in pairs})

    @property
    def length(self) -> int | None:
        """Of the body; None if it comes in chunks, or ends with the connection."""
        length = self.fields.get("content-length")
        return None if self.chunked or length is None else int(length)

    @property
    def chunked(self) -> bool:
        return "chunked" in self.fields.get("transfer-encoding", "").lower()

    @property
    def closes(self) -> bool:
        return self.fields.get("connection", "").lower() == "close"

    def without(self, name: str) -> bytes:
        """The head as it came, but for one of its fields."""
        lines = self.raw.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(name.encode() + b":"))


async def request_body(head: Head, stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body in pieces, as it came, chunk sizes included."""
    if head.chunked:
        async for piece in _chunks(stream):
            yield piece
    elif head.length:
        async for piece in _exactly(stream, head.length):
            yield piece


async def answer_body(head: Head, method: str, stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The same of an answer, whose body may end with the connection."""
    if method == "HEAD" or head.first[1] in ("204", "304"):
        return
    if head.chunked or head.length is not None:
        async for piece in request_body(head, stream):
            yield piece
        return
    while piece := await stream.read(PIECE):
        yield piece


async def _exactly(stream: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await stream.read(min(size, PIECE))
        if not piece:
            raise ConnectionResetError("the connection was closed within a body")
        size -= len(piece)
        yield piece


async def _chunks(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await stream.readuntil(b"\r\n")
        yield line
        size = int(line.partition(b";")[0], 16)
        if not size:
            break
        async for piece in _exactly(stream, size + 2):
            yield piece
    while line != b"\r\n":  # trailers
        line = await stream.readuntil(b"\r\n")
        yield line
