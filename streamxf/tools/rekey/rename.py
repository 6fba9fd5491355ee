"""Other names for the items of a checkpoint, in its index alone: writer and number tie a container to its item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamxf.buffers import collector_paused
from streamxf.checkpoint.access import Access, SaveIds
from streamxf.checkpoint.metadata import metadata_in
from streamxf.checkpoint.renaming import Names, Renaming, check_nesting, renamed
from streamxf.errors import ParameterError, PolicyError, located
from streamxf.format.items import Item
from streamxf.keys import KeysLike, SignerLike, TrustLike
from streamxf.keys.location import as_signing_key
from streamxf.storage.opening import Location, open_storage
from streamxf.tools.rekey.holders import MetadataFiles, key_set
from streamxf.tools.rekey.recipients import KeySet, Opened, Terms
from streamxf.wording import some


def rename(
    path: Location,
    names: Names,
    *,
    keys: KeysLike = None,
    signer: SignerLike | None = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    vouch: bool = False,
    expect_save_id: SaveIds = None,
    storage_options: Mapping[str, Any] | None = None,
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
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned, expect_save_id=expect_save_id)
    by = as_signing_key(signer) if signer is not None else None
    terms = Terms(access.keys.trust, by, access.keys.allow_unsigned, vouch)
    storage, renaming = open_storage(path, storage_options), Renaming(names)
    files = MetadataFiles(storage)
    changed: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for name in files.names():
        with located(file=files.label(name)):
            items = metadata_in(files.sections(name), name, access).items
            changed[name] = {old: new for old, new in renaming.of(items).items() if old != new}
            _renamed(items, renaming)
        seen.update(items)
    if unused := renaming.unused(seen, patterns=True):
        raise ParameterError(f"the checkpoint has no items of these names: {some(unused)}", file=storage.label())
    for name in filter(changed.get, changed):
        with located(file=files.label(name)):
            before = files.sections(name)
            index = metadata_in(before, name, access).index
            assert index is not None  # there is one where there are sections
            packed = replace(index, items=_renamed(index.items, renaming)).pack()
            after, keys_before = before.with_index(*packed), key_set(before)
            opened = files.open(access, name, keys_before, before) if keys_before is not None else None
            files.replace(name, before, after, _vouched(opened, after.digest, access, terms))
    return {old: new for each in changed.values() for old, new in each.items()}


@collector_paused()
def _renamed(items: Mapping[str, Item], renaming: Renaming) -> dict[str, Item]:
    made = {name: replace(item, name=name) for name, item in renamed(items, renaming.of(items)).items()}
    check_nesting(made.values())
    return made


def _vouched(opened: Opened | None, digest: bytes, access: Access, terms: Terms) -> KeySet | None:
    """The same keys with vouchers and a signature for another digest; None where there are no keys."""
    if opened is None:
        if terms.signer is not None:
            raise ParameterError("signer= signs encrypted checkpoints, and this one is not encrypted")
        return None
    vouchers = opened.keys.vouchers
    if vouchers.signature is not None and terms.signer is None:
        raise PolicyError(f"it is signed by {vouchers.signature[0]}, and has to be signed anew: pass the signer")
    entries = {entry.key: entry for entry in vouchers.entries}
    vouching = [key for key in access.keys if entries.pop((key.kind, key.id), None)]
    if entries:
        raise PolicyError(
            "it has to be vouched for anew by each recipient that did so before, and no key was given of "
            f"{some([id for _, id in entries])}: pass those as well, or remove the recipients first"
        )
    terms.check(opened, (), vouching)
    return opened.change(lambda envelope, _: envelope.recipients, (), vouching, terms.signer, digest)
