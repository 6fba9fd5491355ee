"""Base64url without padding (RFC 4648, section 5), in the one spelling that encoding gives."""

from __future__ import annotations

import base64
import binascii

from streamxf.descriptor import shorten
from streamxf.errors import DescriptorError


def encode_b64url(data: bytes) -> str:
    """The text for `data`."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_b64url(text: str) -> bytes:
    """Undo `encode_b64url`; only its own spelling is taken.

    Raises
    ------
    DescriptorError
        If `text` is anything else.
    """
    data = try_decode(text)
    if data is None:
        raise DescriptorError(f"{shorten(text)!r} is not base64url")
    return data


def try_decode(text: str) -> bytes | None:
    """As `decode_b64url`, for text that no error may show: None if it is anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if encode_b64url(data) == text else None
