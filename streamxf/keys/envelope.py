"""A data key, wrapped for each of its recipients; docs/format/keys.md, "Wrapped keys"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from streamxf.descriptor import shorten
from streamxf.errors import DescriptorError, KeyMissingError, ParameterError
from streamxf.keys.datakey import DataKey
from streamxf.keys.entry import Entry, ask, breach, fault
from streamxf.keys.provider import KeyProvider

MAX_RECIPIENTS = 16

_FORM = re.compile(r"dek=([0-9a-f]{64})((?:&w=[A-Za-z0-9:_-]+)+)", re.ASCII)


@dataclass(frozen=True)
class Envelope:
    """A wrapped data key.

    Attributes
    ----------
    dek_id : bytes
        The data key's id, 32 bytes.
    recipients : tuple of Entry
        1 to 16; each holds the data key, wrapped for one key.
    """

    dek_id: bytes
    recipients: tuple[Entry, ...]

    @classmethod
    def seal(cls, data_key: DataKey, recipients: Iterable[KeyProvider]) -> Self:
        """Wrap a data key for all who may read.

        Raises ParameterError as `checked`, or if a key provider breaks its protocol, and KeyServiceError if a service
        that holds a key cannot be reached.
        """
        dek_id = data_key.id
        entries = []
        for recipient in recipients:
            entry = Entry.of(recipient, "wrap", ask(recipient, "wrap", data_key.secret, dek_id))
            if data_key.secret in entry.data:
                raise breach(recipient, "wrap returned the data key unprotected")
            entries.append(entry)
        return cls(dek_id, tuple(entries)).checked()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a wrapped data key; raises DescriptorError if it is malformed."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise DescriptorError(f"wrapped data key {shorten(text)!r} is not of the form dek=id&w=kind:key_id:data")
        made = cls(bytes.fromhex(match[1]), tuple(map(Entry.parse, match[2].split("&w=")[1:])))
        try:
            return made.checked()
        except ParameterError as error:
            raise DescriptorError(error.message) from None

    def __str__(self) -> str:
        return "&".join([f"dek={self.dek_id.hex()}", *(f"w={entry}" for entry in self.recipients)])

    def checked(self) -> Self:
        """Itself; raises ParameterError if there are no recipients, too many, or one twice, or it is too long."""
        if not 1 <= len(self.recipients) <= MAX_RECIPIENTS:
            raise ParameterError(f"there are {len(self.recipients)} recipients; 1 to {MAX_RECIPIENTS} are allowed")
        if reason := fault(str(self), self.recipients):
            raise ParameterError(f"wrapped data keys: {reason}")
        return self

    def missing(self, keys: Iterable[KeyProvider]) -> KeyMissingError:
        """The error for a reader whose `keys` have no entry here."""
        names = [entry.key for entry in self.recipients]
        wanted = ", ".join(f"{key_id} ({kind})" for kind, key_id in names)
        given = [f"{key.id} ({key.kind}{'' if key.unwraps else ', which can only wrap'})" for key in keys]
        halves = ", ".join(key.id for key in keys if (key.kind, key.id) in names)
        cure = f"Reading needs the PrivateKey of {halves}" if halves else "Pass the right key"
        return KeyMissingError(f"encrypted for key id {wanted}; keys given: {', '.join(given) or 'none'}. {cure}")
