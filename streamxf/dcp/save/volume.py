"""The file system that a checkpoint's folder lies on: which one it is, what is free there, what it does with bytes."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from streamxf.checkpoint.mounts import SHARED, mounted

# They store each byte that a file has. Others may compress what they are given, or may lie on one that does.
_PLAIN = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs", "vfat", "exfat"})


@dataclass(frozen=True)
class Volume:
    """A file system, as one process sees it.

    Attributes
    ----------
    name : tuple of str
        Two processes that have the same write to the same file system. Not always the other way round.
    free : int
        Bytes that this process may still fill.
    plain : bool
        Whether files take what they are long; if not, they may take less.
    """

    name: tuple[str, ...]
    free: int
    plain: bool

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Volume | None:
        """That of a folder; None where the system cannot tell what is free."""
        if not hasattr(os, "statvfs"):  # Windows
            return None
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
