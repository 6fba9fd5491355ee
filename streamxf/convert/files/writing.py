"""Files written beside their place, and put there when all of them are whole; after a kill the next call goes on.

What is being written lies in a hidden folder beside the target, with a journal. A single file is renamed over its
target; a folder takes its place as a whole. One process at a time writes to a target.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamxf.buffers import write_all
from streamxf.convert.files.huggingface import WEIGHTS
from streamxf.convert.files.journal import Journal
from streamxf.convert.files.layout import pieces
from streamxf.convert.files.plan import Plan
from streamxf.dcp.publish.durable import missing_folders, sync_folder, sync_names_of
from streamxf.dcp.save.volume import Volume
from streamxf.errors import AbortedError, NoSpaceError
from streamxf.formats.source import Source
from streamxf.progress import Progress
from streamxf.wording import size_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SYNC_BYTES = 256 * 2**20
"""How much is written before the journal says so: what a killed process has to do again."""

_BUFFER = 2**20
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF})


class Writing:
    """Files on their way to a local target.

    Parameters
    ----------
    target : Path
        Where they are to be; absolute, and no link.
    plan : Plan
        Files in the order in which they are written; if they do not lie in a folder, the one is the target.
    identity : str or None
        Of what is being written; None for none, so that nothing goes on from where it was.
    overwrite : bool
        Whether what is there may be replaced.
    """

    def __init__(self, target: Path, plan: Plan, *, identity: str | None, overwrite: bool) -> None:
        self._target = target
        self._plan = plan
        self._files = plan.files
        self._folder = plan.folder
        self._overwrite = overwrite
        self._draft = draft_of(target)
        self._content = self._draft / "content"
        self._replaced = self._draft / "replaced"
        self._journal = Journal(self._draft / "journal", identity or secrets.token_hex(16))

    def run(self, source: Source, progress: Progress | None) -> int:
        """Write everything, and put it in its place.

        Returns
        -------
        int
            The bytes that an earlier call had written already.

        Raises
        ------
        FileExistsError
            If something is there that may not be replaced.
        AbortedError
            If another process is writing to this target.
        NoSpaceError
            If the files surely do not fit on the disk.
        Exception
            Whatever reading or writing raised. What was there is still there.
        """
        made = missing_folders(self._target.parent)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        sync_names_of(made)
        with _claimed(self._draft):
            number, done = self._begun()
            kept = sum(file.size for file in self._files[:number]) + done
            try:
                if number < len(self._files) or self._content.exists():
                    self._check_target()
                    self._check_room(kept)
                    self._write(source, number, done, progress)
                    self._publish()
                self._carry_over()
            except BaseException as error:
                self._keep_or_remove(error)
                raise
            shutil.rmtree(self._draft)
        return kept

    def _begun(self) -> tuple[int, int]:
        """From which file and byte on there is still something to do."""
        number, done = self._journal.read()
        if number == len(self._files) and not self._content.exists() and self._is_in_place():
            return number, 0  # it was killed when all but this folder's end was done
        if self._replaced.exists() and not self._target.exists() and number < len(self._files):
            self._replaced.rename(self._target)
        whole = number <= len(self._files) and all(
            _size(self._content / file.name) == file.size for file in self._files[:number]
        )
        if whole and (not done or (_size(self._content / self._files[number].name) or 0) >= done):
            return number, done
        return 0, 0

    def _is_in_place(self) -> bool:
        return all(
            _size(self._target / file.name if self._folder else self._target) == file.size for file in self._files
        )

    def _check_target(self) -> None:
        if not self._overwrite:
            refuse_existing(self._target)

    def _check_room(self, kept: int) -> None:
        needed = sum(file.size for file in self._files) - kept
        volume = Volume.of(self._target.parent)
        if volume is not None and volume.plain and needed > volume.free:
            raise NoSpaceError(
                f"the disk is too full: {size_text(needed)} are to be written to it, and {size_text(volume.free)} are "
                "free. Make room, or choose another target",
                file=str(self._target),
            )

    def _write(self, source: Source, number: int, done: int, progress: Progress | None) -> None:
        if progress is not None:
            progress.expect(sum(file.size for file in self._files[number:]) - done)
        if not number and not done:  # or the journal of another call would count for what is written now
            self._journal.remove()
            sync_folder(self._draft)
            if self._content.exists():  # nor would its files belong into this folder
                shutil.rmtree(self._content)
        for place in range(number, len(self._files)):
            self._write_file(source, place, done, progress)
            done = 0
            self._journal.write(place + 1, 0)
        self._finish_folders()
        for folder, _, _ in os.walk(self._content):
            sync_folder(folder)

    def _finish_folders(self) -> None:
        """Make what is not a file, and set permissions: last, since files that are written have to be writable."""
        allowed = _allowed(self._draft)
        for path in self._plan.folders:
            (self._content / path).mkdir(parents=True, exist_ok=True)
        for path, leads_to in self._plan.links.items():
            if not os.path.lexists(self._content / path):
                (self._content / path).parent.mkdir(parents=True, exist_ok=True)
                os.symlink(leads_to, self._content / path)
        modes = [*((file.name, file.mode) for file in self._files), *self._plan.folders.items()]
        for path, mode in modes:
            if mode is not None:
                os.chmod(self._content / path, mode & allowed)

    def _write_file(self, source: Source, number: int, start: int, progress: Progress | None) -> None:
        file = self._files[number]
        path = self._content / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if start else "wb", _BUFFER) as stream:
            stream.seek(start)
            stream.truncate()
            at = synced = start
            for piece in pieces(source, file, start):
                write_all(stream, piece)
                at += len(piece)
                if progress is not None:
                    progress.advance(len(piece))
                if at - synced >= SYNC_BYTES:
                    stream.flush()
                    os.fsync(stream.fileno())
                    self._journal.write(number, at)
                    synced = at
            stream.flush()
            os.fsync(stream.fileno())

    def _publish(self) -> None:
        if not self._overwrite:  # looked at once more: it may be there by now
            refuse_existing(self._target)
        if not self._folder:
            draft = self._content / self._files[0].name
            if self._target.exists():
                os.chmod(draft, stat.S_IMODE(self._target.stat().st_mode))
            draft.replace(self._target)
            self._content.rmdir()
        else:
            if self._target.exists():
                self._keep_modes()
                self._target.rename(self._replaced)
            try:
                self._content.rename(self._target)
            except BaseException:
                if self._replaced.exists() and not self._target.exists():
                    self._replaced.rename(self._target)
                raise
        sync_folder(self._target.parent)

    def _keep_modes(self) -> None:
        """Let nobody read a folder or a file who could not read the one that it replaces."""
        for name in (".", *filter(None, self._plan.folders), *(file.name for file in self._files)):
            if (self._target / name).exists():
                os.chmod(self._content / name, stat.S_IMODE((self._target / name).stat().st_mode))

    def _carry_over(self) -> None:
        """Keep what was in a replaced folder and is no part of a model's weights."""
        if not self._replaced.exists():
            return
        for path in self._replaced.iterdir():
            if not path.name.endswith(WEIGHTS) and not os.path.lexists(self._target / path.name):
                path.rename(self._target / path.name)
        sync_folder(self._target)
        shutil.rmtree(self._replaced)

    def _keep_or_remove(self, error: BaseException) -> None:
        number, done = self._journal.read()
        if number or done:
            error.add_note(
                f"nothing was put in place; what is written so far is kept in {self._draft}, and the same call resumes "
                "from there"
            )
        elif not self._replaced.exists():
            shutil.rmtree(self._draft, ignore_errors=True)


def draft_of(target: Path) -> Path:
    """The folder in which a target is written."""
    return target.with_name(f".{target.name}.part")


def refuse_existing(target: Path) -> None:
    """Raise FileExistsError if something is at `target`; an empty folder is nothing."""
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(
            errno.EEXIST, "it is there already; name another target, or allow to replace it (overwrite)", str(target)
        )


def _allowed(draft: Path) -> int:
    """The permissions that the umask leaves; to ask for it would change it for all threads."""
    probe = draft / "probe"
    probe.mkdir(exist_ok=True)
    mode = stat.S_IMODE(probe.stat().st_mode) & 0o777
    probe.rmdir()
    return mode


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


@contextmanager
def _claimed(draft: Path) -> Iterator[None]:
    """Make the folder `draft`, and keep others from it until the end of the block, or of this process.

    Nobody else may look into it: what comes out of an encrypted checkpoint may replace a file that is private.

    Raises
    ------
    AbortedError
        If another process has it.
    FileExistsError
        If somebody else made it.
    """
    if fcntl is None:
        draft.mkdir(exist_ok=True)
        yield
        return
    while True:
        draft.mkdir(mode=0o700, exist_ok=True)
        if draft.is_symlink():
            raise _foreign(draft)
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise _foreign(draft)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AbortedError(
                    f"another process is writing to this target, in {draft}; wait until it is done, or stop it"
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if not _is_still(descriptor, draft):  # its owner was done, and removed it
                continue
            yield
            return
        finally:
            os.close(descriptor)


def _foreign(draft: Path) -> FileExistsError:
    """In a folder that all may write to, its name is known beforehand, and links in it could lead anywhere."""
    return FileExistsError(
        errno.EEXIST,
        "the target would be written here first, and this is a link or somebody else's: remove it, or name another "
        "target",
        str(draft),
    )


def _is_still(descriptor: int, draft: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(draft))
    except FileNotFoundError:
        return False
