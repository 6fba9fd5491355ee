"""The row of the full disk: a real small file system, and saves for which there is less and less room."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.shim import Fault
from tests.faults.subjects import NEW
from tests.faults.trials import Bench, Tally, Trial

MEBIBYTE = 2**20


class NotPermitted(Exception):
    """This process may not mount anything."""


def full_disk(bench: Bench, levels: int = 24, kind: str = "tmpfs") -> Tally:
    """Save beside the older checkpoint, if there is one, with room for nothing, for all that is needed, and between."""
    tally = Tally(f"full disk, {kind}" + (", first save" if bench.first else ""), str(bench.subject))
    bench.save_all(NEW)
    size = sum(file.stat().st_size for file in bench.path.iterdir())
    with _mounted(bench.root, 4 * size + 4 * MEBIBYTE, kind):
        for level in range(levels):
            room = int(1.25 * size * level / (levels - 1))
            bench.restore()
            ballast = bench.root / "ballast"
            free = _fill(ballast, room)
            outcomes = bench.save_all(NEW)
            trial = Trial(outcomes, *bench.verdicts(), hits=1, hit=Fault().later)
            where = f"{free >> 10} KiB free, {size >> 10} KiB to save"
            bench.judge(tally, trial, where)
            ballast.unlink()
            bench.judge_next(tally, where)
    return tally


def _fill(ballast: Path, room: int) -> int:
    """Write a file that leaves about `room` bytes; return how many it leaves."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while (free := _free(ballast.parent)) > room:
                file.write(bytes(min(MEBIBYTE, max(4096, (free - room) // 4096 * 4096))))
                os.fsync(file.fileno())
        except OSError:  # a file system takes a little for itself, at the end
            pass
    return _free(ballast.parent)


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def _mounted(folder: Path, size: int, kind: str) -> Iterator[None]:
    """A new file system in the place of a folder, which is seen by this process and its children alone."""
    if kind == "tmpfs":
        source, options = "tmpfs", ["-t", "tmpfs", "-o", f"size={size}"]
    else:
        image = folder.with_name("image")
        with image.open("wb") as file:
            file.truncate(2 * size + 8 * MEBIBYTE)
        _run([f"mkfs.{kind}", "-q", str(image)])
        source, options = str(image), ["-t", kind, "-o", "loop"]
    _run(["mount", *options, source, str(folder)])
    try:
        yield
    finally:
        _run(["umount", str(folder)])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise NotPermitted(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise NotPermitted(f"{' '.join(command)}: {error.stderr.decode(errors='replace').strip()}") from error
