"""The proxy's process: ``python -m tests.objectstore.proxy HOST PORT``, which are the server's.

It prints its own port, and ends when its stdin does. Requests go to the server as they came, so that their signatures
hold, which cover the client's Host field: the server must take the field for its own name, whatever it says. One field
is left out, "Expect", which no client signs: the proxy itself answers that a body may come.

What goes on is asked and changed by ``POST /-/NAME`` with JSON; no bucket has a name of one letter.
"""

import asyncio
import json
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from .messages import PIECE, Head, answer_body, request_body
from .requests import ANSWERS, Fault, Request

CONTROL = "/-/"
BURST = 0.05  # seconds of bandwidth that may be saved up: sleeps take longer than asked, on a busy machine above all


class Pace:
    """A token bucket: bytes per second for all connections together; 0 for no limit."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._paid_until = 0.0

    async def take(self, size: int) -> None:
        if self.rate:
            now = time.monotonic()
            self._paid_until = max(self._paid_until, now - BURST) + size / self.rate
            if self._paid_until > now:
                await asyncio.sleep(self._paid_until - now)


class Broken(Exception):
    """The client's connection is to be reset."""


class Proxy:
    """What all connections share."""

    def __init__(self, host: str, port: int) -> None:
        self.server = host, port
        self.up, self.down = Pace(), Pace()
        self.latency = 0.0
        self.requests: list[Request] = []
        self.connections = 0
        self._faults: list[tuple[Fault, list[int]]] = []

    def begin(self, head: Head) -> tuple[Request, Fault | None]:
        """Note a request, and find what shall go wrong with it."""
        request = Request.of(*head.first[:2], head.fields)
        request.begun = time.monotonic()
        self.requests.append(request)
        found = None
        for fault, seen in self._faults:
            if fault.suits(request):
                if found is None and fault.number <= seen[0] < fault.number + fault.times:
                    found = fault
                seen[0] += 1
        request.fault = found.kind if found else ""
        return request, found

    async def control(self, name: str, asked: dict[str, Any]) -> Any:
        """Do or tell what was asked for."""
        match name:
            case "faults":
                self._faults = [(Fault(**each), [0]) for each in asked["faults"]]
            case "pace":
                self.up.rate = self.down.rate = asked["rate"]
                self.latency = asked["latency"]
            case "forget":
                self.requests = [request for request in self.requests if not request.ended]
            case "requests":
                deadline = time.monotonic() + asked["wait"]
                while any(not request.ended for request in self.requests) and time.monotonic() < deadline:
                    await asyncio.sleep(0.005)
                return [asdict(request) for request in self.requests]
            case _:
                raise ValueError(f"nothing is called {name!r}")
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, to its end."""
        connection = Connection(self, reader, writer)
        try:
            while (head := await Head.read(reader)) is not None:
                if not await connection.answer(head):
                    break
        except Broken:
            with suppress(OSError):  # the client may have gone already
                # with this, closing sends a reset instead of what was not sent yet
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        except ConnectionError:  # of the client, or of the server: either way the client's is over
            writer.transport.abort()
        finally:
            connection.close()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


class Connection:
    """A client's connection, and the one to the server on its behalf."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        """Close the server's side."""
        if self._server is not None:
            self._server[1].transport.abort()
            self._server = None

    async def answer(self, head: Head) -> bool:
        """See to one request; whether another may follow on this connection."""
        if head.first[1].startswith(CONTROL):
            asked = b"".join([piece async for piece in request_body(head, self._reader)])
            found = await self._proxy.control(head.first[1].removeprefix(CONTROL), json.loads(asked))
            await self._say("200 OK", json.dumps(found).encode(), "application/json")
            return True
        request, fault = self._proxy.begin(head)
        if head.fields.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            await asyncio.sleep(self._proxy.latency)
            return await self._pass_on(head, request, fault)
        finally:
            request.ended = time.monotonic()

    async def _pass_on(self, head: Head, request: Request, fault: Fault | None) -> bool:
        kind = fault.kind if fault else ""
        if fault and kind.endswith("before"):
            self._break(fault)
        if kind in ANSWERS and kind != "done, then 500":
            async for _ in request_body(head, self._reader):
                pass
            await self._refuse(kind, head, request)
            return True
        from_server, to_server = await self._reached()
        answering = asyncio.ensure_future(Head.read(from_server))  # a server may answer before it has all of the body
        try:
            to_server.write(head.without("expect"))
            limit = int(fault.at * request.size) if fault and kind.endswith("midway") else None
            await self._upload(head, request, to_server, limit)
            if fault and kind.endswith("midway"):
                self._break(fault)
            answer = await answering
        finally:
            answering.cancel()
        if answer is None:
            raise ConnectionResetError("the server closed the connection")
        if fault and (kind.endswith("after") or kind == "done, then 500"):
            async for _ in answer_body(answer, head.first[0], from_server):
                pass
            if kind in ANSWERS:
                await self._refuse(kind, head, request)
                return True
            self._break(fault)
        request.status = int(answer.first[1])
        await self._download(answer, head, request, fault)
        ends = head.closes or answer.closes or (answer.length is None and not answer.chunked)
        return not ends and request.fault != "truncated"

    async def _reached(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._server is not None and self._server[0].at_eof():
            self.close()
        if self._server is None:
            self._server = await asyncio.open_connection(*self._proxy.server, limit=8 * PIECE)
        return self._server

    async def _upload(self, head: Head, request: Request, to_server: asyncio.StreamWriter, limit: int | None) -> None:
        """Pass the request's body on; with `limit`, only so many bytes of it."""
        async for piece in request_body(head, self._reader):
            if limit is not None and request.sent + len(piece) >= limit:
                piece = piece[: limit - request.sent]
            await self._proxy.up.take(len(piece))
            request.sent += len(piece)
            with suppress(ConnectionError):  # it may have answered and closed; what it said is read by then
                to_server.write(piece)
                await to_server.drain()
            if request.sent == limit:
                return

    async def _download(self, answer: Head, head: Head, request: Request, fault: Fault | None) -> None:
        """Pass the answer on, or as much of it as the fault leaves."""
        assert self._server is not None
        kind = fault.kind if fault else ""
        at = int(fault.at * (answer.length or 0)) if fault else 0
        broken = kind in ("truncated", "stalled")
        if kind != "stalled" or at:
            self._writer.write(answer.raw)
        async for piece in answer_body(answer, head.first[0], self._server[0]):
            if broken and request.received + len(piece) > at:
                piece = piece[: at - request.received]
            elif kind == "wrong bytes" and request.received <= at < request.received + len(piece):
                piece = _flipped(piece, at - request.received)
            await self._proxy.down.take(len(piece))
            self._writer.write(piece)
            await self._writer.drain()
            request.received += len(piece)
            if broken and request.received == at:
                break
        if fault and kind == "stalled":
            await asyncio.sleep(fault.seconds)
            raise Broken
        await self._writer.drain()

    async def _refuse(self, kind: str, head: Head, request: Request) -> None:
        status, code = ANSWERS[kind]
        request.status = int(status[:3])
        text = f"<Error><Code>{code}</Code><Message>The proxy says so.</Message><RequestId>0</RequestId></Error>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        await self._say(status, b"" if head.first[0] == "HEAD" else body, "application/xml")

    async def _say(self, status: str, body: bytes, kind: str) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    def _break(self, fault: Fault) -> None:
        if fault.kind.startswith("killed"):
            with suppress(ProcessLookupError):
                os.kill(fault.process, signal.SIGKILL)
        raise Broken


def _flipped(piece: bytes, at: int) -> bytes:
    return piece[:at] + bytes([piece[at] ^ 0x55]) + piece[at + 1 :]


async def main(host: str, port: str) -> None:
    proxy = Proxy(host, int(port))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=8 * PIECE)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    await stdin.read()
    os._exit(0)  # whatever is under way


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
