"""`open_source`: detects the format of a path and opens the reader for it; `contents_of`: what is known of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace

from streamxf.buffers import collector_paused
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import ForeignError, NoCheckpointError, StreamxfError, UnsupportedError, located
from streamxf.format.items import Place
from streamxf.formats import huggingface, torchfile
from streamxf.formats.contents import PLAIN, SUFFIXES, Contents, FileReader, Format, sizes_of
from streamxf.places import Storage, made_by_saves
from streamxf.reading import Access, KeySet, Metadata, StoredFile
from streamxf.wording import OLD, inside_text, many, size_text, some

LOOKED_FOR = (
    "a checkpoint of DCP (.metadata, or __0.metadata and so on), *.safetensors, model.safetensors.index.json, "
    "pytorch_model.bin.index.json and pytorch_model.bin"
)
_SLICES = "Its tensors are slices, as DCP's Hugging Face writer stores them: open the folder to read whole ones."
_BEGINNING = 16  # bytes
OF_DCP = (".distcp", ".metadata")
_OF_TORCH = (b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9")  # a zip file; or the older form's magic number
_OTHER_PROTOCOL = re.compile(rb"\x80[\3-\5](\x95.{8})?\x8a\nl\xfc\x9c|L119547037146", re.DOTALL)  # and that number
_NOTHING = Access()

Source = Checkpoint | FileReader


def open_source(storage: Storage, access: Access = _NOTHING, *, listing: bool = False, beside: bool = False) -> Source:
    """Open a checkpoint of any format, to read its tensors box by box; none of this needs torch.

    `listing` is for those who only want metadata: an encrypted checkpoint then needs no keys, and is not authenticated.
    `beside` says that keys may be for something else, so that a format which has none is no reason to refuse it.
    Raises FileNotFoundError, NoCheckpointError if there is nothing, or no checkpoint; UnsupportedError for a kind that
    cannot be read here; MetadataError, ContainerError if it is damaged, or half a checkpoint; and as `Checkpoint`.
    """
    kind = kind_of(storage)
    if kind is Format.DCP:
        return Checkpoint.at(storage, access, listing=listing)
    if access.trust or not (beside and len(access.keys)):
        with located(file=storage.label()):
            access.refuse_bare("this")
    if not isinstance(kind, Format):
        return open_layout(storage, kind, access)
    if kind is Format.PLAIN:
        raise UnsupportedError(
            "streamxf.open wrote this file: it is one stream of bytes and not a checkpoint. Read it with streamxf.open "
            "or, on the terminal, streamxf cat",
            file=storage.label(),
        )
    with located(file=storage.label()), storage.doubting(), storage.open() as file:
        shard = (torchfile.read if kind is Format.TORCH else huggingface.read_file)(file, storage.name)
        notes = (_SLICES,) if any(map(any, shard.offsets.values())) else ()
        sizes = {storage.name: file.size}
        contents = Contents(storage.label(), kind, shard.items, sizes, notes=notes, extra=shard.metadata)
    return FileReader(storage, contents, {storage.name: shard}, access)


def kind_of(storage: Storage) -> huggingface.HubLayout | Format:
    """What a path holds; of a Hugging Face folder, which files. Raises as `open_source`."""
    if is_checkpoint(storage):
        return Format.DCP
    if not storage.is_folder():
        with located(file=storage.label()), storage.open() as file:
            found = format_of(file, storage.name)
        if found is None:
            raise no_checkpoint(storage, "neither as a .safetensors file nor as one of torch.save")
        return found
    with located(file=storage.label()):
        layout = huggingface.layout_of(storage.names(()))
    if layout is None:
        links: list[str] = []
        if parts := [part for part in parts_of(storage, links=links) if _is_known(storage.child(part))]:
            outer = [part for part in parts if part.rpartition("/")[0] not in parts]
            raise NoCheckpointError(inside_text(outer), file=storage.label())
        beside = f"; links to folders are not followed ({some(links)})" if links else ""
        raise NoCheckpointError(
            f"the folder holds no checkpoint{beside}; looked for {LOOKED_FOR}", file=storage.label()
        )
    return layout


def no_checkpoint(file: Storage, beginnings: str) -> NoCheckpointError:
    """The error of a file of no known format, `beginnings` being those of the known ones."""
    text = f"the file is not a checkpoint: it begins {beginnings}"
    if file.name.endswith(OF_DCP):
        text = "the file is a part of a checkpoint: name the folder that it lies in"
    return NoCheckpointError(text, file=file.label())


def _is_known(place: Storage) -> bool:
    with suppress(StreamxfError, OSError):  # it is named where it is opened itself
        return place.is_folder() or bool(kind_of(place))
    return False


def parts_of(storage: Storage, depth: int = 2, links: list[str] | None = None) -> list[str]:
    """Where the checkpoints in a folder are, such as a Trainer's or a run: their paths in it, ``""`` for the folder's
    own files, and the other files whose suffix is that of one. Folders are looked into to a `depth`; links to folders
    are not, which can lead back here, and are added to `links`, with their whole paths.
    """
    if not storage.is_folder():
        return []
    names = sorted(storage.names(()))
    layout = None
    if not (of_dcp := is_checkpoint(storage)):
        with suppress(UnsupportedError):  # it has several
            layout = huggingface.layout_of(names)
    own = [""] if of_dcp or layout is not None else []
    files = [name for name in names if name.endswith((*SUFFIXES, PLAIN))]
    if layout is not None:
        files = [name for name in files if not huggingface.is_weights(name, layout)]
    below: list[str] = []
    for folder, link in sorted(storage.folders().items()) if depth else ():
        if link is not None:
            if links is not None:
                links.append(storage.label(folder))
        elif folder[0] != ".":
            inner = [""]  # where it cannot be listed, whoever looks into it is told why
            with suppress(OSError, ForeignError) if links is not None else nullcontext():
                inner = parts_of(storage.child(folder), depth - 1, links)
            below += [f"{folder}/{part}".rstrip("/") for part in inner]
    return [*own, *below, *files]


def open_layout(storage: Storage, layout: huggingface.HubLayout, access: Access = _NOTHING) -> FileReader:
    """Open a Hugging Face folder whose layout is known; raises as `open_source`."""
    with storage.doubting():
        return FileReader(storage, *huggingface.read_folder(storage, layout), access)


def is_checkpoint(storage: Storage) -> bool:
    """Whether it is the folder of a DCP checkpoint, or what is left of one; raises as `Storage.is_folder`."""
    return storage.is_folder() and any(name.endswith(OF_DCP) for name in storage.names(()))


def format_of(file: StoredFile, name: str) -> Format | None:
    """The format of a file, by how it begins and by its name: `PLAIN`, `TORCH` or `SAFETENSORS`; None of any other."""
    file.read_ahead(0, min(_BEGINNING, file.size))
    if file.is_plain:
        return Format.PLAIN
    beginning = file.read(0, min(_BEGINNING, file.size))
    if beginning.startswith(_OF_TORCH):
        return Format.TORCH
    if _OTHER_PROTOCOL.match(beginning):
        raise UnsupportedError(
            f"a file of torch.save in its form before version 1.6, {torchfile.OTHER_PROTOCOL}", file=file.name
        )
    if name.endswith(".safetensors") or huggingface.looks_like_one(beginning, file.size):
        return Format.SAFETENSORS
    return None


@collector_paused()
def contents_of(source: Source) -> Contents:
    """What is in an opened checkpoint, besides tensors' elements; of the data files of DCP, only the sizes are read."""
    if isinstance(source, FileReader):
        return source.contents
    packages: dict[str, str] = {}
    for metadata in source.metadata:
        metadata.check()
        packages |= metadata.index.packages if metadata.index is not None else {}
    others = (item for metadata in source.metadata if metadata.index is None for item in metadata.items.values())
    places = [place for item in others for place in item.places]  # those of an index are within their files
    descriptors = {place.descriptors for place in places}
    indexed = any(metadata.index is not None for metadata in source.metadata)
    own = indexed or any(text.startswith("streamxf.") for chain in descriptors for text in chain)
    sets = [keys for metadata in source.metadata if (keys := metadata.keys) is not None]
    signers = dict.fromkeys(signer for metadata in source.metadata for signer in metadata.signers)
    fragments = (text.partition("#") for chain in descriptors for text in chain)
    wrapped = sorted({fragment for name, _, fragment in fragments if fragment and name.startswith(f"{Encrypt.name}/")})
    readers = [*(keys.readers[0] for keys in sets), *map(KeySet.readers_of, wrapped)]
    sizes, notes, incomplete = _files(source, places)
    return Contents(
        source.storage.label(),
        Format.STREAMXF if own else Format.DCP,
        {label: item if item.name == label else replace(item, name=label) for label, item in source.stored.items()},
        sizes,
        packages,
        source.save_ids,
        tuple(dict.fromkeys(":".join(key) for keys in readers for key in keys)),
        tuple(signers),
        (*_notes(source, indexed, bool(signers)), *notes),
        incomplete=incomplete,
    )


def _files(checkpoint: Checkpoint, places: Iterable[Place]) -> tuple[dict[str, int], list[str], tuple[str, ...]]:
    """Sizes of the files that the metadata names, notes about files, and which are missing or have the wrong size."""
    storage = checkpoint.storage
    least = dict.fromkeys((metadata.name for metadata in checkpoint.metadata), 0)
    exact = {name: file.size for metadata in checkpoint.metadata for name, file in metadata.files.items()}
    for place in places:
        least[place.file] = max(place.at + place.size, least.get(place.file, 0))
    named = {**least, **exact}
    listed = storage.names(named)
    sizes = sizes_of(named, listed, storage.open)
    missing = [name for name in named if name not in sizes]
    wrong = [name for name, size in sizes.items() if size != exact.get(name, size) or size < least.get(name, 0)]
    beside = [name for name in listed if name not in named and made_by_saves(name)]
    notes = []
    if missing:
        notes.append(f"Missing: {many(len(missing), 'file')} that the metadata names, such as {missing[0]}.")
    if wrong:
        notes.append(f"Not of the size in the metadata: {many(len(wrong), 'file')}, such as {wrong[0]}.")
    if storage.is_late and notes:
        notes.append(f"That may be no damage: {OLD}.")
    if beside:
        text = f"{many(len(beside), 'file')} of other saves, such as {min(beside)}; `streamxf clean` removes leftovers"
        notes.append(f"Not part of it: {text}.")
    return sizes, notes, (*missing, *wrong)


def _notes(checkpoint: Checkpoint, indexed: bool, signed: bool) -> Iterator[str]:
    files = checkpoint.metadata
    if any(metadata.keyless for metadata in files):
        yield "It is encrypted, and no key was given: what its metadata says here is not authenticated."
    if signed and not checkpoint.access.trust:
        yield "The signatures were not checked, since no signer is trusted."
    if not indexed:
        yield "Its metadata names no versions, and nothing shows whether it was damaged or altered."
    if (index := files[0].index) is not None and index.version is not None:
        yield "It is version {:,} of the published weights of run {}.".format(*index.version)
    bases = any(each.index.bases for each in files if each.index)
    items = checkpoint.stored.values() if bases else ()
    lower = [place.size for item in items for place in item.places if place.beneath]
    if lower:
        text = f"{many(len(lower), 'shard')} of tensors, in {size_text(sum(lower))}"
        yield f"Stored as differences from other saves, so that torch's own readers cannot read it: {text}."
    elif not all(metadata.pickled for metadata in files):
        yield "torch's own readers cannot read it, since it was saved without a pickle; `streamxf stock` adds it."
    needed = {name for each in files if each.index for name in each.index.beside}
    if needed:
        text = f"It is an increment, and needs files in {some(sorted(needed))} beside it"
        yield f"{text}: `streamxf consolidate` makes it a checkpoint that needs no other."
    if folders := sorted({name for each in files if each.index for _, name in each.index.bases or ()} - needed):
        yield f"It is an increment: tensors that had not changed are in files that it shares with {some(folders)}."
    if files[0].rank is not None:
        yield f"It was saved without collectives: {many(len(files), 'rank')}, each with its own metadata."
        yield from (f"{text[0].upper()}{text[1:]}." for text in (*Metadata.lacking(files), *Metadata.mixed(files)))
    if len(files) > 1 and (copies := sum(name != item.name for name, item in checkpoint.stored.items())):
        yield f"{many(copies, 'item')} of a name that lower ranks use, too: the rank is appended to these names."
