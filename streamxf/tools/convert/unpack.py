"""`unpack`: a checkpoint as a file or a folder of another format; `Unpacked` is the result."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Literal, Unpack, cast

from streamxf.buffers import write_all
from streamxf.chain import Chain
from streamxf.errors import NoCheckpointError, ParameterError, located
from streamxf.formats import torchfile
from streamxf.formats.contents import Contents, FileReader, Format
from streamxf.formats.huggingface import INDEX, layout_of
from streamxf.formats.opening import OF_DCP, format_of, kind_of, open_source, parts_of
from streamxf.places import Location, Storage, locked, open_storage
from streamxf.reading import Access, AccessOptions, BoxReader, Progress, Shares, StoredFile, StreamReader, TensorItem
from streamxf.stream.plain import open as open_plain
from streamxf.tools.convert.conversion import Converted, refuse_same
from streamxf.tools.convert.pack import copy
from streamxf.tools.convert.packed import manifest_of
from streamxf.tools.convert.plan import BESIDE, SHARD_SIZE, Plan, format_of_name, fresh, pieces, restored
from streamxf.wording import listed, many, printable, size_text, some
from streamxf.writing import Save

FormatName = Literal["safetensors", "torch", "huggingface", "dcp"]
FORMATS: dict[str, Format] = {
    "safetensors": Format.SAFETENSORS,
    "torch": Format.TORCH,
    "huggingface": Format.HUGGING_FACE,
    "dcp": Format.DCP,
}
_WEIGHTS = (".safetensors", ".bin", INDEX)  # suffixes of files that hold tensors, or list those that do


@dataclass(frozen=True)
class Unpacked:
    """The result of `unpack`.

    - `files`, `bytes`, `tensors`, `objects`: how many there are.
    - `restored`: whether these are the files that were packed, byte for byte.
    - `left_out`: objects that were skipped, and files that were packed beside the written model.
    - `notes`: as in `Converted`.
    """

    target: str
    format: str
    files: int
    bytes: int
    tensors: int
    objects: int
    restored: bool
    left_out: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = many(self.tensors, "tensor") + (f" and {many(self.objects, 'object')}" if self.objects else "")
        lines = [
            f"wrote {what} to {printable(self.target)}: {self.format}, {many(self.files, 'file')}, "
            f"{size_text(self.bytes)} in {self.seconds:.1f} s"
        ]
        if self.restored:
            lines.append("as it was when it was packed")
        return "\n".join([*lines, *listed("left out", self.left_out), *listed("note", self.notes)])


def unpack(
    source: Location,
    target: Location,
    *,
    format: FormatName | None = None,
    only: Sequence[str] = (),
    prefix: str = "",
    shard_size: int = SHARD_SIZE,
    skip_objects: bool = False,
    model: bool = False,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[AccessOptions],
) -> Unpacked | Converted:
    """Write a DCP checkpoint, streamxf's or stock, as a file or folder of another format.

    Tensors are read and written box by box, so that memory does not depend on the size of the model. A packed file or
    folder becomes the same file or folder again, byte for byte, unless another format is requested. Otherwise
    ``.safetensors`` files are written as the safetensors library writes them, ``torch.save`` files have the state dict
    nested as it was saved, with its names in that order, and of a packed folder with a model only the model is written.
    DCP makes strings of the keys of dicts and drops empty dicts; streamxf's writers and `pack` record integers, None,
    truth values, fractions and empty dicts, and here they come back; `notes` names other keys. Of a checkpoint that
    stock DCP saved, what torch's optimizers need does, and `notes` says so.

    A local target appears when all of it is written; until then it is in a hidden folder next to it, which only you
    can read. When the call fails or the process is killed, the same call starts over.

    Parameters
    ----------
    source, target : path, str or Storage
        The checkpoint's folder, and the file or folder to write; or URLs.
    format : str, optional
        By default that of the target's suffix: ``.safetensors``; ``.pt``, ``.pth``, ``.bin`` and ``.ckpt`` for
        ``torch.save``; with any other name the format that was packed, or else a Hugging Face folder. ``"dcp"`` is a
        checkpoint without a chain, which torch's own reader loads.
    only : sequence of str
        Shell patterns; only items whose names match one of them are written.
    prefix : str
        Only items whose names begin with it, without it: ``"model."`` extracts the model from a training checkpoint.
    shard_size : int
        Bytes of tensors in one file of a Hugging Face folder; an error for any other target.
    skip_objects : bool
        Whether to leave out non-tensor objects if the format cannot hold them, or they cannot be made here; a class is
        allowed by ``torch.serialization.add_safe_globals``. Tensors that only their class can make count as objects.
    model : bool
        Write only the model's tensors, by the names that ``load_state_dict`` and ``from_pretrained`` know: `source` may
        also be the folder of a Trainer or Lightning, or a file of `streamxf.open` that contains a ``torch.save`` file.
    overwrite : bool
        Whether the target may be replaced: of folders, Hugging Face ones, in which files that are not weights stay.
    keys, trust, allow_unsigned, require, expect_save_id, codecs, storage_options, target_options
        As in `transcode`; `max_expansion` and `progress` as well.

    Returns `Unpacked`, or for ``"dcp"`` the result of `transcode`.

    Raises
    ------
    FileExistsError, IsADirectoryError, NotADirectoryError
        If the target exists and may not, or cannot, be replaced.
    FileNotFoundError, NoCheckpointError
        If there is no checkpoint.
    ParameterError
        If no item is chosen, several may be the model, or the arguments contradict each other.
    UnsupportedError
        If the format cannot hold something, which the message names, or the target's suffix is that of a format which
        is not written here.
    AbortedError
        If another process is writing to the target.
    NoSpaceError
        If the files cannot fit on the disk.
    StreamxfError
        If the source is damaged or was altered.
    """
    if shard_size < 1:
        raise ParameterError(f"shard_size {shard_size}: it must be a number of bytes, at least 1")
    begin = perf_counter()
    place = open_storage(target, target_options)
    asked = FORMATS[format] if format is not None else format_of_name(place.name)
    if asked is Format.DCP and (only or prefix or model):
        raise ParameterError("a DCP checkpoint is always copied whole: leave out only, prefix and model")
    storage = open_storage(source, storage_options)
    access = Access.of(**options)
    if asked is Format.DCP:
        refuse_same(source, target)
        to = Save.to(target, Chain([]), overwrite=overwrite, storage_options=target_options)
        return copy(storage, access, to, progress=progress)
    if not overwrite:
        refuse_existing(place)
    with (open_model if model else open_source)(storage, access) as reader:
        manifest = None if only or prefix else manifest_of(reader)
        wanted = asked or (manifest.format if manifest is not None and not model else Format.HUGGING_FACE)
        if shard_size != SHARD_SIZE and wanted is not Format.HUGGING_FACE:
            raise ParameterError("only a Hugging Face folder has shards: name a folder as the target (shard_size)")
        if manifest is not None and manifest.format is wanted and not model:
            plan = restored(reader.stored, manifest, place.name)
        else:
            kinds = {"skip_objects": skip_objects, "model": model}
            plan = fresh(reader, wanted, place.name, only, prefix, shard_size, manifest=manifest, **kinds)
        if place.near:
            _write_local(Path(place.resolved(to_replace=True).path), plan, reader, overwrite, progress)
        else:
            if not overwrite:
                refuse_existing(place)
            _write_files(place, plan, reader, progress)
            if plan.folder:  # readers would prefer an older index
                written = {file.name for file in plan.files}
                place.remove([name for name in place.names() if name.endswith(_WEIGHTS) and name not in written])
    tensors, size = sum(isinstance(item, TensorItem) for item in plan.items), sum(file.size for file in plan.files)
    counts = len(plan.files), size, tensors, len(plan.items) - tensors
    seconds = perf_counter() - begin
    return Unpacked(place.label(), str(wanted), *counts, plan.restored, plan.left_out, seconds, plan.notes)


def open_model(storage: Storage, access: Access) -> BoxReader:
    """Open the part of a folder that may hold the model, or a file, also one of `streamxf.open` with a ``torch.save``
    file in it. Raises ParameterError if several parts may, and as `open_source`.
    """
    if storage.is_folder():
        found = dict.fromkeys(parts_of(storage))  # files beside a checkpoint's own are no model
        parts = [part for part in found if "/" not in part or part.rpartition("/")[0] not in found]
        parts = [part for part in parts if not BESIDE.match(part.rpartition("/")[2])]
        if len(parts) > 1 and "" not in parts:
            raise ParameterError(
                f"the model may be in {many(len(parts), 'place')}: {some(parts)}. Name one of them; of a training run, "
                "`streamxf latest` prints the newest"
            )
        if parts and "" not in parts:
            storage = storage.child(parts[0])
    if storage.is_folder() or kind_of(storage) is not Format.PLAIN:
        return open_source(storage, access)

    @contextmanager
    def opened(name: str) -> Iterator[StoredFile]:
        with storage.open(random=True) as file, open_plain(file.raw, keys=access.keys) as stream:
            assert isinstance(stream, StreamReader)  # the file is seekable
            yield StoredFile(storage.label(), stream.size, cast("IO[bytes]", stream))

    with located(file=storage.label()), opened("") as file:
        if format_of(file, storage.name) is not Format.TORCH:
            raise NoCheckpointError("the file of streamxf.open holds no file of torch.save")
        shard = torchfile.read(file, storage.name)
        contents = Contents(storage.label(), Format.TORCH, shard.items, {storage.name: file.size})
    return FileReader(storage, contents, {storage.name: shard}, access, opened)


def refuse_existing(target: Storage) -> None:
    """Raise FileExistsError if something is at `target`; an empty folder does not count."""
    if target.near:
        path = Path(target.resolved(to_replace=True).path)
        found = os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))
    else:
        found = target.exists() and not (target.is_folder() and not target.names())
    if found:
        text = "the target exists; name another one, or replace it (overwrite)"
        raise FileExistsError(errno.EEXIST, text, target.label())


def _write_files(target: Storage, plan: Plan, reader: BoxReader, progress: Progress | None) -> None:
    shares = Shares(progress, {file.name: file.size for file in plan.files})
    for file in plan.files:
        share = shares.begin(file.name)
        name = file.name if plan.folder else ""
        target.child(name).parent()[0].make_folder(durable=False)
        with target.create(name) as stream:
            synced = target.synced(stream)
            for piece in pieces(reader, file):
                write_all(synced, piece)
                share.advance(len(piece))
            synced.sync()


# -- in the local file system ------------------------------------------------------------------------------------


def _write_local(target: Path, plan: Plan, reader: BoxReader, overwrite: bool, progress: Progress | None) -> None:
    """Write what is planned; after an error the target is as it was."""
    parent = open_storage(target.parent)
    parent.make_folder()
    with _claimed(target.with_name(f".{target.name}.part")) as draft:
        content, replaced = draft / "content", draft / "replaced"
        _settle(replaced, target)  # a process may have been killed while it put a folder in place
        if content.exists():
            shutil.rmtree(content) if content.is_dir() else content.unlink()
        _check_target(target, plan, overwrite)
        needed = sum(file.size for file in plan.files)
        replace(Save.to(draft, Chain([])), storage=parent).check_space(needed)
        _write_files(open_storage(content), plan, reader, progress)
        if plan.folder:
            content.mkdir(exist_ok=True)
            for folder, _, _ in os.walk(content):
                open_storage(folder).sync()
        _check_target(target, plan, overwrite)  # it may be there by now
        # files and folders keep the permissions of those that they replace, which may be private
        paths = [Path(file.name if plan.folder else "") for file in plan.files] if target.exists() else []
        for name in {each for path in paths for each in (path, *path.parents) if (target / each).exists()}:
            os.chmod(content / name, stat.S_IMODE((target / name).stat().st_mode))
        try:
            if plan.folder and target.exists():
                target.rename(replaced)
            content.replace(target)
            parent.sync()
        finally:
            _settle(replaced, target)


def _check_target(target: Path, plan: Plan, overwrite: bool) -> None:
    if not overwrite:
        refuse_existing(open_storage(target))
    if not target.exists():
        return
    if not plan.folder and not target.is_file():
        raise IsADirectoryError(errno.EISDIR, "a file is to be written, and this is not a regular file", str(target))
    if plan.folder and not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a folder is to be written, and this is a file", str(target))
    names = os.listdir(target) if plan.folder else []
    if names and (any(name.endswith(OF_DCP) for name in names) or layout_of(names) is None):
        text = "the folder is not a Hugging Face checkpoint, and is not replaced; name another target"
        raise FileExistsError(errno.EEXIST, text, str(target))


def _settle(replaced: Path, target: Path) -> None:
    """Put a folder back if nothing has replaced it; else move what is not weights from it into the new one."""
    if not replaced.exists():
        return
    if not target.exists():
        replaced.rename(target)
        return
    for path in replaced.iterdir():
        if not path.name.endswith(_WEIGHTS) and not os.path.lexists(target / path.name):
            path.rename(target / path.name)
    open_storage(target).sync()
    shutil.rmtree(replaced)


@contextmanager
def _claimed(draft: Path) -> Iterator[Path]:
    """Make the folder `draft`, locked for this process, and remove it, unless it has a folder to be put back.

    Only this user can read it, since what was encrypted may be written there. Raises AbortedError if another process
    has it locked, and FileExistsError if another user made it.
    """
    while True:
        draft.mkdir(mode=0o700, exist_ok=True)
        with locked(open_storage(draft), patience=0.0):
            if not os.path.lexists(draft):  # the process that had it was done, and removed it
                continue
            if draft.is_symlink() or draft.stat().st_uid != os.geteuid():
                # in a folder that everyone may write to, another user can make it first, with links to anywhere
                text = "the target is written here first, and this is a link or another user's: remove it, or name"
                raise FileExistsError(errno.EEXIST, f"{text} another target", str(draft))
            try:
                yield draft
            finally:
                if not (draft / "replaced").exists():
                    shutil.rmtree(draft, ignore_errors=True)
            return
