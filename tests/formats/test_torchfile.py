"""Files of ``torch.save``: named as DCP flattens them, read where their storages stand, and never unpickled freely."""

from __future__ import annotations

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
from archives import redirected
from archives import saved as saved_bytes
from dcp.helpers import assert_same
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from streamxf.errors import ContainerError, MetadataError, PolicyError, StreamxfError, UnsupportedError
from streamxf.formats.contents import Format
from streamxf.formats.opening import contents_of, open_source
from streamxf.formats.source import Box, boxes_of

BASE = torch.randn(64, 50, generator=torch.Generator().manual_seed(7))


class Plain(torch.Tensor):
    """A subclass."""


def saved(value: Any, path: Path, **options: Any) -> Path:
    torch.save(value, path / "model.pt", **options)
    return path / "model.pt"


def read(path: Path) -> dict[str, Any]:
    """All items, by their names."""
    found: dict[str, Any] = {}
    with open_source(path) as source:
        for entry in source.contents.entries.values():
            if not entry.is_tensor:
                found[entry.name] = source.load_object(entry)
                continue
            dtype = getattr(torch, entry.dtype or "")
            parts = [part.reshape(-1) for part in source.read(boxes_of(entry, dtype.itemsize, 1000))]
            found[entry.name] = torch.cat([torch.empty(0, dtype=dtype), *parts]).reshape(entry.shape)
    return found


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


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_read_as_it_looks(tmp_path: Path, view: str) -> None:
    state = VIEWS[view]
    assert_same(read(saved(state, tmp_path)), {name: tensor.detach() for name, tensor in state.items()})


def test_a_large_view_is_read_in_pieces(tmp_path: Path) -> None:
    large = torch.arange(9_000_000, dtype=torch.int32).reshape(3000, 3000)
    path = saved({"turned": large.t(), "columns": large[:, 100:200]}, tmp_path)
    with open_source(path) as source:
        for name, wanted in (("turned", large.t()), ("columns", large[:, 100:200])):
            entry = source.contents.entries[name]
            found = [part.reshape(-1) for part in source.read(boxes_of(entry, 4, 2**22))]
            assert_same(torch.cat(found).reshape(wanted.shape), wanted.contiguous())
            (cut,) = source.read([Box(entry, (1, 2), (2000, 3))])
            assert_same(cut, wanted[1:2001, 2:5].contiguous())


NESTED = {
    "model": collections.OrderedDict(weight=BASE, bias=BASE[0]),
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": BASE * 2}}, "param_groups": [{"lr": 1e-3}]},
    "list": [BASE[1], {"deep": [BASE[2], "text"]}, 5],
    "plain list": [1, 2, [3]],
    "pair": (1, "two"),
    "set": {1, 2},
    "none": None,
    "bytes": b"\0\xff",
    "size": torch.Size([1, 2]),
    "dtype": torch.bfloat16,
    "array": np.arange(6).reshape(2, 3),
    "number": np.float64(0.5),
    "complex": 1 + 2j,
}


def test_items_are_named_as_dcp_names_them(tmp_path: Path) -> None:
    path = saved(NESTED, tmp_path)
    flat, paths = flatten_state_dict(dict(NESTED))
    found = read(path)
    assert list(found) == list(flat)
    np.testing.assert_array_equal(found.pop("array"), flat.pop("array"))
    for name, value in found.items():
        assert type(value) is type(flat[name]), name
    assert_same(
        found, {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in flat.items()}
    )
    with open_source(path) as source:
        assert source.paths == paths
        assert source.contents.format is Format.TORCH
        assert source.contents.files == {"model.pt": path.stat().st_size}
        objects = {entry.name for entry in source.contents.objects}
    assert objects == {"array", *(name for name, value in flat.items() if not isinstance(value, torch.Tensor))}


def test_where_tensors_stand(tmp_path: Path) -> None:
    path = saved({"a": BASE, "b": BASE[3]}, tmp_path)
    data = path.read_bytes()
    for name, wanted in (("a", BASE), ("b", BASE[3])):
        (part,) = contents_of(path).entries[name].parts
        assert data[part.start : part.start + part.stored_bytes] == wanted.numpy().tobytes()


def old_form(path: Path) -> None:
    torch.save({"a": BASE}, path, _use_new_zipfile_serialization=False)


def torchscript(path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")


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
    "the old form": (old_form, UnsupportedError, "old form", None),
    "TorchScript": (torchscript, UnsupportedError, "torch.jit.load", None),
    "another zip file": (other_zip, ContainerError, "no whole file of torch.save", None),
    "another order of bytes": (other_order, UnsupportedError, "order of bytes", None),
    "a cut file": (cut, ContainerError, "no whole file of torch.save", None),
    "a record that is not there": (lying_record, ContainerError, "no whole file of torch.save", None),
    "a tensor alone": (of(lambda: BASE), UnsupportedError, "no state dict", None),
    "a list": (of(lambda: [BASE]), UnsupportedError, "no state dict", None),
    "lists that share their parts": (of(shared_lists), UnsupportedError, "there is no end", None),
    "names without end": (of(long_keys), UnsupportedError, "there is no end", None),
    "a dict in itself": (of(inside_itself), UnsupportedError, "there is no end", None),
    "a dict as deep as a well": (deeper_than_the_stack, UnsupportedError, "nested too deeply", None),
    "names that meet": (of(lambda: {"a.b": BASE, "a": {"b": BASE}}), UnsupportedError, "do not differ", None),
    "a sparse tensor": (of(lambda: {"s": sparse()}), UnsupportedError, "layout sparse_coo", "s"),
    "a quantized one": (of(lambda: {"n": {"q": quantized()}}), UnsupportedError, "quantized", None),
    "a conjugate": (
        of(lambda: {"c": torch.ones(3, dtype=torch.complex64).conj()}),
        UnsupportedError,
        "another way",
        "c",
    ),
    "no memory": (of(lambda: {"m": torch.ones(3, device="meta")}), UnsupportedError, "another way", "m"),
    "a subclass": (of(lambda: {"p": BASE.as_subclass(Plain)}), PolicyError, "Plain", None),
    "a tensor in a tuple": (of(lambda: {"t": (1, BASE)}), UnsupportedError, "holds tensors", "t"),
    "a tensor in a set": (of(lambda: {"t": {BASE}}), UnsupportedError, "holds tensors", "t"),
    "a class": (of(lambda: {"o": io.StringIO()}), PolicyError, "StringIO", None),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read(tmp_path: Path, case: str) -> None:
    spoil, kind, words, item = BAD[case]
    path = tmp_path / "model.pt"
    spoil(path)
    for opening in (contents_of, open_source):
        with pytest.raises(kind, match=words) as caught:
            opening(path)
        assert caught.value.file == str(path)
        assert caught.value.item == item


def test_nothing_is_called(tmp_path: Path) -> None:
    path = saved({"a": BASE, "o": Calls(tmp_path / "made")}, tmp_path)
    with pytest.raises(PolicyError, match="mkdir"):
        contents_of(path)
    assert not (tmp_path / "made").exists()


def test_what_torch_noted_of_sparse_tensors_is_gone(tmp_path: Path) -> None:
    """Or the next load of anybody would look at indices that are not there."""
    with pytest.raises(UnsupportedError):
        contents_of(saved({"s": sparse()}, tmp_path))
    assert_same(torch.load(saved({"a": BASE}, tmp_path), weights_only=True), {"a": BASE})
    assert not torch._utils._sparse_tensors_to_validate


def test_damaged_pickles_raise_nothing_else(tmp_path: Path) -> None:
    path = saved({"a": BASE[:2], "n": {"b": [1, 2]}}, tmp_path)
    data = path.read_bytes()
    begin = contents_of(path).entries["n.b"].parts[0].start
    for at in range(begin, begin + 300, 3):
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            read(path)
        except (ContainerError, MetadataError, PolicyError, UnsupportedError) as error:
            assert error.file == str(path)  # noqa: PT017
