"""Wrapped data keys in what is left of metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable

from streamxf.dcp.metadata.file import key_fragment
from streamxf.descriptor import ENCRYPT, MAX_BOUND, MAX_FRAGMENT
from streamxf.errors import DescriptorError, KeyServiceError, MetadataError, StreamxfError, WrongKeyError
from streamxf.keys import KeyRing

_TEXT = re.compile(
    rb"%s/1#dek=[A-Za-z0-9._~:&=-]{1,%d}" % (re.escape(ENCRYPT).encode("ascii"), MAX_BOUND + MAX_FRAGMENT), re.ASCII
)
_TRIED = 2**12


def find_keys(remains: Iterable[bytes], keys: KeyRing) -> list[str]:
    """The descriptors of Encrypt that `keys` open, wherever they stand: a data key that does not belong to its id does
    not count, so it does not matter what is around it.

    Raises
    ------
    StreamxfError
        If none opens: the first reason, or that there is none.
    """
    texts: dict[str, None] = {}
    for data in remains:
        for found in _TEXT.finditer(data):
            if len(texts) < _TRIED:
                texts.setdefault(found[0].decode("ascii"))
    opened: list[str] = []
    reason: StreamxfError | None = None
    for text in texts:
        try:
            keys.unwrap(key_fragment(text))
        except KeyServiceError:
            raise
        except DescriptorError:
            continue  # a piece of one
        except StreamxfError as error:
            if reason is None or isinstance(reason, WrongKeyError):  # which a damaged copy of a good one raises
                reason = error
        else:
            opened.append(text)
    if opened:
        return opened
    if reason is not None:
        raise reason
    raise MetadataError(
        "the checkpoint is encrypted, and its wrapped data key stood in .metadata alone: nothing is left of it, so "
        "nobody can decrypt the items. Restore .metadata from a copy"
    )
