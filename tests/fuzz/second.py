"""What the reference decoder makes of the same bytes."""

from collections.abc import Callable
from typing import TypeVar

import zstandard

from streamxf.errors import StreamxfError
from tests.fuzz.oracle import Finding, agree
from tests.reference_codecs import TRANSFORMS, Refused
from tests.reference_keys import Reader, aes_key
from tests.samples import KEY

T = TypeVar("T")

MAX_BLOCK_LOG2 = 17  # larger blocks would keep the reference decoder busy for too long: it goes byte by byte

ANYONE, HOLDER = Reader(), Reader([aes_key(KEY.reveal())])

TRANSFORMS["stream.zstd"] = lambda stream: zstandard.ZstdDecompressor().decompressobj().decompress(stream)


def compare(found: T | None, error: StreamxfError | None, action: Callable[[], T]) -> None:
    """Both decoders must accept the same bytes, and read the same from them; `action` runs the reference decoder."""
    try:
        expected = action()
    except Refused as refusal:
        if found is not None:
            raise Finding(f"only the reference decoder refuses this: {refusal}") from refusal
        return
    if found is None:
        raise Finding("only streamxf refuses this") from error
    agree(found == expected, "the two decoders read different things")
