"""Which writer goes with which reader: streamxf's own, torch's own, subclasses of those, and other extensions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard
from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard

from .helpers import KEY, Xor, assert_same, full_chain, load, load_with, refused, save

CHAINS: dict[str, list[Any]] = {
    "zstd": [ZStandard()],
    "lz4": [LZ4(level=3)],
    "checksum": [Checksum()],
    "encrypt": [Encrypt(KEY)],
    "floatzip": [FloatZip()],
    "floatzip+checksum+encrypt": [FloatZip(), Checksum(), Encrypt(KEY)],
    "zstd+checksum": [ZStandard(), Checksum(algorithm="sha256")],
    "checksum+zstd": [Checksum(), ZStandard()],
    "encrypt+checksum": [Encrypt(KEY), Checksum()],
    "lz4+zstd": [LZ4(), ZStandard(level=-3)],
    "checksum+checksum": [Checksum(), Checksum()],
    "zstd+zstd": [ZStandard(level=1), ZStandard(level=9)],
    "zstd+checksum+encrypt": full_chain(),
    "lz4+encrypt+checksum": [LZ4(), Encrypt(KEY), Checksum()],
    "checksum+lz4+zstd": [Checksum(), LZ4(), ZStandard()],
}


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest) -> list[Any]:
    return CHAINS[request.param]


def keys_for(chain: Sequence[Any]) -> Any:
    return KEY if any(isinstance(codec, Encrypt) for codec in chain) else None


def names(chain: Sequence[Any]) -> list[str]:
    return [codec.registry_name() for codec in chain]


def stock_save(state: dict[str, Any], path: Path, chain: list[Any], **options: Any) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, _extensions=chain, sync_files=False, **options))


def stock_reader(path: Path, chain: Sequence[Any]) -> dcp.FileSystemReader:
    return dcp.FileSystemReader(path, _extension_registry=streamxf.Registry(keys=keys_for(chain)))


def recorded_descriptors(path: Path) -> list[str]:
    """The names of the codecs' descriptors as DCP stores them, by torch's own reader."""
    (descriptors,) = {
        tuple(name for text in info.transform_descriptors if (name := text.partition("/")[0]) != "streamxf.value")
        for info in dcp.FileSystemReader(path).read_metadata().storage_data.values()
    }
    return list(descriptors)


def test_own_writer_own_reader(checkpoint: Path, state: dict[str, Any], chain: list[Any]) -> None:
    save(state, checkpoint, chain)
    assert_same(load(state, checkpoint, keys_for(chain)), state)
    assert recorded_descriptors(checkpoint) == names(chain)[::-1]


def test_own_writer_stock_reader(checkpoint: Path, state: dict[str, Any], chain: list[Any]) -> None:
    save(state, checkpoint, chain)
    assert_same(load_with(state, stock_reader(checkpoint, chain)), state)


def test_stock_writer_stock_reader(checkpoint: Path, state: dict[str, Any], chain: list[Any]) -> None:
    stock_save(state, checkpoint, chain)
    assert_same(load_with(state, stock_reader(checkpoint, chain)), state)
    assert recorded_descriptors(checkpoint) == names(chain)[::-1]


def test_stock_writer_own_reader(checkpoint: Path, state: dict[str, Any], chain: list[Any]) -> None:
    stock_save(state, checkpoint, chain)
    keys = keys_for(chain)
    assert_same(load(state, checkpoint, keys, require="encrypted" if keys else None), state)


def test_stock_writer_with_threads_and_many_files(checkpoint: Path, state: dict[str, Any]) -> None:
    stock_save(state, checkpoint, full_chain(), thread_count=3, single_file_per_rank=False)
    assert_same(load_with(state, stock_reader(checkpoint, full_chain())), state)


@pytest.mark.parametrize("reader", [streamxf.FileSystemReader, dcp.FileSystemReader])
def test_no_chain_at_all(checkpoint: Path, state: dict[str, Any], reader: Any) -> None:
    save(state, checkpoint, [])
    assert_same(load_with(state, reader(checkpoint)), state)


# -- a torch that wraps in the other order -------------------------------------------------------


@pytest.fixture
def mended_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that asks the last extension of the list first, so that list order is the order of the data."""

    def transform_save_stream(self: Any, write_item: Any, raw_stream: Any) -> Any:
        stream, nothing = original(_StorageWriterTransforms(), write_item, raw_stream)
        for extension in reversed(self.extensions):
            stream = extension.transform_to(stream)
        return stream, [extension.get_descriptor() for extension in reversed(self.extensions)] + nothing

    original = _StorageWriterTransforms.transform_save_stream
    monkeypatch.setattr(_StorageWriterTransforms, "transform_save_stream", transform_save_stream)


@pytest.mark.usefixtures("mended_torch")
def test_a_torch_that_mends_its_order_gives_list_order_too(
    checkpoint: Path, state: dict[str, Any], chain: list[Any]
) -> None:
    stock_save(state, checkpoint, chain)
    assert recorded_descriptors(checkpoint) == names(chain)[::-1]
    assert stored_chain(checkpoint) == names(chain)
    assert_same(load_with(state, stock_reader(checkpoint, chain)), state)
    keys = keys_for(chain)
    assert_same(load(state, checkpoint, keys, require="encrypted" if keys else None), state)


def test_the_stored_chain_is_in_list_order(checkpoint: Path, state: dict[str, Any], chain: list[Any]) -> None:
    stock_save(state, checkpoint, chain)
    assert stored_chain(checkpoint) == names(chain)


def stored_chain(path: Path) -> list[str]:
    """The chain in the first container's header, which says in which order the data really flowed."""
    data = next(path.glob("*.distcp")).read_bytes()
    size = int.from_bytes(data[13:15], "little")
    return [text.partition("/")[0] for text in data[33 : 33 + size].decode("ascii").split("\n")]


# -- other people's writers and readers ----------------------------------------------------------


class TheirWriter(dcp.FileSystemWriter):
    """A plain subclass, as somebody has it in a training script."""


class TheirReader(dcp.FileSystemReader):
    """A plain subclass, as somebody has it in a training script."""


def test_attached_writer_and_reader(checkpoint: Path, state: dict[str, Any], chain: list[Any]) -> None:
    writer = TheirWriter(checkpoint, sync_files=False)
    assert streamxf.attach(writer, chain) is writer
    dcp.save(state, storage_writer=writer)
    assert_same(load_with(state, streamxf.attach(TheirReader(checkpoint), keys=keys_for(chain))), state)
    assert_same(load_with(state, stock_reader(checkpoint, chain)), state)
    keys = keys_for(chain)
    assert_same(load(state, checkpoint, keys, require="bound" if keys else None), state)


def test_attached_reader_takes_what_others_wrote(tmp_path: Path, state: dict[str, Any], chain: list[Any]) -> None:
    save(state, tmp_path / "own", chain)
    with_manifest = streamxf.attach(TheirReader(tmp_path / "own"), codecs=streamxf.Registry(keys=keys_for(chain)))
    assert_same(load_with(state, with_manifest), state)
    stock_save(state, tmp_path / "stock", chain)
    keys = keys_for(chain)
    unbound = streamxf.attach(TheirReader(tmp_path / "stock"), keys=keys, require="encrypted" if keys else None)
    assert_same(load_with(state, unbound), state)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "plain"))
    assert_same(load_with(state, streamxf.attach(TheirReader(tmp_path / "plain"))), state)


def test_attached_writer_saves_again_and_again(checkpoint: Path, state: dict[str, Any]) -> None:
    writer = streamxf.attach(TheirWriter(checkpoint, sync_files=False), full_chain())
    for step in range(3):
        dcp.save({**state, "step": step}, storage_writer=writer)
        assert_same(load({"step": step}, checkpoint, require="bound"), {"step": step})


def test_attached_items_are_bound_to_their_places(checkpoint: Path) -> None:
    state = {"one": torch.ones(3), "two": torch.zeros(3)}
    dcp.save(state, storage_writer=streamxf.attach(TheirWriter(checkpoint), full_chain()))
    reader = streamxf.attach(TheirReader(checkpoint), keys=KEY)
    swap_items(reader, "one", "two")
    with refused(streamxf.errors.IdentityError, "swapped"):
        load_with(state, reader)


def swap_items(reader: Any, one: str, two: str) -> None:
    """Make a reader take each item from where the other stands."""
    original = reader.read_metadata

    def read_metadata(*args: Any, **kwargs: Any) -> Any:
        metadata = original(*args, **kwargs)
        index = {key.fqn: key for key in metadata.storage_data}
        first, second = index[one], index[two]
        places = metadata.storage_data
        places[first], places[second] = places[second], places[first]
        return metadata

    reader.read_metadata = read_metadata


# -- stock checkpoints through streamxf's reader -------------------------------------------------


@pytest.mark.parametrize("extensions", [None, [], [TorchZStandard()]], ids=["default", "none", "zstandard"])
@pytest.mark.parametrize("threads", [1, 2])
def test_stock_checkpoints_load(checkpoint: Path, state: dict[str, Any], extensions: Any, threads: int) -> None:
    stock_save(state, checkpoint, extensions, thread_count=threads)
    assert_same(load(state, checkpoint, None), state)


# -- stream extensions from elsewhere ------------------------------------------------------------

FOREIGN: dict[str, list[Any]] = {
    "zstandard": [TorchZStandard()],
    "xor": [Xor()],
    "xor+xor": [Xor(1), Xor(2)],
    "xor+zstandard": [Xor(), TorchZStandard()],
    "zstandard+xor": [TorchZStandard(), Xor(7)],
}


@pytest.mark.parametrize(("foreign", "tail"), list(product(FOREIGN, ["", "zstd", "zstd+checksum+encrypt"])))
def test_foreign_extensions_before_the_first_codec(
    checkpoint: Path, state: dict[str, Any], foreign: str, tail: str
) -> None:
    chain = FOREIGN[foreign] + (CHAINS[tail] if tail else [])
    save(state, checkpoint, chain)
    registry = streamxf.Registry()
    registry.register(Xor)
    assert_same(load(state, checkpoint, keys_for(chain), _extension_registry=registry), state)
    assert recorded_descriptors(checkpoint) == names(chain)[::-1]


def test_foreign_extensions_of_a_tensor_of_many_blocks(checkpoint: Path) -> None:
    state = {"w": torch.randint(0, 5, (700, 1000), dtype=torch.int32)}
    save(state, checkpoint, [TorchZStandard(), Xor(), *full_chain()], block_size=1 << 16)
    registry = streamxf.Registry()
    registry.register(Xor)
    assert_same(load(state, checkpoint, KEY, _extension_registry=registry), state)
    attached = streamxf.attach(dcp.FileSystemReader(checkpoint), codecs=registry, keys=KEY)
    assert_same(load_with(state, attached), state)


class Careless(Xor):
    """Leaves it to others to close what it writes to."""

    def transform_to(self, output: Any) -> Any:
        stream = super().transform_to(output)
        stream.close = lambda: None
        return stream


@pytest.mark.parametrize("tail", ["zstd", "zstd+checksum+encrypt"])
def test_a_foreign_stream_need_not_close_what_it_writes_to(checkpoint: Path, state: dict[str, Any], tail: str) -> None:
    save(state, checkpoint, [Careless(), *CHAINS[tail]])
    registry = streamxf.Registry()
    registry.register(Xor)
    assert_same(load(state, checkpoint, keys_for(CHAINS[tail]), _extension_registry=registry), state)


def test_a_foreign_extension_does_see_the_data_first(checkpoint: Path) -> None:
    """Compressing what is XORed with itself twice gives the same; so look at what the codec behind it was given."""
    text = "a" * 5000
    save({"text": text}, checkpoint, [Xor(0x11), Checksum()])
    (file,) = checkpoint.glob("*.distcp")
    assert bytes([ord("a") ^ 0x11]) * 5000 in file.read_bytes()


class Unreadable(Xor):
    """Reads by something else than streams."""

    @staticmethod
    def from_descriptor(version: str) -> Unreadable:
        return Unreadable(int(version))

    def transform_from(self, input: Any) -> Any:
        return input.read()


def test_a_foreign_extension_that_returns_no_stream(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Unreadable(), ZStandard()])
    registry = streamxf.Registry()
    registry.register(Unreadable)
    with refused(streamxf.errors.UnsupportedError, "'toy.xor/90' does not return a readable stream"):
        load(state, checkpoint, None, _extension_registry=registry)


def test_a_foreign_extension_that_is_not_registered_is_named(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Xor(), ZStandard()])
    with refused(streamxf.errors.UnknownCodecError, "toy.xor"):
        load(state, checkpoint, None)


def test_a_codec_joins_no_stream_that_was_written_to() -> None:
    """As a stock writer would use them that wraps its extensions late."""
    first: Any = ZStandard()
    stream = first.transform_to(io.BytesIO())
    stream.write(b"data")
    second: Any = Checksum()
    with pytest.raises(streamxf.errors.AbortedError, match="used already"):
        second.transform_to(stream)


def test_torchs_stream_ends_once_and_with_the_container() -> None:
    class Kept(io.BytesIO):
        def close(self) -> None:
            ends.append(self.getvalue())

    ends: list[bytes] = []
    codec: Any = ZStandard()
    with codec.transform_to(Kept()) as stream:
        stream.write(b"data")
    stream.close()
    assert stream.closed
    (stored,) = ends
    assert codec.transform_from(io.BytesIO(stored)).read() == b"data"


def test_an_error_leaves_no_stream_that_could_go_on() -> None:
    codec: Any = ZStandard()
    raw = io.BytesIO()
    stream = codec.transform_to(raw)
    with pytest.raises(ZeroDivisionError), stream:
        stream.write(b"data")
        raise ZeroDivisionError
    for go_on in (lambda: stream.write(b"more"), stream.close):
        with pytest.raises(streamxf.errors.AbortedError, match="was aborted"):
            go_on()
    with pytest.raises(streamxf.errors.ContainerError):
        codec.transform_from(io.BytesIO(raw.getvalue())).read()
