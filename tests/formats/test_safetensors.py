"""``.safetensors`` files: the same as the safetensors library finds in them; what breaks a rule is refused."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from streamxf.checkpoint.bare import BareHeader
from streamxf.errors import ContainerError, StreamxfError, UnsupportedError
from tests.dcp.helpers import assert_same

from .samples import DTYPES, contents_at, contiguous, noise, open_at, states, whole

FOUR = [torch.float4_e2m1fn_x2] if hasattr(torch, "float4_e2m1fn_x2") else []  # torch 2.7 has none


def read(path: Path) -> dict[str, torch.Tensor]:
    with open_at(path) as reader:
        return {name: whole(reader, name) for name in reader.stored}


@given(state=states(), metadata=st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4)))
@settings(settings.get_profile("disk"))
def test_the_library_reads_the_same(state: dict[str, torch.Tensor], metadata: dict[str, str] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        save_file(contiguous(state), path, metadata=metadata)
        with safe_open(path, "pt") as library:
            theirs = {name: library.get_tensor(name) for name in library.keys()}  # noqa: SIM118
            assert contents_at(path).extra == (library.metadata() or {})
        found = read(path)
        assert found.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert_same(found[name], tensor)


@pytest.mark.parametrize("dtype", [*DTYPES, *FOUR], ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {"a": noise(dtype, 6, 5)}
    save_file(state, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as library:
        found, theirs = read(tmp_path / "a.safetensors")["a"], library.get_tensor("a")
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), theirs.view(torch.uint8))


def tensor(start: int = 0, stop: int = 4, shape: Any = (4,), dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def file_of(header: Any, data: bytes = bytes(4), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


BAD: dict[str, tuple[bytes, type[StreamxfError], str]] = {
    "nothing": (b"", ContainerError, "has 0: it was truncated"),
    "a cut length": (b"\x02\0\0", ContainerError, "has 3: it was truncated"),
    "a cut header": (file_of({"a": tensor()})[:20], ContainerError, "it was truncated"),
    "a huge header": (file_of(b"{}", length=BareHeader.MOST + 1), ContainerError, "the format allows"),
    "a header longer than the file": (file_of(b"{}", length=10**6), ContainerError, "it was truncated"),
    "no JSON": (file_of(b"{nonsense}"), ContainerError, "not JSON"),
    "no UTF-8": (file_of(b'{"\xff": 1}'), ContainerError, "not JSON"),
    "something behind the JSON": (file_of(b"{} {}"), ContainerError, "not JSON"),
    "a number of many digits": (file_of(b'{"a": ' + b"9" * 5000 + b"}"), ContainerError, "not JSON"),
    "a list": (file_of(b'["a"]'), ContainerError, "does not begin with"),
    "deep nesting": (
        file_of(b'{"a":' + b" " * 5_000_000 + b"[" * 99_999 + b"]" * 99_999 + b"}"),
        ContainerError,
        "deep",
    ),
    "nothing but lists": (file_of(b'{"a":[' + b"[]," * 10_000 + b"[]]}"), ContainerError, "more lists"),
    "a name twice": (file_of(b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2)), ContainerError, "twice"),
    "a name that is not valid Unicode": (
        file_of(b'{"\\ud800":%b}' % json.dumps(tensor()).encode()),
        ContainerError,
        "not valid Unicode",
    ),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}, "a": tensor()}), ContainerError, "__metadata__"),
    "odd slices": (file_of({"__metadata__": {"DCP_SHARDING_INFO": "{\ud800}"}}), ContainerError, "not JSON"),
    "an entry that is none": (file_of({"a": [1]}), ContainerError, "data_offsets of a tensor"),
    "no dtype": (file_of({"a": {"shape": [4], "data_offsets": [0, 4]}}), ContainerError, "data_offsets of a tensor"),
    "another dtype": (file_of({"a": tensor(dtype="F6_E2M3")}), UnsupportedError, "F6_E2M3"),
    "a dtype that is not a string": (file_of({"a": {**tensor(), "dtype": ["U8"]}}), UnsupportedError, "dtype"),
    "a negative size": (file_of({"a": tensor(shape=(-4,))}), ContainerError, "shape"),
    "a size that is no number": (file_of({"a": tensor(shape=("4",))}), ContainerError, "shape"),
    "a size that is true": (file_of({"a": tensor(0, 1, (True,))}, bytes(1)), ContainerError, "shape"),
    "sizes without end": (file_of({"a": tensor(shape=(2**62, 2**62))}), ContainerError, "dtype and shape give"),
    "one offset": (file_of({"a": {**tensor(), "data_offsets": [4]}}), ContainerError, "data_offsets"),
    "offsets in the wrong order": (file_of({"a": tensor(4, 0)}), ContainerError, "data_offsets"),
    "too few bytes for the shape": (file_of({"a": tensor(shape=(5,))}), ContainerError, "give 5"),
    "too many for the dtype": (file_of({"a": tensor(0, 4, (1,), "U16")}), ContainerError, "give 2"),
    "half a byte": (file_of({"a": tensor(0, 1, (3,), "F4")}, bytes(1)), ContainerError, "odd last dimension"),
    "a hole": (file_of({"a": tensor(0, 1, (1,)), "b": tensor(2, 4, (2,))}), ContainerError, "hole"),
    "a hole at the beginning": (file_of({"a": tensor(1, 4, (3,))}), ContainerError, "hole"),
    "an overlap": (file_of({"a": tensor(0, 3, (3,)), "b": tensor(2, 4, (2,))}), ContainerError, "overlap"),
    "two in one place": (file_of({"a": tensor(), "b": tensor()}), ContainerError, "overlap"),
    "a cut file": (file_of({"a": tensor()}, bytes(3)), ContainerError, "it was truncated"),
    "a continued file": (file_of({"a": tensor()}, bytes(5)), ContainerError, "follow the last tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file(tmp_path: Path, case: str) -> None:
    data, kind, words = BAD[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    for opening in (contents_at, open_at):
        with pytest.raises(kind, match=words) as caught:
            opening(path)
        assert type(caught.value) is kind
        assert caught.value.file == str(path)
        assert len(str(caught.value)) < 500
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["too few bytes for the shape", "an overlap", "another dtype"])
def test_the_tensor_at_fault_is_named(tmp_path: Path, case: str) -> None:
    data, kind, _ = BAD[case]
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises(kind) as caught:
        contents_at(tmp_path / "bad.safetensors")
    assert caught.value.item in ("a", "b")


def test_what_is_legal_and_rare(tmp_path: Path) -> None:
    """Spaces behind the header, an unknown field, tensors without elements anywhere."""
    empty = tensor(4, 4, (0, 3))
    header = {"z": tensor(0, 0, (0,)), "a": {**tensor(), "note": 1}, "b": empty, "__metadata__": None}
    path = tmp_path / "model"
    path.write_bytes(file_of(json.dumps(header).encode() + b" \n", b"abcd"))
    with safe_open(path, "pt") as library:
        assert sorted(library.keys()) == ["a", "b", "z"]
    assert list(contents_at(path).items) == ["z", "a", "b"]
    assert bytes(read(path)["a"].tolist()) == b"abcd"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": noise(torch.float32, 100, 100)}, path)
    with open_at(path) as reader:
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(ContainerError, match=r"beyond the end|ends 5 bytes before") as caught:
            whole(reader, "a")
    assert (caught.value.file, caught.value.item) == (str(path), "a")
