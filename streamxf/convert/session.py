"""Writing a job's items into a checkpoint: file by file, each of which may be kept if the process is killed, and
published in the end as any save is.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.distributed.checkpoint.storage import WriteResult

from streamxf.chain import Chain
from streamxf.convert.job import Item, Job
from streamxf.convert.result import Converted
from streamxf.convert.slips import finished_files, slip_of, write_slip
from streamxf.convert.syncing import Syncing
from streamxf.dcp.mounts import Place
from streamxf.dcp.places import local_path
from streamxf.dcp.publish.durable import missing_folders, sync_names_of
from streamxf.dcp.publish.leftovers import remove_files
from streamxf.dcp.publish.listing import RANK_METADATA, list_files
from streamxf.dcp.publish.present import GLOBAL
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.dcp.save.space import check_size
from streamxf.dcp.save.storing import storing
from streamxf.dcp.writer import FileSystemWriter
from streamxf.errors import ParameterError, StreamxfError
from streamxf.progress import Progress
from streamxf.report import SaveReport
from streamxf.wording import many


def writer_to(
    target: str | os.PathLike[str],
    chain: Chain | None,
    block_size: int,
    storage_options: Mapping[str, Any] | None,
    *,
    overwrite: bool,
) -> Any:
    """A writer to a folder or a URL; None is its default chain. Without `overwrite` it replaces no checkpoint, not even
    one that is published after `check_target` has looked.
    """
    text = os.fspath(target)
    if "://" in text or "::" in text or storage_options:
        from streamxf.dcp.fsspec import FsspecWriter

        return FsspecWriter(
            text, _extensions=chain, block_size=block_size, overwrite=overwrite, **(storage_options or {})
        )
    return FileSystemWriter(text, _extensions=chain, block_size=block_size, overwrite=overwrite)


def check_target(writer: Any, overwrite: bool | None) -> None:
    """Refuse to write to where there is a checkpoint, unless it may be replaced; None where the caller never may.

    Raises
    ------
    FileExistsError
    NotADirectoryError
        If it is a file.
    """
    local = local_path(writer.fs, writer.path)
    if local is not None and os.path.lexists(local) and not os.path.isdir(local):
        text = "this is a file, and a checkpoint is a folder: name another target"
        raise NotADirectoryError(errno.ENOTDIR, text, local)
    found = {} if overwrite else list_files(writer.fs, writer.path)
    if GLOBAL in found or any(RANK_METADATA.fullmatch(name) for name in found):
        cure = "name another target" if overwrite is None else "name another target, or allow to replace it (overwrite)"
        raise FileExistsError(errno.EEXIST, f"there is a checkpoint already; {cure}", str(writer.path))


def write_job(writer: Any, job: Job, file_size: int, progress: Progress | None = None) -> Converted:
    """Write a job's items, and publish them.

    Parameters
    ----------
    writer : ChainWriterMixin
        Fresh, or after another job.
    job : Job
    file_size : int
        Bytes of items for a data file.
    progress : Progress, optional

    Raises
    ------
    Exception
        Whatever went wrong. Nothing was published then, and what is finished stays for the next try.
    """
    if file_size < 1:
        raise ParameterError(f"file_size={file_size}: it is a number of bytes, from 1")
    begin = perf_counter()
    writer.set_up_storage_writer(True, rank=job.rank, use_collectives=job.rank is None)
    return _Session(writer, job, file_size).run(progress, begin)


class _Session:
    def __init__(self, writer: Any, job: Job, file_size: int) -> None:
        self._writer = writer
        self._job = job
        self._save = writer._current_save()
        self._save.before_publish = job.before_publish
        # a local file is brought to the disk while the next one is written
        self._syncs = self._save.sync and local_path(writer.fs, writer.path) is not None
        self._save.sync = self._save.sync and not self._syncs
        self._save.keeps_files = True  # another call may have found them, and have published them
        self._rank = job.rank or 0
        self._files = job.files(file_size)
        self._id = job.id(self._save.extensions, self._save.block_log2, file_size)

    def run(self, progress: Progress | None, begin: float) -> Converted:
        self._save.begin()
        local, made = _make_folder(self._writer)
        try:
            return self._run(local, progress, begin)
        except BaseException:
            with suppress(OSError):  # it is not empty, or somebody else has removed it
                for folder in made:
                    folder.rmdir()
            raise

    def _run(self, local: str | None, progress: Progress | None, begin: float) -> Converted:
        writer, save = self._writer, self._save
        if local is not None:
            save.place = Place.of(local)
        kept, discarded = finished_files(writer, save, self._id, self._files, self._rank)
        left = [(save.file_name(self._rank, n), items) for n, items in enumerate(self._files) if n not in kept]
        expected = sum(planned_bytes(item.write) for _, items in left for item in items)
        if local is not None:
            check_size(local, expected, save.extensions)
        if progress is not None:
            save.progress = progress
            progress.expect(expected)
        results: list[WriteResult] = []
        done = len(kept)
        written: deque[_Written] = deque()
        try:
            for name, items in left:
                written.append(self._write(name, items))
                if len(written) > 1:
                    results += self._finish(written.popleft())
                    done += 1
            while written:
                results += self._finish(written.popleft())
                done += 1
        except BaseException as error:
            for each in written:  # what has all its bytes can be kept, too
                with suppress(OSError, StreamxfError):  # the first error is the news
                    self._finish(each)
                    done += 1
            if done:
                error.add_note(
                    f"nothing was published; {done} of {len(self._files)} data files are finished and stay, so the "
                    "same call resumes from there"
                )
            elif isinstance(error, KeyboardInterrupt):
                error.add_note("nothing was published, and no data file is finished: the same call starts over")
            raise
        save.report = SaveReport.of(save.meter, perf_counter() - begin)
        results += [result for number in sorted(kept) for result in kept[number]]
        stored = sum(result.size_in_bytes for result in results)
        try:
            writer.finish(self._job.metadata, [results])
        except BaseException as error:
            error.add_note(
                f"its {many(len(self._files), 'data file')} stay: the same call resumes from there while source and "
                "target are as they were, and streamxf.clean removes what no checkpoint needs"
            )
            raise
        chain = writer._extensions.chain
        encryption: Any = chain.encryption
        return Converted(
            str(chain),
            tuple(f"{key.kind}:{key.id}" for key in encryption.recipients) if encryption is not None else (),
            (encryption.signer.id,) if encryption is not None and encryption.signer is not None else (),
            (writer.save_id,),
            len(results),
            len(self._files),
            len(kept),
            discarded,
            save.report.raw_bytes,
            stored,
            perf_counter() - begin,
        )

    def _write(self, name: str, items: Sequence[Item]) -> _Written:
        writer, save = self._writer, self._save
        try:
            path = writer.fs.concat_path(writer.path, name)
            with self._job.opened(items) as resolve, storing(writer.fs, path) as raw:
                results: list[WriteResult] = save.write_file(raw, name, [item.write for item in items], resolve)
                return _Written(name, results, Syncing(raw if self._syncs else None))
        except BaseException:
            remove_files(writer.fs, writer.path, [name])
            raise

    def _finish(self, written: _Written) -> list[WriteResult]:
        """Wait until a file is stored, and note that it is."""
        writer = self._writer
        try:
            written.syncing.wait()
            write_slip(writer, self._save, self._id, written.results)
        except BaseException:
            slip = writer.fs.concat_path(writer.path, slip_of(written.name))
            if not writer.fs.exists(slip):  # an interrupt may come late
                remove_files(writer.fs, writer.path, [written.name])
            raise
        return written.results


@dataclass(frozen=True)
class _Written:
    """A data file that has all its bytes."""

    name: str
    results: list[WriteResult]
    syncing: Syncing


def _make_folder(writer: Any) -> tuple[str | None, list[Path]]:
    """Make the writer's folder, durably; gives its path if it is local, and the folders that were not there."""
    local = local_path(writer.fs, writer.path)
    made = missing_folders(local) if local is not None else []
    writer.fs.mkdir(writer.path)
    if local is not None:
        sync_names_of([Path(os.path.abspath(local)), *made])
    return local, made
