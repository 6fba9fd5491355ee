"""Notes of a run, and `Authority`: what shows that one of them, or a checkpoint, is this job's own.

In a checkpoint's folder, beside its files, those of `streamxf.checkpoint.notes`. In ``.streamxf`` what may be lost.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from streamxf import errors
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import escaped
from streamxf.keys import SigningKey, VerifyKey
from streamxf.manager.removal import remove_entry
from streamxf.places import Entries, Storage, is_run_file, put_small, read_small, small_files
from streamxf.reading import Access, Note
from streamxf.storage.storage import StorageEntry
from streamxf.wording import some

BLIND = "no key here can verify it"
ELSEWHERE = (errors.KeyServiceError, errors.ForeignError, errors.ReplacedError)
"""Errors of services, of servers, and where another save is published: they say nothing of what is stored."""


class Authority:
    """What counts of what lies there, by what the job has:

    - neither keys nor signers to trust nor `Encrypt` in the chain, or is `unverified`: everything.
    - keys that read, or signers to trust and nothing encrypted: what they authenticate, as for a reader.
    - keys that only write, and a signer: what that has signed.
    - keys that only write: what this process has published itself.

    Attributes and arguments:

    - `access`: of the job's readers; `encryption`, of its writers, vouches for notes, or `signer` without it.
    - `strict`: whether what is not authenticated does not count.
    - `published`: the saves that this process has published: of each id, which stands in clear there, the folder.
    """

    def __init__(
        self,
        access: Access,
        encryption: Encrypt | None = None,
        signer: SigningKey | None = None,
        *,
        unverified: bool = False,
    ) -> None:
        self.access = access
        keyed = len(access.keys) > 0 or access.refuses_plaintext
        self.strict = (keyed or bool(access.trust)) and not unverified
        self.published: dict[str, str] = {}
        self.reads = any(key.unwraps for key in access.keys) or not keyed
        self._signer = None if keyed else signer
        self._trust: Iterable[VerifyKey] = access.keys.trust
        if encryption is not None and encryption.signer is not None and not self.reads:
            self._trust = (encryption.signer.verify_key,)
        if encryption is not None and self.reads:
            _check_resumes(encryption, access)
        if encryption is None and (vouching := [key for key in access.keys if key.vouches]):
            encryption = Encrypt(vouching)
        self._encryption = encryption
        self._session: tuple[int, Encrypt] | None = None
        self.sealed: set[bytes] = set()  # digests

    @property
    def vouches(self) -> bool:
        """Whether what it seals would count for itself later."""
        sealing = self._encryption is not None or self._signer is not None
        return not self.strict or (sealing and (self.reads or bool(self._trust)))

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
            raise errors.KeyMissingError(
                f"{what} is there, and this job holds no key that reads it: it only encrypts. Give the key by keys=, "
                "or begin in an empty folder; resume(state, plaintext=True) loads an unencrypted checkpoint"
            )

    def doubt(self, check: Callable[[Access], object], signed_by: Callable[[Iterable[VerifyKey]], bool]) -> str:
        """Why something does not count; "" if it does. Raises KeyServiceError if a service that knows is silent."""
        if not self.strict:
            return ""
        try:
            if self.reads:
                check(self.access)
            elif not self._trust:
                return BLIND
            elif not signed_by(self._trust):
                return "it is not signed by this job's signer"
        except ELSEWHERE:
            raise
        except errors.StreamxfError as error:
            return error.message
        return ""

    def seal(self, content: Any, make: Callable[[Any], object]) -> bytes:
        """A note, vouched for as checkpoints are; MetadataError if `make` refuses it."""
        encryption = self._encryption if self.strict else None
        if encryption is not None and (self._session is None or self._session[0] != os.getpid()):
            self._session = os.getpid(), encryption.renew()
        session = self._session[1] if encryption is not None and self._session is not None else None
        data = Note.seal(content, session, self._signer if self.strict else None)
        Note.parse(data).said(make)
        if self.blind:
            self.sealed.add(hashlib.sha256(data).digest())
        return data


def _check_resumes(encryption: Encrypt, access: Access) -> None:
    """Raise ParameterError if the job, started again, could not read what it saved, and would go on from before it."""
    given = [key for key in access.keys if key.unwraps]
    if {(key.kind, key.id) for key in given}.isdisjoint((key.kind, key.id) for key in encryption.recipients):
        raise errors.ParameterError(
            f"the chain encrypts to {some(key.id for key in encryption.recipients)}, and keys= reads "
            f"{some(key.id for key in given)} alone: a second start could not resume from what this one saves. Give "
            "both keys, as in keys=[new, old]"
        )


FOLDER = ".streamxf"

_log = logging.getLogger(__name__)

T = TypeVar("T")


def put_note(storage: Storage, authority: Authority, file: str, content: Any, make: Callable[[Any], object]) -> None:
    """Put a note into ``.streamxf``, or replace it. Raises OSError, and as `Authority.seal`."""
    put_small(storage, f"{FOLDER}/{file}", authority.seal(content, make), sync=False)


def remove_notes(storage: Storage, files: Iterable[str]) -> None:
    remove_entry(storage, *(f"{FOLDER}/{file}" for file in files))


def notes_in(storage: Storage, authority: Authority, names: str, make: Callable[[Any], T]) -> dict[str, T]:
    """The notes in ``.streamxf`` with names that match a pattern, by name, without malformed and unvouched ones."""
    found, pattern = {}, re.compile(names, re.ASCII)
    for file, data in small_files(storage, FOLDER, lambda name: pattern.fullmatch(name) is not None).items():
        try:
            note = Note.parse(data)
            if not authority.doubt(note.check, note.signed_by):
                found[file] = note.said(make)
        except (errors.MetadataError, errors.UnsupportedError) as error:
            _log.debug("%s", escaped(f"{storage.label(file)} is ignored: {error.message}"))
    return found


def read(child: Storage, file: str, make: Callable[[Any], T], authority: Authority) -> tuple[T | None, str]:
    """A note in a checkpoint's folder, None if there is none, and why it does not count, if it does not. What the job's
    keys do not verify is None, too, unless there are none that could. Raises MetadataError if it is damaged.
    """
    data = read_small(child, file)
    if data is None:
        return None, ""
    note = Note.parse(data)
    if authority.blind and hashlib.sha256(data).digest() in authority.sealed:  # this process made it
        return note.said(make), ""
    doubt = authority.doubt(note.check, note.signed_by)
    return (None if doubt and not authority.blind else note.said(make)), doubt


def mark_of(entry: StorageEntry) -> str:
    """What changes when a listed file is written to."""
    return f"{entry.size} {entry.tag or entry.written or ''}"


def is_framework_file(path: str) -> bool:
    """Whether a file below a checkpoint's folder is none of the manager's own."""
    return not is_run_file(path.rpartition("/")[2])


def written_since(files: Entries, before: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, StorageEntry]:
    """The files that a save wrote: those that were not there before, have changed since, or are `known` to be its."""
    also = set(known)
    return {
        path: entry
        for path, entry in files.items()
        if is_framework_file(path) and (path in also or before.get(path) != mark_of(entry))
    }
