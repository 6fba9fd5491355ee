"""On which file system a local folder lies, and the room there."""

from __future__ import annotations

import os
import platform
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamxf.storage.abilities import MOUNTS, UNKNOWN_MOUNT

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
