"""Wrapped data keys in what is left of metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from streamxf.dcp.metadata.file import key_fragment
from streamxf.descriptor import ENCRYPT, MAX_BOUND, MAX_FRAGMENT
from streamxf.errors import DescriptorError, KeyServiceError, MetadataError, StreamxfError, WrongKeyError
from streamxf.keys import KeyRing

_TEXT = re.compile(
    rb"%s/1#dek=[A-Za-z0-9._~:&=-]{1,%d}" % (re.escape(ENCRYPT).encode("ascii"), MAX_BOUND + MAX_FRAGMENT), re.ASCII
)
_TRIED = 2**12


class WrappedKeys:
    """The descriptors of Encrypt that `keys` open, wherever they stand in `remains`: a data key that does not belong to
    its id does not count, so it does not matter what is around it.

    They are tried when they are asked for, and no sooner: each may be a question to a service.
    """

    def __init__(self, remains: Iterable[bytes], keys: KeyRing) -> None:
        self._texts = _texts_in(remains)
        self._keys = keys
        self._opened: list[str] = []
        self._reason: StreamxfError | None = None

    def __iter__(self) -> Iterator[str]:
        yield from self._opened
        for text in self._texts:
            try:
                self._keys.unwrap(key_fragment(text))
            except KeyServiceError:
                raise
            except DescriptorError:
                continue  # a piece of one
            except StreamxfError as error:
                # WrongKeyError is what a damaged copy of a good one raises
                if self._reason is None or isinstance(self._reason, WrongKeyError):
                    self._reason = error
            else:
                self._opened.append(text)
                yield text

    def check(self) -> None:
        """Raise StreamxfError if none opens: the first reason, or that there is none."""
        if next(iter(self), None) is not None:
            return
        raise self._reason or MetadataError(
            "the checkpoint is encrypted, and its wrapped data key stood in .metadata alone: nothing is left of it, so "
            "nobody can decrypt the items. Restore .metadata from a copy"
        )


def _texts_in(remains: Iterable[bytes]) -> Iterator[str]:
    seen: set[bytes] = set()
    for data in remains:
        for found in _TEXT.finditer(data):
            if len(seen) < _TRIED and found[0] not in seen:
                seen.add(found[0])
                yield found[0].decode("ascii")
