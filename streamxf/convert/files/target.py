"""`Target`: where files are to be written, in the local file system or wherever fsspec writes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from streamxf.convert.files.layout import Run
from streamxf.convert.files.plan import Plan
from streamxf.convert.files.upload import Upload, refuse_replacing
from streamxf.convert.files.writing import Writing, draft_of, refuse_existing
from streamxf.formats.huggingface import layout_of
from streamxf.formats.location import Location
from streamxf.formats.source import Source
from streamxf.progress import Progress
from streamxf.version import __version__

_OF_DCP = (".distcp", ".metadata")


class Target:
    """A file or folder that is to be written.

    Parameters
    ----------
    path : path or str
        Or a URL.
    options : mapping, optional
        fsspec's.
    overwrite : bool
        Whether what is there may be replaced.
    """

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any] | None, *, overwrite: bool) -> None:
        self._location = Location.of(path, options)
        inner = self._location.filesystem
        local = inner is None or "file" in ((inner.protocol,) if isinstance(inner.protocol, str) else inner.protocol)
        self._local = Path(os.path.realpath(self._location.path)) if local else None
        self._overwrite = overwrite

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self._location.name

    def refuse_early(self) -> None:
        """Refuse what can be refused before anything is read.

        Raises
        ------
        FileExistsError
        """
        if self._local is None:
            refuse_replacing(self._location, overwrite=self._overwrite)
        elif not self._overwrite and not draft_of(self._local).exists():
            refuse_existing(self._local)

    def write(self, source: Source, plan: Plan, identity: str, progress: Progress | None) -> int:
        """Write files from `source`, of which `identity` is known; returns the bytes that were there already.

        Raises
        ------
        FileExistsError, IsADirectoryError, NotADirectoryError
            If there is something that may not, or cannot, be replaced.
        Exception
            As `Writing.run`.
        """
        if self._local is None:
            return Upload(self._location, plan, overwrite=self._overwrite).run(source, progress)
        self._check_kind(self._local, plan.folder)
        return Writing(self._local, plan, identity=_identity(identity, plan), overwrite=self._overwrite).run(
            source, progress
        )

    def _check_kind(self, local: Path, folder: bool) -> None:
        if not local.exists():
            return
        if not folder and not local.is_file():
            raise IsADirectoryError(errno.EISDIR, "this is no regular file, and a file is to be written", str(local))
        if folder and not local.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "this is a file, and a folder is to be written", str(local))
        names = os.listdir(local) if folder else []
        if names and self._overwrite and (any(name.endswith(_OF_DCP) for name in names) or layout_of(names) is None):
            raise FileExistsError(
                errno.EEXIST,
                "the folder holds other things than a Hugging Face checkpoint; name another one",
                str(local),
            )


def _identity(source: str, plan: Plan) -> str:
    """Of what is being written: from what, and which bytes stand where."""
    digest = hashlib.sha256(f"{__version__} {source}".encode())
    for part in _parts(plan):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(plan: Plan) -> Iterable[bytes]:
    for file in plan.files:
        yield _encoded(f"{file.mode} {file.name}")
        for segment in file.segments:
            if isinstance(segment, bytes):
                yield segment
                continue
            entry = segment.entry
            place = segment.order if isinstance(segment, Run) else (segment.start, segment.size)
            yield _encoded(f"{entry.name} {entry.dtype} {entry.shape} {place}")
    for path, mode in plan.folders.items():
        yield _encoded(f"folder {mode} {path}")
    for path, leads_to in plan.links.items():
        yield _encoded(f"link {path} {leads_to}")


def _encoded(text: str) -> bytes:
    """Names of items and files need not be texts that UTF-8 knows."""
    return text.encode("utf-8", "surrogatepass")
