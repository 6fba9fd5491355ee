"""``streamxf cat``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import IO, Annotated, Any

import typer

from streamxf.cli.exits import FINE
from streamxf.cli.keys import keys_at
from streamxf.cli.options import KeyOption, TrustOption, UnsignedOption, existing
from streamxf.errors import UnsupportedError

EXAMPLES = (
    "streamxf cat weights.pt.sxf --key file:team.key > weights.pt",
    "curl -s https://host/data.tar.sxf | streamxf cat - | tar -x",
)

_STEP = 16 * 2**20  # bytes: as many blocks as keep the workers busy


def _existing_or_stdin(context: typer.Context, path: str) -> str:
    return path if path == "-" else existing(context, path)


def cat(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            callback=_existing_or_stdin,
            show_default=False,
            help="A file that streamxf.open wrote, or its URL; - is the standard input.",
        ),
    ],
    key: KeyOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
) -> int:
    """Decode a file that streamxf.open wrote, and write what it holds to the standard output.

    Each block is checked before it is written. Where one is damaged the command ends there with exit code 1, so what
    was written before is the beginning of what was stored.
    """
    from streamxf.errors import located
    from streamxf.fileio import open as open_stream
    from streamxf.keys import KeyRing

    ring = KeyRing.of(keys_at(key), keys_at(trust), allow_unsigned)
    buffer = bytearray(_STEP)
    with ExitStack() as stack, located(file=None if path == "-" else path):
        reader = stack.enter_context(open_stream(_opened(path, stack), keys=ring))
        while count := reader.readinto(buffer):
            sys.stdout.buffer.write(memoryview(buffer)[:count])
        sys.stdout.buffer.flush()
    return FINE


def _opened(path: str, stack: ExitStack) -> IO[bytes] | Any:
    from streamxf.formats.location import Location

    if path == "-":
        return sys.stdin.buffer
    location = Location.of(path)
    if location.is_folder():
        raise UnsupportedError(
            "this is a folder; cat decodes a file that streamxf.open wrote. unpack writes a checkpoint as a file",
            file=path,
        )
    return stack.enter_context(location.open())
