"""Folders of shards: the index, and what it has to fit."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from streamxf.errors import ContainerError, MetadataError, StreamxfError, UnsupportedError
from streamxf.formats.contents import Format
from streamxf.formats.huggingface import MAX_INDEX
from tests.dcp.helpers import assert_same

from .samples import contents_at, open_at, whole

STATE = {"a": torch.arange(6.0), "b": torch.ones(2, 3), "c": torch.tensor(5)}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
PLACED: dict[str, Any] = {"a": ONE, "b": TWO, "c": ONE}
DEEP = 985 if sys.version_info < (3, 12) else 99_999  # from 3.12 on, json has a limit of its own, not Python's


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({name: STATE[name] for name in ("a", "c")}, tmp_path / ONE, {"format": "pt"})
    save_file({"b": STATE["b"]}, tmp_path / TWO, {"format": "pt"})
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "original").mkdir()
    index(tmp_path, PLACED)
    return tmp_path


def index(folder: Path, placed: Any, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 56}, "weight_map": placed}))


def check(folder: Path, state: dict[str, torch.Tensor] = STATE) -> None:
    with open_at(folder) as reader:
        assert set(reader.stored) == set(state)
        for name, tensor in state.items():
            assert_same(whole(reader, name), tensor)


def test_contents(folder: Path) -> None:
    contents = contents_at(folder)
    assert contents.format is Format.HUGGING_FACE
    assert list(contents.items) == ["a", "b", "c"]
    assert {name: item.places[0].file for name, item in contents.items.items()} == PLACED
    assert contents.files == {name: (folder / name).stat().st_size for name in (ONE, TWO, INDEX, "config.json")}
    assert contents.extra == {"format": "pt", "total_size": "56"}
    assert contents.notes == ()
    check(folder)


def test_without_an_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    check(folder)


def test_an_index_of_another_name(folder: Path) -> None:
    (folder / INDEX).rename(folder / "diffusion_pytorch_model.safetensors.index.json")
    check(folder)


def test_shards_are_linked_from_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As in the hub's cache."""
    elsewhere = tmp_path_factory.mktemp("blobs") / "0123"
    (folder / ONE).rename(elsewhere)
    (folder / ONE).symlink_to(elsewhere)
    check(folder)


def test_shards_in_folders(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / ONE).rename(folder / "parts" / ONE)
    index(folder, {**PLACED, "a": f"parts/{ONE}", "c": f"parts/{ONE}"})
    check(folder)
    assert f"parts/{ONE}" in contents_at(folder).files


def test_safetensors_come_before_bins(folder: Path) -> None:
    torch.save({"other": torch.ones(1)}, folder / "pytorch_model.bin")
    check(folder)


def test_a_lone_bin(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "pytorch_model.bin")
    torch.save({"lr": 1}, tmp_path / "training_args.bin")
    check(tmp_path)


def test_a_tensor_that_the_index_does_not_know(folder: Path) -> None:
    index(folder, {name: shard for name, shard in PLACED.items() if name != "c"})
    check(folder)
    assert contents_at(folder).notes == ("Not in the index: 1 tensor of the shards, such as c.",)


def test_links_to_nowhere_are_nothing(folder: Path) -> None:
    """An editor leaves one while it has a file open."""
    (folder / ".#config.json").symlink_to("nobody@nowhere")
    check(folder)


def lose_shard(folder: Path) -> None:
    (folder / TWO).unlink()


def double(folder: Path) -> None:
    save_file({"b": STATE["b"], "a": STATE["a"]}, folder / TWO)


def double_without_index(folder: Path) -> None:
    double(folder)
    (folder / INDEX).unlink()


def directory(folder: Path) -> None:
    (folder / TWO).unlink()
    (folder / TWO).mkdir()


def cut(folder: Path) -> None:
    (folder / TWO).write_bytes((folder / TWO).read_bytes()[:-1])


def two_indices(folder: Path) -> None:
    for name in ("one", "other"):
        (folder / INDEX).with_name(f"{name}.safetensors.index.json").write_bytes((folder / INDEX).read_bytes())
    (folder / INDEX).unlink()


def as_text(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / INDEX).write_text(text) and None


def placing(where: Any) -> Callable[[Path], None]:
    return lambda folder: index(folder, {**PLACED, "b": where})


def pipe(folder: Path) -> None:
    """Who opened it would wait for ever."""
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)


def device(folder: Path) -> None:
    """It has no end."""
    (folder / INDEX).unlink()
    (folder / INDEX).symlink_to("/dev/zero")


BAD: dict[str, tuple[Callable[[Path], None], type[StreamxfError], str]] = {
    "a shard is missing": (lose_shard, ContainerError, "names this shard, and it is not there"),
    "a shard is a folder": (directory, MetadataError, "not a regular file"),
    "a shard is cut": (cut, ContainerError, "it was truncated"),
    "a tensor is missing": (lambda folder: index(folder, {**PLACED, "d": ONE}), ContainerError, "no shard contains"),
    "a tensor is in another shard": (placing(ONE), ContainerError, "no shard contains"),
    "a tensor is in two shards": (double, ContainerError, "in this file and in"),
    "and there is no index": (double_without_index, ContainerError, "in this file and in"),
    "several indices": (two_indices, UnsupportedError, "several indices"),
    "no JSON": (as_text("{"), ContainerError, "not JSON"),
    "deep nesting": (as_text("[" * 99_999), ContainerError, "not JSON"),
    "deep facts": (
        as_text(json.dumps({"weight_map": PLACED, "metadata": {"a": 0}}).replace("0}", "[" * DEEP + "]" * DEEP + "}")),
        ContainerError,
        "not JSON|nested too deeply",
    ),
    "too many tables": (as_text('{"":[' + "{}," * 2**20 + "0]}"), ContainerError, "needs"),
    "a pipe": (pipe, MetadataError, "not a regular file"),
    "a device": (device, MetadataError, "not a regular file"),
    "another table": (as_text("{}"), ContainerError, "weight_map"),
    "a list": (as_text("[]"), ContainerError, "weight_map"),
    "an empty map": (as_text('{"weight_map": {}}'), ContainerError, "weight_map"),
    "a shard that is a number": (placing(3), ContainerError, "not a file's name"),
    "a shard that is a list": (placing([ONE]), ContainerError, "not a file's name"),
    "a shard above": (placing("../" + TWO), MetadataError, "outside the checkpoint"),
    "a shard somewhere": (placing("/etc/passwd"), MetadataError, "outside the checkpoint"),
    "a shard on the way": (placing(f"a/../../{TWO}"), MetadataError, "outside the checkpoint"),
    "a shard at a URL": (placing("https://example.org/a"), MetadataError, "outside the checkpoint"),
    "a shard on a drive": (placing("c:/a"), MetadataError, "outside the checkpoint"),
    "a shard with the wrong slash": (placing("..\\a"), MetadataError, "outside the checkpoint"),
    "a shard without a name": (placing(""), MetadataError, "outside the checkpoint"),
    "a shard that is not valid Unicode": (placing("\ud800"), MetadataError, "outside the checkpoint"),
    "a shard with a zero": (placing("a\0"), MetadataError, "outside the checkpoint"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder(folder: Path, case: str) -> None:
    spoil, kind, words = BAD[case]
    spoil(folder)
    for opening in (contents_at, open_at):
        with pytest.raises(kind, match=words) as caught:
            opening(folder)
        assert type(caught.value) is kind
        assert str(caught.value.file).startswith(str(folder))
        assert len(str(caught.value)) < 600


def test_an_index_that_is_too_long_is_not_read(folder: Path) -> None:
    os.truncate(folder / INDEX, MAX_INDEX + 1)
    with pytest.raises(ContainerError, match=r"the index has .* are allowed"):
        contents_at(folder)
