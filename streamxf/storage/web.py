"""`WebStorage`: what a web server shows. A folder is a page of links whose address ends in ``/``."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from streamxf.storage import fetch
from streamxf.storage.fetch import answers, begun, is_asynchronous, part_of
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Check, Storage, StorageEntry


class WebStorage(RemoteStorage):
    """A folder or a file over HTTP."""

    # fsspec has neither sizes nor times of what is listed, and takes its address for what identifies a file
    below, written, version = Storage.below, Storage.written, Storage.version

    def info(self, path: str = "") -> StorageEntry:
        return self._entry(path, self._facts(path))

    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        if self.info(path).kind != "folder":
            raise NotADirectoryError(errno.ENOTDIR, "this is no page of links", self.label(path))
        names = self._links(path)
        files = [name for name in names if not name.endswith("/")]
        yield from (StorageEntry(name.rstrip("/"), "folder") for name in names if name.endswith("/"))
        for name, facts in answers(files, lambda name: self._asked(f"{path}/{name}".lstrip("/"))):
            if isinstance(facts, Exception):
                with suppress(FileNotFoundError):  # it has gone, or the page links to what is not there
                    raise facts
            else:
                yield self._entry(name, facts)

    def _facts(self, path: str) -> Mapping[str, Any]:
        return self._asked(path).result()

    def _asked(self, path: str) -> Future[Mapping[str, Any]]:
        if is_asynchronous(self.filesystem):
            return begun(self.filesystem, partial(self._answer, self.path_of(path)))
        done: Future[Mapping[str, Any]] = Future()
        done.set_result(super()._facts(path))
        return done

    async def _answer(self, place: str) -> Mapping[str, Any]:
        try:
            return await self.filesystem._info(place)  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise self._known(error) from None

    def _opened(self, name: str, **options: Any) -> Any:
        # else fsspec asks, once, and takes any refusal for a missing file
        if self._fetches and (facts := self._facts(name)).get("partial", True):
            options["size"] = facts["size"]
        return super()._opened(name, **options)

    def _links(self, path: str) -> list[str]:
        """The names on the page of a folder; those of folders end in ``/``."""
        place = f"{self.path_of(path).rstrip('/')}/"
        ask = partial(self.filesystem._ls if self._fetches else self.filesystem.ls, place, detail=False)
        links = fetch.made(self.filesystem, ask) if self._fetches else ask()
        found = {unquote(link.removeprefix(place)) for link in links}
        return sorted(name for name in found if name.strip("/.") and "/" not in name[:-1] and not {*"?#"} & {*name})

    def _entry(self, path: str, facts: Mapping[str, Any]) -> StorageEntry:
        is_page = facts.get("mimetype") == "text/html"
        if str(facts.get("url", "")).endswith("/") or (is_page and self._links(path)):
            return StorageEntry(path, "folder")
        written = None
        with suppress(ValueError, TypeError, KeyError):
            written = parsedate_to_datetime(facts["Last-Modified"]).timestamp()
        return StorageEntry(path, "file", facts["size"], written, facts.get("ETag"))

    def read(self, path: str, start: int, stop: int) -> bytes:
        data = super().read(path, start, stop)
        if len(data) == stop - start or (start == 0 and len(data) < stop):
            return data
        return part_of(data, start, stop, self.info(path).size, self.label(path))

    # -- nothing is written ------------------------------------------------------------------------

    def _replace(self, path: str, data: bytes, over: str | None, check: Check) -> None:
        raise self._read_only()

    def create(self, path: str = "") -> AbstractContextManager[IO[bytes]]:
        raise self._read_only()

    def replacing(self) -> Any:
        raise self._read_only()

    def make_folder(self, path: str = "", *, durable: bool = True) -> list[Path]:
        raise self._read_only()

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        return dict.fromkeys(paths, self._read_only())

    def _read_only(self) -> Exception:
        return OSError(errno.EROFS, "over HTTP checkpoints are only read", self.label())
