"""Who may read a checkpoint, or a file of `streamxf.open`, changed afterwards: data keys are wrapped anew, and the data
stays as it is.

Wrapped data keys stand in the metadata only, so only that is rewritten; each file of it in one step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from streamxf.codecs.encrypt import as_recipients
from streamxf.dcp.folder import Folder, digest
from streamxf.dcp.metadata.limits import MAX_ALL_METADATA
from streamxf.dcp.metadata.save_ids import SaveIds, as_save_ids, check_save_id
from streamxf.dcp.rekey.plain import OpenedFile, PlainFile, SealedFile
from streamxf.dcp.rekey.sealed import Opened, Sealed
from streamxf.dcp.rekey.vouch import Terms, verified_signer
from streamxf.errors import KeyMissingError, MetadataError, ParameterError, located
from streamxf.keys import KeyLike, KeyProvider, KeyRing, KeysLike, SignerLike, SigningKey, VerifyKey
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope, Wrapped
from streamxf.keys.location import as_provider, as_signing_key
from streamxf.keys.ring import TrustLike

StorageOptions = Mapping[str, Any] | None
Change = Callable[[Envelope, DataKey], Envelope]
"""What is to stand in the place of an envelope, given its data key."""

T = TypeVar("T")
_Holder = Folder | PlainFile
_Sealed = Sealed | SealedFile
_Opened = Opened | OpenedFile

_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)


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
        Ids of those who signed data keys, as the metadata says; None where one is not signed.
    authenticated : bool
        Whether a key has shown that this is so. Otherwise it is what the storage says, which may not be true.
    verified : tuple of str
        Those among `signers` whose `VerifyKey` has shown that they signed. A key alone cannot show that: whoever can
        read can name any signer.
    save_ids : tuple of str
        Which save the checkpoint is, as ``writer.save_id`` gave it; where ranks have metadata of their own, one for
        each file. Empty unless `authenticated`.
    """

    whole: tuple[Recipient, ...]
    part: tuple[Recipient, ...]
    signers: tuple[str | None, ...]
    authenticated: bool
    verified: tuple[str, ...] = ()
    save_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"recipient {recipient}" for recipient in self.whole]
        lines += [f"recipient {recipient} of a part only" for recipient in self.part]
        for signer in self.signers:
            words = "signed by" if signer in self.verified else "claims to be signed by"
            lines.append("not signed" if signer is None else f"{words} {signer}")
        lines += [f"save {save_id}" for save_id in self.save_ids]
        lines.append("authenticated" if self.authenticated else "not authenticated: it is what the storage says")
        return "\n".join(lines)

    @classmethod
    def _of(cls, envelopes: Collection[_Read], authenticated: bool, save_ids: Iterable[str] = ()) -> Recipients:
        found = dict.fromkeys(recipient for one in envelopes for recipient in one.readers)
        whole = tuple(recipient for recipient in found if all(recipient in one.readers for one in envelopes))
        part = tuple(recipient for recipient in found if recipient not in whole)
        signers = tuple(dict.fromkeys(one.signer for one in envelopes))
        claimed = {one.signer for one in envelopes if not one.verified}
        verified = tuple(signer for signer in signers if signer is not None and signer not in claimed)
        return cls(whole, part, signers, authenticated, verified, tuple(save_ids))


@dataclass(frozen=True)
class _Read:
    """What is kept of an envelope for the list of recipients."""

    readers: tuple[Recipient, ...]
    signer: str | None
    verified: bool

    @classmethod
    def of(cls, envelope: Envelope, trust: Iterable[VerifyKey] = ()) -> _Read:
        signer = envelope.signature[0] if envelope.signature is not None else None
        return cls(_readers(envelope), signer, verified_signer(envelope, trust) is not None)


def recipients(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    expect_save_id: SaveIds = None,
    storage_options: StorageOptions = None,
) -> Recipients:
    """List who may read a checkpoint. Nothing is unpickled, and no data file is touched.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL; or a local file that `streamxf.open` wrote.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        To check that the list is authentic. Without keys it is what the metadata's manifest says of the process that
        wrote it.
    trust, allow_unsigned
        As in `KeyRing`. Only with the `VerifyKey` of who signed is a signature more than a claim.
    expect_save_id : str or several, optional
        As in `rekey`; it needs keys.
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
    expected = as_save_ids(expect_save_id)
    folder = _holder(path, storage_options, expected)
    if not len(ring):
        if expected is not None:
            raise ParameterError("expect_save_id= needs keys=: without a key anybody can write any save's id")
        return Recipients._of(_each(folder, lambda file: _Read.of(file.envelope)), authenticated=False)
    return _recipients(folder, ring, expected)


def rekey(
    path: str | os.PathLike[str],
    old: KeysLike,
    new: KeysLike,
    *,
    signer: SignerLike | None = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    vouch: bool = False,
    expect_save_id: SaveIds = None,
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
        The checkpoint's folder, or its URL; or a local file that `streamxf.open` wrote. Such a file has its wrapped
        keys at its beginning, so it is written anew beside itself, and takes its place in one step.
    old : Key, bytes, location, several of them or a KeyRing
        What opens the checkpoint now.
    new : KeyProvider, bytes or location, or several
        Who may read from now on, as in `Encrypt`.
    signer : SigningKey or location, optional
        Signs the data keys, in the place of who signed them before: who changes keys then vouches for the checkpoint.
        Without it, signatures stay as they are.
    trust : VerifyKey or location, or several
        Whose signature counts when `old` opens the checkpoint, as in `KeyRing`.
    allow_unsigned : bool
        Whether data keys may lack a signature that readers ask for: those of `old`, and those of `new`.
    vouch : bool
        Whether you answer for a checkpoint that anybody can have written: without a signature that `trust` verifies,
        and under a `PublicKey` alone. Readers of `new` with a `Key` or a key service will take it for authentic.
    expect_save_id : str or several, optional
        The only save whose data keys are handed on, as ``writer.save_id`` gave it; where ranks have metadata of their
        own, the ids of all of them. Without it, whoever can write to the folder may have put the metadata of another
        checkpoint there that `old` opens, and `new` then reads that one.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Returns
    -------
    tuple of str
        The names of the metadata files that were rewritten. ``()`` means that nothing had to change; where everything
        is wrapped for `new` already, and for nobody else, a key of `new` opens it, and `old` is not needed.

    Raises
    ------
    KeyMissingError, WrongKeyError, AuthenticationError, KeyServiceError
        If `old` does not open the checkpoint, or it was altered.
    IdentityError
        If it is another save than `expect_save_id`.
    PolicyError
        If it is not encrypted, lacks a signature that `old`, `trust` or the readers of `new` ask for, or nothing shows
        who wrote it, and readers of `new` would believe that something did.
    ParameterError
        If `new` or `signer` cannot be used, or there are too many recipients.
    MetadataError, DescriptorError
        If metadata is missing or damaged, or somebody replaced it meanwhile.
    UnsupportedError
        If the checkpoint was not made by streamxf's writer, or this is a plain file.
    OSError
        If metadata cannot be written. What was there is then still there.
    """
    chosen = as_recipients(new, "new")
    by = as_signing_key(signer) if signer is not None else None
    ring = KeyRing.of(old, trust, allow_unsigned)
    if not len(ring):
        raise KeyMissingError("old= has no key that could open the checkpoint")
    wanted = {Recipient(key.kind, key.id) for key in chosen}
    own = _own(chosen, ring, by)
    terms = Terms((*ring, *own), (*ring.trust, *own.trust), by, ring.allow_unsigned, vouch)

    def opened(file: _Sealed) -> _Opened:
        try:
            return file.open(ring)
        except KeyMissingError as error:
            if set(_readers(file.envelope)) != wanted:
                raise
            if not len(own):
                raise KeyMissingError(
                    f"{error.message}; the metadata names the new recipients alone, as after a call that was "
                    "interrupted, and no key shows that this is true: give one that opens it as well, in new= a "
                    "PrivateKey in the place of its public key"
                ) from None
        return file.open(own)

    def change(envelope: Envelope, data_key: DataKey) -> Envelope:
        terms.check(envelope, chosen)
        made = replace(envelope, recipients=_wrapped(data_key, chosen), signature=terms.signed(envelope))
        return made.checked()

    expected = as_save_ids(expect_save_id)
    return _change(_holder(path, storage_options, expected), opened, change, expected)


def add_recipient(
    path: str | os.PathLike[str],
    keys: KeysLike,
    new: KeysLike,
    *,
    signer: SignerLike | None = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    vouch: bool = False,
    expect_save_id: SaveIds = None,
    storage_options: StorageOptions = None,
) -> tuple[str, ...]:
    """Wrap a checkpoint's data keys for somebody more; those who may read already are left as they are.

    Parameters
    ----------
    keys : Key, bytes, location, several of them or a KeyRing
        What opens the checkpoint.
    new : KeyProvider, bytes or location, or several
        Who may read, too. Somebody who may already stays so.
    path, signer, trust, allow_unsigned, vouch, expect_save_id, storage_options
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
    chosen = as_recipients(new, "new")
    by = as_signing_key(signer) if signer is not None else None
    ring = KeyRing.of(keys, trust, allow_unsigned)
    terms = Terms(tuple(ring), tuple(ring.trust), by, ring.allow_unsigned, vouch)

    def change(envelope: Envelope, data_key: DataKey) -> Envelope:
        there = _readers(envelope)
        fresh = [key for key in chosen if Recipient(key.kind, key.id) not in there]
        terms.check(envelope, fresh)
        wrapped = envelope.recipients + _wrapped(data_key, fresh)
        return replace(envelope, recipients=wrapped, signature=terms.signed(envelope)).checked()

    expected = as_save_ids(expect_save_id)
    return _change(_holder(path, storage_options, expected), lambda file: file.open(ring), change, expected)


def remove_recipient(
    path: str | os.PathLike[str],
    keys: KeysLike,
    recipient: KeyLike,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    expect_save_id: SaveIds = None,
    storage_options: StorageOptions = None,
) -> tuple[str, ...]:
    """Take a recipient's wrapped data keys out of a checkpoint; those of the others are left as they are.

    Whoever has read the checkpoint, or has a copy of the metadata from before, can have kept the data keys: this does
    not take them back.

    Parameters
    ----------
    keys : Key, bytes, location, several of them or a KeyRing
        What opens the checkpoint; that recipient's own key may.
    recipient : str, KeyProvider, bytes or location
        The recipient's id, 16 hexadecimal digits, which `recipients` lists; or the key itself.
    path, trust, allow_unsigned, expect_save_id, storage_options
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
    known = isinstance(recipient, str) and _ID.fullmatch(recipient)
    key_id = recipient if known else as_provider(recipient).id
    ring = KeyRing.of(keys, trust, allow_unsigned)
    expected = as_save_ids(expect_save_id)
    folder = _holder(path, storage_options, expected)
    there = _recipients(folder, ring, expected)
    if key_id not in [one.id for one in (*there.whole, *there.part)]:
        names = ", ".join(map(str, (*there.whole, *there.part)))
        raise ParameterError(f"the checkpoint has no recipient {key_id}; it has {names}")

    def change(envelope: Envelope, _: DataKey) -> Envelope:
        left = tuple(wrapped for wrapped in envelope.recipients if wrapped.key_id != key_id)
        if not left:
            raise ParameterError(f"{key_id} is the last recipient: without it nobody could read; add another one first")
        return replace(envelope, recipients=left)

    return _change(folder, lambda file: file.open(ring), change, expected)


# -- files -----------------------------------------------------------------------------------------


def _holder(path: str | os.PathLike[str], storage_options: StorageOptions, expected: frozenset[str] | None) -> _Holder:
    """A checkpoint's folder, or the file that this is."""
    if storage_options or not PlainFile.is_one(path):
        return Folder(path, storage_options)
    if expected is not None:
        raise ParameterError("expect_save_id= is for checkpoints: a file that streamxf.open wrote belongs to no save")
    return PlainFile(path)


def _parse(folder: _Holder, name: str, data: bytes) -> _Sealed:
    return SealedFile.parse(name, data) if isinstance(folder, PlainFile) else Sealed.parse(name, data)


def _each(folder: _Holder, work: Callable[[_Sealed], T]) -> list[T]:
    """Do `work` on all metadata files. One of them is in memory at a time: they may be large, and nobody has vouched
    for them yet.
    """
    done: list[T] = []
    total = 0
    for name in folder.names():
        with located(file=folder.full(name)):
            data = folder.read(name)
            total += len(data)
            if total > MAX_ALL_METADATA:
                raise MetadataError(f"the folder's metadata files have more than {MAX_ALL_METADATA} bytes")
            done.append(work(_parse(folder, name, data)))
            del data
    return done


def _recipients(folder: _Holder, ring: KeyRing, expected: frozenset[str] | None) -> Recipients:
    def read(file: _Sealed) -> tuple[str, list[_Read]]:
        opened = file.open(ring)
        check_save_id(opened.save_id, expected)
        return opened.save_id, [_Read.of(envelope, ring.trust) for envelope in opened.envelopes]

    files = _each(folder, read)
    ids = [save_id for save_id, _ in files if save_id]
    return Recipients._of([one for _, found in files for one in found], authenticated=True, save_ids=ids)


@dataclass(frozen=True)
class _Planned:
    """What is kept of a metadata file until it is written: enough to make the same again of the same file."""

    name: str
    digest: bytes
    data_keys: Mapping[Envelope, DataKey]
    made: Mapping[Envelope, Envelope]
    changes: bool


def _change(
    folder: _Holder, open_: Callable[[_Sealed], _Opened], change: Change, expected: frozenset[str] | None
) -> tuple[str, ...]:
    """Make all that is to be written, and only then write it."""

    def plan(file: _Sealed) -> _Planned:
        opened = open_(file)
        check_save_id(opened.save_id, expected)
        made = {envelope: change(envelope, data_key) for envelope, data_key in opened.data_keys.items()}
        changes = opened.changed(made) != file.data
        return _Planned(file.name, digest(file.data), opened.data_keys, made, changes)

    planned = [file for file in _each(folder, plan) if file.changes]
    for file in planned:
        _rewrite(folder, file)
    return tuple(file.name for file in planned)


def _rewrite(folder: _Holder, planned: _Planned) -> None:
    data = folder.read(planned.name)
    if digest(data) != planned.digest:
        raise folder.replaced(planned.name)
    with located(file=folder.full(planned.name)):
        new = _parse(folder, planned.name, data).reopen(planned.data_keys).changed(planned.made)
    del data
    folder.replace(planned.name, planned.digest, new)


# -- envelopes -------------------------------------------------------------------------------------


def _readers(envelope: Envelope) -> tuple[Recipient, ...]:
    return tuple(Recipient(wrapped.kind, wrapped.key_id) for wrapped in envelope.recipients)


def _wrapped(data_key: DataKey, keys: Collection[KeyProvider]) -> tuple[Wrapped, ...]:
    return Envelope.seal(data_key, keys).recipients if keys else ()


def _own(chosen: Iterable[KeyProvider], ring: KeyRing, signer: SigningKey | None) -> KeyRing:
    """The new keys that open, for files that a call before this one was done with; it signed them as this one does."""
    keys = [key for key in chosen if key.unwraps]
    if not keys:
        return KeyRing()
    asks = signer is not None and not all(key.authenticates_writer for key in keys)
    trust = (*ring.trust, signer.verify_key) if signer is not None and asks else ring.trust
    return KeyRing(keys, trust=trust or None, allow_unsigned=ring.allow_unsigned)
