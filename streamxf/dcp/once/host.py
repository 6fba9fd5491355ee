"""Metadata in an object store, which one rank of each host reads: the first there also reads for those that come later.

A reader learns who loads with it in DCP's first collective, and needs metadata before. So nobody waits for ranks that
may never come: who finds another at work asks it, and reads by itself where that fails or takes long. They meet at a
socket named after the digest in the metadata's trailer, which each has read, and which all else can be checked against.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from streamxf.storage.reading import PositionalFile, Span, StoredFile

_PATIENCE = 6.0  # seconds in which an answer has to go on
_KEPT = 32  # answers, of at most 8 MiB each, or the root
_REQUEST = struct.Struct("<32sQQ")  # digest, position, size


def share_on_host(until: ExitStack, file: StoredFile, digest: bytes) -> None:
    """Read `file` with other processes of this user that have seen the digest of its trailer, `until` that is closed.
    Only Linux has sockets that nothing remains of when a process is killed.
    """
    if sys.platform == "linux":
        file.access = made = _SharedFile(file.access, file.size, digest)
        until.callback(made.close)


class _SharedFile:
    """A file, read directly or by the process that serves it, which may be this one."""

    def __init__(self, direct: PositionalFile, size: int, digest: bytes) -> None:
        self._direct, self._size, self._digest = direct, size, digest
        self.parallel = direct.parallel
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._asked: socket.socket | None = None
        self._served: list[socket.socket] = []
        self._found: dict[tuple[int, int], bytes] = {}
        who = f"{os.getuid()} {socket.gethostname()} ".encode() + digest
        name = b"\0streamxf-" + hashlib.sha256(who).hexdigest().encode()
        for _ in range(3):  # another may come or go meanwhile
            made = socket.socket(socket.AF_UNIX)
            with suppress(OSError):
                made.bind(name)
                made.listen(128)
                return self._serve(made, self._accept)
            made.settimeout(_PATIENCE)
            with suppress(OSError):
                made.connect(name)
                self._asked = made
                return
            made.close()

    def expect(self, *spans: Span) -> None:
        """It is not known who will read them."""

    def read_into(self, position: int, out: memoryview) -> int:
        if self._pid == os.getpid():  # a fork has none of the threads, and must not use the sockets
            if self._asked is not None and self._ask(position, out):
                return len(out)
            if self._served:
                data = self._read(position, len(out))
                out[: len(data)] = data
                return len(data)
        return self._direct.read_into(position, out)

    def _ask(self, position: int, out: memoryview) -> bool:
        with self._lock:
            asked, self._asked = self._asked, None  # late answers must not pass for others
            if asked is not None:
                with suppress(OSError):
                    asked.sendall(_REQUEST.pack(self._digest, position, len(out)))
                    if _is_own(asked) and _filled(asked, out):
                        self._asked = asked
                        return True
                asked.close()
            return False

    def _read(self, position: int, size: int) -> bytes:
        """Read for all who ask, once."""
        with self._lock:
            if (position, size) not in self._found:
                data = bytearray(size)
                self._found[position, size] = bytes(data[: self._direct.read_into(position, memoryview(data))])
            for old in [*self._found][:-_KEPT]:
                del self._found[old]
            return self._found[position, size]

    def _serve(self, made: socket.socket, how: Callable[[socket.socket], None]) -> None:
        self._served.append(made)
        threading.Thread(target=how, args=(made,), name="streamxf-host", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # it was closed
            while True:
                self._serve(listening.accept()[0], self._answer)

    def _answer(self, asking: socket.socket) -> None:
        request = memoryview(bytearray(_REQUEST.size))
        with asking, suppress(Exception):  # of whatever class: who asked meets it, too, when it reads by itself
            while _is_own(asking) and _filled(asking, request):
                digest, position, size = _REQUEST.unpack(request)
                known = hmac.compare_digest(digest, self._digest) and size <= self._size
                if not known or len(data := self._read(position, size)) < size:
                    break
                asking.sendall(data)

    def close(self) -> None:
        opened, self._served, asked, self._asked = self._served, [], self._asked, None
        for each in opened if asked is None else [asked]:
            with suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)  # for forks, too; it wakes who waits
            each.close()
        self._found.clear()


def _is_own(other: socket.socket) -> bool:
    """Whether a process of the same user is at the other end."""
    _, user, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _filled(other: socket.socket, out: memoryview) -> bool:
    """Receive as many bytes as there is room for; false if fewer come."""
    while out and (count := other.recv_into(out)):
        out = out[count:]
    return not out
