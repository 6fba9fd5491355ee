"""A signature for a checkpoint that is there: its data is read once, and only its metadata is written anew."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Unpack

from streamxf.errors import KeyMissingError, MetadataError, located
from streamxf.keys import as_signing_key
from streamxf.places import Location, Storage, open_storage
from streamxf.reading import Access, AccessOptions, ItemOpener, ItemPart, KeySet, Metadata, Progress, SignerLike
from streamxf.tools.rekey.holders import MetadataFile, each, metadata_of, replace_each
from streamxf.tools.rekey.recipients import Terms
from streamxf.tools.rekey.rekey import vouched_anew


def sign(
    path: Location,
    *,
    signer: SignerLike,
    vouch: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Unpack[AccessOptions],
) -> tuple[str, ...]:
    """Sign a checkpoint, encrypted or not; signatures by others stay, up to four in all.

    All that is stored is read once, and compared with its CRCs and, if it is signed already, with what others signed.
    No data file changes; metadata is replaced in one step, or file by file where ranks have their own. The signature
    stands for the bytes that were read: sign what you know, such as a checkpoint that `verify` finds intact and whose
    values you have seen.

    Parameters
    ----------
    signer : SigningKey or location
    keys : Key, bytes, location, several of them or a KeyRing, optional
        Of an encrypted checkpoint, the keys of all recipients that vouch for it, as in `rename`.
    progress : Progress, optional
    path, trust, allow_unsigned, vouch, expect_save_id, storage_options
        As in `rename`.

    Returns the names of the rewritten files. Raises as `rename`; also ContainerError, BlockError, IdentityError, with
    the item, if its data is damaged, missing or another's; ParameterError if there are four signatures by others.
    """
    access = Access.of(**options)
    own = as_signing_key(signer)
    terms = Terms.of(access.keys, own, vouch)
    storage = open_storage(path, storage_options)

    def plan(file: MetadataFile) -> tuple[MetadataFile, bytes]:
        if file.is_encrypted and not len(access.keys):
            raise KeyMissingError("the checkpoint is encrypted: give the keys that open it")
        opened = file.open(access) if file.is_encrypted else None
        metadata = file.metadata if opened is not None else file.read(access)
        digests = _digests(storage, metadata, access, progress)
        if file.vouched is not None and file.vouched.signers:
            if opened is None:
                return file, file.pack(KeySet.of_signer(file.sections.digest, own, file.vouched))
            return file, file.pack(opened.keys.change(opened.data_keys, None, None, signer=own))
        index = metadata.with_digests(digests)
        sections = file.sections.with_index(*index.pack())
        keys: KeySet | None = KeySet.of_signer(sections.digest, own)
        if opened is not None:
            keys = vouched_anew(file, replace(opened, signable=True), sections.digest, access, terms)
        return file, file.pack(keys, sections, replace(metadata, index=index))

    planned = each(metadata_of(storage), plan)
    files = [file.metadata for file, _ in planned]
    Metadata.check_one_save(files, access, storage.label(), *Metadata.lacking(files), strict=True)
    return replace_each(planned, access)


def _digests(
    storage: Storage, metadata: Metadata, access: Access, progress: Progress | None
) -> dict[tuple[str, int, int], bytes]:
    """Those of all that is stored, by file, place and size."""
    with closing(storage.open_files()) as files:
        return _digests_by(ItemOpener(metadata, access, open_file=files.__getitem__), storage, progress)


def _digests_by(opener: ItemOpener, storage: Storage, progress: Progress | None) -> dict[tuple[str, int, int], bytes]:
    metadata, found = opener.metadata, dict[tuple[str, int, int], bytes]()
    parts = sorted((part for item in metadata.each() for part in ItemPart.of(item)), key=lambda part: part.place[:3])
    if progress is not None:
        progress.expect(sum(part.place.size for part in parts))
    by_file: dict[str, list[ItemPart]] = {}
    for part in parts:
        by_file.setdefault(part.place.file, []).append(part)
    for name, own in by_file.items():
        with located(file=storage.label(name)), storage.doubting(), storage.open(name) as file:
            last, end = None, 0
            for part in own:
                place = part.place
                with located(item=part.item.name):
                    if place.span is None or place.crcs is not None or place.container != last:
                        if place.size and place.at < end:
                            raise MetadataError("the metadata places the item over another one: it was altered")
                        found[place[:3]] = opener.examine(opener.source(file, place), part).stored_digests()
                last, end = place.container, max(end, place.at + place.size)
                if progress is not None:
                    progress.advance(place.size)
    return found
