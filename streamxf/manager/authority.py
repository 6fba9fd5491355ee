"""`Authority`: what shows that a checkpoint, or a note about one, is this job's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import seal_note
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import KeyMissingError, KeyServiceError, ParameterError, StreamxfError
from streamxf.keys import VerifyKey
from streamxf.wording import some

BLIND = "no key here can verify it"


class Authority:
    """Without keys everything counts. With keys, or `Encrypt` in the chain, only what they authenticate does: as a
    reader would, with the job's keys; by its signature, where the job can only write and sign; and where it can only
    write, only what this process has published itself. If it is `unverified`, everything counts all the same.

    - `access`: of the job's readers; `encryption`, of its writers, vouches for notes.
    - `strict`: whether what is not authenticated does not count.
    - `published`: the saves that this process has published: of each id, which stands in clear there, the folder.
    """

    def __init__(self, access: Access, encryption: Encrypt | None = None, *, unverified: bool = False) -> None:
        self.access = access
        self.strict = (len(access.keys) > 0 or access.refuses_plaintext) and not unverified
        self.published: dict[str, str] = {}
        self.reads = any(key.unwraps for key in access.keys)
        self._trust: Iterable[VerifyKey] = access.keys.trust
        if encryption is not None and encryption.signer is not None and not self.reads:
            self._trust = (encryption.signer.verify_key,)
        if encryption is not None and self.reads:
            _check_resumes(encryption, access)
        if encryption is None and (vouching := [key for key in access.keys if key.vouches]):
            encryption = Encrypt(vouching)
        self._encryption = encryption
        self._session: tuple[int, Encrypt] | None = None

    @property
    def vouches(self) -> bool:
        """Whether what it seals would count for itself later."""
        return not self.strict or (self._encryption is not None and (self.reads or bool(self._trust)))

    @property
    def blind(self) -> bool:
        """Whether nothing that others published can be verified here."""
        return self.strict and not self.reads and not self._trust

    def has_published(self, save_id: str | None, name: str) -> bool:
        """Whether a checkpoint counts since this process saved it, which nothing else shows."""
        return self.blind and save_id is not None and self.published.get(save_id) == name

    def check_reads(self, what: str) -> None:
        """Raise KeyMissingError if the job encrypts to keys that it does not hold, so that it cannot load."""
        if self.strict and not self.reads:
            raise KeyMissingError(
                f"{what} is there, and this job holds no key that reads it: it only encrypts. Give the key by keys=, "
                "or begin in an empty folder; resume(state, plaintext=True) loads an unencrypted checkpoint"
            )

    def doubt(self, check: Callable[[Access], object], signed_by: Callable[[Iterable[VerifyKey]], bool]) -> str:
        """Why something does not count; "" if it does. Raises KeyServiceError if a service that would know cannot be
        reached.
        """
        if not self.strict:
            return ""
        try:
            if self.reads:
                check(self.access)
            elif not self._trust:
                return BLIND
            elif not signed_by(self._trust):
                return "it is not signed by this job's signer"
        except KeyServiceError:
            raise
        except StreamxfError as error:
            return error.message
        return ""

    def seal(self, content: Any) -> bytes:
        """A note, vouched for as the job's checkpoints are."""
        encryption = self._encryption if self.strict else None
        if encryption is None:
            return seal_note(content)
        if self._session is None or self._session[0] != os.getpid():
            self._session = os.getpid(), encryption.renew()
        return seal_note(content, self._session[1])


def _check_resumes(encryption: Encrypt, access: Access) -> None:
    """Raise ParameterError if the job, started again, could not read what it saved, and would go on from before it."""
    given = [key for key in access.keys if key.unwraps]
    if {(key.kind, key.id) for key in given}.isdisjoint((key.kind, key.id) for key in encryption.recipients):
        raise ParameterError(
            f"the chain encrypts to {some(key.id for key in encryption.recipients)}, and keys= reads "
            f"{some(key.id for key in given)} alone: a second start could not resume from what this one saves. Give "
            "both keys, as in keys=[new, old]"
        )
