"""Base64url without padding (RFC 4648, section 5), in the one spelling that encoding gives."""

from __future__ import annotations

import base64
import binascii

from streamxf.descriptor import shorten
from streamxf.errors import DescriptorError


def encode_b64url(data: bytes) -> str:
    """`data` as text."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_b64url(text: str) -> bytes:
    """Undo `encode_b64url`; raises DescriptorError for anything but its own spelling."""
    data = try_decode(text)
    if data is None:
        raise DescriptorError(f"{shorten(text)!r} is not base64url")
    return data


def try_decode(text: str) -> bytes | None:
    """As `decode_b64url`, for text that must not appear in an error: None if it is anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if encode_b64url(data) == text else None
