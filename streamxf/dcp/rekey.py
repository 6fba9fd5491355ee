"""Who may read a checkpoint, changed afterwards: its data keys are wrapped anew, and its data stays as it is.

Wrapped data keys stand in the metadata only, so only that is rewritten; each file of it in one step.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamxf.codecs.encrypt import Encrypt
from streamxf.dcp.folder import Folder
from streamxf.dcp.sealed import Change, Opened, Sealed
from streamxf.errors import KeyMissingError, ParameterError, PolicyError, located
from streamxf.keys import KeyProvider, KeyRing, KeysLike, SigningKey
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope, Wrapped
from streamxf.keys.ring import TrustLike

StorageOptions = Mapping[str, Any] | None


@dataclass(frozen=True)
class Recipient:
    """Somebody who may read.

    Attributes
    ----------
    kind, id : str
        Those of the `KeyProvider`.
    """

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.id} ({self.kind})"


@dataclass(frozen=True)
class Recipients:
    """Who may read a checkpoint, and who signed it.

    Attributes
    ----------
    whole : tuple of Recipient
        Those for whom every data key is wrapped.
    part : tuple of Recipient
        Those for whom only some are: somebody was interrupted while he changed rank-local metadata.
    signers : tuple of str or None
        Ids of those who signed data keys; None where one is not signed.
    authenticated : bool
        Whether a key has shown that this is so. Otherwise it is what the storage says, which may not be true.
    """

    whole: tuple[Recipient, ...]
    part: tuple[Recipient, ...]
    signers: tuple[str | None, ...]
    authenticated: bool

    def __str__(self) -> str:
        lines = [f"recipient {recipient}" for recipient in self.whole]
        lines += [f"recipient {recipient} of a part only" for recipient in self.part]
        lines += ["not signed" if signer is None else f"signed by {signer}" for signer in self.signers]
        lines.append("authenticated" if self.authenticated else "not authenticated: it is what the storage says")
        return "\n".join(lines)

    @classmethod
    def _of(cls, envelopes: Collection[Envelope], authenticated: bool) -> Recipients:
        each = [_readers(envelope) for envelope in envelopes]
        found = dict.fromkeys(recipient for one in each for recipient in one)
        whole = tuple(recipient for recipient in found if all(recipient in one for one in each))
        part = tuple(recipient for recipient in found if recipient not in whole)
        signatures = [envelope.signature for envelope in envelopes]
        signers = dict.fromkeys(None if signature is None else signature[0] for signature in signatures)
        return cls(whole, part, tuple(signers), authenticated)


def recipients(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = (),
    allow_unsigned: bool = False,
    storage_options: StorageOptions = None,
) -> Recipients:
    """List who may read a checkpoint. Nothing is unpickled, and no data file is touched.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        To check that the list is authentic. Without keys it is what the metadata's manifest says of the process that
        wrote it.
    trust, allow_unsigned
        As in `KeyRing`.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Raises
    ------
    PolicyError
        If the checkpoint is not encrypted; also as `rekey`.
    StreamxfError
        As `rekey`.
    """
    ring = KeyRing.of(keys, trust, allow_unsigned)
    folder = Folder(path, storage_options)
    files = _sealed(folder)
    if not len(ring):
        return Recipients._of([file.envelope for file in files], authenticated=False)
    opened = [_open(folder, file, ring) for file in files]
    return Recipients._of([envelope for file in opened for envelope in file.envelopes], authenticated=True)


def rekey(
    path: str | os.PathLike[str],
    old: KeysLike,
    new: KeysLike,
    *,
    signer: SigningKey | None = None,
    trust: TrustLike = (),
    allow_unsigned: bool = False,
    storage_options: StorageOptions = None,
) -> tuple[str, ...]:
    """Wrap a checkpoint's data keys for `new`, and for nobody else.

    Only metadata files are rewritten, each in one step; data files keep their bytes. Nothing is written before all data
    keys were unwrapped, all signatures and MACs were found right, and all new metadata was made. Where ranks have
    metadata of their own, each file is replaced by itself: after a failure in between, call this again with the same
    arguments, which also takes up files that are under `new` already.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    old : Key, bytes, location, several of them or a KeyRing
        What opens the checkpoint now.
    new : KeyProvider, bytes or location, or several
        Who may read from now on, as in `Encrypt`.
    signer : SigningKey, optional
        Signs the data keys, in the place of who signed them before: who changes keys then vouches for the checkpoint.
        Without it, signatures stay as they are.
    trust : VerifyKey, or several
        Whose signature counts when `old` opens the checkpoint, as in `KeyRing`.
    allow_unsigned : bool
        Whether data keys may lack a signature that readers ask for: those of `old`, and those of `new`.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Returns
    -------
    tuple of str
        The names of the metadata files that were rewritten.

    Raises
    ------
    KeyMissingError, WrongKeyError, AuthenticationError, KeyServiceError
        If `old` does not open the checkpoint, or it was altered.
    PolicyError
        If it is not encrypted, or lacks a signature that `old`, `trust` or the readers of `new` ask for.
    ParameterError
        If `new` or `signer` cannot be used, or there are too many recipients.
    MetadataError, DescriptorError
        If metadata is missing or damaged, or somebody replaced it meanwhile.
    UnsupportedError
        If the checkpoint was not made by streamxf's writer, or this is a plain file.
    OSError
        If metadata cannot be written. What was there is then still there.
    """
    chosen = Encrypt(new, signer=signer)
    ring = KeyRing.of(old, trust, allow_unsigned)
    if not len(ring):
        raise KeyMissingError("old= has no key that could open the checkpoint")

    def change(envelope: Envelope, data_key: DataKey) -> Envelope:
        made = replace(envelope, recipients=_wrapped(data_key, chosen.recipients), signature=_signed(envelope, signer))
        return _checked(made, chosen.recipients, ring)

    folder = Folder(path, storage_options)
    wanted = {Recipient(key.kind, key.id) for key in chosen.recipients}
    own = KeyRing([key for key in chosen.recipients if key.unwraps])
    opened: list[Opened] = []
    missing: KeyMissingError | None = None
    for file in _sealed(folder):
        try:
            opened.append(_open(folder, file, ring))
        except KeyMissingError as error:
            if set(_readers(file.envelope)) != wanted:
                raise
            # a call before this one got that far; public keys cannot show that, and then the file stays as it is
            if len(own):
                opened.append(_open(folder, file, KeyRing(own, trust=ring.trust, allow_unsigned=ring.allow_unsigned)))
            else:
                missing = error
    if missing is not None and not opened:
        raise missing
    return _change(folder, opened, change)


def add_recipient(
    path: str | os.PathLike[str],
    keys: KeysLike,
    new: KeysLike,
    *,
    signer: SigningKey | None = None,
    trust: TrustLike = (),
    allow_unsigned: bool = False,
    storage_options: StorageOptions = None,
) -> tuple[str, ...]:
    """Wrap a checkpoint's data keys for somebody more; those who may read already are left as they are.

    Parameters
    ----------
    keys : Key, bytes, location, several of them or a KeyRing
        What opens the checkpoint.
    new : KeyProvider, bytes or location, or several
        Who may read, too. Somebody who may already stays so.
    path, signer, trust, allow_unsigned, storage_options
        As in `rekey`.

    Returns
    -------
    tuple of str
        The names of the metadata files that were rewritten.

    Raises
    ------
    StreamxfError, OSError
        As `rekey`.
    """
    chosen = Encrypt(new, signer=signer)
    ring = KeyRing.of(keys, trust, allow_unsigned)

    def change(envelope: Envelope, data_key: DataKey) -> Envelope:
        there = _readers(envelope)
        fresh = [key for key in chosen.recipients if Recipient(key.kind, key.id) not in there]
        wrapped = envelope.recipients + _wrapped(data_key, fresh)
        return _checked(replace(envelope, recipients=wrapped, signature=_signed(envelope, signer)), fresh, ring)

    folder = Folder(path, storage_options)
    return _change(folder, [_open(folder, file, ring) for file in _sealed(folder)], change)


def remove_recipient(
    path: str | os.PathLike[str],
    keys: KeysLike,
    key_id: str,
    *,
    trust: TrustLike = (),
    allow_unsigned: bool = False,
    storage_options: StorageOptions = None,
) -> tuple[str, ...]:
    """Take a recipient's wrapped data keys out of a checkpoint; those of the others are left as they are.

    Whoever has read the checkpoint, or has a copy of the metadata from before, can have kept the data keys: this does
    not take them back.

    Parameters
    ----------
    keys : Key, bytes, location, several of them or a KeyRing
        What opens the checkpoint; that recipient's own key may.
    key_id : str
        The recipient's, 16 hexadecimal digits; `recipients` lists them.
    path, trust, allow_unsigned, storage_options
        As in `rekey`.

    Returns
    -------
    tuple of str
        The names of the metadata files that were rewritten.

    Raises
    ------
    ParameterError
        If there is no such recipient, or no other.
    StreamxfError, OSError
        As `rekey`.
    """
    ring = KeyRing.of(keys, trust, allow_unsigned)
    folder = Folder(path, storage_options)
    opened = [_open(folder, file, ring) for file in _sealed(folder)]
    there = Recipients._of([envelope for file in opened for envelope in file.envelopes], authenticated=True)
    if key_id not in [recipient.id for recipient in (*there.whole, *there.part)]:
        names = ", ".join(map(str, (*there.whole, *there.part)))
        raise ParameterError(f"the checkpoint has no recipient {key_id!r:.80}; it has {names}")

    def change(envelope: Envelope, _: DataKey) -> Envelope:
        left = tuple(wrapped for wrapped in envelope.recipients if wrapped.key_id != key_id)
        if not left:
            raise ParameterError(f"{key_id} is the last recipient: without it nobody could read; add another one first")
        return replace(envelope, recipients=left)

    return _change(folder, opened, change)


# -- files -----------------------------------------------------------------------------------------


def _sealed(folder: Folder) -> list[Sealed]:
    """All metadata files, parsed."""
    files = []
    for name in folder.names():
        with located(file=folder.full(name)):
            files.append(Sealed.parse(name, folder.read(name)))
    return files


def _open(folder: Folder, file: Sealed, ring: KeyRing) -> Opened:
    with located(file=folder.full(file.name)):
        return file.open(ring)


def _change(folder: Folder, files: Iterable[Opened], change: Change) -> tuple[str, ...]:
    """Make all that is to be written, and only then write it."""
    made: list[tuple[Sealed, bytes]] = []
    for file in files:
        with located(file=folder.full(file.sealed.name)):
            new = file.changed(change)
        if new != file.sealed.data:
            made.append((file.sealed, new))
    for sealed, new in made:
        folder.replace(sealed.name, sealed.data, new)
    return tuple(sealed.name for sealed, _ in made)


# -- envelopes -------------------------------------------------------------------------------------


def _readers(envelope: Envelope) -> list[Recipient]:
    return [Recipient(wrapped.kind, wrapped.key_id) for wrapped in envelope.recipients]


def _wrapped(data_key: DataKey, keys: Collection[KeyProvider]) -> tuple[Wrapped, ...]:
    return Envelope.seal(data_key, keys).recipients if keys else ()


def _signed(envelope: Envelope, signer: SigningKey | None) -> tuple[str, bytes] | None:
    return envelope.signature if signer is None else (signer.id, signer.sign(envelope.dek_id))


def _checked(envelope: Envelope, new: Iterable[KeyProvider], ring: KeyRing) -> Envelope:
    """The envelope, if it fits the format, and those who were added will not refuse to read it."""
    asking = [key.id for key in new if not key.authenticates_writer]
    if asking and envelope.signature is None and not ring.allow_unsigned:
        raise PolicyError(
            f"the checkpoint is not signed, and readers with the key {', '.join(asking)} will ask for that: pass "
            "signer=, and so vouch for the checkpoint, or allow_unsigned=True"
        )
    return envelope.checked()
