"""What DCP's own writers store in safetensors' format: slices of tensors under whole names."""

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

import streamxf
from streamxf.errors import ContainerError, MetadataError
from tests.dcp.helpers import assert_same
from tests.dcp.shards import rows

from .samples import by_dcp, contents_at, open_at, whole

STATE: dict[str, Any] = {
    "w": torch.arange(35.0).reshape(7, 5),
    "half": torch.randn(5, 2, 2, generator=torch.Generator().manual_seed(3)).bfloat16(),
    "scalar": torch.tensor(5),
}
STATES = [{name: rows(STATE[name], rank, 3) for name in ("w", "half")} for rank in range(3)]
STATES[1]["scalar"] = STATE["scalar"]
SHARD = "shard-{:05}-model-00001-of-00001.safetensors"


def hugging_face(path: Path) -> None:
    by_dcp(lambda: HuggingFaceStorageWriter(str(path), save_distributed=True), STATES)


def own_files(path: Path) -> None:
    how: Any = {"serialization_format": SerializationFormat.SAFETENSORS, "sync_files": False}
    by_dcp(partial(dcp.FileSystemWriter, path, **how), [{**STATES[0], "step": 7}, *STATES[1:]])


@pytest.mark.parametrize("write", [hugging_face, own_files])
def test_every_tool_reads_whole_tensors(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "saved")
    torch.save(STATE, tmp_path / "whole.pt")
    report = streamxf.verify(tmp_path / "saved")
    assert report.ok
    assert "checksum" in " ".join(report.unchecked)
    assert {name: item.shape for name, item in contents_at(tmp_path / "saved").tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in STATE.items()
    }
    assert streamxf.diff(tmp_path / "saved", tmp_path / "whole.pt", only=[*STATE]).same
    streamxf.pack(tmp_path / "saved", tmp_path / "packed")
    assert streamxf.diff(tmp_path / "packed", tmp_path / "whole.pt", only=[*STATE]).same
    streamxf.unpack(tmp_path / "saved", tmp_path / "model.safetensors", skip_objects=True)
    found = load_file(tmp_path / "model.safetensors")
    assert_same({name: found[name] for name in STATE}, STATE)
    state = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(tmp_path / "packed"), no_dist=True)
    assert_same(state, STATE)


def test_a_packed_folder_comes_back_slice_by_slice(tmp_path: Path) -> None:
    hugging_face(tmp_path / "saved")
    streamxf.pack(tmp_path / "saved", tmp_path / "packed", "zstd", file_size=50)
    assert streamxf.unpack(tmp_path / "packed", tmp_path / "back").restored  # type: ignore[union-attr]
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == files
    state = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path / "back")), no_dist=True)
    assert_same(state, STATE)
    assert "slices" in contents_at(tmp_path / "saved" / SHARD.format(2)).notes[0]


@pytest.mark.parametrize("sizes", [(0, 7), (7, 0), (3, 0, 4), (0, 3, 4, 0, 0), (0, 0)])
def test_slices_without_elements_overlap_nothing(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    parts = STATE["w"][: sum(sizes)].split(sizes)
    offsets = [sum(sizes[:number]) if size else 0 for number, size in enumerate(sizes)]
    for number, (part, at) in enumerate(zip(parts, offsets, strict=True)):
        noted = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [at, 0]}})}
        save_file({"w": part.clone()}, saved / SHARD.format(number), noted)
    streamxf.pack(saved, tmp_path / "packed")
    with open_at(tmp_path / "packed") as reader:
        assert torch.equal(whole(reader, "w"), STATE["w"][: sum(sizes)])
    assert streamxf.diff(saved, tmp_path / "packed").same
    assert streamxf.unpack(tmp_path / "packed", tmp_path / "back").restored  # type: ignore[union-attr]
    for path in saved.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_what_dcp_stored_in_safetensors_format_loads_and_is_salvaged(tmp_path: Path) -> None:
    """Torch 2.13 cannot load it, with either of its readers."""
    own_files(tmp_path / "saved")
    state = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(tmp_path / "saved"), no_dist=True)
    assert_same(state, STATE)
    state = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    for found in (streamxf.load_intact(tmp_path / "saved", state), streamxf.load_intact(tmp_path / "saved")):
        assert not found.lost
        assert_same({name: found.state_dict[name] for name in STATE}, STATE)
        assert "the bytes of 3 tensors saved without any checksum" in found.unchecked
    streamxf.salvage(tmp_path / "saved", tmp_path / "mended")
    assert streamxf.diff(tmp_path / "saved", tmp_path / "mended").same
    file = max((tmp_path / "saved").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    cut = streamxf.load_intact(tmp_path / "saved")
    assert cut.lost
    assert {*cut.loaded, *cut.lost} == {*STATE, "step"}


@pytest.mark.parametrize("how", ["missing", "twice"])
def test_a_shard_that_does_not_fit_is_named(tmp_path: Path, how: str) -> None:
    hugging_face(tmp_path)
    shard = tmp_path / SHARD.format(2)
    if how == "twice":
        (tmp_path / SHARD.format(4)).write_bytes(shard.read_bytes())
    else:
        shard.unlink()
    with pytest.raises(ContainerError, match="do not make one"):
        contents_at(tmp_path)
    assert not streamxf.verify(tmp_path).ok


NOTES: dict[str, Any] = {
    "no JSON": "{",
    "another tensor": '{"v": {"saved_offsets": [0]}}',
    "no offsets": '{"w": {}}',
    "offsets of another tensor": '{"w": {"saved_offsets": [0, 0]}}',
    "negative offsets": '{"w": {"saved_offsets": [-1]}}',
    "offsets that are no numbers": '{"w": {"saved_offsets": ["0"]}}',
    "a list": "[]",
}


@pytest.mark.parametrize("how", NOTES)
def test_slices_of_which_the_header_says_no_place(tmp_path: Path, how: str) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors", {"DCP_SHARDING_INFO": NOTES[how]})
    with pytest.raises(ContainerError, match="header"):
        contents_at(tmp_path)


def test_slices_far_away_take_no_time_or_memory(tmp_path: Path) -> None:
    for number, at in enumerate((0, 2**62)):
        noted = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [at]}})}
        save_file({"w": torch.ones(3)}, tmp_path / f"{number}.safetensors", noted)
    with pytest.raises(ContainerError, match="do not make one"):
        contents_at(tmp_path)


def header_of(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The same file, whose header was changed; the tensors stay where they are."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= size
    return data[:8] + text.ljust(size) + data[8 + size :]


LIES: dict[str, Callable[[bytes], bytes]] = {
    "no header": lambda data: bytes(len(data)),
    "a header beyond the end": lambda data: b"\xff" * 7 + b"\x7f" + data[8:],
    "a cut file": lambda data: data[:30],
    "no tensor": lambda data: header_of(data, lambda header: header.pop("w")),
    "a tensor at another place": lambda data: header_of(data, lambda header: header["w"].update(data_offsets=[0, 4])),
    "a tensor before the header": lambda data: header_of(data, lambda header: header["w"].update(data_offsets=[-8, 0])),
    "no numbers": lambda data: header_of(data, lambda header: header["w"].update(data_offsets="ab")),
    "another slice": lambda data: data.replace(b'\\"saved_offsets\\": [3, 0]', b'\\"saved_offsets\\": [2, 0]'),
}


@pytest.mark.parametrize("how", LIES)
def test_a_data_file_that_is_damaged(tmp_path: Path, how: str) -> None:
    own_files(tmp_path)
    path = tmp_path / "__1_0.distcp"
    path.write_bytes(LIES[how](path.read_bytes()))
    assert {damage.item for damage in streamxf.verify(tmp_path).damaged} >= {"w"}
    with open_at(tmp_path) as reader:
        with pytest.raises((MetadataError, ContainerError)):
            whole(reader, "w")
