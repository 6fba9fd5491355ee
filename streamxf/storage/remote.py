"""`RemoteStorage`: whatever fsspec reads and writes, object stores above all; `WebStorage`: what a web server shows."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from streamxf.errors import ParameterError, UnsupportedError, redacted
from streamxf.lazy import pattern
from streamxf.storage import fetch
from streamxf.storage.abilities import REFUSED, Abilities, of_client
from streamxf.storage.fetch import answers, is_asynchronous, part_of, start_request
from streamxf.storage.files import check_component, draft_of, drop_draft_after
from streamxf.storage.reading import StoredFile, size_of
from streamxf.storage.storage import BESIDE, Check, Kind, Storage, StorageEntry
from streamxf.storage.stores import PendingUpload, can_condition, creating, pending_uploads, put_over, stamp_of, tried
from streamxf.wording import some

_SFTP = frozenset({"sftp", "ssh"})  # they rename in one step, by the extension posix-rename@openssh.com
_CACHES = frozenset({"blockcache", "cached", "filecache", "simplecache"})

_AZURE = frozenset({"az", "abfs", "abfss"})
_WEBDAV = frozenset({"webdav", "dav"})
_SCHEMES = pattern(r"([a-z0-9+.-]+)://", re.ASCII)
_KINDS: dict[str, Kind] = {"file": "file", "directory": "folder", "link": "link"}
_WRITTEN = ("LastModified", "last_modified", "mtime", "updated", "modified")  # of S3, Azure, SFTP, Google, WebDAV
_TAGS = ("ETag", "etag", "md5Hash")

_BATCH = 1000  # keys, as many as S3 takes in a request
_PASSING = {"InternalError", "SlowDown", "ServiceUnavailable"}

Failed = dict[str, Exception]

# Some clients take the end of a path for a version (`?versionId=`, `#`), and no store takes control characters.
_NOT_LITERAL = pattern(r"[\x00-\x1f\x7f-\x9f\\%?#\ud800-\udfff]")
_NO_KEY = pattern(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]|\?versionId=")
_KEYS = frozenset({"s3", "s3a", "memory"})  # whose clients take all else literally; to SeaweedFS a `\` is a `/`


class RemoteStorage(Storage):
    """A folder or a file of a file system of fsspec's."""

    def __init__(self, path: str, filesystem: Any, location: str | None = None) -> None:
        layers = tuple(layers_of(filesystem, path))
        super().__init__(layers[0][0] if layers else path, path if location is None else location)
        self.protocol = layers[-1][1][0] if layers else "file"  # that below all layers: ``s3``, ``sftp``, ...
        if self.protocol == "abstract" and (schemes := _SCHEMES.findall(self._location)):  # sshfs does not say
            self.protocol = schemes[-1]
        if self.protocol in _WEBDAV:
            self.path = self.path.lstrip("/")  # as it lists them
        lowest = type(fetch.lowest(filesystem))
        if (reason := REFUSED.get(f"{lowest.__module__}.{lowest.__qualname__}")) is not None:
            raise UnsupportedError(f"streamxf does not work over {reason} instead", file=redacted(self._location))
        if hasattr(lowest, "_call_s3") and re.match("/*[^/]+//", layers[-1][0]):
            text = "the key begins with a slash, below which s3fs lists nothing: write s3://BUCKET/KEY"
            raise ParameterError(text, file=redacted(self._location))
        self._known_abilities = _abilities(filesystem, layers)
        self._tried = tried(filesystem, f"{self.path.rstrip('/')}/any")
        self._client = filesystem
        self._fetches = fetch.fetches_ranges(filesystem)

    @property
    def own_abilities(self) -> Abilities:  # type: ignore[override]
        """Of the client, and what the first put on a condition has shown of the store."""
        known = self._known_abilities
        return Abilities(**self._tried).over(known) if self._tried else known

    @property
    def filesystem(self) -> Any:
        """The client, for one thread at a time unless it is known to be fit for several."""
        is_fit = self.abilities.threads or fetch.is_asynchronous(fetch.lowest(self._client))
        return self._client if is_fit else fetch.in_turns(self._client)

    def past_caches(self) -> Storage:
        filesystem, path = self._client, self.path
        if self.own_abilities.fresh is not False:
            return self
        while hasattr(below := getattr(filesystem, "fs", None), "_strip_protocol"):
            path = filesystem._join(path) if hasattr(filesystem, "_join") else path
            filesystem = below
        return RemoteStorage(path, filesystem, self._location).told(self._said)

    def path_of(self, name: str) -> str:
        if self.protocol in _AZURE and "\\" in f"{self.path}{name}":
            text = "Azure takes \\ for /, so nothing would be found under this name: choose one without"
            raise ParameterError(text, file=self.label(name))
        above = f"{self.path.rstrip('/')}/" if self.path else self._client.root_marker
        return f"{above}{name}" if name else self.path

    def forget_listings(self) -> None:
        self.filesystem.invalidate_cache()

    def info(self, path: str = "") -> StorageEntry:
        return _entry(path, self._facts(path))

    def _facts(self, path: str) -> Mapping[str, Any]:
        self.forget_listings()
        try:
            return self.filesystem.info(self.path_of(path))  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise self._known(error) from None

    def _known(self, error: Exception) -> Exception:
        """What went wrong, where fsspec calls it a file that is not there: a refusal, or a server that is silent."""
        cause = error.__cause__
        silent = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
        status = 0 if cause is None else fetch.status_of(cause)
        refused = status >= 400 and status not in (404, 410)
        return cause if isinstance(cause, Exception) and (silent or refused) else error

    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        self._check_folders(path)
        self.forget_listings()
        for entry in self.filesystem.ls(self.path_of(path), detail=True):
            yield _entry(_last(entry), entry)

    def below(self, path: str = "", *, folders: bool = False) -> Iterator[StorageEntry]:
        self.forget_listings()
        for name in path.split("/") if path else ():
            self.check_literal(name)
        if path and self.is_link(path):
            return
        base = self.path_of(f"{path}/." if path else ".")[:-1]
        for found, entry in self.filesystem.find(self.path_of(path), withdirs=folders, detail=True).items():
            if found.startswith(base) and found != base:
                yield _entry(found.removeprefix(base), entry)

    def is_link(self, name: str) -> bool:
        return not self.abilities.flat and self._kind(name) == "link"

    def written(self, names: Collection[str]) -> dict[str, float | None]:
        # a file system that remembers the listing of a moment ago asks for none
        listed = {_last(each): each for each in self.filesystem.ls(self.path, detail=True)}
        found: dict[str, float | None] = dict.fromkeys(names)
        for name in names:
            with suppress(OSError, NotImplementedError, AttributeError, ValueError):
                if any(key in listed.get(name, ()) for key in _WRITTEN):
                    found[name] = _written_in(listed[name])
                else:
                    found[name] = _seconds(self.filesystem.modified(self.path_of(name)))  # a request
        return found

    def version(self, name: str = "") -> object:
        self.forget_listings()
        with suppress(FileNotFoundError):  # SFTP's of fsspec changes when a file is read
            return super().version(name) if self.protocol in _SFTP else self.filesystem.ukey(self.path_of(name))
        return None

    def _check_folders(self, path: str) -> None:
        """Refuse a path through a link, where there may be some."""
        for above in _above(path) if not self.abilities.flat else ():
            if self._kind(above) != "folder":
                raise NotADirectoryError(errno.ENOTDIR, f"{above} is a link, or not a folder", self.label(path))

    def _kind(self, path: str) -> Kind | None:
        """What is there by a listing, which follows no link at the end of the path."""
        self.forget_listings()
        above, root, last = self.path_of(path).rpartition("/")
        with suppress(FileNotFoundError, NotADirectoryError):
            found = {_last(each): each for each in self.filesystem.ls(above or root, detail=True)}
            return _entry(last, found[last]).kind if last in found else None
        return None

    @contextmanager
    def open(self, name: str = "", *, random: bool = False, step: int | None = None) -> Iterator[StoredFile]:
        if name.startswith(BESIDE):
            with super().open(name, random=random, step=step) as file:
                yield file
            return
        options: dict[str, Any] = {"cache_type": "none"} if random else {}
        if step is not None:
            options["block_size"] = step
        with closing(self._opened(name, **options)) as raw:
            size = size_of(raw)
            if size is None and (size := self.info(name).size) is None:
                raise self._no_size(name)
            if not self._fetches:
                yield StoredFile(self.label(name), size, raw)
                return
            requests = fetch.requests_to(self.filesystem, self.path_of(name), self.label(name), size)
            with closing(fetch.FetchedFile(requests, size)) as fetched:
                yield StoredFile(self.label(name), size, raw, fetched, fetched)

    def _opened(self, name: str, **options: Any) -> Any:
        return self.filesystem.open(self.path_of(name), "rb", **options)

    def read(self, path: str, start: int, stop: int) -> bytes:
        if not self.abilities.flat:
            self._check_folders(path.rpartition("/")[0])
            if self._kind(path) != "file":
                raise FileNotFoundError(errno.ENOENT, "there is no such regular file", self.label(path))
        place, filesystem = self.path_of(path), self.filesystem
        try:
            if self._fetches:
                return bytes(fetch.make_request(filesystem, lambda: filesystem._cat_file(place, start=start, end=stop)))
            if not fetch.is_asynchronous(filesystem):
                return bytes(filesystem.cat_file(place, start=start, end=stop))
            with closing(filesystem.open(place, "rb")) as raw:
                raw.seek(start)
                return bytes(raw.read(stop - start))
        except (FileNotFoundError, IsADirectoryError):
            raise
        except Exception:
            if self.info(path).size == 0:  # a range of an empty object is an error
                return b""
            raise

    def fetch(self, path: str, start: int, stop: int) -> Future[bytes]:
        """Raises an error of the store for an empty file."""
        filesystem = self.filesystem
        if not self.abilities.flat or not self._fetches:
            return super().fetch(path, start, stop)
        return fetch.start_request(filesystem, lambda: filesystem._cat_file(self.path_of(path), start=start, end=stop))

    def put(self, path: str, data: bytes, *, make: bool = False, **how: Any) -> None:
        if make and not self.abilities.flat:
            for above in _above(path):
                if self._kind(above) == "link":
                    raise NotADirectoryError(errno.ENOTDIR, f"{above} is a link", self.label(path))
            self.make_folder(path.rpartition("/")[0])
        super().put(path, data, **how)

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        self._replace(path, data, over, lambda: None)

    def _replace(self, path: str, data: bytes, over: str | None, check: Check) -> None:
        place = self.path_of(path)
        try:
            if self.protocol in _SFTP:
                with self._renamed(place) as draft:
                    self.filesystem.pipe_file(draft, data)
                    check()
                return
            check()
            if over is None:
                self.filesystem.pipe_file(place, data)
            else:
                put_over(self.filesystem, place, data, over)
        finally:
            self.forget_listings()  # adlfs keeps those that lack what it has put

    @contextmanager
    def _renamed(self, target: str) -> Iterator[str]:
        """A name beside `target`, for a file that takes its place in the end: in one step where there is one."""
        draft = draft_of(target)
        try:
            yield draft
            if self.protocol in _WEBDAV:  # webdav4 moves nothing onto another file
                with suppress(FileNotFoundError):
                    self.filesystem.rm_file(target)
            if not self.abilities.flat:
                self.filesystem.mv(draft, target)  # which may expand patterns: those of a draft match no other
            else:
                self.filesystem.cp_file(draft, target), self.filesystem.rm_file(draft)
        except BaseException as error:
            with drop_draft_after(error, draft):
                if self.filesystem.exists(draft):
                    self.filesystem.rm_file(draft)
            raise

    def create(self, path: str = "") -> AbstractContextManager[IO[bytes]]:
        self.check_fresh()
        return creating(self.filesystem, self.path_of(path))

    @contextmanager
    def replacing(self) -> Iterator[IO[bytes]]:
        """Without a transaction of fsspec's, which takes in all that any thread writes to the file system meanwhile."""
        self.check_fresh()
        place = (
            self._renamed(self.path) if not self.abilities.flat or self.protocol == "memory" else nullcontext(self.path)
        )
        with place as path, creating(self.filesystem, path) as file:
            yield file

    def make_folder(self, path: str = "", *, durable: bool = True) -> list[Path]:
        self.filesystem.makedirs(self.path_of(path), exist_ok=True)
        return []

    def stamp(self, name: str) -> str | None:
        return stamp_of(self.filesystem, self.path_of(name))

    def uploads(self) -> list[PendingUpload]:
        return pending_uploads(self.filesystem, self.path)

    def check_literal(self, name: str) -> None:
        check_component(name)
        if (_NO_KEY if self.protocol in _KEYS else _NOT_LITERAL).search(name):
            raise ParameterError(f"{ascii(name)[:80]}: the client of this store might not take this name literally")

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        places = {self.path_of(path): path for path in paths}
        if outside := [path for path in places.values() if ".." in path.split("/")]:  # which some servers follow
            raise ParameterError(f"{some(outside)}: nothing outside of a folder is removed from there")
        failed = remove_files(self.filesystem, places)
        self.forget_listings()
        return {places[place]: error for place, error in failed.items()}

    def remove_all(self) -> None:
        if self.is_link(""):
            raise OSError(errno.ELOOP, "this is a link, which cannot be removed from here", self.label())
        super().remove_all()

    def prune(self, path: str) -> list[str]:
        self.forget_listings()
        if self.abilities.flat and self.protocol != "memory":
            return []
        place, client = self.path_of(path), self.filesystem
        try:
            found = client.find(place, withdirs=True, detail=True)
            left = sorted(path for path, entry in found.items() if entry.get("type") != "directory")
            folders = {path for path, entry in found.items() if entry.get("type") == "directory"} | {place}
            for folder in sorted(folders, key=len, reverse=True):
                if any(path.startswith(f"{folder}/") for path in left) or not client.exists(folder):
                    continue
                if fetch.is_asynchronous(client) and hasattr(client, "_rmdir"):  # sshfs has an `rmdir` of no effect
                    fetch.make_request(client, partial(client._rmdir, folder))
                else:
                    client.rmdir(folder)
        except FileNotFoundError:
            return []
        finally:
            self.forget_listings()
        return [path.removeprefix(place).lstrip("/") for path in left]


def _abilities(filesystem: Any, layers: Iterable[tuple[Any, tuple[str, ...]]]) -> Abilities:
    """What is known of the client below all layers, without what these keep from those who ask."""
    client = of_client(type(fetch.lowest(filesystem)))
    if fetch.is_asynchronous(fetch.lowest(filesystem)):
        client = client.over(Abilities(threads=True))
    if any(_CACHES.intersection(names) for _, names in layers):
        client = Abilities(fresh=False).over(client)
    if not can_condition(filesystem):
        client = Abilities(creates=False, replaces=False).over(client)
    return Abilities(asynchronous=fetch.is_asynchronous(filesystem)).over(client)


def layers_of(filesystem: Any, path: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Fsspec's file systems, outermost first: caches, folders that pose as a root. Of each its path and protocols."""
    while hasattr(filesystem, "_strip_protocol"):
        path = filesystem._strip_protocol(path)
        names = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)
        yield path, names
        if "dir" in names:
            path = filesystem._join(path)
        filesystem = getattr(filesystem, "fs", None)


def _above(path: str) -> Iterator[str]:
    """A path and those of the folders above it, the uppermost first."""
    return accumulate(path.split("/"), "{}/{}".format) if path else iter(())


def _last(found: Mapping[str, Any]) -> str:
    return os.path.basename(str(found["name"]).rstrip("/"))


def _entry(name: str, found: Mapping[str, Any]) -> StorageEntry:
    kind: Kind = _KINDS.get(found.get("type", ""), "other")
    size = found.get("size") if kind == "file" else None
    tag = next((str(found[key]) for key in _TAGS if found.get(key)), None)
    return StorageEntry(name, kind, int(size) if isinstance(size, int) else None, _written_in(found), tag)


def _written_in(found: Mapping[str, Any]) -> float | None:
    written = next((found[key] for key in _WRITTEN if key in found), None)
    with suppress(ValueError):
        return _seconds(written) if written is not None else None
    return None


def _seconds(written: Any) -> float:
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    return written.timestamp() if isinstance(written, datetime) else float(written)


def remove_files(filesystem: Any, paths: Iterable[str]) -> Failed:
    """Remove files of a file system of fsspec's; those that could not be, each with the reason. A file that is not
    there is fine. Fsspec's own `rm` expands `[`, `*` and `?`, and removes what matches them.
    """
    failed: Failed = {}
    if not fetch.is_asynchronous(filesystem):
        for path in paths:
            try:
                filesystem.rm_file(path)
            except FileNotFoundError:
                pass
            except Exception as error:  # of whatever class; the others are removed all the same
                failed[path] = error
    elif hasattr(filesystem, "_call_s3"):
        keys = tuple(paths)
        parts = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
        for part, outcome in fetch.answers(
            parts, lambda part: fetch.start_request(filesystem, partial(_remove_batch, filesystem, part))
        ):
            failed |= dict.fromkeys(part, outcome) if isinstance(outcome, Exception) else outcome
    else:
        for path, found in fetch.answers(
            paths, lambda path: fetch.start_request(filesystem, partial(_remove_one, filesystem, path))
        ):
            failed |= {path: found} if isinstance(found, Exception) else {}
    return failed


async def _remove_batch(filesystem: Any, paths: tuple[str, ...]) -> Failed:
    """One request to S3. That of s3fs (`_bulk_delete`) drops what the server says of keys it did not remove."""
    bucket = filesystem.split_path(paths[0])[0]
    keys = {path.lstrip("/")[len(bucket) + 1 :]: path for path in paths}
    wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
    answer = await filesystem._call_s3("delete_objects", Bucket=bucket, Delete=wanted)
    failed: Failed = {}
    for each in answer.get("Errors", ()):
        code, text = each.get("Code"), f"{each.get('Code')}: {each.get('Message')} ({each.get('Key')})"
        if code in _PASSING:
            raise OSError(text)  # and the request is repeated
        if code != "NoSuchKey":
            failed[keys[each["Key"]]] = (PermissionError if code == "AccessDenied" else OSError)(text)
    return failed


async def _remove_one(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        await filesystem._rm_file(path)


class WebStorage(RemoteStorage):
    """A folder or a file over HTTP; a folder is a page of links whose address ends in ``/``."""

    # fsspec has neither sizes nor times of what is listed, and takes its address for what identifies a file
    below, written, version = Storage.below, Storage.written, Storage.version

    def info(self, path: str = "") -> StorageEntry:
        return self._entry(path, self._facts(path))

    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        if self.info(path).kind != "folder":
            raise NotADirectoryError(errno.ENOTDIR, "this is not a page of links", self.label(path))
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
            return start_request(self.filesystem, partial(self._answer, self.path_of(path)))
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
        links = fetch.make_request(self.filesystem, ask) if self._fetches else ask()
        found = {unquote(link.removeprefix(place)) for link in links}
        return sorted(name for name in found if name.strip("/.") and "/" not in name[:-1] and not {*"?#"} & {*name})

    def _entry(self, path: str, facts: Mapping[str, Any]) -> StorageEntry:
        if str(facts.get("url", "")).endswith("/") or (facts.get("mimetype") == "text/html" and self._links(path)):
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

    _replace, write, create = Storage._replace, Storage.write, Storage.create
    replacing = Storage.replacing  # type: ignore[assignment]

    def make_folder(self, path: str = "", *, durable: bool = True) -> list[Path]:
        raise self._read_only()

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        return dict.fromkeys(paths, self._read_only())

    def _read_only(self) -> Exception:
        return OSError(errno.EROFS, "checkpoints are read-only over HTTP", self.label())
