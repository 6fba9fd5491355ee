"""The CRCs of a zip file that ``torch.save`` wrote, which ``torch.load`` does not compare."""

from __future__ import annotations

import re
from typing import IO

from streamxf.dcp.objects.archive import Archive
from streamxf.dcp.verify.archive import check_records
from streamxf.errors import ContainerError, MetadataError

_KNOWN = re.compile(
    r"data\.pkl|data/[0-9]+|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id", re.ASCII
)


def check_bare(stream: IO[bytes], size: int) -> None:
    """Compare what was stored without a codec, all of it, with its CRC-32.

    A record under a name that torch does not write is refused: a damaged name hides the record from torch, which then
    does without it.

    Raises
    ------
    ContainerError, MetadataError
        If it does not match, or has no CRCs.
    """
    if not check_records(stream, size):
        raise ContainerError(
            "the item was stored without a codec and without CRCs (torch.serialization.set_crc32_options), so nobody "
            "can tell whether it is damaged. dcp.load reads it as it is"
        )
    for name in Archive.read(stream, size).sizes:
        if not _KNOWN.fullmatch(name):
            raise MetadataError(f"its record {name!r:.80} has a name that torch.save gives to none: it is damaged")
