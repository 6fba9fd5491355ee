"""`Storage`: a folder or a file, wherever it is kept; all that touches storage goes through it."""

from __future__ import annotations

import copy
import errno
import inspect
import io
import logging
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple

from streamxf import errors
from streamxf.errors import (
    AbortedError,
    ForeignError,
    MetadataError,
    ParameterError,
    UnsupportedError,
    escaped,
    redacted,
)
from streamxf.format.names import LOCK
from streamxf.lazy import pattern
from streamxf.storage.abilities import Abilities, AbilitiesLike, Mount, Volume
from streamxf.storage.checked import checked
from streamxf.storage.fetch import FetchedFile, requests_in_threads
from streamxf.storage.files import (
    DEEPEST,
    MAX_COMPONENT,
    MOST,
    NOT_THERE,
    SyncedFile,
    check_component,
    components,
    draft_of,
)
from streamxf.storage.reading import OpenFiles, RangedFile, StoredFile
from streamxf.storage.stores import ABSENT, PendingUpload
from streamxf.wording import OLD

_NOTHING = Abilities()
_log = logging.getLogger(__name__)
_SCHEME = pattern(r"[A-Za-z][A-Za-z0-9+.:-]*://", re.ASCII)


def is_url(path: object) -> bool:
    return isinstance(path, str) and (_SCHEME.match(path) is not None or ("::" in path and path[:1] != "/"))


def check_local(path: object, instead: str) -> None:
    """Refuse a URL, of which torch would make a folder with a name such as ``s3:``; `instead` is the class for URLs."""
    if isinstance(path, str) and _SCHEME.match(path):
        raise ParameterError(f"{path!r:.200} is a URL, and this class takes a folder: use streamxf.{instead} for it")


Kind = Literal["file", "folder", "link", "other"]


class StorageEntry(NamedTuple):
    """An entry of a folder.

    - `name`: its name there, or its path below.
    - `size`: bytes of a file; None for anything else, and if the storage does not report it.
    - `written`: when it was last written, in seconds since 1970; None if the storage does not report it.
    - `tag`: changes with the contents, such as an ETag; None if the storage has none.
    - `names`: how many a file has; 1 also where that is not known.
    - `mark`: of a file that may have several, what stays until it is written to or replaced.
    """

    name: str
    kind: Kind
    size: int | None = None
    written: float | None = None
    tag: str | None = None
    names: int = 1
    mark: tuple[int, int] | None = None


Entries = Mapping[str, StorageEntry]
Check = Callable[[], object]


class Storage(ABC):
    """A folder or a file, somewhere.

    Derive from it to keep checkpoints where neither the local file system nor fsspec reaches. `info`, `entries` and
    `read` are enough for reading; `write`, `create` and `remove` are needed for writing. Everything else is made of
    these, and may be overridden if a storage has a better way. `streamxf.testing.check_storage` tests an
    implementation.

    Each method takes a path below this place, "" being the place itself. Its parts are separated by ``/`` and taken
    literally: ``*``, ``?`` and ``..`` have no meaning. `path_of` turns it into a path from the storage's root. Any
    method may be called in several threads at once. An exception that is neither an OSError nor streamxf's becomes a
    `ForeignError`, which has it as its cause.

    Parameters
    ----------
    path : str
        From the storage's root, ``/`` between its parts; "" is the root.
    location : str, optional
        What opens this place again, such as a URL; its name in errors and reports.
    """

    near: ClassVar[bool] = False
    """Whether it is a folder of this machine, or mounted: read without requests, with locks and `fingerprints`."""
    DAY: ClassVar[float] = 86_400.0  # seconds: no save takes so long to be published, and no clocks differ so much
    own_abilities: Abilities = Abilities(threads=True, in_one_step=True, creates=False, replaces=False)
    """What this place can do, as an implementation knows it: a value, or a property where folders differ. By default
    what its methods are for anyway.
    """
    longest_name: ClassVar[int] = MAX_COMPONENT - len(draft_of(""))
    """Bytes of the longest name that `put` gives a file."""
    _said = _NOTHING

    def __init_subclass__(cls, raises_only_known: bool = False, **how: Any) -> None:
        super().__init_subclass__(**how)
        for name in () if raises_only_known else vars(Storage).keys() & vars(cls).keys():
            if not name.startswith("_") and inspect.isfunction(method := vars(cls)[name]):
                setattr(cls, name, checked(method))

    def __init__(self, path: str = "", location: str | None = None) -> None:
        self.path = path
        self._location = f"{type(self).__name__}:{path}" if location is None else location

    def __str__(self) -> str:
        return self.label()

    @property
    def abilities(self) -> Abilities:
        """What this place can do: as the caller of `streamxf.open_storage` says, and else by `own_abilities`."""
        return self.own_abilities if self._said is _NOTHING else self._said.over(self.own_abilities)

    def check_fresh(self) -> None:
        """Raise UnsupportedError if a client surely remembers what has been replaced: wrong files would go."""
        if not self.near and self.abilities.fresh is False:
            raise UnsupportedError(
                f"{STALE}; use the URL of the storage itself. Nothing was changed", file=self.label()
            )

    def check_may_replace(self, stacklevel: int = 0) -> None:
        """Raise UnsupportedError where the checkpoint that is here might be gone before the new one is stored; with a
        `stacklevel`, warn where a crash while the metadata is replaced may leave neither.
        """
        if not self.abilities.keeps_older:
            raise UnsupportedError(
                "there is a checkpoint, and this place is not known to store a file before its writer continues "
                "(some mounts send it later, and remove the old one at once): a crash might leave neither. Save "
                "into a new folder, or to an object store by its URL, such as s3://; if you know the place better, say "
                "so: save to streamxf.open_storage(path, abilities={'stored': True, 'in_order': True})",
                file=self.label(),
            )
        if stacklevel and not self.abilities.in_one_step:
            warnings.warn(
                f"{self.label()} is not known to replace a file in one step: a crash while .metadata is written "
                "may leave neither the old checkpoint nor the new one. Save into a new folder each time, or to a local "
                "or mounted file system, or to an object store",
                stacklevel=stacklevel + 1,
            )

    def warn_of_caches(self) -> None:
        """Say so if reads may surely return what has been replaced since."""
        if not self.near and self.abilities.fresh is False:
            warnings.warn(f"{self.label()}: {STALE}. The storage's own URL shows what is there", stacklevel=3)

    @property
    def is_late(self) -> bool:
        """Whether reads may show for longer than a minute what another host has replaced."""
        fresh = self.abilities.fresh
        return fresh is False or (fresh is None and self.near and not self.own_abilities.keeps_older)

    def doubted(self, error: Exception, *, missing: bool = False) -> Exception:
        """The error, or where the place `is_late` a StaleError, without advice, for damage, or a `missing` file."""
        looks = errors.is_damage(error) and not isinstance(error, errors.NoCheckpointError)
        looks &= missing or not isinstance(error, FileNotFoundError)
        looks |= getattr(error, "errno", None) == errno.EIO
        if not (looks and self.is_late):
            return error
        text = error.message if isinstance(error, errors.StreamxfError) else errors.text_of(error)
        made = errors.StaleError(f"{type(error).__name__}: {text.partition('. ')[0]}. That may not be damage: {OLD}")
        made.__cause__ = error
        return made.locate(**{name: getattr(error, name, None) for name in ("file", "item", "block")})

    @contextmanager
    def doubting(self, *, missing: bool = False) -> Iterator[None]:
        """Raise what is `doubted` of what is raised within."""
        try:
            yield
        except Exception as error:
            raise self.doubted(error, missing=missing)  # noqa: B904 - which has its cause

    def past_caches(self) -> Storage:
        """The same place, read past what a client remembers, where that is known."""
        return self

    def told(self, said: AbilitiesLike) -> Storage:
        """The same place, of which a caller says what it can do, as of all that is below."""
        made = self._at(self._location, self.path)
        made._said = Abilities.of(said).over(self._said)
        return made

    # -- what an implementation says ---------------------------------------------------------------

    @abstractmethod
    def info(self, path: str = "") -> StorageEntry:
        """The entry at a path; a folder exists if anything is below it. Raises FileNotFoundError."""

    @abstractmethod
    def entries(self, path: str = "") -> Iterable[StorageEntry]:
        """The entries directly in a folder. Raises FileNotFoundError if there is no such folder."""

    @abstractmethod
    def read(self, path: str, start: int, stop: int) -> bytes:
        """The bytes of a file from `start` to `stop`, fewer only at its end. Raises FileNotFoundError."""

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        """Store a whole file, in one step: readers see the previous contents, or all of `data`.

        - `over`: only where `abilities` say that it `replaces`: the `stamp` of the file that may be replaced; raises
          ReplacedMeanwhile if there is another one by now.
        """
        raise self._read_only()

    def create(self, path: str = "") -> AbstractContextManager[IO[bytes]]:
        """Open a new file to write it once and in order, in one thread at a time, though not always the same one;
        ``write`` takes any bytes-like object. After an error within the block nothing of the file remains.
        """
        raise self._read_only()

    def link(self, name: str, folder: Storage) -> None:
        """Give the file of that name in another folder the same name here, too, without a copy. Raises OSError if that
        cannot be done; UnsupportedError where files have one name each.
        """
        raise UnsupportedError("files have one name each here", file=self.label())

    def synced(self, stream: Any) -> SyncedFile:
        """What to write to in place of a `stream` of `create`'s whose `sync` is called at the end."""
        return SyncedFile(stream, flushes=self.near and self.abilities.locks == "hosts")

    def replacing(self) -> AbstractContextManager[IO[bytes]]:
        """Open this file to write it again, once and in order: the previous contents are replaced when the block ends
        without an error, if `create` leaves them until then.
        """
        return self.create()

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        """Remove files. Returns those that could not be removed, each with the reason; missing files are no error."""
        raise self._read_only()

    def _read_only(self) -> Exception:
        return UnsupportedError("this storage is read-only", file=self.label())

    # -- where it is -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/"))

    def label(self, name: str = "") -> str:
        """What errors and reports call this place, or a file of it: without the password of a URL in `location`."""
        return redacted(self.location(name))

    def location(self, name: str = "") -> str:
        """The path or URL that opens this place again, or a file of this folder."""
        if not name:
            return self._location
        first, chained, rest = _links(self._location)
        return f"{first if first.endswith(('://', ':///')) else first.rstrip('/') + '/'}{name}{chained}{rest}"

    def path_of(self, name: str) -> str:
        """The path from the storage's root, for a path below this place."""
        return "/".join(filter(None, (self.path.rstrip("/"), name)))

    def child(self, name: str) -> Storage:
        """What is below, as a place of its own. A link is followed then, wherever it leads."""
        return self._at(self.location(name), self.path_of(name))

    def parent(self) -> tuple[Storage, str]:
        """The folder that this lies in, and its name there."""
        first, chained, rest = _links(self._location)
        above = (each.rstrip("/").rpartition("/")[0] for each in (first, self.path))
        location = next(above)
        return self._at(f"{location}{'/' * location.endswith(':/')}{chained}{rest}", next(above)), self.name

    def beside(self, path: str) -> tuple[Storage, str]:
        """The folder that this lies in, links resolved, and there the path of what is here ``../<folder>/<name>``, as
        indexes of increments have it.
        """
        return self.resolved().parent()[0], path.removeprefix(BESIDE)

    def real(self, name: str = "") -> str:
        """What names the same file or folder whichever way it is reached, with all links resolved."""
        return self.location(name)

    def resolved(self, *, to_replace: bool = False) -> Storage:
        """The same place by its `real` path; FileExistsError if it is `to_replace`, and a link leads nowhere."""
        return self

    def _at(self, location: str, path: str) -> Storage:
        made = copy.copy(self)
        made._location, made.path = location, path
        return made

    def is_folder(self) -> bool:
        """Whether it is a folder, and no file. Raises FileNotFoundError; UnsupportedError for a device or the like."""
        try:
            kind = self.info().kind
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such file or folder", self.label()) from error.__cause__
        if kind not in ("folder", "file"):
            raise UnsupportedError("this is neither a file nor a folder, so it holds no checkpoint", file=self.label())
        return kind == "folder"

    def is_link(self, name: str) -> bool:
        return False

    def exists(self, path: str = "") -> bool:
        """Whether anything is there."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self.info(path)
            return True
        return False

    # -- what is in it -----------------------------------------------------------------------------

    def names(self, known: Collection[str] | None = None) -> dict[str, int | None]:
        """The names directly in the folder, without those of folders, each with its size in bytes: None for what is not
        a regular file, such as a link, and where the storage reports none. A folder that is not there has no files.

        - `known`: the only names whose sizes matter; those of others may be None. Among them may be files `beside`.
        """
        found: dict[str, int | None] = {}
        with suppress(FileNotFoundError):
            found = {each.name: each.size for each in self._listed() if each.kind != "folder" and each.name != LOCK}
        for folder in {name.rpartition("/")[0] for name in known or () if name.startswith(BESIDE)}:
            place, name = self.beside(folder)
            sizes = {f"{folder}/{name}": size for name, size in place.child(name).names().items()}
            found |= {name: size for name, size in sizes.items() if name in (known or ())}
        return found

    def folders(self) -> dict[str, str | None]:
        """The folders in this one, and what may be one, each with where a link leads. Raises FileNotFoundError."""
        return {each.name: None for each in self._listed() if each.kind == "folder"}

    def below(self, path: str = "", *, folders: bool = False) -> Iterator[StorageEntry]:
        """Everything below a folder, at any depth, with its path from there; no link is entered. Folders are among it
        if they are asked for; if not, those that cannot be looked into are, as "other".
        """
        inside = [("", iter(self.entries(path)))]
        left = MOST + 1  # whoever takes no more than `MOST` asks for one more, to know of it
        while inside:
            prefix, entries = inside[-1]
            if (entry := next(entries, None)) is None:
                inside.pop()
                continue
            if (left := left - 1) < 0:
                raise self._endless(path)
            name, is_folder = f"{prefix}{entry.name}", entry.kind == "folder"
            if folders or not is_folder:
                yield entry._replace(name=name)
            elif len(inside) > DEEPEST:
                yield StorageEntry(name, "other")
            if is_folder and len(inside) <= DEEPEST:
                inside.append((f"{name}/", iter(self.entries(f"{path}/{name}".lstrip("/")))))

    def files_below(self, path: str = "", most: int = MOST) -> dict[str, StorageEntry]:
        """The regular files below a folder, by their paths from there, without its lock. A link is left out and not
        entered; a link, or what is not there, has none. Of more than `most`, some are left out, with a warning.
        """
        below = self.below(path, folders=self.near)  # which takes time, too
        try:
            found = {each.name: each for each in islice(below, most) if each.kind == "file" and each.name != LOCK}
            more = next(below, None) is not None
        except OSError as error:
            if error.errno not in NOT_THERE and not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            return {}
        if more:
            _log.warning("%s has more than %d files; the others are ignored", escaped(self.label(path)), most)
        return found

    def _listed(self, path: str = "") -> Iterator[StorageEntry]:
        """The entries; raises ForeignError if there is no end to them."""
        for number, entry in enumerate(self.entries(path)):
            if number == MOST:
                raise self._endless(path)
            yield entry

    def _endless(self, path: str) -> ForeignError:
        return ForeignError(f"it lists more than {MOST:,} names, which no checkpoint has", file=self.label(path))

    def written(self, names: Collection[str]) -> dict[str, float | None]:
        """When files were last written, in seconds since 1970; None if one has gone, or the storage does not say."""
        found = {each.name: each.written for each in self._listed()}
        return {name: found.get(name) for name in names}

    def older_than(self, names: Collection[str], age: float) -> set[str]:
        """Those of `names` last written at least `age` seconds ago; where nothing tells, only if `age` is 0."""
        if not age or not names:
            return set(names)
        now = time.time()
        return {name for name, written in self.written(names).items() if written is not None and now - written >= age}

    def was_written_lately(self, names: Collection[str], *, or_held: bool = False) -> bool:
        """Whether one of these files was written to within an hour, or, if asked, the folder `or_held` by a lock."""
        written = self.written([*names, LOCK] if or_held else names).values() if names or or_held else ()
        return any(at is not None and abs(time.time() - at) < 3600 for at in written)

    def held(self, name: str, size: int | None) -> int:
        """Bytes that the storage holds of a file of this folder, holes left out; `size` where it cannot be asked."""
        return size or 0

    def held_by(self, names: Iterable[str], listed: Mapping[str, int | None] | None = None) -> int:
        """The same of several files; `listed` is what `names` returned, where the caller has it already."""
        names = [*names]
        if listed is None:
            listed = {} if self.near else self.names(names)
        return sum(self.held(name, listed.get(name)) for name in names)

    def version(self, name: str = "") -> object:
        """A value, plain JSON, that changes when a file is written to or replaced. None where there is no file."""
        with suppress(FileNotFoundError):
            return [*self.info(name)[2:6]]
        return None

    def forget_listings(self) -> None:  # noqa: B027 - nothing is remembered
        """Ask again from now on, where names and sizes are remembered that other processes may change."""

    # -- reading -----------------------------------------------------------------------------------

    @contextmanager
    def open(self, name: str = "", *, random: bool = False, step: int | None = None) -> Iterator[StoredFile]:
        """Open a file of this folder, or one `beside`, or this file itself, for reading. With `random` little is read,
        here and there, so that fetching what lies ahead would not pay; `step` is the bytes that are fetched at a time.

        Raises FileNotFoundError; MetadataError if it is not a regular file, or a link that leads out of the folder: it
        was not read then; UnsupportedError if it does not tell its size.
        """
        if name.startswith(BESIDE):
            place, name = self.beside(name)
            with place.open(name, random=random, step=step) as file:
                yield file
            return
        entry = self.info("/".join(components(name)) if name else "")
        if entry.kind != "file":
            raise MetadataError(NOT_REGULAR, file=self.label(name))
        if type(entry.size) is not int or entry.size < 0:
            raise self._no_size(name)
        yield self.sized(name, entry.size)

    def open_files(self, open_file: Callable[[str], AbstractContextManager[StoredFile]] | None = None) -> OpenFiles:
        """What opens files by name as they are read, by `open` or by `open_file`."""
        return OpenFiles(open_file or self.open, near=self.near)

    def sized(self, name: str, size: int) -> StoredFile:
        """The same of a file that has been listed with its size."""
        read, label = partial(self.read, name), self.label(name)
        fetched = FetchedFile(requests_in_threads(read, label), size)
        return StoredFile(label, size, io.BufferedReader(RangedFile(read, size)), fetched, fetched)

    def _no_size(self, name: str) -> UnsupportedError:
        return UnsupportedError("the file has no known size", file=self.label(name))

    def fetch(self, path: str, start: int, stop: int) -> Future[bytes]:
        """Begin to `read`, where a storage can do that in the background; elsewhere it is done then."""
        done: Future[bytes] = Future()
        try:
            done.set_result(self.read(path, start, stop))
        except Exception as error:  # of whatever class
            done.set_exception(error)
        return done

    # -- writing -----------------------------------------------------------------------------------

    def put(
        self,
        path: str,
        data: bytes,
        *,
        sync: bool = True,
        check: Check | None = None,
        over: str | None = None,
        once: bool = False,
        make: bool = False,
    ) -> None:
        """Put `data` at `path`, replacing what is there in one step where the storage has such a step. Raises OSError;
        what was there before is then still there, unless the error came after the step: when the folder could not be
        synced, or when the answer of a server was lost.

        - `sync`: whether the disk must have it when this returns.
        - `check`: called last before that step, and may raise. With it, `data` is a new version of what is there: local
          files keep their owner and permissions, as far as this process may give them away.
        - `over`: the `stamp` of what may be replaced; raises ReplacedMeanwhile if something else is there by now.
        - `once`: raise FileExistsError if something is there by then; where a storage cannot tell, of two at the same
          moment one is lost.
        - `make`: also make the folders that it needs. No link is followed then.
        """
        can = self.abilities
        if once and not can.creates:
            self.forget_listings()
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.label(path))
        if make:
            self.make_folder(path.rpartition("/")[0], durable=sync)
        refused = (can.creates if once else can.replaces) is False
        wanted = None if refused else ABSENT if once else over
        try:
            self._replace(path, data, wanted, check or (lambda: None))
        except errors.ReplacedMeanwhile:
            if not once:
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.label(path)) from None

    def _replace(self, path: str, data: bytes, over: str | None, check: Check) -> None:
        """`write` a file, once `check` has passed; `over` is None where nothing is put on a condition."""
        check()
        if over is None:
            self.write(path, data)
        else:
            self.write(path, data, over=over)

    def stamp(self, name: str) -> str | None:
        """What identifies the file that is there now, for `put`: "" if there is none. None if there are no stamps."""
        return None

    def make_folder(self, path: str = "", *, durable: bool = True) -> list[Path]:
        """Make a folder and those above it, on disk if `durable`; returns the new local ones, the uppermost last."""
        return []

    def sync(self) -> None:  # noqa: B027 - it has
        """Wait until the disk has the names of the files of this folder."""

    def uploads(self) -> list[PendingUpload]:
        """Uploads to files of this folder that were begun, and neither completed nor aborted."""
        return []

    # -- removing ----------------------------------------------------------------------------------

    def check_literal(self, name: str) -> None:
        """Raise ParameterError if `name` is not a name in a folder, or might be taken for something else."""
        check_component(name)

    def remove_folder(self, name: str, turns: Sequence[Collection[str]]) -> list[str] | None:
        """Remove files of a folder, whose names were checked, the files of each turn only once all before have gone,
        then what is empty by then. Returns the paths of what stays; None where files of many folders are rather removed
        in batches.
        """
        return None

    def remove_all(self) -> None:
        """Remove what is at this place, if anything is: a file, a folder with everything in it, or a link alone."""
        self.forget_listings()
        try:
            paths = [each.name for each in self.below()] if self.is_folder() else [""]
        except FileNotFoundError:
            return
        for error in self.remove(paths).values():
            raise error
        self.prune("")

    def prune(self, path: str) -> list[str]:
        """Remove the empty folders below, and the folder itself, where a storage has any; what is there besides."""
        return []

    # -- one process among others ------------------------------------------------------------------

    def hold(self, *, links: bool = True) -> Storage:
        """The same place, with a local folder held open: files are written, listed and removed in that one alone,
        whatever is put in its place. AbortedError if it is a link and `links` are not allowed.
        """
        return self

    def let_go(self) -> Storage:
        """The same place as it was before `hold`."""
        return self

    @contextmanager
    def entered(self) -> Iterator[Storage]:
        """The same place, held, so that no file of it is looked for along its whole path."""
        held = self
        with suppress(OSError, AbortedError):  # whoever opens a file is told
            held = self.hold()
        try:
            yield held
        finally:
            if held is not self:
                held.let_go()

    def was_swapped(self) -> bool:
        """Whether the folder that is held was moved or removed meanwhile."""
        return False

    def acquire(self, patience: float, *, links: bool = True) -> Callable[[], None] | None:
        """Take the folder's lock, as `streamxf.storage.lock.locked`; what releases it, or None if there is none."""
        return None

    def lock_file(self, path: str, *, make: bool = False) -> IO[bytes] | None:
        """A file under a lock of its own, made if `make`; None where there are none, BlockingIOError if held."""
        return None

    def fingerprints(self, folder: str, names: Iterable[str]) -> tuple[str | None, str | None]:
        """What changes with the names in a folder, and with the first of the files `names`; None if it is not known."""
        return None, None

    def mount(self) -> Mount | None:
        """Where this process finds the folder; None if it is not there, or not local."""
        return None

    def volume(self) -> Volume | None:
        """The file system that has the folder; None where space is not counted, or the folder is not there."""
        return None


def _links(location: str) -> tuple[str, str, str]:
    """The link of a chained URL that has the path, what chains it, and the rest: ``zip://run::file:///a.zip``."""
    first, chained, rest = location.partition("::")
    return (first, chained, rest) if chained and "://" in first else (location, "", "")


BESIDE = "../"
STALE = "this URL leads through a cache, which may return stale contents"
NOT_REGULAR = "this is not a regular file, so no writer wrote it; it was not read"
