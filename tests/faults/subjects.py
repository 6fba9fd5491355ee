"""What saves and loads under faults: streamxf's writer with a chain, or stock DCP, in one of several layouts.

A state is made from a seed, and two seeds have no tensor and no object in common: what a load mixes, shows.
"""

from __future__ import annotations

import datetime
import pickle
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, Key, ZStandard
from streamxf.errors import StreamxfError
from streamxf.storage.opening import open_storage
from streamxf.tools.rekey.rekey import stock
from tests.forge import split_metadata

KEY = Key(bytes(range(32)))
SIGNER = streamxf.SigningKey(bytes(range(40, 72)))
OLD, NEW, NEXT = 1, 2, 3
CHAINS = ("none", "zstd", "checksum", "encrypt", "full")
TIMEOUT = datetime.timedelta(seconds=20)  # of a rank that waits for one that is still alive


@dataclass(frozen=True)
class Layout:
    """How a state is spread over ranks, threads and files."""

    name: str
    ranks: int = 1
    threads: int = 1
    file_per_item: bool = False
    collectives: bool = True
    tensors: int = 6  # of each rank
    elements: int = 2**15  # of each tensor; a block of so many bytes is for a worker


_LAYOUTS = [
    Layout("one rank, one thread", tensors=50),
    Layout("one rank, 4 threads, a file per item", threads=4, file_per_item=True, tensors=22),
    Layout("two ranks", ranks=2, tensors=22),
    Layout("two ranks, each for itself", ranks=2, collectives=False, tensors=20),
    Layout("1 thread"),
    Layout("2 threads", threads=2),
    Layout("4 threads", threads=4),
    Layout("4 threads, a file per item", threads=4, file_per_item=True),
    Layout("2 ranks, few tensors", ranks=2, tensors=4),
    Layout("4 threads, 4 MiB", threads=4, tensors=8, elements=2**17),
    Layout("1 thread, 4 MiB", tensors=8, elements=2**17),
    Layout("2 threads, 16 MiB", threads=2, tensors=8, elements=2**19),  # a file takes two parts of an upload
    Layout("2 threads, 40 MiB", threads=2, tensors=20, elements=2**19),
]
LAYOUTS = {layout.name: layout for layout in _LAYOUTS}


@cache
def state_of(layout: Layout, seed: int, rank: int) -> dict[str, Any]:
    """What a rank saves."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    names = [f"rank{rank}.weight{number}" for number in range(layout.tensors)]
    state: dict[str, Any] = {name: torch.randn(layout.elements, generator=generator) for name in names}
    state[f"rank{rank}.object"] = f"made from seed {seed} by rank {rank}"
    if layout.collectives:  # what all ranks have, DCP lets one of them save
        state["shared"] = torch.full((2500,), float(seed))
        state["step"] = seed
    return state


@cache
def whole_state(layout: Layout, seed: int) -> dict[str, Any]:
    """What all ranks save."""
    return {name: value for rank in range(layout.ranks) for name, value in state_of(layout, seed, rank).items()}


@dataclass(frozen=True)
class Subject:
    """A writer, its reader, and a layout. The chain "stock" stands for torch's own writer and reader."""

    layout: Layout
    chain: str = "full"
    sync: bool = True
    again: ClassVar[str] = "next"
    """What `verdict` says after a save of `NEXT`."""

    def __str__(self) -> str:
        return f"{self.chain}, {self.layout.name}"

    @property
    def stock(self) -> bool:
        return self.chain == "stock"

    def beside(self) -> Subject:
        """Stock DCP in the same layout."""
        return replace(self, chain="stock")

    def processes(self, seed: int) -> int:
        """How many of them `save` that state."""
        return self.layout.ranks

    def writer(self, path: Path, **more: Any) -> Any:
        layout = self.layout
        options: dict[str, Any] = {
            "thread_count": layout.threads,
            "single_file_per_rank": not layout.file_per_item,
            "sync_files": self.sync,
            **more,
        }
        if self.stock:
            return filesystem.FileSystemWriter(path, **options)
        return streamxf.FileSystemWriter(path, _extensions=codecs(self.chain), **options)

    def reader(self, path: Path) -> Any:
        if self.stock:
            return filesystem.FileSystemReader(path)
        ids = None
        if not self.layout.collectives:  # ranks, each of which may have the old checkpoint or the new one
            ids = [split_metadata(file.read_bytes()).index["save_id"] for file in path.glob("__*.metadata")] or None
        return streamxf.FileSystemReader(path, keys=self.keys, expect_save_id=ids)

    @property
    def keys(self) -> Key | None:
        return KEY if self.chain in ("encrypt", "full") else None

    def save(self, path: Path, seed: int, rank: int = 0, meeting: Path | None = None) -> None:
        """Save this rank's part; in a process of its own."""
        torch.set_num_threads(1)
        self._meet(rank, meeting)
        state = state_of(self.layout, seed, rank)
        dcp.save(
            state,
            storage_writer=self.writer(path),
            no_dist=self.layout.ranks == 1,
            use_collectives=self.layout.collectives,
        )

    def load(self, path: Path, rank: int = 0, meeting: Path | None = None) -> dict[str, Any]:
        """Load everything, or this rank's part of what each rank saved for itself; in a process of its own."""
        torch.set_num_threads(1)
        layout = self.layout
        wanted = whole_state(layout, OLD) if layout.collectives else state_of(layout, OLD, rank)
        target = {name: _blank(value) for name, value in wanted.items()}
        if not layout.collectives:
            self._meet(rank, meeting)
        dcp.load(target, storage_reader=self.reader(path), no_dist=layout.collectives)
        return target

    def verdict(self, path: Path, rank: int = 0, meeting: Path | None = None) -> str:
        """Load and say what it is: "old", "new", "next", "mixed" or "corrupt"; raises if nothing loads."""
        return self.kind_of(self.load(path, rank, meeting), rank)

    def verified_verdict(self, path: Path) -> str:
        """As `verdict`, but "disagree" if `streamxf.verify` takes what loads for damaged, or the other way round."""
        try:
            found = self.verdict(path)
        except BaseException:
            if self._verifies(path):
                return "disagree"
            raise
        return "disagree" if self._verifies(path) is False else found

    def _verifies(self, path: Path) -> bool | None:
        """What `verify` says of a checkpoint; None if stock DCP wrote it."""
        if self.stock:
            return None
        try:
            return streamxf.verify(path, keys=self.keys).ok
        except StreamxfError:
            return False

    def kind_of(self, found: dict[str, Any], rank: int = 0) -> str:
        """Which state this is."""
        layout = self.layout
        names: dict[str, dict[str, Any]] = {
            name: whole_state(layout, seed) if layout.collectives else state_of(layout, seed, rank)
            for name, seed in (("old", OLD), ("new", NEW), ("next", NEXT))
        }
        seen = set()
        for item, value in found.items():
            same = [name for name, state in names.items() if _equal(value, state[item])]
            seen.add(same[0] if same else "corrupt")
        return "corrupt" if "corrupt" in seen else seen.pop() if len(seen) == 1 else "mixed"

    def _meet(self, rank: int, meeting: Path | None) -> None:
        if self.layout.ranks > 1:
            store = dist.FileStore(str(meeting), self.layout.ranks)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=self.layout.ranks, timeout=TIMEOUT)


@dataclass(frozen=True)
class Changed(Subject):
    """A checkpoint whose metadata is replaced where other subjects save again: its items get other names ("rename"), or
    torch's own readers can read it from then on ("stock"), or it is signed ("sign").
    """

    change: str = "rename"
    again: ClassVar[str] = "new"

    def __str__(self) -> str:
        return f"{self.change}, {super().__str__()}"

    def processes(self, seed: int) -> int:
        return super().processes(seed) if seed == OLD else 1

    def writer(self, path: Path, **more: Any) -> Any:
        return super().writer(path, stock=self.change == "rename", **more)

    def save(self, path: Path, seed: int, rank: int = 0, meeting: Path | None = None) -> None:
        if seed == OLD:
            super().save(path, seed, rank, meeting)
        else:
            self.make(path)
        if seed == NEXT:  # as a save does
            streamxf.clean(path, keys=self.keys, min_age=0)

    def make(self, place: Any, **options: Any) -> None:
        """Change what is there, or the rest of it."""
        if self.change == "stock":
            stock(place, **options)
        elif self.change == "sign":
            streamxf.sign(place, keys=self.keys, signer=SIGNER, **options)
        else:
            names = {name: f"new.{name}" for name in whole_state(self.layout, OLD)}
            streamxf.rename(place, names, keys=self.keys, **options)

    def verdict(self, path: Path, rank: int = 0, meeting: Path | None = None) -> str:
        torch.set_num_threads(1)
        return self.kind(path, rank)

    def kind(self, place: Any, rank: int = 0, **options: Any) -> str:
        """Whether all items are as before the change or as after it; raises if they cannot be read."""
        with streamxf.Checkpoint(place, keys=self.keys, **options) as checkpoint:
            mine = [name for name in checkpoint if self.layout.collectives or f"rank{rank}." in name]
            found = {name: checkpoint[name].read() for name in mine}
            (own,) = (each.index for each in checkpoint.metadata if each.rank in (None, rank))
        renamed = {name.startswith("new.") for name in found}
        if self.change == "sign":
            renamed = {own is not None and own.digests is not None}
        verdict = self.kind_of({name.removeprefix("new."): value for name, value in found.items()}, rank)
        if self.change == "stock" and verdict == "old":
            name = ".metadata" if self.layout.collectives else f"__{rank}.metadata"
            with open_storage(place, options.get("storage_options")).open(name) as file:
                renamed = {self._stock_reads(file.read(), mine)}
        return verdict if verdict != "old" else "mixed" if len(renamed) > 1 else "new" if True in renamed else "old"

    def _stock_reads(self, data: bytes, names: list[str]) -> bool:
        """Whether torch's readers, which unpickle the file, find these items there."""
        try:
            return sorted(pickle.loads(data).state_dict_metadata) == sorted(names)
        except pickle.UnpicklingError:
            return False


def codecs(chain: str) -> list[Any]:
    """The chain of that name."""
    chains: dict[str, list[Any]] = {
        "none": [],
        "zstd": [ZStandard()],
        "checksum": [Checksum()],
        "encrypt": [Encrypt(KEY)],
        "full": [FloatZip(), Checksum(), Encrypt(KEY)],
    }
    return chains[chain]


def _blank(value: Any) -> Any:
    return torch.full_like(value, torch.nan) if isinstance(value, torch.Tensor) else "not loaded"


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and torch.equal(found, wanted)
    return type(found) is type(wanted) and bool(found == wanted)
