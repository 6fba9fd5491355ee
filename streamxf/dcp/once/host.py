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

from streamxf.storage.reading import Span, StoredFile

_PATIENCE = 6.0  # seconds in which an answer has to go on
_REQUEST = struct.Struct("<32sQQ")  # digest, position, size


class SharedFile:
    """What `file` is read through from now on: directly, or by the process that serves it, which may be this one. It is
    shared with processes of this user that have seen the digest of its trailer, `until` that is closed. Only Linux has
    sockets that nothing remains of when a process is killed.
    """

    def __init__(self, until: ExitStack, file: StoredFile, digest: bytes) -> None:
        self._direct, self._size, self._digest = file.access, file.size, digest
        self.parallel = self._direct.parallel
        file.access = self
        until.callback(self.close)
        self._pid = 0  # with which it is shared: a fork has none of the threads, and must not use the sockets
        self._lock = threading.Lock()
        self._asked: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._found: dict[tuple[int, int], bytes] = {}
        if sys.platform != "linux":
            return
        who = f"{os.getuid()} {socket.gethostname()} ".encode() + digest
        name = b"\0streamxf-" + hashlib.sha256(who).hexdigest().encode()
        for _ in range(3):  # another may come or go meanwhile
            made = socket.socket(socket.AF_UNIX)
            self._sockets.append(made)
            with suppress(OSError, RuntimeError):  # the last at the system's limit on threads
                made.bind(name)
                made.listen(128)
                self._start(self._accept, made)
                self._pid = os.getpid()
                return
            made.settimeout(_PATIENCE)
            with suppress(OSError):
                made.connect(name)
                self._asked, self._pid = made, os.getpid()
                return

    def expect(self, *spans: Span) -> None:
        """It is not known who will read them."""

    def read_into(self, position: int, out: memoryview) -> int:
        if self._pid != os.getpid():
            return self._direct.read_into(position, out)
        if self._asked is None:
            data = self._read(position, len(out))
            out[: len(data)] = data
            return len(data)
        with self._lock:
            pid, self._pid = self._pid, 0  # until the answer is there: a late one must not pass for another
            with suppress(OSError):
                self._asked.sendall(_REQUEST.pack(self._digest, position, len(out)))
                if pid and _is_own(self._asked) and _filled(self._asked, out):
                    self._pid = pid
                    return len(out)
        return self._direct.read_into(position, out)

    def _read(self, position: int, size: int) -> bytes:
        """Read for all who ask, once."""
        with self._lock:
            if (position, size) not in self._found:
                data = bytearray(size)
                self._found[position, size] = bytes(data[: self._direct.read_into(position, memoryview(data))])
            return self._found[position, size]

    def _start(self, how: Callable[[socket.socket], None], made: socket.socket) -> None:
        threading.Thread(target=how, args=(made,), name="streamxf-host", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError, RuntimeError):  # it was closed; or as above
            while True:
                asking, _ = listening.accept()
                self._sockets.append(asking)
                self._start(self._answer, asking)

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
        """Read directly from now on."""
        self._pid = 0
        while self._sockets:
            with self._sockets.pop() as each, suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)  # for forks, too; it wakes who waits
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
