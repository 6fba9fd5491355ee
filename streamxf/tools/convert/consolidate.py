"""`consolidate`: an increment becomes a checkpoint that needs no other one, and shares no file with any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Unpack

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.codec import CodecRegistry
from streamxf.descriptor import Descriptor
from streamxf.errors import ForeignError, ParameterError, PolicyError
from streamxf.keys import KeyRing
from streamxf.places import Location, Storage, open_storage
from streamxf.reading import Access, AccessOptions, KeysLike, Metadata, Progress, SignerLike
from streamxf.tools.convert.conversion import FILE_SIZE, Converted
from streamxf.tools.convert.pack import copy
from streamxf.wording import some
from streamxf.writing import Pins, Save


def consolidate(
    path: Location,
    *,
    recipients: KeysLike = None,
    signer: SignerLike | None = None,
    file_size: int = FILE_SIZE,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Unpack[AccessOptions],
) -> Converted | None:
    """Have a checkpoint that an incremental save made be whole by itself: what it shares with others, by links or by
    naming their files, is written to its own folder.

    It is decoded, encoded through the same chains, and published in one step with a new save id; the metrics that came
    later, and the run, stay. If the process is killed, the old checkpoint or the new one loads, and the same call
    resumes. Then it gives back what kept the files of others, so that these may be removed.

    Parameters
    ----------
    path : path, str or Storage
        The checkpoint's folder, or its URL.
    recipients : Key, bytes, location or several, optional
        If it is encrypted, the keys of those who read it, all of them and no others, besides those in `keys`.
    signer : SigningKey or location, optional
        Signs it anew, which one that is signed needs.
    file_size, progress, storage_options, keys, trust, allow_unsigned, require, expect_save_id, codecs, max_expansion
        As in `transcode`.

    Returns what was written, as `transcode`; None if the checkpoint was whole by itself.

    Raises
    ------
    ParameterError, PolicyError
        If a recipient's key is missing, or not one of a recipient's; if nobody signs what was signed.
    FileNotFoundError, StreamxfError
        If it is damaged, or what it needs of others has been removed. Then nothing is published.
    """
    storage, access = open_storage(path, storage_options), Access.of(**options)
    with Checkpoint.at(storage, access) as checkpoint:
        if not any(each.index is not None and each.index.bases for each in checkpoint.metadata):
            return None
        own = [pin for each in checkpoint.metadata for pin in _pins(storage, each)]
        chains = _chains(checkpoint)
        chosen = _recipients(checkpoint, recipients, access)
        if signer is None and (signers := {id for each in checkpoint.metadata for id in each.signers}):
            raise PolicyError(f"it is signed by {some(sorted(signers))}, and has to be signed again (signer)")
    to = Save.to(path, chains, chosen, signer, True, storage_options=storage_options)
    made = copy(storage, access, to, file_size, progress, in_place=True)
    with suppress(OSError, ForeignError):  # what stays counts for a day
        storage.beside("")[0].remove(own)
    return made


def _pins(storage: Storage, metadata: Metadata) -> Iterator[str]:
    """Those that keep what it needs, by their paths in the run's folder."""
    if (index := metadata.index) is not None:
        yield from (f"{folder}/{Pins.name(index.save_id, storage.resolved().name)}" for folder in sorted(index.beside))


def _chains(checkpoint: Checkpoint) -> dict[str, str]:
    """In text form the chain of each item, by its name; of most items by ``*``."""
    items = {name: next(iter(item.places), None) for name, item in checkpoint.stored.items()}
    texts = {name: _text(place) for name, place in items.items() if place is not None}
    usual = Counter(texts.values()).most_common(1)
    default = usual[0][0] if usual else ""
    return {"*": default} | {name: text for name, text in texts.items() if text != default}


def _text(place: Any) -> str:
    """The chain that an item has passed, without torch's stream transforms before it."""
    words = [Descriptor.parse(text) for text in place.descriptors if not text.startswith("!")]
    if not words:
        return "raw" if place.crcs is not None else ""
    return "+".join(map(_word, words))


def _word(codec: Descriptor) -> str:
    name = CodecRegistry.short_name(codec.name)
    parameters = codec.parameters + codec.fragment if name != "encrypt" else ()
    return f"{name}:{','.join(f'{key}={value}' for key, value in parameters)}" if parameters else name


def _recipients(checkpoint: Checkpoint, given: KeysLike, access: Access) -> KeysLike:
    """The keys to encrypt for, which are those of all that read it now; None if it is not encrypted."""
    readers = {reader for each in checkpoint.metadata if each.keys is not None for reader in each.keys.readers[0]}
    keys = {(key.kind, key.id): key for key in access.keys if (key.kind, key.id) in readers}
    keys |= {(key.kind, key.id): key for key in (() if given is None else KeyRing.of(given))}
    if missing := sorted(id for _, id in readers - keys.keys()):
        raise ParameterError(f"it is encrypted to {some(missing)}, too, and no key was given of that (recipients)")
    if others := sorted(id for _, id in keys.keys() - readers):
        text = "add a recipient with `streamxf rekey`" if readers else "encrypt it with `streamxf transcode`"
        raise ParameterError(f"{some(others)} cannot read it now, and it stays for the same readers: {text}")
    return [*keys.values()] or None
