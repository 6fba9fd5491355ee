"""Writing files beside their target, and putting them in place when all are complete.

What is written to a local target is in a hidden folder beside it. A single file is renamed over its target, a folder
replaces it as a whole. One process at a time writes to a target, and removes what a killed one left.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamxf.buffers import write_all
from streamxf.chain import Chain
from streamxf.checkpoint.reading import BoxReader
from streamxf.checkpoint.saving import Extensions, check_space
from streamxf.formats.huggingface import INDEX, layout_of
from streamxf.formats.opening import OF_DCP
from streamxf.progress import Progress, Shares
from streamxf.storage.files import SyncedFile, aim, missing_folders, sync_folder, sync_names_of
from streamxf.storage.local import LocalStorage
from streamxf.storage.lock import locked
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.tools.convert.plan import Plan, pieces

_WEIGHTS = (".safetensors", ".bin", INDEX)  # suffixes of files that hold tensors, or list those that do
_EXISTS = "the target exists; name another one, or replace it (overwrite)"


def write(target: Storage, plan: Plan, reader: BoxReader, *, overwrite: bool, progress: Progress | None) -> None:
    """Write what is planned, with what `reader` reads; raises as `unpack`. After an error a local target is as it
    was.
    """
    if isinstance(target, LocalStorage):
        _write_local(aim(target.path), plan, reader, overwrite, progress)
        return
    if not overwrite:
        refuse_existing(target)
    _write_files(target, plan, reader, progress)
    if plan.folder:  # readers would prefer an older index
        written = {file.name for file in plan.files}
        target.remove([name for name in target.names() if name.endswith(_WEIGHTS) and name not in written])


def refuse_existing(target: Storage) -> None:
    """Raise FileExistsError if something is at `target`; an empty folder does not count."""
    if isinstance(target, LocalStorage):
        path = aim(target.path)
        found = os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))
    else:
        found = target.exists() and not (target.is_folder() and not target.names())
    if found:
        raise FileExistsError(errno.EEXIST, _EXISTS, target.given)


def _write_files(target: Storage, plan: Plan, reader: BoxReader, progress: Progress | None) -> None:
    shares = Shares(progress, {file.name: file.size for file in plan.files})
    for file in plan.files:
        share = shares.begin(file.name)
        name = file.name if plan.folder else ""
        target.child(name).parent()[0].make_folder(durable=False)
        with target.create(name) as stream:
            synced = SyncedFile(stream)
            for piece in pieces(reader, file):
                write_all(synced, piece)
                share.advance(len(piece))
            synced.sync()


# -- in the local file system ------------------------------------------------------------------------------------


def _write_local(target: Path, plan: Plan, reader: BoxReader, overwrite: bool, progress: Progress | None) -> None:
    made = missing_folders(target.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    sync_names_of(made)
    with _claimed(target.with_name(f".{target.name}.part")) as draft:
        content, replaced = draft / "content", draft / "replaced"
        _settle(replaced, target)  # a process may have been killed while it put a folder in place
        if content.exists():
            shutil.rmtree(content) if content.is_dir() else content.unlink()
        _check_target(target, plan, overwrite)
        needed = sum(file.size for file in plan.files)
        check_space(open_storage(target.parent), Extensions((), Chain([])), needed, lambda: needed)
        _write_files(open_storage(content), plan, reader, progress)
        if plan.folder:
            content.mkdir(exist_ok=True)
            for folder, _, _ in os.walk(content):
                sync_folder(folder)
        _check_target(target, plan, overwrite)  # it may be there by now
        if target.exists():
            _keep_modes(target, content, plan)
        try:
            if plan.folder and target.exists():
                target.rename(replaced)
            content.replace(target)
            sync_folder(target.parent)
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


def _keep_modes(target: Path, content: Path, plan: Plan) -> None:
    """Give files and folders the permissions of those that they replace, which may be private."""
    paths = [Path(file.name if plan.folder else "") for file in plan.files]
    for name in {each for path in paths for each in (path, *path.parents)}:
        if (target / name).exists():
            os.chmod(content / name, stat.S_IMODE((target / name).stat().st_mode))


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
    sync_folder(target)
    shutil.rmtree(replaced)


@contextmanager
def _claimed(draft: Path) -> Iterator[Path]:
    """Make the folder `draft`, locked for this process, and remove it afterwards, unless it still has a folder that was
    to be replaced.

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
                text = (
                    "the target is written here first, and this is a link or another user's: remove it, or name another"
                )
                raise FileExistsError(errno.EEXIST, f"{text} target", str(draft))
            try:
                yield draft
            finally:
                if not (draft / "replaced").exists():
                    shutil.rmtree(draft, ignore_errors=True)
            return
