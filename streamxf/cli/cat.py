"""``streamxf cat``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import IO, Any

from streamxf.cli import options
from streamxf.cli.exits import FINE
from streamxf.errors import UnsupportedError
from streamxf.format.limits import PLAIN_MAGIC

_STEP = 16 * 2**20  # bytes: as many blocks as keep the workers busy


def cat(
    path: str = options.argument(
        "FILE",
        "A file that streamxf.open wrote, or its URL; - is the standard input.",
        callback=lambda path: path if path == "-" else options.existing(path),
    ),
    *,
    keys: options.Group,
) -> int:
    """Decode a file that streamxf.open wrote, to the standard output.

    Each block is checked before it is written. At a damaged block the command ends with exit code 1, and the output so
    far is intact.

    Examples:
    streamxf cat weights.pt.sxf --key file:team.key > weights.pt
    curl -s https://host/data.tar.sxf | streamxf cat - | tar -x
    """
    from streamxf.errors import located
    from streamxf.keys import KeyRing
    from streamxf.stream import open as open_stream

    ring = KeyRing.of(**keys)
    buffer = bytearray(_STEP)
    with ExitStack() as stack, located(file=None if path == "-" else path):
        reader = stack.enter_context(open_stream(_opened(path, stack), keys=ring))
        while count := reader.readinto(buffer):
            sys.stdout.buffer.write(memoryview(buffer)[:count])
        sys.stdout.buffer.flush()
    return FINE


def _opened(path: str, stack: ExitStack) -> IO[bytes] | Any:
    from streamxf.storage.opening import open_storage

    if path == "-":
        stdin: Any = sys.stdin.buffer
        _refuse_others(stdin.peek(len(PLAIN_MAGIC)))
        return stdin
    storage = open_storage(path)
    if storage.is_folder():
        raise UnsupportedError(
            "this is a folder; cat decodes a file that streamxf.open wrote. unpack writes a checkpoint as a file",
            file=path,
        )
    file = stack.enter_context(storage.open())
    _refuse_others(file.read(0, min(file.size, len(PLAIN_MAGIC))))
    return file.raw


def _refuse_others(beginning: bytes) -> None:
    """Raise UnsupportedError for another format: nothing is damaged then."""
    if beginning and not PLAIN_MAGIC.startswith(beginning[: len(PLAIN_MAGIC)]):
        raise UnsupportedError("this is not a file that streamxf.open wrote: it begins with other bytes")
