"""`HubFolder`: weights in a folder of Hugging Face's, from which engines reload, whole at any moment.

Files are written anew, or linked from the version before, and never to one that is there: an engine may have mapped it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from streamxf.buffers import write_all
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import AbortedError, NoSpaceError, ParameterError
from streamxf.lazy import numpy as np
from streamxf.lazy import torch
from streamxf.places import open_storage, read_small
from streamxf.publishing.update import Coming, Flat, Part, Update, WeightStore, changes, difference, flat_of, tensor_of
from streamxf.publishing.version import Version
from streamxf.reading import TensorItem
from streamxf.tools.convert.plan import SHARD_SIZE, NewFile, shards
from streamxf.wording import some

NEWEST = "newest"  # the link
SIDES = ("one", "two")
_STATE, _LOCK, _COMING = ".streamxf-version", ".streamxf-lock", ".streamxf-coming"
_MOST_STATE = 2**26  # bytes
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin")
_PIECE = 16 * 2**20  # bytes that are copied or compared at once


class HubFolder(WeightStore):
    """A folder with ``model.safetensors``, or several and their index; what else is in it is linked into both of two.

    Raises AbortedError if another process follows into it; OSError.
    """

    def __init__(self, path: str | os.PathLike[str], in_place: bool) -> None:
        self.path, self.in_place = Path(path).absolute(), in_place
        self.path.mkdir(parents=True, exist_ok=True)
        if in_place and (self.path / NEWEST).is_symlink():
            text = "two folders are kept here, of which a link names the newest: follow in place somewhere else"
            raise ParameterError(text, file=str(self.path))
        there = sorted(name for name in os.listdir(self.path) if name.endswith(_WEIGHTS))
        if in_place and there and not (self.path / _STATE).exists():
            text = f"weights are here that no follower put here ({some(there)}), and in place they would go"
            raise ParameterError(f"{text}: name an empty folder, or move them away", file=str(self.path))
        storage = open_storage(self.path)
        try:
            self._lock = storage.lock_file(_LOCK, make=True)
        except BlockingIOError:
            raise AbortedError("another process follows into this folder", file=str(self.path)) from None
        if self._lock is None and storage.abilities.locks not in (None, "none"):
            text = "cannot be locked: is it another user's, or no plain file? If nobody follows here, remove it"
            raise AbortedError(text, file=str(self.path / _LOCK))
        self.prepared: Update | None = None
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # then all is written anew
            state = json.loads(read_small(open_storage(self.folder), _STATE, _MOST_STATE) or b"")
            if _marks(self.folder, [name for name, *_ in state["files"]]) == state["files"]:
                self.held = Version(**state["version"])
                self.places, self.digests = dict(state["places"]), dict(state["digests"])

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """The one with the newest version, by its own path; readers of this stay with it."""
        return self.path if self.in_place else (self.path / NEWEST).resolve()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def wanted(self, items: Mapping[str, TensorItem]) -> dict[str, TensorItem]:
        return dict(items)

    def flats(self, items: Mapping[str, TensorItem]) -> Mapping[str, Flat]:
        made = _plan(items)
        return {} if self.held is None or not _fits(self.folder, made) else _maps(self.folder, made)

    def update(self, checkpoint: Checkpoint, coming: Coming) -> Update:
        made = _plan(coming.items)
        if self.in_place and self.held is not None and _fits(self.folder, made):
            flats = _maps(self.folder, made, "r+")
            return Update(self, coming, flats, changes(checkpoint, coming.opened(checkpoint, self, flats), flats))
        side = self.path / (_COMING if self.in_place else SIDES[self.folder.name == SIDES[0]])
        if side.is_symlink():
            raise ParameterError("this is a link, and weights are to be kept there: remove it", file=str(side))
        if side.exists() and not (side / _STATE).exists() and not (side.is_dir() and not any(side.iterdir())):
            text = "no follower put this here, and weights are to be kept there"
            raise ParameterError(f"{text}: move it away, or follow into another folder", file=str(side))
        with suppress(FileNotFoundError):
            _remove(side)
        side.mkdir()
        (side / _STATE).touch()  # which tells whose it is
        with _told_if_full(side, self.in_place):
            try:
                before = self.folder if self.held is not None else None
                changed = {item.name for item in coming.opened(checkpoint, self, self.flats(coming.items))}
                changed = set(_write(checkpoint, made, changed, before, side))
                for entry in self.path.iterdir() if not self.in_place else ():
                    if entry.is_file() and entry.name[0] != "." and not entry.name.endswith(_WEIGHTS):
                        (side / entry.name).symlink_to(Path("..", entry.name))
                self.prepared = FolderUpdate(self, coming, made, side, changed)
            except BaseException:
                with suppress(OSError):  # the next attempt removes it
                    _remove(side)
                raise
        return self.prepared

    def begin(self) -> None:
        """A kill from here on has all written anew, in place."""
        (self.folder / _STATE).write_bytes(b"")

    def settle(self, coming: Coming | None, flats: Mapping[str, Flat]) -> None:
        if coming is None and self.held is not None:
            coming = Coming(self.held, {}, self.places, dict(self.digests))
        if coming is not None:
            self.note(self.folder, coming)
            super().settle(coming, flats)

    def note(self, folder: Path, coming: Coming) -> None:
        """Say in a folder what is there, once the disk has it."""
        names = sorted(name for name in os.listdir(folder) if name.endswith(_WEIGHTS[0]))
        for name in names:
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())
        content = {"version": asdict(coming.version), "files": _marks(folder, names)}
        content |= {"places": dict(coming.places), "digests": coming.digests}
        open_storage(folder).put(_STATE, json.dumps(content).encode())

    def take(self, side: Path, coming: Coming) -> None:
        """Have what is in `side` be what is there."""
        if self.in_place:
            self.begin()
            for name in os.listdir(self.path):
                if name.startswith("model") and name.endswith(_WEIGHTS[:2]):
                    (self.path / name).unlink()
            for path in side.iterdir():
                path.replace(self.path / path.name)
            side.rmdir()
        else:
            self.note(side, coming)
            draft = self.path / f".{NEWEST}~"
            draft.unlink(missing_ok=True)
            draft.symlink_to(side.name)
            draft.replace(self.path / NEWEST)
            open_storage(self.path).sync()
        self.settle(coming, {})


class FolderUpdate(Update):
    """An update that lies in a folder already, which takes the place of the other in one step."""

    def __init__(
        self, target: HubFolder, coming: Coming, made: Sequence[NewFile], side: Path, changed: set[str]
    ) -> None:
        super().__init__(target, coming, target.flats(coming.items), ())
        self._folder, self._side, self._new = target, side, _maps(side, made)
        self.changed = tuple(name for name in coming.items if name in changed)

    def _apply(self) -> None:
        if self._folder.prepared is not self:
            raise ParameterError("another update was prepared in its folder since: apply that")
        with _told_if_full(self._side, self._folder.in_place):
            self._folder.take(self._side, self.coming)

    def _parts_of(self, name: str) -> Sequence[Part]:
        new, old = self._new[name], self.flats.get(name)
        step = _PIECE // new.itemsize
        starts = range(0, new.size, step)
        parts = ((at, None if old is None else old[at : at + step], new[at : at + step]) for at in starts)
        return [part for each in parts if (part := difference(name, *each)) is not None]

    def _whole(self, name: str) -> torch.Tensor:
        return tensor_of(self.coming.items[name], np.array(self._new[name]))


@contextmanager
def _told_if_full(side: Path, in_place: bool) -> Iterator[None]:
    """An error of a full disk says what to do about it here: there are no checkpoints that could go."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or isinstance(error, NoSpaceError):
            raise
        fewer = "" if in_place else ", or pass in_place=True, which keeps one copy of the weights and not two"
        raise NoSpaceError(f"the disk is too full for the weights: make room on it{fewer}", file=str(side)) from error


def _remove(side: Path) -> None:
    """Its mark last."""
    for entry in [*side.iterdir()]:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _STATE:
            entry.unlink()
    shutil.rmtree(side)


def _plan(items: Mapping[str, TensorItem]) -> Sequence[NewFile]:
    return shards(items, {"format": "pt"}, SHARD_SIZE)


def _fits(folder: Path, made: Sequence[NewFile]) -> bool:
    return all(_same_layout(folder / file.name, file) for file in made)


def _same_layout(path: Path, file: NewFile) -> bool:
    """Whether a file has these tensors in these places."""
    with suppress(OSError), path.open("rb") as old:
        return os.fstat(old.fileno()).st_size == file.size and old.read(file.rest_size) == file.rest
    return False


def _maps(folder: Path, made: Sequence[NewFile], mode: Any = "r") -> dict[str, Flat]:
    found = dict[str, Flat]()
    for file in made:
        data = np.memmap(folder / file.name, "u1", mode)
        for run in file.runs:
            end = run.start + run.item.size
            found[run.item.name] = data[run.start : end].view(f"u{min(run.item.itemsize, 8)}")
    return found


def _write(
    checkpoint: Checkpoint, made: Sequence[NewFile], changed: set[str], before: Path | None, side: Path
) -> Iterator[str]:
    """Write the files of a version, with the tensors that have `changed` since `before`, and all of files that are not
    there. Gives the names of those that were read.
    """
    kept = {file.name: before / file.name for file in made if before and _same_layout(before / file.name, file)}
    read = [run for file in made for run in file.runs if run.item.name in changed or file.name not in kept]
    arrays = checkpoint.read_boxes(box for run in read for box in run.boxes())
    names = {run.item.name for run in read}
    for file in made:
        if (old := kept.get(file.name)) is not None and names.isdisjoint(run.item.name for run in file.runs):
            try:
                os.link(old, side / file.name)
            except OSError:  # of a file system that has no links
                shutil.copyfile(old, side / file.name)
            continue
        with (side / file.name).open("xb") as out:
            assert isinstance(file.rest, bytes)
            out.write(file.rest)
            for run in file.runs:
                if run.item.name in names:
                    for _ in run.boxes():
                        write_all(out, flat_of(next(arrays)).data)
                elif old is not None:
                    _copy(old, run.start, run.item.size, out)
    yield from names


def _copy(path: Path, start: int, size: int, out: IO[bytes]) -> None:
    with path.open("rb") as file:
        file.seek(start)
        while size:
            data = file.read(min(size, _PIECE))
            if not data:
                raise AbortedError("the file was cut while it was copied: somebody writes to it", file=str(path))
            out.write(data)
            size -= len(data)


def _marks(folder: Path, names: Sequence[str]) -> list[Any]:
    """What changes when one of these files is replaced or written to."""
    facts = [(name, os.stat(folder / name)) for name in names]
    return [[name, each.st_size, each.st_mtime_ns, each.st_ino] for name, each in facts]
