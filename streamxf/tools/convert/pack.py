"""`pack`: a checkpoint of another format as one of DCP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from streamxf.budget import MAX_EXPANSION
from streamxf.chain import ChainLike
from streamxf.checkpoint.access import Access, Require
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.opening import ItemPart
from streamxf.checkpoint.publish import made_by_writers
from streamxf.checkpoint.saving import Save
from streamxf.checkpoint.sources import Content
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.format.header import Kind
from streamxf.format.items import TensorItem
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.names import GLOBAL
from streamxf.formats.opening import is_checkpoint
from streamxf.keys import KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import Storage, is_url
from streamxf.stream.encoder import MemorySource
from streamxf.tools.convert.conversion import FILE_SIZE, Conversion, Converted, check_same, convert, refuse_same
from streamxf.tools.convert.manifest import FileTree
from streamxf.tools.convert.packed import PackedReader, open_packed
from streamxf.tools.convert.transcode import RangeSource, copy
from streamxf.torchsave.writing import saved
from streamxf.wording import some


def pack(
    source: Location,
    target: Location,
    chain: ChainLike | None = None,
    *,
    overwrite: bool = False,
    recipients: KeysLike = None,
    signer: SignerLike | None = None,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    block_size: int = 1 << DEFAULT_BLOCK_LOG2,
    file_size: int = FILE_SIZE,
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> Converted:
    """Write a checkpoint of any format as one of DCP, through a chain.

    The source is a ``.safetensors`` or ``torch.save`` file, a folder, or a DCP checkpoint, streamxf's or another's.
    Memory does not depend on the size of the model. A call that failed or was killed can be made again, and resumes, as
    with `transcode`.

    Of a folder, all regular files are packed, including those in subfolders: tensors of any file as tensors, and
    everything else as bytes. The tensors of a model in Hugging Face's format keep their names; those of other files are
    prefixed by the file's path, as in ``optimizer.pt/state.0.exp_avg``. A link to a file is packed as that file, even
    if it leads out of the folder; notes name such links. Anything else, such as other links and empty folders, is left
    out and named. Permissions are not packed.

    The bytes besides tensors are in items whose names begin with ``streamxf.source``, and `unpack` writes the same
    files again, byte for byte. The names of a nested state dict are those that ``dcp.save`` gives.

    Parameters
    ----------
    source, target : path, str or Storage
        Or URLs. The target is a folder that does not exist yet, or contains no checkpoint.
    chain, overwrite, recipients, signer, storage_options, target_options, block_size, file_size, progress
        As in `transcode`; `max_expansion` as well.
    keys, trust, allow_unsigned, require
        For a DCP checkpoint that is encrypted; other formats have no encryption.

    Raises
    ------
    FileNotFoundError, NoCheckpointError
        If there is nothing to pack.
    UnsupportedError
        If two tensors in the folder would have one name, or it is a DCP checkpoint with other files.
    StreamxfError, OSError
        As `transcode`.
    """
    storage = open_storage(source, storage_options)
    of_dcp, tree = is_checkpoint(storage), FileTree.of(storage)
    if of_dcp:
        _refuse_beside(tree)
        refuse_same(source, target)
        access = Access.of(
            keys, trust=trust, allow_unsigned=allow_unsigned, require=require, max_expansion=max_expansion
        )
    else:
        _refuse_inside(source, target)
        access = Access.of(max_expansion=max_expansion)
    to = Save.to(
        target,
        chain,
        recipients=recipients,
        signer=signer,
        was_encrypted=len(access.keys) > 0,
        overwrite=overwrite,
        block_size=block_size,
        storage_options=target_options,
    )
    if of_dcp:
        return replace(copy(storage, access, to, file_size, progress), notes=tree.notes())
    before = tree.identity()
    with open_packed(tree, max_expansion) as whole:

        def check() -> None:
            check_same(storage, before, FileTree.of(storage).identity())

        contents = Conversion(tuple(whole.stored.values()), None, before, partial(_read, whole), check=check)
        return replace(convert(to, contents, file_size, progress), notes=tuple(whole.contents.notes))


def _read(whole: PackedReader, wanted: ItemPart) -> Content:
    item, chunk = wanted.item, wanted.chunk
    if chunk is None or not isinstance(item, TensorItem):
        return Content(MemorySource(memoryview(saved(whole.load_object(item.name)))), Kind.OBJECT)
    elements = whole.elements(item, chunk)
    reads = RangeSource(elements.blocks, whole.label(chunk.place.file), item.name, elements.origin, item.size)
    return Content(reads, Kind.TENSOR)


def _refuse_inside(source: Location, target: Location) -> None:
    """Raise ParameterError if the target is the source, or in it."""
    refuse_same(source, target, ": name another target")
    if isinstance(source, Storage) or isinstance(target, Storage):
        return  # what is packed is listed first, and must not change
    outer, inner = os.fspath(source).rstrip("/"), os.fspath(target)
    if not is_url(outer) and not is_url(inner):
        outer, inner = os.path.realpath(outer), os.path.realpath(inner)
    if inner.startswith(f"{outer}/"):
        raise ParameterError("the target is in the folder that is to be packed: name one outside of it")


def _refuse_beside(tree: FileTree) -> None:
    """Raise UnsupportedError if the folder of a checkpoint has files that are not part of it."""
    beside = [path for path in tree.files if path != GLOBAL and not made_by_writers(path)]
    if beside:  # metadata may name files of any name, and in folders
        with Checkpoint.at(tree.storage, Access(), listing=True) as checkpoint:
            items = [item for metadata in checkpoint.metadata for item in metadata.items.values()]
        beside = sorted(set(beside) - {place.file for item in items for place in item.places})
    if beside:
        raise UnsupportedError(
            f"the folder is a DCP checkpoint with other files, which would not be packed: {some(beside)}. Move them "
            "away, or copy the checkpoint alone with transcode",
            file=tree.storage.label(),
        )
