"""Metadata rewritten without touching data. `rename` gives items other names, in the index alone, since writer and
number tie a container to its item; `stock` adds the pickle by which torch's own readers read a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamxf.buffers import collector_paused
from streamxf.checkpoint.access import Access, Names, Renaming, SaveIds, check_nesting, renamed
from streamxf.errors import ParameterError, PolicyError
from streamxf.format.extra import NESTING
from streamxf.format.extra import moved as moved_record
from streamxf.format.items import Item
from streamxf.keys import KeysLike, SignerLike, TrustLike
from streamxf.storage.opening import Location, open_storage
from streamxf.tools.rekey.holders import MetadataFile, each, metadata_of, replace_each
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
    terms = Terms.of(access.keys, signer, vouch)
    storage, renaming = open_storage(path, storage_options), Renaming(names)
    changed: dict[str, str] = {}
    seen: set[str] = set()

    def plan(file: MetadataFile) -> tuple[MetadataFile, bytes] | None:
        opened = file.open(access) if file.is_encrypted else None
        items = file.index.items if opened is not None else file.read(access).items
        moved = {old: new for old, new in renaming.of(items).items() if old != new}
        renamed_items, extra = _renamed(items, renaming), {**file.index.extra}
        if record := extra.pop(NESTING, None):
            paths = ((items[old].path, renamed_items[moved_to].path) for old, moved_to in renaming.of(items).items())
            extra[NESTING] = moved_record(record, ((old, new) for old, new in paths if old and new))
        index = replace(file.index, items=renamed_items, extra=extra)
        changed.update(moved)
        seen.update(items)
        if not moved:
            return None
        sections = file.sections.with_index(*index.pack())
        return file, file.pack(_vouched(opened, sections.digest, access, terms), sections, index)

    planned = each(metadata_of(storage), plan)
    if unused := renaming.unused(seen, patterns=True):
        raise ParameterError(f"the checkpoint has no items of these names: {some(unused)}", file=storage.label())
    replace_each(planned, access)
    return changed


@collector_paused()
def _renamed(items: Mapping[str, Item], renaming: Renaming) -> dict[str, Item]:
    made = {name: replace(item, name=name) for name, item in sorted(renamed(items, renaming.of(items)).items())}
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
        raise PolicyError(f"it is signed by {vouchers.signature[0]}, and has to be signed again (signer)")
    entries = {entry.key: entry for entry in vouchers.entries}
    vouching = [key for key in access.keys if entries.pop((key.kind, key.id), None)]
    if entries:
        raise PolicyError(
            "it has to be vouched for anew by each recipient that did so before, and no key was given of "
            f"{some([id for _, id in entries])}: pass those as well, or remove the recipients first"
        )
    terms.check(opened, (), vouching)
    return opened.change(lambda envelope, _: envelope.recipients, (), vouching, terms.signer, digest)


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
        file.read(Access(), listing=True)
        return file, file.pack(file.keys if file.is_encrypted else None, replace(file.sections, pickled=True))

    return replace_each(each(metadata_of(open_storage(path, storage_options)), plan), Access())
