"""The format of a path is detected; other files get one clear error; URLs are paths as well."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import errors
from streamxf.formats.contents import Format
from streamxf.storage.opening import open_storage
from tests.dcp.helpers import KEY, OTHER_KEY, assert_same

from .samples import WRITERS, contents_at, keys_of, noise, open_at, whole, written

FORMATS = {
    "safetensors": Format.SAFETENSORS,
    "torch.save": Format.TORCH,
    "Hugging Face": Format.HUGGING_FACE,
    "Hugging Face .bin": Format.HUGGING_FACE,
    "stock": Format.DCP,
    **dict.fromkeys(("stock with a chain", "no chain", "compressed", "encrypted", "sharded"), Format.STREAMXF),
    "rank-local": Format.STREAMXF,
}
STATE = {"a": noise(torch.float32, 40, 30), "b": noise(torch.int8, 9)}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_format_is_found_out(tmp_path: Path, kind: str) -> None:
    path = written(kind, STATE, tmp_path)
    contents = contents_at(path)
    assert contents.format is FORMATS[kind]
    assert contents.path == str(path)
    assert contents.files == {
        str(file.relative_to(path)) if path.is_dir() else path.name: file.stat().st_size
        for file in (path.rglob("*") if path.is_dir() else [path])
    }
    for item in contents.tensors.values():
        assert all(place.file in contents.files for place in item.places)


@pytest.mark.parametrize("kind", WRITERS)
def test_urls(tmp_path: Path, kind: str) -> None:
    path = written(kind, STATE, tmp_path)
    memory = fsspec.filesystem("memory")
    url = f"memory://{tmp_path.name}/{path.name}"
    memory.put(str(path), f"/{tmp_path.name}/{path.name}", recursive=True)
    try:
        local, remote = contents_at(path), contents_at(url)
        assert remote.items == local.items
        assert remote.files == local.files
        with open_at(url, **keys_of(kind)) as reader:
            for name in reader.stored:
                assert_same(whole(reader, name), STATE[name])
    finally:
        memory.rm(f"/{tmp_path.name}", recursive=True)


def test_safetensors_are_known_by_their_header(tmp_path: Path) -> None:
    path = written("safetensors", STATE, tmp_path)
    assert contents_at(path.rename(tmp_path / "no extension")).format is Format.SAFETENSORS


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("safetensors", STATE, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert set(contents_at("checkpoint.safetensors").items) == set(STATE)


# -- what is none ----------------------------------------------------------------------------------


def folder_of_others(path: Path) -> Path:
    (path / "config.json").write_text("{}")
    (path / "notes.bin").write_bytes(b"PK")
    return path


def file_of(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        (path / name).write_bytes(data)
        return path / name

    return make


def plain_file(path: Path) -> Path:
    with streamxf.open(path / "a.sxf", "wb", chain=[streamxf.ZStandard()]) as file:
        file.write(b"data")
    return path / "a.sxf"


def pipe(path: Path) -> Path:
    os.mkfifo(path / "pipe")
    return path / "pipe"


def half(path: Path, kind: str = "compressed") -> Path:
    checkpoint = written(kind, STATE, path)
    (checkpoint / ".metadata").unlink()
    return checkpoint


def empty_metadata(path: Path) -> Path:
    checkpoint = half(path, "stock")
    (checkpoint / ".metadata").touch()
    return checkpoint


def link_to_nothing(path: Path) -> Path:
    (path / "link").symlink_to(path / "missing")
    return path / "link"


def part(path: Path) -> Path:
    dcp.save({"weight": torch.ones(3)}, storage_writer=streamxf.FileSystemWriter(path))
    return path / ".metadata"


def below_a_file(path: Path) -> Path:
    (path / "a").touch()
    return path / "a" / "b"


BAD: dict[str, tuple[Callable[[Path], Path], type[Exception], str]] = {
    "nothing": (lambda path: path / "missing", FileNotFoundError, "no such file or folder"),
    "a link to nothing": (link_to_nothing, FileNotFoundError, "no such file or folder"),
    "below a file": (below_a_file, NotADirectoryError, "Not a directory"),
    "an empty folder": (lambda path: path, errors.NoCheckpointError, "model.safetensors.index.json"),
    "a folder of other things": (folder_of_others, errors.NoCheckpointError, "looked for"),
    "a text": (file_of("a.txt", b"PK is not enough"), errors.NoCheckpointError, "begins neither as"),
    "an empty file": (file_of("a", b""), errors.NoCheckpointError, "begins neither as"),
    "a part of a checkpoint": (part, errors.NoCheckpointError, "name the folder that it lies in"),
    "a pickle": (file_of("a.pkl", b"\x80\x04N."), errors.NoCheckpointError, "begins neither as"),
    "a compressed file": (file_of("a.gz", gzip.compress(b"data")), errors.NoCheckpointError, "begins neither as"),
    "a plain file of streamxf": (plain_file, errors.UnsupportedError, "Read it with streamxf.open"),
    "a pipe": (pipe, errors.UnsupportedError, "neither a file nor a folder"),
    "half a checkpoint": (half, errors.MetadataError, "data files and no metadata"),
    "half a stock one": (lambda path: half(path, "stock"), errors.MetadataError, "data files and no metadata"),
    "empty metadata": (empty_metadata, errors.MetadataError, "empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_not_a_checkpoint(tmp_path: Path, case: str) -> None:
    make, kind, words = BAD[case]
    path = make(tmp_path)
    for opening in (contents_at, open_at):
        with pytest.raises(kind, match=words) as caught:
            opening(path)
        assert type(caught.value) is kind
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["memory://nowhere/at/all", "file:///nowhere/at/all"])
def test_a_url_of_nothing(path: str) -> None:
    for opening in (contents_at, open_at):
        with pytest.raises(FileNotFoundError, match="no such file or folder"):
            opening(path)


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pipe", "zero"])
def test_what_becomes_no_regular_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    """It was a file when it was listed."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for storage, inside in ((open_storage(tmp_path), name), (open_storage(tmp_path).child(name), "")):
        with pytest.raises(errors.MetadataError, match="not a regular file"), storage.open(inside):
            pass


def test_keys(tmp_path: Path) -> None:
    path = written("encrypted", STATE, tmp_path)
    with pytest.raises(errors.KeyMissingError):
        open_at(path)
    for opening in (contents_at, open_at):
        with pytest.raises((errors.KeyMissingError, errors.WrongKeyError)):
            opening(path, keys=OTHER_KEY)
    found = contents_at(path, keys=[OTHER_KEY, KEY])
    assert found.key_ids == (f"aeskw:{KEY.id}",)
    assert found.notes == ()


def test_with_keys_nothing_weaker_is_accepted(tmp_path: Path) -> None:
    path = written("compressed", STATE, tmp_path)
    for opening in (contents_at, open_at):
        with pytest.raises(errors.PolicyError, match="not encrypted"):
            opening(path, keys=KEY)


@pytest.mark.parametrize("kind", WRITERS)
def test_reading_tensors_needs_no_torch(tmp_path: Path, kind: str) -> None:
    path = written(kind, STATE, tmp_path)
    keys = "streamxf.Key(bytes(range(32)))" if kind == "encrypted" else "None"
    code = f"""
import sys, streamxf
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.reading import Box
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.formats.opening import contents_of, open_source
with open_source(open_storage({str(path)!r}), Access.of({keys})) as reader:
    assert len(contents_of(reader).items) == 2
    for item in reader.stored.values():
        assert sum(array.size for array in reader.read_boxes(Box.of(item))) in (1200, 9)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
