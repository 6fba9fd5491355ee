"""What tests/reference_decoder.py makes of the same bytes, and where the two decoders may differ."""

from __future__ import annotations

from dataclasses import dataclass

import reference_decoder
from reference_decoder import FormatError
from samples import KEY

from fuzz.oracle import Finding, agree
from streamxf.errors import StreamxfError, UnknownCodecError

# Blocks of more bytes would keep the second decoder, which goes byte by byte, busy for too long.
MAX_BLOCK_LOG2 = 17

# The chains' descriptors as writers make them. "A decoder may also refuse parameters that are out of order or equal
# their defaults", and one that matters to encoding only "may stand before `#`": about others the decoders may differ.
WRITTEN = frozenset(
    [f"streamxf.{name}/1" for name in ("zstd", "lz4", "floatzip", "checksum", "encrypt")]
    + ["streamxf.checksum/1?algorithm=sha256"]
)


@dataclass(frozen=True)
class Verdict:
    """What the second decoder says: the stream, or why it refuses the file."""

    payload: bytes | None
    refusal: FormatError | None = None


def plain_file(data: bytes, keyed: bool) -> Verdict:
    """Decode a plain file."""
    try:
        return Verdict(reference_decoder.decode_plain_file(data, key=KEY.reveal() if keyed else None).payload)
    except FormatError as error:
        return Verdict(None, error)


def compare(found: bytes | None, error: StreamxfError | None, verdict: Verdict, chain: tuple[str, ...]) -> None:
    """Both decoders must accept the same files, and read the same from them."""
    if not WRITTEN.issuperset(chain):
        return
    if found is not None and verdict.payload is None:
        raise Finding(f"streamxf reads {len(found)} bytes, the second decoder refuses: {verdict.refusal}")
    if error is not None and verdict.payload is not None:
        if isinstance(error, UnknownCodecError):
            return
        raise Finding("the second decoder reads what streamxf refuses") from error
    agree(found == verdict.payload, "the two decoders read different bytes")
