"""`open_source`: detects the format of a path, and opens the reader for it."""

from __future__ import annotations

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.storage import Storage, StoredFile
from streamxf.errors import NoCheckpointError, UnsupportedError, located
from streamxf.format.limits import PLAIN_MAGIC
from streamxf.formats import huggingface, safetensors, torchfile
from streamxf.formats.contents import Contents, Format
from streamxf.formats.dcp import contents_of_checkpoint
from streamxf.formats.reader import FileReader

LOOKED_FOR = (
    "a checkpoint of DCP (.metadata, or __0.metadata and so on), *.safetensors, model.safetensors.index.json, "
    "pytorch_model.bin.index.json and pytorch_model.bin"
)
_BEGINNING = 16  # bytes
OF_DCP = (".distcp", ".metadata")
_OF_TORCH = (b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9")  # a zip file; or the older form's magic number
_NOTHING = Access()

Source = Checkpoint | FileReader


def open_source(storage: Storage, access: Access = _NOTHING, *, listing: bool = False) -> Source:
    """Open a checkpoint of any format, to read its tensors box by box; none of this needs torch.

    `listing` is for those who only want metadata: an encrypted checkpoint then needs no keys, and is not authenticated.

    Raises
    ------
    FileNotFoundError, NoCheckpointError
        If there is nothing, or it is not a checkpoint.
    UnsupportedError
        If it is one of a kind that cannot be read here.
    MetadataError, ContainerError
        If it is damaged, or half a checkpoint.
    StreamxfError, OSError
        As for `Checkpoint`.
    """
    kind = kind_of(storage)
    if kind is Format.DCP:
        return Checkpoint.at(storage, access, listing=listing)
    if isinstance(kind, Format):
        return _open_file(storage, kind, access)
    return open_layout(storage, kind, access)


def kind_of(storage: Storage) -> huggingface.HubLayout | Format:
    """What a path holds; of a Hugging Face folder, which files. Raises as `open_source`."""
    if is_checkpoint(storage):
        return Format.DCP
    if not storage.is_folder():
        with located(file=storage.given), storage.open() as file:
            found = format_of(file, storage.name)
        if found is None:
            raise NoCheckpointError(
                "the file is not a checkpoint: it begins neither as a .safetensors file nor as one of torch.save",
                file=storage.given,
            )
        return found
    with located(file=storage.given):
        layout = huggingface.layout_of(storage.names(()))
    if layout is None:
        raise NoCheckpointError(f"the folder holds no checkpoint; looked for {LOOKED_FOR}", file=storage.given)
    return layout


def open_layout(storage: Storage, layout: huggingface.HubLayout, access: Access = _NOTHING) -> FileReader:
    """Open a Hugging Face folder whose layout is known; raises as `open_source`."""
    contents, shards = huggingface.read(storage, layout)
    return FileReader(storage, contents, shards, access)


def contents_of(source: Source) -> Contents:
    """What is in an opened checkpoint, besides tensors' elements."""
    return contents_of_checkpoint(source) if isinstance(source, Checkpoint) else source.contents


def is_checkpoint(storage: Storage) -> bool:
    """Whether it is the folder of a DCP checkpoint, or what is left of one; raises as `Storage.is_folder`."""
    return storage.is_folder() and any(name.endswith(OF_DCP) for name in storage.names(()))


def format_of(file: StoredFile, name: str) -> Format | None:
    """The format of a file, by how it begins and by its name: `PLAIN`, `TORCH` or `SAFETENSORS`; None of any other."""
    beginning = file.read(0, min(_BEGINNING, file.size))
    if beginning.startswith(PLAIN_MAGIC):
        return Format.PLAIN
    if beginning.startswith(_OF_TORCH):
        return Format.TORCH
    if name.endswith(".safetensors") or safetensors.looks_like_one(beginning, file.size):
        return Format.SAFETENSORS
    return None


def _open_file(storage: Storage, kind: Format, access: Access) -> FileReader:
    if kind is Format.PLAIN:
        raise UnsupportedError(
            "streamxf.open wrote this file: it is one stream of bytes and not a checkpoint. Read it with streamxf.open "
            "or, on the terminal, streamxf cat",
            file=storage.given,
        )
    name = storage.name
    with located(file=storage.given), storage.open() as file:
        shard = (torchfile if kind is Format.TORCH else safetensors).read(file, name)
        contents = Contents(storage.given, kind, shard.items, {name: file.size}, extra=shard.metadata)
    return FileReader(storage, contents, {name: shard}, access)
