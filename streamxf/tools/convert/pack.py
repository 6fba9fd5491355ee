"""`transcode` and `pack`: a copy of a checkpoint, of DCP or another format, through a chain."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Unpack

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import ChecksumError, MetadataError, ParameterError, UnsupportedError, located
from streamxf.formats.opening import is_checkpoint
from streamxf.keys import KeyRing
from streamxf.notes import check_uncommitted, known_run
from streamxf.places import GLOBAL, Location, Storage, is_run_file, is_url, made_by_saves, open_storage
from streamxf.reading import (
    Access,
    AccessOptions,
    BareBlocks,
    Blocks,
    BoxReader,
    ChainsLike,
    ItemPart,
    KeysLike,
    Kind,
    Metadata,
    Progress,
    SignerLike,
    StreamReader,
    TensorItem,
    metadata_files,
)
from streamxf.tools.convert.conversion import FILE_SIZE, Conversion, Converted, check_same, convert, refuse_same
from streamxf.tools.convert.packed import FileTree, PackedReader, open_packed
from streamxf.tools.fleet import Fleet
from streamxf.wording import some
from streamxf.writing import Content, Load, MemorySource, RunFacts, Save, torch_file

Fill = Callable[[memoryview], None]


def transcode(
    source: Location,
    target: Location | None = None,
    chain: ChainsLike | None = None,
    *,
    in_place: bool = False,
    overwrite: bool = False,
    recipients: KeysLike = None,
    signer: SignerLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    block_size: int = Save.BLOCK_SIZE,
    file_size: int = FILE_SIZE,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[AccessOptions],
) -> Converted:
    """Copy a DCP checkpoint, streamxf's or another's, through another chain.

    Items are copied block by block, with all checks of a load; only a tensor that went through a stream transform, such
    as torch's ``ZStandard``, is held whole. Objects are not unpickled. Names, shards, planners' records and the run
    stay as they are, with the metrics that came later; if ranks have their own metadata, each keeps it.

    If the call fails or the process is killed, finished data files stay, and the same call resumes from there. If the
    chain encrypts, that needs a recipient's key that also decrypts: with public keys alone the call starts over.

    Parameters
    ----------
    source, target : path, str or Storage
        Folders, or URLs. The target does not exist yet, or contains no checkpoint.
    chain : Chain, str or codecs, optional
        As in `streamxf.open`; by default that of `FileSystemWriter`. If it is empty, torch's own reader loads the copy.
    in_place : bool
        Replace the source, in one step for each metadata file. If the process is killed, the old checkpoint or the new
        one loads. Needs space for both.
    overwrite, recipients, signer, block_size, progress
        Of the copy, as in `CheckpointWriter`.
    keys, trust, allow_unsigned, require, expect_save_id, codecs
        Of the source, as in `Checkpoint`.
    storage_options, target_options : mapping, optional
        fsspec's, for URLs.
    file_size : int
        Bytes of items, before the chain, in one data file; more if there would be too many files.
    max_expansion : int
        As in `diff`, for the copied bytes.
    executor : concurrent.futures.Executor, optional
        Its workers write the data files, as in `verify`, and need `recipients` and `signer`, too. If the chain
        encrypts, a recipient's key has to decrypt here what they wrote.

    Raises
    ------
    FileExistsError
        If there is a checkpoint in the target, and `overwrite` is False.
    ParameterError, ChainError, KeyMissingError
        If the arguments cannot work together.
    NoSpaceError
        If the copy cannot fit on the disk.
    MetadataError
        If the source was replaced while it was read, with `in_place`.
    UnsupportedError
        If a framework committed the source to a `CheckpointManager`, with `in_place`.
    StreamxfError
        If the source is damaged or was altered. Then nothing is published.
    """
    if in_place == (target is not None):
        raise ParameterError("give either a target, or replace the source (in_place)")
    if target is not None:
        refuse_same(source, target)
    access = Access.of(**options)
    place, how_opened = (source, storage_options) if target is None else (target, target_options)
    how = in_place or overwrite, block_size, how_opened
    to = Save.to(place, chain, recipients, signer, *how, was_encrypted=len(access.keys) > 0)
    storage = open_storage(source, storage_options)
    fleet = None if executor is None else Fleet(executor, [storage], access, to, chain, recipients, signer)
    return copy(storage, access, to, file_size, progress, fleet, in_place=in_place)


def copy(
    storage: Storage,
    access: Access,
    to: Save,
    file_size: int = FILE_SIZE,
    progress: Progress | None = None,
    fleet: Fleet | None = None,
    *,
    in_place: bool = False,
) -> Converted:
    """Copy the checkpoint in `storage`; raises as `transcode`."""
    versions = {name: storage.version(name) for name in metadata_files(storage)}
    with Checkpoint.at(storage, access) as checkpoint:
        runs, own, others = zip(*(known_run(storage, each, access) for each in checkpoint.metadata), strict=True)
        pairs = [*zip(checkpoint.metadata, runs, strict=True)]
        if in_place:
            named = {name for each, run in pairs if run is None for name in (each.name, *each.named())}
            check_uncommitted(storage, named, access)
        copies = [_copy_of(checkpoint, each, run, versions.get(each.name), in_place) for each, run in pairs]
        made = Converted.together([convert(to, each, file_size, progress, fleet) for each in copies])
    notes = {*chain.from_iterable(own)}
    failed = storage.remove(notes) if in_place else {}  # after a kill they stay, and say nothing of the new save
    remarks = [f"{file} counts for nothing any more, and could not be removed: {why}" for file, why in failed.items()]
    if left := sorted({*chain.from_iterable(others)} - notes):
        remarks.append(f"metrics that {some(left)} may name are not copied: of another save, or not authentic")
    return replace(made, notes=(*made.notes, *remarks))


def _copy_of(
    checkpoint: Checkpoint, metadata: Metadata, run: RunFacts | None, version: object, in_place: bool
) -> Conversion:
    """The items of one metadata file, which had `version` before it was read."""
    storage, index = checkpoint.storage, metadata.index
    # files that another save may overwrite; no other save uses the names of streamxf's writers
    data = () if index is not None else metadata.named()

    def versions() -> list[object]:
        return [storage.version(file) for file in sorted(data)]

    before = versions()

    def check() -> None:
        if in_place and storage.version(metadata.name) != version:
            raise MetadataError(
                "the metadata was replaced while the checkpoint was read: another process saves to this folder, or "
                "changes its recipients. It was left as it is; try again when that is done",
                file=storage.label(metadata.name),
            )
        check_same(storage, before, versions())

    return Conversion(
        tuple(metadata.each()),
        metadata.rank,
        json.dumps([storage.label(), [version, before] if index is None else index.save_id]),
        checkpoint,
        _stored,
        metadata.nesting.extra,
        check,
        run,
    )


def _stored(checkpoint: Checkpoint, wanted: ItemPart) -> Content:
    """An object as it is stored, or a shard: its elements, where these are all that there is of it."""
    item, chunk, name = wanted.item, wanted.chunk, wanted.item.name
    file = checkpoint.label(wanted.place.file)
    checkpoint.budget.spend_once((name, chunk and chunk.offset), wanted.place.size, "the item", file=file, item=name)
    blocks = checkpoint.blocks(item, chunk)
    if wanted.kind is Kind.FRAMED and chunk is not None and isinstance(item, TensorItem):
        # refused is what only torch can make
        with suppress(UnsupportedError), located(file=file, item=name), checkpoint.storage.doubting():
            size = item.itemsize * math.prod(chunk.shape)
            found = StreamReader(blocks).framed(item.dtype, chunk.shape)
            if found.tensor.is_row_major:
                reads = RangeSource(checkpoint, blocks, file, name, found.start, size, found.crc)
                return Content(reads, Kind.TENSOR)
    return Content(RangeSource(checkpoint, blocks, file, name), wanted.kind)


def pack(
    source: Location,
    target: Location,
    chain: ChainsLike | None = None,
    *,
    overwrite: bool = False,
    recipients: KeysLike = None,
    signer: SignerLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    block_size: int = Save.BLOCK_SIZE,
    file_size: int = FILE_SIZE,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[AccessOptions],
) -> Converted:
    """Write a checkpoint of any format as one of DCP, through a chain.

    The source is a ``.safetensors`` or ``torch.save`` file, a folder, or a DCP checkpoint, streamxf's or another's.
    Memory does not depend on the size of the model. A call that failed or was killed resumes, as with `transcode`.

    Of a folder, all regular files are packed, including those in subfolders: tensors of any file as tensors, and
    everything else as bytes. The tensors of a model in Hugging Face's format keep their names; those of other files are
    prefixed by the file's path, as in ``optimizer.pt/state.0.exp_avg``. A link to a file is packed as that file, even
    if it leads out of the folder; notes name such links. Anything else, such as other links and empty folders, is left
    out and named. Permissions are not packed.

    The bytes besides tensors are in items whose names begin with ``streamxf.source``, and `unpack` writes the same
    files again, byte for byte. The names of a nested state dict are those that ``dcp.save`` gives. An object that
    cannot be made, such as one of a class that is not allowed, is only in these bytes; notes name it.

    Parameters
    ----------
    source, target : path, str or Storage
        Or URLs. The target is a folder that does not exist yet, or contains no checkpoint.
    chain, overwrite, recipients, signer, storage_options, target_options, block_size, file_size, progress, executor
        As in `transcode`; `max_expansion` as well.
    keys, trust, allow_unsigned, require, expect_save_id, codecs
        For a DCP checkpoint that is encrypted or signed. Other formats are neither, and are refused with them.

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
        access = Access.of(**options)
    else:
        _refuse_inside(source, target)
        access = Access.of(**options)
        if tree.files:
            with located(file=storage.label()):
                access.refuse_bare("this")
        access = replace(access.lenient(), keys=KeyRing())
    how = overwrite, block_size, target_options
    to = Save.to(target, chain, recipients, signer, *how, was_encrypted=len(access.keys) > 0)
    fleet = None if executor is None else Fleet(executor, [storage], access, to, chain, recipients, signer)
    if of_dcp:
        made = copy(storage, access, to, file_size, progress, fleet)
        return replace(made, notes=(*tree.notes(), *made.notes))
    before = tree.identity()
    with open_packed(tree, access.objects.max_expansion) as whole:
        if (nameless := whole.stored.get("")) is not None:
            text = (
                "an item has the empty name, as of a tensor under the key '' of a state dict: the format has no place "
                "for it; give it a name, and save it again"
            )
            raise UnsupportedError(text, file=whole.label(nameless.places[0].file))

        def check() -> None:
            check_same(storage, before, FileTree.of(storage).identity())

        extra = whole.nesting.with_order(whole.stored)
        contents = Conversion(tuple(whole.stored.values()), None, before, whole, _packed, extra, check)
        made = convert(to, contents, file_size, progress, fleet)
        return replace(made, notes=(*whole.contents.notes, *made.notes))


def _packed(whole: PackedReader, wanted: ItemPart) -> Content:
    item, chunk = wanted.item, wanted.chunk
    if chunk is None or not isinstance(item, TensorItem):
        parts: Any = torch_file(item.name, {}, {item.name: whole.load_object(item.name)})[0]  # no tensor is left out
        return Content(MemorySource(memoryview(b"".join(parts))), Kind.OBJECT)
    elements = whole.elements(item, chunk)
    size = item.itemsize * math.prod(chunk.shape)
    reads = RangeSource(whole, elements.blocks, whole.label(chunk.place.file), item.name, elements.origin, size)
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
    beside = [path for path in tree.files if path != GLOBAL and not (made_by_saves(path) or is_run_file(path))]
    if beside:  # metadata may name files of any name, and in folders
        with Checkpoint.at(tree.storage, Access(), listing=True) as checkpoint:
            beside = sorted({*beside}.difference(*(metadata.named() for metadata in checkpoint.metadata)))
    if beside:
        raise UnsupportedError(
            f"the folder is a DCP checkpoint with other files, which would not be packed: {some(beside)}. Move them "
            "away, or copy the checkpoint alone with transcode",
            file=tree.storage.label(),
        )


# -- streams that are read while they are encoded, block by block, so that they are never held whole ----------------


class RangeSource:
    """A `ByteSource` of a stream, or of a part of one, whose ranges are read in order. Those that are whole blocks are
    decoded in the thread that encodes them. Errors name `file` and `item`.

    `crc` is the CRC-32 that ``torch.save`` noted for it, or 0. Torch never compares it when it loads. Here it is the
    last chance: the copy has checksums of its own, which would match the damaged bytes.
    """

    def __init__(
        self, of: BoxReader, blocks: Blocks, file: str, item: str, start: int = 0, size: int | None = None, crc: int = 0
    ) -> None:
        self.size = blocks.size - start if size is None else size
        self._blocks, self._reader = blocks, StreamReader(blocks)
        self._place, self._storage = {"file": file, "item": item}, of.storage
        self._start = start
        self._crc, self._found = crc, 0

    def load(self, start: int, stop: int) -> Load:
        with located(**self._place), self._storage.doubting():
            fill = self._fill(self._start + start, self._start + stop)
            if self._crc:
                data = memoryview(bytearray(stop - start))
                fill(data)
                self._found = zlib.crc32(data, self._found)
                fill = partial(_copy, data)
            if self._crc and stop == self.size and self._found != self._crc:
                raise ChecksumError(
                    "the tensor's bytes do not match the CRC-32 that torch saved with them: they were damaged since. "
                    "Restore the file from a copy"
                )
            return Load(partial(self._take, fill, stop - start))

    def _fill(self, first: int, stop: int) -> Fill:
        """What fills memory with a range, in any thread."""
        if isinstance(self._blocks, BareBlocks) and self._blocks.crcs is None:
            return self._blocks.range(first, stop)
        index, rest = divmod(first, self._blocks.block_size)
        if not rest and stop - first == self._blocks.size_of(index):
            return self._blocks.decoder(index)
        data = memoryview(bytearray(stop - first))
        self._reader.readinto_at(first, data)
        return partial(_copy, data)

    def _take(self, fill: Fill, size: int, scratch: Callable[[int], memoryview]) -> memoryview:
        memory = scratch(size)
        with located(**self._place), self._storage.doubting():
            fill(memory)
        return memory


def _copy(data: memoryview, out: memoryview) -> None:
    out[:] = data
