"""Checkpoints and files that an attacker made: to ask for far more than is stored (`LARGE`), or to hold what no writer
stores (`STRANGE`).

Each builder fills an empty folder and returns what a user would name: that folder, or a file in it. They are made of
what torch and the safetensors format define.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import streamxf
from tests.archives import saved

from .test_bombs import runs

Builder = Callable[[Path], Path]

MIB = 2**20
GIB = 2**30
TIB = 2**40
DATA = "__0_0.distcp"


def expanded(size: int) -> torch.Tensor:
    """One number, `size` times."""
    return torch.ones(1).expand(size)


class Stock:
    """A checkpoint as torch's own writer leaves it: metadata without an index, and one data file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items: dict[str, Any] = {}
        self.places: dict[MetadataIndex, _StorageInfo] = {}
        self.data = bytearray()

    def tensor(
        self, name: str, stored: bytes, shape: Sequence[int], dtype: torch.dtype = torch.float32, **place: Any
    ) -> Stock:
        """Add a tensor whose stored bytes are `stored`, described as one of `shape` and `dtype`."""
        offsets, sizes = torch.Size([0] * len(shape)), torch.Size(shape)
        chunk = ChunkStorageMetadata(offsets, sizes)
        self.items[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), sizes, [chunk])
        self._put(MetadataIndex(name, offsets, 0), stored, place)
        return self

    def object(self, name: str, stored: bytes, **place: Any) -> Stock:
        """Add an object that is no tensor."""
        self.items[name] = BytesStorageMetadata()
        self._put(MetadataIndex(name), stored, place)
        return self

    def _put(self, index: MetadataIndex, stored: bytes, place: dict[str, Any]) -> None:
        facts = {"relative_path": DATA, "offset": len(self.data), "length": len(stored)} | place
        self.places[index] = _StorageInfo(**facts)
        self.data += stored

    def write(self) -> Path:
        (self.folder / DATA).write_bytes(self.data)
        content = Metadata(self.items, None, self.places)
        (self.folder / ".metadata").write_bytes(pickle.dumps(content, 2))
        return self.folder


# -- tensors whose elements are not stored one by one ------------------------------------------------------------------


def expanded_item(size: int) -> Builder:
    return lambda folder: Stock(folder).tensor("w", saved(expanded(size)), [size]).write()


def expanded_items(folder: Path) -> Path:
    """Many, none of which is much by itself."""
    stock = Stock(folder)
    stored = saved(expanded(2**25))
    for number in range(40):
        stock.tensor(f"w{number}", stored, [2**25])
    return stock.write()


def items_in_one_place(folder: Path) -> Path:
    """Many that share the same few MiB of the file."""
    stock = Stock(folder)
    stored = saved(torch.ones(MIB))
    stock.tensor("w", stored, [MIB])
    for number in range(400):
        stock.tensor(f"w{number}", b"", [MIB], offset=0, length=len(stored))
    return stock.write()


def torch_file(make: Callable[[], Any]) -> Builder:
    def build(folder: Path) -> Path:
        torch.save(make(), folder / "model.pt")
        return folder / "model.pt"

    return build


def views_of_one_storage() -> dict[str, torch.Tensor]:
    whole = torch.ones(MIB)
    return {f"w{number}": whole[number:] for number in range(400)}


def bomb_of_zstandard(folder: Path) -> Path:
    """A tensor of 2 GiB in 64 KiB, through the compression of torch's own writer."""
    stored = runs(2 * GIB, None)
    stock = Stock(folder).tensor("w", stored, [GIB // 2], transform_descriptors=["stream.zstd/1"])
    return stock.object("o", stored, transform_descriptors=["stream.zstd/1"]).write()


# -- dtypes, shapes and places that no writer stores -------------------------------------------------------------------

SUB_BYTE = ["int1", "int7", "uint1", "uint4", "uint7"]
QUANTIZED = ["qint8", "quint4x2"]
RARE = ["bits8", "bits1x8", "complex32", "float4_e2m1fn_x2"]


def dtype_item(name: str) -> Builder:
    stored = saved(torch.zeros(6, dtype=torch.uint8))
    return lambda folder: Stock(folder).tensor("w", stored, [6], getattr(torch, name)).write()


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(6), 0.5, 3, torch.quint8)


def shaped_item(shape: list[int]) -> Builder:
    return lambda folder: Stock(folder).tensor("w", saved(torch.ones(3)), shape).write()


def shaped_and_expanded_item(shape: list[int]) -> Builder:
    return lambda folder: Stock(folder).tensor("w", saved(torch.ones(1).expand(shape)), shape).write()


def strided_item(folder: Path) -> Path:
    """Two elements that lie 2^40 apart, in a storage that is not there."""
    stored = saved(torch.ones(4).as_strided((2, 2), (1, 2)))
    return Stock(folder).tensor("w", stored, [2, 2]).write()


def path_item(path: str) -> Builder:
    stored = saved(torch.ones(3))
    return lambda folder: Stock(folder).tensor("v", stored, [3]).tensor("w", stored, [3], relative_path=path).write()


def empty_item_beyond(folder: Path) -> Path:
    """An item of no bytes, far behind the end of its file."""
    stock = Stock(folder).tensor("w", saved(torch.ones(3)), [3])
    return stock.tensor("v", b"", [0], offset=10**6, length=0).object("o", b"", offset=10**6, length=0).write()


def name_item(name: str) -> Builder:
    return lambda folder: Stock(folder).tensor(name, saved(torch.ones(3)), [3]).object(f"o{name}", saved([1])).write()


# -- objects -----------------------------------------------------------------------------------------------------------


def object_item(make: Callable[[], Any]) -> Builder:
    return lambda folder: Stock(folder).object("o", saved(make())).write()


def nested_twice() -> Any:
    value: Any = [0]
    for _ in range(60):
        value = [value, value]
    return value


# -- what would be printed ---------------------------------------------------------------------------------------------


def long_name_of_many_chunks(folder: Path) -> Path:
    """A tensor of a long name in many pieces, all of which are lost."""
    stock = Stock(folder)
    name, count = "n" * 60_000, 6_000
    chunks = [ChunkStorageMetadata(torch.Size([at]), torch.Size([1])) for at in range(count)]
    stock.items[name] = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([count]), chunks)
    for number, chunk in enumerate(chunks):
        stock.places[MetadataIndex(name, chunk.offsets, number)] = _StorageInfo(DATA, 16 * number, 16)
    stock.data += bytes(16 * count)
    return stock.write()


# -- holes -------------------------------------------------------------------------------------------------------------


def hole(path: Path, size: int) -> None:
    """Let a file reach up to `size`, with nothing on the disk."""
    path.touch()
    os.truncate(path, size)


def metadata_of_holes(folder: Path) -> Path:
    Stock(folder).tensor("w", saved(torch.ones(3)), [3]).write()
    hole(folder / ".metadata", GIB)
    return folder


def data_of_holes(folder: Path) -> Path:
    """A tensor of 8 TiB that is described as it should be, and not there."""
    Stock(folder).tensor("w", b"", [2 * TIB], offset=0, length=8 * TIB).write()
    hole(folder / DATA, 8 * TIB)
    return folder


def data_continued(folder: Path) -> Path:
    Stock(folder).tensor("w", saved(torch.ones(3)), [3]).write()
    hole(folder / DATA, 8 * TIB)
    return folder


def own(folder: Path) -> Path:
    """A checkpoint of streamxf's writer, and its data file."""
    writer = streamxf.FileSystemWriter(folder, _extensions=[streamxf.ZStandard()], sync_files=False)
    dcp.save({"w": torch.ones(6), "o": [1]}, storage_writer=writer, no_dist=True)
    (file,) = folder.glob("*.distcp")
    return file


def own_data_continued(folder: Path) -> Path:
    hole(own(folder), 8 * TIB)
    return folder


def own_data_alone_continued(folder: Path) -> Path:
    hole(own(folder), 8 * TIB)
    (folder / ".metadata").unlink()
    return folder


def own_data_of_zeros(folder: Path) -> Path:
    """Blocks of zeros, in a container that is as it should be: 1 GiB in some 80 KiB."""
    writer = streamxf.FileSystemWriter(folder, _extensions=[streamxf.ZStandard()], sync_files=False)
    dcp.save({"w": torch.zeros(1).expand(GIB // 4)}, storage_writer=writer, no_dist=True)
    return folder


def own_data_alone_of_zeros(folder: Path) -> Path:
    own_data_of_zeros(folder)
    (folder / ".metadata").unlink()
    return folder


def safetensors_of_holes(folder: Path) -> Path:
    size = 8 * TIB
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    hole(path, 8 + len(header) + size)
    return path


def header_of_holes(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes((90_000_000).to_bytes(8, "little") + b"{")
    hole(path, 100_000_000)
    return path


# -- headers of safetensors files --------------------------------------------------------------------------------------


def with_header(make: Callable[[], bytes], data: int = 0) -> Builder:
    def build(folder: Path) -> Path:
        header = make()
        path = folder / "model.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))
        return path

    return build


def header_of_dimensions(count: int) -> bytes:
    """A tensor of more dimensions than torch has."""
    shape = ",".join(["4611686018427387904"] * count)
    return b'{"w":{"dtype":"U8","shape":[' + shape.encode() + b'],"data_offsets":[0,0]}}'


def header_of(w: str = "w") -> bytes:
    """A tensor of one byte."""
    return f'{{"{w}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}'.encode()


def header_of_many(size: int) -> bytes:
    """As many tensors as there is room for."""
    one = '"{:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'.format
    count = size // len(one(2**20))
    return ("{" + ",".join(map(one, range(2**20, 2**20 + count))) + "}").encode()


def header_of_notes(size: int) -> bytes:
    """As many notes as there is room for."""
    one = '"{:x}":""'.format
    count = size // (len(one(2**22)) + 1)
    return ('{"__metadata__":{' + ",".join(map(one, range(2**22, 2**22 + count))) + "}}").encode()


def hub_of_a_path(path: str) -> Builder:
    def build(folder: Path) -> Path:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": path}}))
        return folder

    return build


SCALED = [list(shape) for shape in ([2**62], [2**61], [2**31, 2**31], [2**62, 0], [0, 2**62], [2] * 60, [1] * 64)]
MANY = 90_000_000  # bytes of a header

STRANGE: dict[str, Builder] = {
    **{f"dtype {name}": dtype_item(name) for name in (*SUB_BYTE, *QUANTIZED, *RARE)},
    "a quantized tensor": lambda folder: Stock(folder).tensor("w", saved(quantized()), [6], torch.quint8).write(),
    **{f"a shape of {shape!s:.40}": shaped_item(shape) for shape in SCALED},
    "an expanded shape of 64 ones": shaped_and_expanded_item([1] * 64),
    "an expanded shape without elements": shaped_and_expanded_item([2**40, 0]),
    "strides": strided_item,
    "a path that is not valid Unicode": path_item("a\ud800.distcp"),
    "a path of bytes": path_item("a\udcff.distcp"),
    "a path that is too long": path_item("a/" * 30_000 + "a"),
    "a path with a long part": path_item("a" * 300 + "/" + "b" * 300),
    "a path through a file": path_item(f"{DATA}/b"),
    "a path to the folder": path_item("."),
    "a path with a zero": path_item("a\0b"),
    "an empty item beyond the end": empty_item_beyond,
    "a name that is not valid Unicode": name_item("a\ud800"),
    "a name that steers terminals": name_item("a\x1b[31m\r\n"),
    "a long name": name_item("n" * 65_000),
    "lists nested twice": object_item(nested_twice),
    "a set": object_item(lambda: {1, 2}),
    "torch: a set": torch_file(lambda: {"o": {1, 2}}),
    "torch: a quantized tensor": torch_file(lambda: {"w": quantized()}),
    "torch: a shape of 64 ones": torch_file(lambda: {"w": torch.ones([1] * 64)}),
    "safetensors: a name that is not valid Unicode": with_header(lambda: header_of(w="\\ud800"), 1),
    "safetensors: a note that is not valid Unicode": with_header(
        lambda: b'{"__metadata__":{"\\ud800":"\\ud800"},' + header_of()[1:], 1
    ),
    "safetensors: 2^63 - 1 by 0": with_header(
        lambda: b'{"w":{"dtype":"F64","shape":[9223372036854775807,0],"data_offsets":[0,0]}}'
    ),
    "hub: a path that is not valid Unicode": hub_of_a_path("a\ud800.safetensors"),
    "hub: a long path": hub_of_a_path("a" * 5000 + ".safetensors"),
    "hub: a path with a long part": hub_of_a_path("a" * 4000 + ".safetensors"),
}
"""What no writer stores. It takes little, and each tool reads it or refuses it with an error of streamxf's."""

LARGE: dict[str, Builder] = {
    "an item of 2^31 expanded elements": expanded_item(2**31),
    "an item of 2^60 expanded elements": expanded_item(2**60),
    "40 items of 2^25 expanded elements": expanded_items,
    "401 items in one place": items_in_one_place,
    "a bomb in torch's own ZStandard": bomb_of_zstandard,
    "a long text 200,000 times": object_item(lambda: ["x" * MIB] * 200_000),
    "a long name of 6,000 chunks": long_name_of_many_chunks,
    "metadata of holes": metadata_of_holes,
    "data of holes": data_of_holes,
    "data continued by holes": data_continued,
    "data of ours, continued by holes": own_data_continued,
    "data of ours without metadata, continued by holes": own_data_alone_continued,
    "data of ours, of zeros": own_data_of_zeros,
    "data of ours without metadata, of zeros": own_data_alone_of_zeros,
    "torch: 2^60 expanded elements": torch_file(lambda: {"w": expanded(2**60)}),
    "torch: 400 views of one storage": torch_file(views_of_one_storage),
    "safetensors: holes": safetensors_of_holes,
    "safetensors: a header of holes": header_of_holes,
    "safetensors: a million dimensions": with_header(lambda: header_of_dimensions(10**6)),
    "safetensors: as many tensors as fit": with_header(lambda: header_of_many(MANY)),
    "safetensors: as many notes as fit": with_header(lambda: header_of_notes(MANY)),
}
"""What asks for far more than is stored."""
