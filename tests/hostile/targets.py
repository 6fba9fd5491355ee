"""What is attacked: small checkpoints and plain files, and ways to load them that take no longer than they must.

A whole `dcp.load` costs milliseconds. The tens of thousands of cases drive the real readers through the same steps,
with a plan that was made once; each row sends a sample through `dcp.load` itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, ZStandard
from tests.dcp.helpers import KEY, blank, data_files, full_chain, load_into, raw_bytes, save
from tests.forge import Places, prefix_of, take_apart
from tests.samples import FULL, OneWay, encode

BLOCK = 1 << 16
TEXT = b"a small stream, a small stream"
CHAINS = {"none": (), "zstd": [ZStandard()], "checksum": [Checksum()], "full": FULL}
KINDS = {
    "own, keyed": {},
    "own, unkeyed": {"keyed": False},
    "attached, keyed": {"writer": "attached"},
    "stock, unkeyed": {"writer": "stock", "keyed": False, "chain": [ZStandard()]},
}

State = dict[str, Any]


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test with `small`, a checkpoint of each of these of `KINDS`."""
    return pytest.mark.parametrize("small", names, indirect=True)


class Checkpoint:
    """A checkpoint and its reader.

    Parameters
    ----------
    writer : {"own", "attached", "stock"}
        Whose writer makes it; an attached one is read by torch's reader with streamxf attached.
    keyed : bool
        Whether through the full chain of three codecs, and read with the key, or else with `keys`.
    """

    def __init__(
        self,
        folder: Path,
        state: State | None = None,
        *,
        writer: str = "own",
        keyed: bool = True,
        chain: Sequence[Any] | None = None,
        require: Any = None,
        keys: Any = None,
    ) -> None:
        self.folder = folder
        self.state = small_state() if state is None else state
        self.keys = keys or (KEY if keyed else None)
        self.own = writer == "own"
        self.attached = writer == "attached"
        self.require = require
        codecs = list(chain) if chain is not None else full_chain() if keyed else [ZStandard(), Checksum()]
        if writer == "own":
            save(self.state, folder, codecs, block_size=BLOCK)
        elif writer == "attached":
            stock = dcp.FileSystemWriter(folder, sync_files=False)
            dcp.save(self.state, storage_writer=streamxf.attach(stock, codecs))
        else:
            dcp.save(self.state, storage_writer=dcp.FileSystemWriter(folder, _extensions=codecs, sync_files=False))
        self.metadata_file = folder / ".metadata"
        (self.data_file,) = data_files(folder)
        self.data = self.data_file.read_bytes()
        self.metadata = self.metadata_file.read_bytes()
        self.right = content(self.state)
        self._target = blank(self.state)
        self._planner, self._reader = self._set_up(self._target)
        self._plan = self._reader.prepare_local_plan(self._planner.create_local_plan())
        listed = streamxf.Checkpoint(folder, keys=self.keys, require="encrypted" if keyed else None)
        with listed:
            found = {name: item.places[0] for name, item in listed.stored.items()}
        self.places = {name: (place.at, place.at + place.size) for name, place in found.items()}
        """Where each item's container stands in the data file."""
        assert self.load_data() == self.right

    # -- loading -----------------------------------------------------------------------------------

    def reader(self) -> Any:
        options = {} if self.require is None else {"require": self.require}
        if self.attached:
            return streamxf.attach(dcp.FileSystemReader(self.folder), keys=self.keys, **options)
        return streamxf.FileSystemReader(self.folder, keys=self.keys, **options)

    def _set_up(self, target: State) -> tuple[Any, Any]:
        planner, reader = dcp.DefaultLoadPlanner(), self.reader()
        metadata = reader.read_metadata()
        # in the order of dcp.load, where unreadable metadata raises before any planner has looked at it
        reader.set_up_storage_reader(metadata, True)
        planner.set_up_planner(target, metadata, True)
        return planner, reader

    def load_data(self) -> list[Any]:
        """Read the data, by metadata that was read before."""
        spoil(self._target)
        self._reader.read_data(self._plan, self._planner).wait()
        return content(self._target)

    def load_metadata(self) -> list[Any]:
        """Read the metadata, then the data that it names."""
        target = blank(self.state)
        planner, reader = self._set_up(target)
        reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner).wait()
        return content(target)

    def load_whole(self) -> list[Any]:
        """What a user does."""
        return content(load_into(blank(self.state), self.reader()))

    # -- faults ------------------------------------------------------------------------------------

    def with_data(self, data: bytes) -> list[Any]:
        self.data_file.write_bytes(data)
        return self.load_data()

    def with_metadata(self, data: bytes) -> list[Any]:
        self.metadata_file.write_bytes(data)
        return self.load_metadata()

    def restore(self) -> None:
        self.data_file.write_bytes(self.data)
        self.metadata_file.write_bytes(self.metadata)

    def containers(self) -> Iterator[Container]:
        """Each item's container, as something that can be replaced."""
        for name, (start, stop) in self.places.items():
            yield Container(name, self.data[start:stop], lambda made, name=name: self.with_container(name, made))

    def with_container(self, name: str, container: bytes) -> list[Any]:
        """Load with another container in the item's place.

        Torch's reader, which has no index, is told of the new size.
        """
        start, stop = self.places[name]
        data = self.data[:start] + container + self.data[stop:]
        more = len(container) - (stop - start)
        if not more or not self.attached:
            return self.with_data(data)
        with self.told(
            lambda info: (
                replace(info, length=info.length + more)
                if info.offset == start
                else replace(info, offset=info.offset + more)
                if info.offset > start
                else info
            )
        ):
            return self.with_data(data)

    @contextmanager
    def told(self, change: Callable[[Any], Any], *names: str) -> Iterator[None]:
        """The reader of an attached writer's checkpoint, as if the metadata had been altered: `change` makes another
        place of that of each item, or of the named ones.
        """
        assert self.attached
        kept = self._reader.storage_data
        self._reader.storage_data = {
            index: change(info) if not names or index.fqn in names else info for index, info in kept.items()
        }
        try:
            yield
        finally:
            self._reader.storage_data = kept

    @property
    def descriptors(self) -> list[str]:
        """Of all items, as an attached writer's metadata has them: in the order in which data passes them on load."""
        return list(next(iter(self._reader.storage_data.values())).transform_descriptors)


class Container:
    """A container that a reader is going to read, and what loads one put in its place."""

    def __init__(self, name: str, intact: bytes, load: Callable[[bytes], Any]) -> None:
        self.name = name
        self.intact = intact
        self.load = load
        self.at = Places.of(intact)

    def mended(self, altered: bytes) -> bytes:
        """`altered`, whose pieces stand where they were, with all CRCs right."""
        return self.at.mend(altered)


class PlainFile:
    """A plain file in memory, read as a file that can seek or as a pipe."""

    def __init__(self, data: bytes, chain: Sequence[Any], *, pipe: bool, block_size: int = BLOCK) -> None:
        self.right = data
        self.file = encode(data, chain, block_size)
        self.keys = keys_for(chain)
        self.parts = take_apart(self.file)
        self.pipe = pipe

    def load(self, file: bytes) -> bytes:
        source = OneWay(file) if self.pipe else io.BytesIO(file)
        with streamxf.open(source, "rb", keys=self.keys) as opened:
            return opened.read()

    def container(self) -> Container:
        prefix, tail = self.parts.prefix, self.parts.tail
        return Container(
            "pipe" if self.pipe else "file",
            self.file[len(prefix) : len(self.file) - len(tail)],
            lambda container: self.load(prefix + container + tail),
        )

    @property
    def wrapped(self) -> bytes:
        """The wrapped data key in the prefix."""
        return self.parts.prefix[16:-4]

    def with_wrapped(self, wrapped: bytes) -> bytes:
        """The file with another wrapped data key, as it is given, and the prefix's CRC right."""
        return prefix_of(wrapped) + self.file[len(self.parts.prefix) :]


def small_state() -> State:
    return {"w": torch.arange(12.0).reshape(4, 3), "obj": "a small object"}


def content(state: State) -> list[Any]:
    """The values, in a form that can be compared bit for bit."""
    return [
        (name, raw_bytes(value).numpy().tobytes() if isinstance(value, torch.Tensor) else value)
        for name, value in state.items()
    ]


def spoil(state: State) -> None:
    """Make sure that nothing of an earlier load is taken for this one's."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            value.reshape(-1).view(torch.uint8).fill_(0xA5)
        else:
            state[name] = None


def keys_for(chain: Sequence[Any]) -> streamxf.Key | None:
    return KEY if any(isinstance(codec, streamxf.Encrypt) for codec in chain) else None
