"""`Abilities`: what a place can do, of what no error shows. `Mount`, `Volume`: where a local folder lies, its room."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from streamxf.errors import ParameterError

Locks = Literal["none", "machine", "hosts"]


@dataclass(frozen=True)
class Abilities:
    """What a place can do, of what no error shows. None means that it is not known, and counts as the weakest.

    Parameters
    ----------
    locks : {"none", "machine", "hosts"}
        Whom a lock of a file keeps out: nobody, the processes of this machine, or those of all machines that reach the
        place. A disk that no other machine has locks for all hosts.
    stored : bool
        Whether a write that has returned is stored, and outlives this machine; if not, it goes later.
    in_order : bool
        Whether a removal never overtakes what was written before it.
    fresh : bool
        Whether reads show what another process wrote before. URLs that surely do not, such as fsspec's caches, are
        refused where something old would do harm. On a mount that does not, or of whose type it is not known to come
        within seconds, what looks like damage raises `StaleError`, whatever is said of `stored` and `in_order`.
    copies : bool
        Whether streams that are written to keep no view of what they were given.
    threads : bool
        Whether several threads may use the client at once.
    asynchronous : bool
        Whether the client has coroutines, so that many requests are under way at once.
    creates : bool
        Whether a file can be put on the condition that there is none.
    replaces : bool
        Whether a file can be put on the condition that the one there is still the same.
    in_one_step : bool
        Whether a file is replaced so that readers see the old contents or the new ones.
    flat : bool
        Whether there are no folders and no symbolic links, as in an object store.
    links : bool
        Whether a file can have several names (hard links).
    link_facts : bool
        Whether ``st_nlink`` and ``st_ino`` tell that two names are one file.
    """

    locks: Locks | None = None
    stored: bool | None = None
    in_order: bool | None = None
    fresh: bool | None = None
    copies: bool | None = None
    threads: bool | None = None
    asynchronous: bool | None = None
    creates: bool | None = None
    replaces: bool | None = None
    in_one_step: bool | None = None
    flat: bool | None = None
    links: bool | None = None
    link_facts: bool | None = None

    @classmethod
    def of(cls, said: AbilitiesLike) -> Abilities:
        """The meaning of ``abilities=``; raises ParameterError for what is none."""
        if isinstance(said, cls | None):
            return said or cls()
        names = [each.name for each in fields(cls)]
        if not isinstance(said, Mapping) or (odd := sorted({*map(str, said)}.difference(names))):
            what = f"{said!r:.80}" if not isinstance(said, Mapping) else f"{odd[0]!r:.40}"
            raise ParameterError(f"abilities= has {what}: it is a mapping with names among {', '.join(names)}")
        for name, value in said.items():
            if name == "locks" and value in ("none", "machine", "hosts", None):
                continue
            if name == "locks" or not isinstance(value, bool | None):
                meant = "'none', 'machine' or 'hosts'" if name == "locks" else "True or False; None says nothing"
                raise ParameterError(f"abilities= has {name}={value!r:.40}: it is {meant}")
        return cls(**said)

    def over(self, other: Abilities) -> Abilities:
        """These, and where they say nothing those of another source."""
        return Abilities(**vars(other) | {name: value for name, value in vars(self).items() if value is not None})

    @property
    def keeps_older(self) -> bool:
        """Whether an older file may be removed, or replaced, as soon as the newer one was written."""
        return self.stored is True and self.in_order is True


AbilitiesLike = Abilities | Mapping[str, Any] | None

_DISK = Abilities("hosts", True, True, True, True, True, False, True, False, True, False, True, True)
_NO_LINKS = Abilities(links=False, link_facts=False)
# a server between, which keeps what a close or a sync has given it; each host remembers listings for some seconds
_SERVER = Abilities("machine", True, True, None, True, True, False, None, False, True, False, True)
_MOUNTED = Abilities("machine", copies=True, threads=True, asynchronous=False, replaces=False, flat=False)

MOUNTS: dict[str, Abilities] = {
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs", "f2fs", "jfs", "reiserfs"), _DISK),
    **dict.fromkeys(("nilfs2", "udf", "tmpfs", "ramfs", "overlay", "aufs", "ecryptfs", "ntfs", "ntfs3"), _DISK),
    **dict.fromkeys(("fuseblk", "hfs", "hfsplus", "apfs"), _DISK),
    **dict.fromkeys(("vfat", "msdos", "exfat"), _NO_LINKS.over(_DISK)),
    **dict.fromkeys(("nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "cifs", "smb3", "virtiofs", "9p"), _SERVER),
    **dict.fromkeys(("fuse.glusterfs", "fuse.ceph-fuse"), _SERVER),
    # Both send a file when it is closed, and remember for seconds what was there. To readers of a mount by sshfs a file
    # that is replaced is missing for a moment, and by servers without posix-rename@openssh.com it really is.
    "fuse.sshfs": replace(Abilities(links=True, link_facts=False).over(_SERVER), in_one_step=None),
    "fuse.s3fs": Abilities(in_one_step=False, links=False, link_facts=False).over(_SERVER),
    # with its option -writebackCache, of which no list of mounts tells, files go later, and others' are of the old size
    "fuse.seaweedfs": Abilities(in_one_step=False, links=True, link_facts=True).over(_MOUNTED),
    # Without its cache, a file that is opened to be locked is empty once that is closed; with it, files are sent some
    # seconds after they were closed. No mount option tells.
    "fuse.rclone": replace(_NO_LINKS.over(_MOUNTED), locks="none"),
}
"""By the type of the mounted file system, as Linux names it."""

UNKNOWN_MOUNT, UNKNOWN_FUSE = replace(_MOUNTED, fresh=True), replace(_MOUNTED, locks=None)
"""The former is in the kernel, as disks are. In the latter no file is opened a second time, to lock it."""

_STORE = Abilities("none", True, True, True, True, True, True, False, False, True, True, False, False)
_CONDITIONAL = replace(_STORE, creates=None, replaces=None)  # until a first put shows that the store heeds conditions
_SFTP = Abilities("none", True, True, True, True, True, True, False, False, True, False, False, False)

CLIENTS: dict[str, Abilities] = {
    "s3fs.core.S3FileSystem": _CONDITIONAL,
    "adlfs.spec.AzureBlobFileSystem": _CONDITIONAL,
    "gcsfs.core.GCSFileSystem": _CONDITIONAL,
    "obstore.fsspec.FsspecStore": Abilities(copies=False).over(_CONDITIONAL),
    "ossfs.core.OSSFileSystem": Abilities(threads=None, asynchronous=False).over(_STORE),
    "sshfs.spec.SSHFileSystem": _SFTP,
    "fsspec.implementations.sftp.SFTPFileSystem": Abilities(threads=False, asynchronous=False).over(_SFTP),
    "webdav4.fsspec.WebdavFileSystem": Abilities(threads=False, asynchronous=False, in_one_step=False).over(_SFTP),
    "fsspec.implementations.memory.MemoryFileSystem": Abilities(asynchronous=False).over(_STORE),
    "fsspec.implementations.http.HTTPFileSystem": _STORE,
}
"""By the class of fsspec's client that talks to the storage, or one that it derives from."""


REFUSED = {
    "fsspec.implementations.smb.SMBFileSystem": "SMB (it replaces no file, and two cannot read one): mount it",
    "fsspec.implementations.ftp.FTPFileSystem": "FTP (one connection for all threads, which then wait): use SFTP",
}
"""Clients by which streamxf does not work, with the reason, and what to do instead."""


def of_client(client: Any) -> Abilities:
    """What is known of a class of fsspec's clients, also of one derived from it for the same protocol."""
    protocol = getattr(client, "protocol", "")
    # "abstract" is a class that others are made of
    alike = [each for each in client.__mro__ if vars(each).get("protocol", protocol) in (protocol, "abstract")]
    names = (f"{each.__module__}.{each.__qualname__}" for each in alike)
    return next((CLIENTS[name] for name in names if name in CLIENTS), Abilities("none"))


_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC

SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs"})
"""Mounted from the same source, they are the same on every host, and number their folders alike."""

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
        return cls(socket.gethostname(), *mounted(folder), os.stat(folder).st_ino)

    @staticmethod
    def machine() -> str:
        """What no other running machine has: containers on several may have one host name."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return platform.node()

    @property
    def of_one_machine(self) -> bool:
        """Whether no other machine has this folder. A lock of a network folder is one machine's: no server is asked."""
        return MOUNTS.get(self.kind, UNKNOWN_MOUNT).locks == "hosts"

    def is_other_than(self, other: Mount) -> bool:
        """Whether these are surely two folders, though they may have one path."""
        if self.host == other.host:
            return False
        if self.of_one_machine or other.of_one_machine:
            return True
        mount = self.kind, self.source
        return self.kind in SHARED and mount == (other.kind, other.source) and self.inode != other.inode


def mounted(folder: str | os.PathLike[str] | int) -> tuple[str, str]:
    """The type of the mounted file system that has a folder and what it was mounted from, as Linux has it; "" for what
    is not known. A device would not do: those of Btrfs's subvolumes are in no list.
    """
    with suppress(OSError, ValueError):
        descriptor = os.open(".", _LOOK, dir_fd=folder) if isinstance(folder, int) else os.open(f"{folder}/.", _LOOK)
        try:
            facts = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        finally:
            os.close(descriptor)
        wanted = next(line.split()[1] for line in facts.splitlines() if line.startswith("mnt_id:"))
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            mount, _, system = line.partition(" - ")
            if mount.split()[:1] == [wanted] and len(system.split()) > 1:
                kind, source = system.split()[:2]
                return kind, re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), source)
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
        kind, source = mounted(folder)
        name = (kind, source) if kind in SHARED else (Mount.machine(), str(device))
        return cls(name, blocks * facts.f_frsize, kind in _PLAIN)
