"""Local folders: on which file system they lie, files replaced in one step, so that readers see the old one or the new
one, and names that have to reach the disk.
"""

from __future__ import annotations

import errno
import os
import platform
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from streamxf.buffers import write_all
from streamxf.storage.files import create
from streamxf.storage.inside import NO_LINK, open_folder

SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs"})
"""Mounted from the same source, they are the same on every host, and number their folders alike."""

_OF_ONE_MACHINE = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs", "f2fs", "jfs", "reiserfs", "nilfs2", "udf"),
        *("tmpfs", "ramfs", "overlay", "aufs", "ecryptfs", "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk"),
        *("hfs", "hfsplus", "apfs"),
        "",  # where the system does not tell
    }
)

_PLAIN = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs", "vfat", "exfat"})
"""They store each byte of a file. Others may compress, or may lie on one that does."""


@dataclass(frozen=True)
class Mount:
    """Where a process finds a folder, in words that processes on other machines can compare: the type of the mounted
    file system, what it was mounted from, and the folder's inode; "" for what is not known.
    """

    host: str
    kind: str
    source: str
    inode: int

    @classmethod
    def of(cls, folder: str | os.PathLike[str] | int) -> Mount:
        facts = os.stat(folder)
        return cls(socket.gethostname(), *mounted(facts.st_dev), facts.st_ino)

    @property
    def of_one_machine(self) -> bool:
        """Whether no other machine has this folder. On network file systems a lock of a folder, too, is one machine's:
        the kernel asks no server for it.
        """
        return self.kind in _OF_ONE_MACHINE

    def is_other_than(self, other: Mount) -> bool:
        """Whether these are surely two folders, though they may have one path."""
        if self.host == other.host:
            return False
        if self.of_one_machine or other.of_one_machine:
            return True
        mount = self.kind, self.source
        return self.kind in SHARED and mount == (other.kind, other.source) and self.inode != other.inode


def mounted(device: int) -> tuple[str, str]:
    """The type of a mounted file system and what it was mounted from, as Linux has it; "" for what is not known."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            mount, _, system = line.partition(" - ")
            if mount.split()[2:3] == [wanted] and len(system.split()) > 1:
                kind, source = system.split()[:2]
                return kind, source
    return "", ""


@dataclass(frozen=True)
class Volume:
    """A file system, as one process sees it.

    - `name`: two processes that have the same write to the same file system. Not always the other way round.
    - `free`: bytes that this process may still fill.
    - `plain`: whether files take what they are long; if not, they may take less.
    """

    name: tuple[str, ...]
    free: int
    plain: bool

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Volume | None:
        try:
            facts, device = os.statvfs(folder), os.stat(folder).st_dev
        except OSError:
            return None
        if not facts.f_blocks:  # a file system that has no size, and says 0 for all of it
            return None
        blocks = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail  # some are kept for root
        kind, source = mounted(device)
        name = (kind, source) if kind in SHARED else (_machine(), str(device))
        return cls(name, blocks * facts.f_frsize, kind in _PLAIN)


def _machine() -> str:
    """What no other running machine has: containers on several may have one host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


# Some network file systems cannot sync a folder, or do not let it be opened: then its names are as durable as
# the file system makes them by itself. Anything else, EIO above all, is an error.
_CANNOT = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS})
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM})


def put_file(folder: int, name: str, data: bytes, sync: bool, check: Callable[[], object] | None, once: bool) -> None:
    """Put a file into an open folder: a draft, synced, takes the name in one step; as `Storage.put`."""
    draft = draft_of(name)
    try:
        with create(draft, None if check is None else name, folder) as file:
            write_all(file, data)
            if sync:
                os.fsync(file.fileno())
        if sync:
            sync_folder(folder)  # the data files' names, before anything refers to them
        if check is not None:
            check()
        if once:
            _link(folder, draft, name)
        else:
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException as error:
        with noted(error, draft), suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise
    if sync:
        sync_folder(folder)


def _link(folder: int, draft: str, name: str) -> None:
    """Give a file its name if nothing has it; where a file system has no links, there is a moment between."""
    try:
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(draft, dir_fd=folder)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666, dir_fd=folder))
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def noted(error: BaseException, draft: str | os.PathLike[str]) -> Iterator[None]:
    """Remove a draft after `error`, which is what people need first; that this fails, too, is a note."""
    try:
        yield
    except Exception as reason:
        error.add_note(f"{os.fspath(draft)} could not be removed: {type(reason).__name__}: {reason}")


def draft_of(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}.tmp"


def sync_folder(folder: str | os.PathLike[str] | int) -> None:
    """Bring the names in a folder to the disk, where its file system can do that. Raises OSError if the disk did not
    take them.
    """
    try:
        descriptor = open_folder(folder)
    except OSError as error:
        if error.errno in _MAY_NOT:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)


def missing_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """Those of `folder` and the folders above it that are not there yet, the uppermost last."""
    path = Path(os.path.abspath(folder))
    return [place for place in (path, *path.parents) if not place.exists()]


def sync_names_of(folders: Iterable[Path]) -> None:
    for parent in dict.fromkeys(folder.parent for folder in folders):
        sync_folder(parent)
