"""Files written to where fsspec writes, each in one go: what is not finished is not stored, and not gone on with."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from streamxf.buffers import write_all
from streamxf.convert.files.huggingface import WEIGHTS
from streamxf.convert.files.layout import File, pieces
from streamxf.convert.files.plan import Plan
from streamxf.dcp.save.storing import storing
from streamxf.descriptor import shorten
from streamxf.errors import UnsupportedError
from streamxf.formats.location import Location
from streamxf.formats.source import Source
from streamxf.progress import Progress


class Upload:
    """Files on their way to a URL.

    Parameters
    ----------
    target : Location
    plan, overwrite
        As in `Writing`. What has no permissions there gets none.
    """

    def __init__(self, target: Location, plan: Plan, *, overwrite: bool) -> None:
        self._target = target
        self._plan = plan
        self._files = plan.files
        self._folder = plan.folder
        self._overwrite = overwrite

    def run(self, source: Source, progress: Progress | None) -> int:
        """Write everything, in order; returns 0, since nothing was there before.

        Raises
        ------
        FileExistsError
            If something is there that may not be replaced.
        UnsupportedError
            If there are links to be made.
        Exception
            Whatever reading or writing raised. Files before that one are stored.
        """
        if self._plan.links:
            raise UnsupportedError(
                f"the folder that was packed has links, such as {shorten(min(self._plan.links))}, which a URL has no "
                "place for: name a local target",
                file=self._target.given,
            )
        found = refuse_replacing(self._target, overwrite=self._overwrite)
        if progress is not None:
            progress.expect(sum(file.size for file in self._files))
        for file in self._files:
            self._write(source, file, progress)
        for folder in filter(None, self._plan.folders):
            self._target.filesystem.makedirs(f"{self._target.path.rstrip('/')}/{folder}", exist_ok=True)
        if self._folder:
            written = {file.name for file in self._files}
            for name in found:
                if name.endswith(WEIGHTS) and name not in written:  # an index of before would be the one that counts
                    self._target.filesystem.rm_file(f"{self._target.path.rstrip('/')}/{name}")
        return 0

    def _write(self, source: Source, file: File, progress: Progress | None) -> None:
        path = f"{self._target.path.rstrip('/')}/{file.name}" if self._folder else self._target.path
        self._target.filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        with storing(_Plain(self._target.filesystem), path) as stream:
            for piece in pieces(source, file, 0):
                write_all(stream, piece)
                if progress is not None:
                    progress.advance(len(piece))


def refuse_replacing(target: Location, *, overwrite: bool) -> list[str]:
    """The names that are in a folder at `target`.

    Raises
    ------
    FileExistsError
        If something is there that may not be replaced.
    """
    filesystem = target.filesystem
    filesystem.invalidate_cache()  # which may remember what has changed since
    found = target.names() if filesystem.isdir(target.path) else []
    if not overwrite and (found or filesystem.isfile(target.path)):
        raise FileExistsError(
            errno.EEXIST, "it is there already; name another target, or allow to replace it (overwrite)", target.given
        )
    return found


class _Plain:
    """What `storing` asks for. Torch's own removes a file that could not be replaced, and here it may be an older one
    that is whole still.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    @contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        with self._filesystem.open(path, mode) as stream:
            try:
                yield stream
            except BaseException:
                if not hasattr(stream, "forced"):  # it writes in place, and what it has written is half a file
                    stream.close()
                    self._filesystem.rm_file(path)
                raise
