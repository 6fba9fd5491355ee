"""Who may read a checkpoint or a plain file, changed afterwards: data keys are wrapped again, and data stays as it is.

Wrapped data keys and vouchers are stored outside of what the vouchers are made for, so only they are replaced, and with
them the pickle for torch's readers; each file in one step. So it is with `rename`, which gives items other names in
the index alone, since writer and number tie a container to its item; and with `stock`, which adds that pickle.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from streamxf.buffers import collector_paused
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import (
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    escaped,
)
from streamxf.keys import KeyProvider, KeyRing, SigningKey
from streamxf.places import Location, open_storage
from streamxf.reading import Access, AccessOptions, Item, KeySet, KeysLike, Path, SignerLike
from streamxf.tools.rekey.holders import Holder, MetadataFile, each, holders_at, metadata_of, notes_at, replace_each
from streamxf.tools.rekey.recipients import Opened, Recipients, Terms, without
from streamxf.wording import some

StorageOptions = Mapping[str, Any] | None

_log = logging.getLogger(__name__)


def recipients(
    path: Location, *, storage_options: StorageOptions = None, **options: Unpack[AccessOptions]
) -> Recipients:
    """List who may read a checkpoint or a plain file. Nothing is unpickled, and no data file is touched.

    With `keys`, as in a reader, the list is authenticated; without them it is the storage's claim. A signature is only
    a claim without the `VerifyKey` of its signer in `trust`, which needs no keys. The other arguments and errors are as
    in `rekey`; `expect_save_id` needs keys.
    """
    access = Access.of(**options)
    if not len(access.keys) and access.expected_saves is not None:
        raise ParameterError("expect_save_id needs keys: without a key anyone can write any save's id")
    return _listed(path, storage_options, access)


def rekey(
    path: Location,
    *,
    recipients: KeysLike,
    signer: SignerLike | None = None,
    vouch: bool = False,
    storage_options: StorageOptions = None,
    **options: Unpack[AccessOptions],
) -> tuple[str, ...]:
    """Wrap the data keys of a checkpoint or a plain file for `recipients`, and for no one else.

    Of a checkpoint only metadata files and the notes beside them are rewritten, each in one step; data files keep their
    bytes. Nothing is written until all data keys are unwrapped, all vouchers and signatures are verified, and all new
    metadata is made. Files are replaced one by one: after a failure in between, call this again with the same
    arguments, which also accepts files that are for `recipients` already. Notes that `keys` do not open stay as they
    are, with a warning.

    Parameters
    ----------
    path : path, str or Storage
        The checkpoint's folder, or its URL; or a local file that `streamxf.open` wrote. Such a file is copied without
        being decrypted, and replaced in one step.
    keys : Key, bytes, location, several of them or a KeyRing
        The keys that open it now.
    recipients : KeyProvider, bytes or location, or several
        Who may read from now on, as in `Encrypt`.
    signer : SigningKey or location, optional
        Signs the contents; signatures by others stay, too. What was saved without a signer has to be signed by `sign`
        first.
    trust, require, codecs, max_expansion, storage_options
        As in `Checkpoint`.
    allow_unsigned : bool
        Whether a signature may be missing that readers require, present ones or `recipients`.
    vouch : bool
        Whether you vouch for contents that anyone can have written: under a `PublicKey` alone, without a signature that
        `trust` verifies. Recipients with a `Key` or a key service will take them for authentic.
    expect_save_id : str or several, optional
        The only save whose data keys are passed on, as ``writer.save_id`` gave it; if ranks have their own metadata,
        the ids of all of them. Without it, anyone who can write to the folder may have put the metadata of another
        checkpoint there that `keys` open, and `recipients` then read that one.

    Returns the names of the rewritten files. ``()`` means that nothing had to change; if everything is wrapped for
    exactly `recipients` already, and one of these opens it, `keys` are not needed.

    Raises
    ------
    KeyMissingError, WrongKeyError, AuthenticationError, KeyServiceError
        If `keys` do not open it, or it was altered.
    IdentityError
        If it is not the save of `expect_save_id`.
    PolicyError
        If it is not encrypted, lacks a signature that `keys`, `trust` or `recipients` require, or can have been written
        by anyone, and `recipients` would take it for authentic.
    ParameterError
        If `recipients` or `signer` cannot be used, or there are too many recipients.
    MetadataError, ContainerError, DescriptorError
        If it is missing or damaged, or was replaced meanwhile.
    UnsupportedError
        If another writer made it, `signer` is given and it was saved without one, or a framework committed it to a
        `CheckpointManager`, whose record has the sizes of all files.
    OSError
        If it cannot be written. Then the old file is still there.
    """
    chosen = Encrypt.recipients_of(recipients)
    access, terms = _terms(options, signer, vouch)
    own = _own(chosen, access.keys, terms.signer)
    terms = replace(terms, trust=(*terms.trust, *own.trust))
    wanted = {(key.kind, key.id) for key in chosen}

    def open_(file: Holder) -> Opened:
        try:
            return file.open(access)
        except KeyMissingError as error:
            if {*file.keys.readers[0]} != wanted:
                raise
            if not len(own):
                raise KeyMissingError(
                    f"{error.message}; only the new recipients are named there, as after a call that was interrupted, "
                    "and no key shows that this is true: give one that opens it as well, in recipients= a PrivateKey "
                    "in place of its public key"
                ) from None
        return file.open(replace(access, keys=own))

    def change(file: Holder) -> KeySet:
        opened = open_(file)
        terms.check(opened, chosen, without(chosen, opened.keys.vouching))
        again = chosen if terms.may_vouch(opened) else ()
        return opened.keys.change(opened.data_keys, (), () if again else wanted, chosen, again, terms.signer_of(opened))

    return _change(path, storage_options, access, change)


def add_recipient(
    path: Location,
    *,
    recipients: KeysLike,
    signer: SignerLike | None = None,
    vouch: bool = False,
    storage_options: StorageOptions = None,
    **options: Unpack[AccessOptions],
) -> tuple[str, ...]:
    """Wrap the data keys of a checkpoint or a plain file for `recipients`, too; those that are there keep theirs.

    `keys` open it; the other arguments, what is returned and what is raised are as in `rekey`.
    """
    chosen = Encrypt.recipients_of(recipients)
    access, terms = _terms(options, signer, vouch)

    def change(file: Holder) -> KeySet:
        opened = file.open(access)
        terms.check(opened, without(chosen, opened.keys.readers[0]), without(chosen, opened.keys.vouching))
        return opened.keys.change(opened.data_keys, None, None, chosen, chosen, terms.signer_of(opened))

    return _change(path, storage_options, access, change)


def remove_recipient(
    path: Location, *, recipient: KeysLike, storage_options: StorageOptions = None, **options: Unpack[AccessOptions]
) -> tuple[str, ...]:
    """Remove a recipient's wrapped data keys and voucher; those of the others stay.

    Whoever has read the contents, or has an older copy of the metadata, may have kept the data keys.

    `recipient` is its id, 16 hexadecimal digits, which `recipients` lists, or the key itself, which may also open the
    checkpoint. The other arguments, what is returned and what is raised are as in `rekey`; ParameterError also if there
    is no such recipient, or no other.
    """
    known = isinstance(recipient, str) and ":" not in recipient
    if known and not re.fullmatch("[0-9a-f]{16}", str(recipient)):  # which may be a key, and is not shown
        raise ParameterError("a recipient's id has 16 hexadecimal digits; a key has a location, such as file:PATH")
    keys = () if known else Encrypt.recipients_of(recipient)
    if len(keys) > 1:
        raise ParameterError("recipient= is one key, or its id; call this again for each of several")
    key_id = keys[0].id if keys else recipient
    access, _ = _terms(options)
    there = _listed(path, storage_options, access)
    if key_id not in [one.id for one in (*there.whole, *there.part)]:
        names = ", ".join(map(str, (*there.whole, *there.part)))
        raise ParameterError(f"there is no recipient {key_id}; there are {names}")

    def change(file: Holder) -> KeySet:
        opened = file.open(access)
        left = {key for keys in (*opened.keys.readers, opened.keys.vouching) for key in keys if key[1] != key_id}
        if not all(map(left.intersection, opened.keys.readers)):
            raise ParameterError(f"{key_id} is the last recipient: no one could read; add another one first")
        return opened.keys.change(opened.data_keys, left, left)

    return _change(path, storage_options, access, change)


def _listed(path: Location, storage_options: StorageOptions, access: Access) -> Recipients:
    authenticated = len(access.keys) > 0

    def read(file: Holder) -> tuple[KeySet, Sequence[str], str]:
        if not authenticated:
            keys, trust = file.keys, access.keys.trust
            if trust:
                access.keys.check_signed(trust, keys.lines[1], keys.digest)
            return keys, [key.id for key in trust if keys.vouchers.signed_by([key], keys.digest)], ""
        opened = file.open(access)
        return file.keys, opened.verified(access.keys.trust), opened.save_id

    return Recipients.of(each(holders_at(path, storage_options, access.expected_saves), read), authenticated)


def _change(
    path: Location, storage_options: StorageOptions, access: Access, change: Callable[[Holder], KeySet]
) -> tuple[str, ...]:
    def plan(file: Holder) -> tuple[Holder, Any] | None:
        made = change(file)
        return (file, file.pack(made)) if made != file.keys else None

    def plan_note(file: Holder) -> tuple[Holder, Any] | None:
        try:
            return plan(file)
        except KeyServiceError:
            raise
        except StreamxfError as error:  # anybody may have put it there
            _log.warning("%s", escaped(f"{file.label} keeps its recipients: {error.message}"))
            return None

    planned = each(holders_at(path, storage_options, access.expected_saves), plan)
    return replace_each([*planned, *each(notes_at(path, storage_options), plan_note)], access)


def _terms(options: AccessOptions, signer: SignerLike | None = None, vouch: bool = False) -> tuple[Access, Terms]:
    access = Access.of(**options)
    if not len(access.keys):
        raise KeyMissingError("no key was given that could open it")
    return access, Terms.of(access.keys, signer, vouch)


def _own(chosen: tuple[KeyProvider, ...], ring: KeyRing, signer: SigningKey | None) -> KeyRing:
    """The new keys that open, for files that a call before this one was done with; it signed them as this one does."""
    keys = [key for key in chosen if key.unwraps]
    if not keys:
        return KeyRing()
    requires = signer is not None and not all(key.vouches for key in keys)
    trust = (*ring.trust, signer.verify_key) if signer is not None and requires else ring.trust
    return KeyRing(keys, trust=trust or None, allow_unsigned=ring.allow_unsigned)


def rename(
    path: Location,
    names: Mapping[str, str],
    *,
    signer: SignerLike | None = None,
    vouch: bool = False,
    storage_options: StorageOptions = None,
    **options: Unpack[AccessOptions],
) -> dict[str, str]:
    """Rename items of a checkpoint, without touching its data::

        streamxf.rename("checkpoint", {"model.module.*": "model.*"})

    Only metadata is rewritten, in one step: names, places in the nested state dict, and torch's pickle. Where ranks
    have their own, file by file: after a failure in between, call this again. It remains the same save, and its
    containers keep the names under which they were saved: `salvage` without metadata shows those.

    Parameters
    ----------
    names : mapping of str to str
        New names by old ones, as `rename` of `FileSystemReader`.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        The keys that open it, among them those of all recipients that vouch for it: they vouch anew.
    signer : SigningKey or location, optional
        Signs it; needed if it is signed.
    path, trust, allow_unsigned, vouch, expect_save_id, storage_options
        As in `rekey`.

    Returns the names that changed, new ones by old ones. Raises as `rekey`; also ParameterError if two items would have
    one name, or would not fit into one nested state dict, and if a name or pattern stands for no item; PolicyError if
    the key of a recipient that vouches is missing, or the signer of what is signed.
    """
    access = Access.of(**options)
    terms = Terms.of(access.keys, signer, vouch)
    storage, renaming = open_storage(path, storage_options), Access.of(rename=names).renaming
    if renaming is None:
        raise ParameterError("names= is a mapping from old names to new ones, and None was given")
    changed: dict[str, str] = {}
    seen: set[str] = set()

    def plan(file: MetadataFile) -> tuple[MetadataFile, bytes] | None:
        opened = file.open(access) if file.is_encrypted else None
        metadata = file.metadata if opened is not None else file.read(access)
        index, items = metadata.index, metadata.items
        assert index is not None  # there is one where there are sections
        names_now = renaming.of(items)
        changes = {old: new for old, new in names_now.items() if old != new}
        moved, record = _renamed(items, renaming), metadata.nesting
        paths = ((items[old].path, moved[new].path) for old, new in names_now.items())
        order = map(names_now.__getitem__, record.in_saved_order(items))
        extra = record.moved((old, new) for old, new in paths if old and new).with_order(order)
        index = replace(index, items=moved, extra=extra)
        changed.update(changes)
        seen.update(items)
        if not changes:
            return None
        sections = file.sections.with_index(*index.pack())
        keys = vouched_anew(file, opened, sections.digest, access, terms)
        return file, file.pack(keys, sections, replace(metadata, index=index))

    planned = each(metadata_of(storage), plan)
    if unused := renaming.unused(seen, patterns=True):
        raise ParameterError(f"the checkpoint has no items of these names: {some(unused)}", file=storage.label())
    replace_each(planned, access)
    return changed


@collector_paused()
def _renamed(items: Mapping[str, Item], renaming: Any) -> dict[str, Item]:
    """Raises ParameterError if they do not fit into one nested state dict: in one place, or one below the other."""
    made = {name: replace(item, name=name) for name, item in sorted(renaming.items(items).items())}
    placed: dict[Path, tuple[object, str]] = {}
    for item in made.values():
        path = item.path or ()
        for depth, what in enumerate([*map(type, path), *[item.name] * bool(path)]):
            found, other = placed.setdefault(path[:depth], (what, item.name))
            if found != what:
                raise ParameterError(f"{item.name!r} and {other!r} would not fit into one nested state dict")
    return made


def vouched_anew(
    file: MetadataFile, opened: Opened | None, digest: bytes, access: Access, terms: Terms
) -> KeySet | None:
    """The same keys with vouchers and a signature for another digest; None where there are none."""
    if file.vouched is not None and file.vouched.signers and terms.signer is None:
        raise PolicyError(f"it is signed by {', '.join(file.vouched.signers)}, and has to be signed again (signer)")
    if opened is None and terms.signer is None:
        return None
    if opened is None and file.vouched is None:
        raise ParameterError("signer= signs anew what is signed, and this checkpoint is not: sign it (`streamxf sign`)")
    if opened is None:
        assert terms.signer is not None  # or it returned
        return KeySet.of_signer(digest, terms.signer)
    vouching = [key for key in access.keys if (key.kind, key.id) in opened.keys.vouching]
    if silent := {*opened.keys.vouching}.difference((key.kind, key.id) for key in vouching):
        raise PolicyError(
            "it has to be vouched for anew by each recipient that did so before, and no key was given of "
            f"{some(sorted(id for _, id in silent))}: pass those as well, or remove the recipients first"
        )
    terms.check(opened, (), vouching)
    vouchers = replace(opened.keys.vouchers, entries=(), signatures=())
    keys = replace(opened.keys, vouchers=vouchers, digest=digest)
    return keys.change(opened.data_keys, None, (), (), vouching, terms.signer_of(opened))


def stock(path: Location, *, storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Put the pickle that torch's own readers need at the head of a checkpoint's metadata.

    It needs no keys, and vouchers and signatures stay: they are made for the index, from which the pickle is derived.
    Each metadata file is replaced in one step; if ranks have their own, one after the other.

    `path` is the checkpoint's folder, or its URL, which fsspec opens with `storage_options`. Returns the names of the
    rewritten files; ``()`` if torch's readers could read all of them before.

    Raises
    ------
    MetadataError
        If it is missing or damaged, was replaced meanwhile, or would be too large.
    UnsupportedError
        If another writer made it, or several processes encrypted it: torch's readers need each data key wrapped for
        the recipients, which only a save can do.
    OSError
        If it cannot be written. Then the old file is still there.
    """

    def plan(file: MetadataFile) -> tuple[MetadataFile, bytes] | None:
        if file.sections.pickled:
            return None
        index = file.read(Access(), listing=True).index
        if index is not None and index.beside:
            raise UnsupportedError(
                f"it has files in {some(sorted(index.beside))}, where torch's own readers do not look: "
                "`streamxf consolidate` first",
                file=file.label,
            )
        return file, file.pack(file.vouched, replace(file.sections, pickled=True))

    return replace_each(each(metadata_of(open_storage(path, storage_options)), plan), Access())
