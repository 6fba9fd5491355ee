"""Files of ``torch.save``: named as DCP flattens them, read where their storages stand, and never unpickled freely."""

import codecs
import collections
import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

import streamxf
from streamxf import budget
from streamxf.checkpoint.reading import Box
from streamxf.errors import (
    ContainerError,
    MetadataError,
    NoCheckpointError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
)
from streamxf.format.items import ObjectItem, TensorItem
from streamxf.formats.contents import Format
from streamxf.formats.opening import contents_of
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from tests.altered import flipped
from tests.archives import redirected
from tests.archives import saved as saved_bytes
from tests.dcp.helpers import assert_same

from .samples import contents_at, in_pieces, open_at, read_boxes, tensor_item

BASE = torch.randn(64, 50, generator=torch.Generator().manual_seed(7))


class Plain(torch.Tensor):
    """A subclass."""


def saved(value: Any, path: Path, **options: Any) -> Path:
    torch.save(value, path / "model.pt", **options)
    return path / "model.pt"


def read(path: Path) -> dict[str, Any]:
    """All items, by their names."""
    with open_at(path) as reader:
        return {
            name: in_pieces(reader, name, 1000) if isinstance(item, TensorItem) else reader.load_object(name)
            for name, item in reader.stored.items()
        }


VIEWS: dict[str, Any] = {
    "two of one storage": {"a": BASE, "b": BASE},
    "a part": {"a": BASE[3:9, 7:]},
    "turned": {"a": BASE.t()},
    "turned in four dimensions": {"a": BASE.reshape(4, 16, 5, 10).permute(3, 1, 0, 2)},
    "every third column": {"a": BASE[:, ::3]},
    "expanded": {"a": BASE[:1].expand(30, 50), "b": torch.ones(()).expand(3, 4)},
    "overlapping": {"a": BASE.as_strided((20, 20), (1, 2), 5)},
    "diagonal": {"a": BASE.diagonal()},
    "another dtype": {"a": BASE.view(torch.int16)[:, 1:]},
    "a parameter": {"a": torch.nn.Parameter(BASE), "b": torch.nn.Parameter(BASE.half(), requires_grad=False)},
    "with a gradient": {"a": BASE.clone().requires_grad_()},
    "empty": {"a": BASE[5:5], "b": torch.empty(0)},
    "scalar": {"a": BASE[3, 4]},
}


FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old form"])


@FORMS
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_read_as_it_looks(tmp_path: Path, view: str, zipped: bool) -> None:
    state = VIEWS[view]
    path = saved(state, tmp_path, _use_new_zipfile_serialization=zipped)
    assert_same(read(path), {name: tensor.detach() for name, tensor in state.items()})


def test_a_large_view_is_read_in_pieces(tmp_path: Path) -> None:
    large = torch.arange(9_000_000, dtype=torch.int32).reshape(3000, 3000)
    path = saved({"turned": large.t(), "columns": large[:, 100:200]}, tmp_path)
    with open_at(path) as reader:
        for name, wanted in (("turned", large.t()), ("columns", large[:, 100:200])):
            assert_same(in_pieces(reader, name, 2**22), wanted.contiguous())
            (cut,) = read_boxes(reader, [Box(tensor_item(reader, name), (1, 2), (2000, 3))])
            assert_same(cut, wanted[1:2001, 2:5].contiguous())


def test_elements_out_of_proportion_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte of a file, and no end of elements."""
    path = saved({"a": torch.ones(100).expand(100_000_000, 100), "b": BASE}, tmp_path)
    with open_at(path) as reader:
        with pytest.raises(PolicyError, match="out of proportion") as caught:
            list(read_boxes(reader, [Box(tensor_item(reader, "a"), (0, 0), (1, 1))]))
        assert (caught.value.file, caught.value.item) == (str(path), "a")
        assert_same(in_pieces(reader, "b", 1000), BASE)
    path = saved({"a": torch.ones(100).expand(64, 100), "b": torch.ones(100).expand(65, 100)}, tmp_path)
    monkeypatch.setattr(budget, "FREE", 0)
    with open_at(path) as reader:
        assert_same(in_pieces(reader, "a", 1000), torch.ones(64, 100))
        with pytest.raises(PolicyError, match="out of proportion"):
            in_pieces(reader, "b", 1000)


NESTED = {
    "model": collections.OrderedDict(weight=BASE, bias=BASE[0]),
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": BASE * 2}}, "param_groups": [{"lr": 1e-3}]},
    "list": [BASE[1], {"deep": [BASE[2], "text"]}, 5],
}
NESTED |= {"plain list": [1, 2, [3]], "pair": (1, "two"), "set": {1, 2}, "none": None, "bytes": b"\0\xff"}
NESTED |= {"size": torch.Size([1, 2]), "dtype": torch.bfloat16, "array": np.arange(6).reshape(2, 3)}
NESTED |= {"number": np.float64(0.5), "complex": 1 + 2j}


@FORMS
def test_items_are_named_as_dcp_names_them(tmp_path: Path, zipped: bool) -> None:
    path = saved(NESTED, tmp_path, _use_new_zipfile_serialization=zipped)
    flat, paths = flatten_state_dict(dict(NESTED))
    found = read(path)
    assert list(found) == list(flat)
    np.testing.assert_array_equal(found.pop("array"), flat.pop("array"))
    for name, value in found.items():
        assert type(value) is type(flat[name]), name
    assert_same(
        found, {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in flat.items()}
    )
    with open_at(path) as reader:
        assert {name: item.path for name, item in reader.stored.items()} == paths
        contents = contents_of(reader)
    assert contents.format is Format.TORCH
    assert contents.files == {"model.pt": path.stat().st_size}
    assert contents.items.keys() - contents.tensors.keys() == {
        "array",
        *(name for name, value in flat.items() if not isinstance(value, torch.Tensor)),
    }


@FORMS
def test_where_tensors_stand(tmp_path: Path, zipped: bool) -> None:
    path = saved({"a": BASE, "b": BASE[3]}, tmp_path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    for name, wanted in (("a", BASE), ("b", BASE[3])):
        (place,) = contents_at(path).items[name].places
        assert data[place.at : place.at + place.size] == wanted.numpy().tobytes()


def torchscript(path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


def package(path: Path) -> None:
    with torch.package.PackageExporter(path) as exporter:
        exporter.save_pickle("model", "weights.pkl", {"a": BASE})


def program(path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (BASE[:1, :2],)), path)


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=BASE.numpy())


def other_order(path: Path) -> None:
    path.write_bytes(redirected(saved_bytes({"a": BASE}), {"byteorder": b"big"}))


def cut(path: Path) -> None:
    torch.save({"a": BASE}, path)
    path.write_bytes(path.read_bytes()[:-30])


def lying_record(path: Path) -> None:
    """A storage whose header stands beyond the end."""
    torch.save({"a": BASE}, path)
    data = path.read_bytes()
    at = data.rindex(b"model/data/0") - 4  # the header's place ends right before the name, in the directory
    path.write_bytes(data[:at] + struct.pack("<I", len(data) - 40) + data[at + 4 :])


class Calls:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Encodes:
    """Text that a pickle has encoded, as protocol 2 does with bytes: those are in Latin-1."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return codecs.encode, self.arguments


def of(value: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda path: torch.save(value(), path)


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def shared_lists() -> Any:
    """A list of two that are one, forty times over: a trillion places in a kilobyte."""
    value: Any = [BASE]
    for _ in range(40):
        value = [value, value]
    return {"l": value}


def long_keys() -> Any:
    """A key that pickle stores once, and that every name has a thousand times."""
    value: Any = {str(number): number for number in range(1000)}
    for _ in range(100):
        value = {"k" * 10_000: value}
    return value


def inside_itself() -> Any:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


def deeper_than_the_stack(path: Path) -> None:
    """Torch saves no such thing, but reads it."""
    torch.save({"d": 0}, path)
    place = b"X\x01\x00\x00\x00dq\x01K\x00s"
    with zipfile.ZipFile(path) as archive:
        records = {entry: archive.read(entry) for entry in archive.infolist()}
    pickled = next(data for entry, data in records.items() if entry.filename.endswith("data.pkl"))
    assert place in pickled
    deep = pickled.replace(place, place[:-3] + b"}" + b"X\x01\x00\x00\x00d}" * 5000 + b"s" * 5000 + b"s")
    rewritten = torch._C.PyTorchFileWriter(str(path))
    for entry, data in records.items():
        data = deep if data == pickled else data
        if not entry.filename.endswith((".data/serialization_id", "version")):
            rewritten.write_record(entry.filename.partition("/")[2], data, len(data))
    rewritten.write_end_of_file()


BAD: dict[str, tuple[Callable[[Path], None], type[StreamxfError], str, str | None]] = {
    "TorchScript": (torchscript, UnsupportedError, "torch.jit.load", None),
    "torch.package": (package, UnsupportedError, "torch.package.PackageImporter", None),
    "torch.export": (program, UnsupportedError, "torch.export.load", None),
    "a module": (of(lambda: torch.nn.Linear(2, 2)), UnsupportedError, r"save its state_dict\(\)", None),
    "another zip file": (other_zip, NoCheckpointError, "a zip file that begins with 'a.txt'", None),
    "arrays of NumPy's": (arrays, NoCheckpointError, "an .npz archive of NumPy's", None),
    "another order of bytes": (other_order, UnsupportedError, "big-endian", None),
    "a cut file": (cut, ContainerError, "not an intact file of torch.save", None),
    "a record that is not there": (lying_record, ContainerError, "not an intact file of torch.save", None),
    "a tensor alone": (of(lambda: BASE), UnsupportedError, "not a state dict", None),
    "a list": (of(lambda: [BASE]), UnsupportedError, "not a state dict", None),
    "lists that share their parts": (of(shared_lists), UnsupportedError, "out of proportion", None),
    "names without end": (of(long_keys), UnsupportedError, "out of proportion", None),
    "a dict in itself": (of(inside_itself), UnsupportedError, "nested too deeply", None),
    "a dict as deep as a well": (deeper_than_the_stack, UnsupportedError, "nested too deeply", None),
    "names that meet": (of(lambda: {"a.b": BASE, "a": {"b": BASE}}), UnsupportedError, "two of the file's items", None),
    "a key without a name": (of(lambda: {frozenset([1]): BASE}), UnsupportedError, "neither a string", None),
    "a key of too many digits": (of(lambda: {10**5000: BASE}), UnsupportedError, "key without a name", None),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read(tmp_path: Path, case: str) -> None:
    spoil, kind, words, item = BAD[case]
    path = tmp_path / "model.pt"
    spoil(path)
    for opening in (contents_at, open_at):
        with pytest.raises(kind, match=words) as caught:
            opening(path)
        assert caught.value.file == str(path)
        assert caught.value.item == item
    if kind is NoCheckpointError:
        with pytest.raises(kind, match=words):
            streamxf.verify(path)


@pytest.mark.parametrize("arguments", [("a", "utf-8"), (b"a", "latin1")], ids=["another encoding", "no text to encode"])
def test_what_encodes_in_another_way_is_an_object_that_is_not_made(tmp_path: Path, arguments: tuple[Any, ...]) -> None:
    """And all else in the file is read."""
    path = saved({"a": BASE, "o": Encodes(*arguments)}, tmp_path)
    with open_at(path) as reader:
        assert isinstance(reader.stored["o"], ObjectItem)
        with pytest.raises(PolicyError, match=r"calls _codecs.encode in another way than torch.save does") as caught:
            reader.load_object("o")
        assert caught.value.item == "o"
    (note,) = streamxf.pack(path, tmp_path / "packed").notes
    assert "kept 1 item only as bytes of the file, from which unpack restores it: o; " in note
    streamxf.unpack(path, tmp_path / "model.safetensors", skip_objects=True)
    assert_same(load_file(tmp_path / "model.safetensors"), {"a": BASE})


MORE_THAN_ELEMENTS: dict[str, Callable[[], Any]] = {
    "sparse": sparse,
    "quantized": quantized,
    "a conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "no memory": lambda: torch.ones(3, device="meta"),
    "in a tuple": lambda: (1, BASE),
    "in a set": lambda: {BASE},
}


@FORMS
@pytest.mark.parametrize("case", MORE_THAN_ELEMENTS)
def test_tensors_that_are_more_than_elements_are_objects(tmp_path: Path, case: str, zipped: bool) -> None:
    value = MORE_THAN_ELEMENTS[case]()
    path = saved({"a": BASE, "n": {"o": value}}, tmp_path, _use_new_zipfile_serialization=zipped)
    with open_at(path) as reader:
        assert isinstance(reader.stored["n.o"], ObjectItem)
        assert_same(in_pieces(reader, "a", 1000), BASE)
        found = reader.load_object("n.o")
    assert type(found) is type(value)
    if case in ("a conjugate", "in a tuple"):
        assert_same(found, value)
    else:
        assert repr(found) == repr(value)


def marked(tensor: torch.Tensor, **attributes: Any) -> torch.Tensor:
    vars(tensor).update(attributes)
    return tensor


@FORMS
def test_tensors_with_attributes_are_tensors(tmp_path: Path, zipped: bool) -> None:
    """As Megatron's parameters and torch's buffers have them, of which `load` and `pack` need the elements."""
    half = torch.arange(6).to(torch.bfloat16)
    state = {
        "tensor": marked(BASE.clone(), tensor_model_parallel=True, partition_dim=0),
        "parameter": marked(torch.nn.Parameter(half), allreduce=[1, {"a": BASE}]),
        "buffers": [torch.nn.Buffer(half), 1],
    }
    path = saved(state, tmp_path, _use_new_zipfile_serialization=zipped)
    assert streamxf.pack(path, tmp_path / "packed", "checksum").notes == ()
    assert streamxf.verify(tmp_path / "packed").ok
    streamxf.unpack(tmp_path / "packed", tmp_path / "model.safetensors", skip_objects=True)
    found = load_file(tmp_path / "model.safetensors")
    assert_same(dict(sorted(found.items())), {"buffers.0": half, "parameter": half, "tensor": BASE})
    streamxf.unpack(tmp_path / "packed", tmp_path / "again.pt")
    assert (tmp_path / "again.pt").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("attributes", [{"data": BASE}, {"__class__": 1}, {1: 2}], ids=repr)
def test_attributes_that_would_change_the_tensor_are_refused(tmp_path: Path, attributes: Any) -> None:
    class Changed:
        def __reduce__(self) -> Any:
            arguments = torch._utils._rebuild_tensor_v2, torch.Tensor, torch.ones(2).__reduce_ex__(2)[1], attributes
            return torch._tensor._rebuild_from_type_v2, arguments

    with open_at(saved({"a": BASE, "o": Changed()}, tmp_path)) as reader:
        assert isinstance(reader.stored["o"], ObjectItem)
        with pytest.raises(PolicyError, match=r"_rebuild_from_type_v2 in another way than torch.save does"):
            reader.load_object("o")


@pytest.mark.parametrize(
    ("value", "words"), [(BASE.as_subclass(Plain), "Plain"), (io.StringIO(), "StringIO")], ids=["subclass", "class"]
)
def test_what_torch_would_not_load_is_listed_and_not_loaded(tmp_path: Path, value: Any, words: str) -> None:
    path = saved({"a": BASE, "o": value}, tmp_path)
    with open_at(path) as reader:
        assert isinstance(reader.stored["o"], ObjectItem)
        assert_same(in_pieces(reader, "a", 1000), BASE)
        with pytest.raises(PolicyError, match=words) as caught:
            reader.load_object("o")
    assert (caught.value.file, caught.value.item) == (str(path), "o")


def test_nothing_is_called(tmp_path: Path) -> None:
    path = saved({"a": BASE, "o": Calls(tmp_path / "made")}, tmp_path)
    with open_at(path) as reader, pytest.raises(PolicyError, match="mkdir"):
        reader.load_object("o")
    assert not (tmp_path / "made").exists()


@FORMS
def test_damaged_pickles_raise_nothing_else(tmp_path: Path, zipped: bool) -> None:
    path = saved({"a": BASE[:2], "n": {"b": [1, 2]}}, tmp_path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    begin = contents_at(path).items["n.b"].places[0].at
    for at in range(begin, begin + 300, 3):
        path.write_bytes(flipped(data, at, 0x55))
        try:
            read(path)
        except (ContainerError, MetadataError, PolicyError, UnsupportedError) as error:
            assert error.file == str(path)  # noqa: PT017


def altered_archive(place: bytes, at: int, value: bytes) -> bytes:
    """A file whose last record has other bytes: in its local header, or in its entry of the directory."""
    file = io.BytesIO()
    torch.save({"a": BASE}, file)
    data = bytearray(file.getvalue())
    start = data.rindex(place) + at
    data[start : start + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("place", "at", "value", "words"),
    [
        (b"PK\x03\x04", 28, b"\xff\xff", "reaches beyond its end"),
        (b"PK\x03\x04", 0, b"PK\x03\x05", "names a record that is missing"),
        (b"PK\x01\x02", 60, b"\xff", "its directory is damaged"),
        (b"PK\x01\x02", 46, b"\xff", "in several folders"),
        (b"PK\x01\x02", 34, b"\x01", "on another disk"),
    ],
)
def test_records_that_are_elsewhere(place: bytes, at: int, value: bytes, words: str) -> None:
    data = altered_archive(place, at, value)
    with pytest.raises(NotSavedByTorch, match=words):
        archive = Archive(io.BytesIO(data), len(data))
        for name in archive.sizes:
            archive.find(name)
