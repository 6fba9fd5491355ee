"""A packed folder beside the folder, compared by `diff`: whatever is different is found. And packed, damaged, salvaged:
files come back if nothing of them was lost, and the rest can be written into new ones.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamxf import diff
from streamxf.errors import MetadataError
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.unpack import unpack
from streamxf.tools.salvage.salvage import salvage
from tests.altered import flip
from tests.tools.convert.folders import LEFT_OUT, contents, folder_of_all_kinds
from tests.tools.convert.states import data_files

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of_all_kinds(tmp_path / "checkpoint-3")


def test_diff_compares_all_of_a_folder(folder):
    target = folder.parent / "packed"
    pack(folder, target)
    for one, other in ((target, folder), (folder, target)):
        found = diff(one, other)
        assert (found.same, len(found.not_compared)) == (True, 1)
        assert found.not_compared[0].endswith(f"left out when it was packed, {', '.join(LEFT_OUT)}")
    (folder / "latest").unlink()
    shutil.rmtree(folder / "logs" / "deep")
    pack(folder, target, overwrite=True)
    assert str(diff(target, folder)).startswith("the same\n")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda path: (path / "trainer_state.json").write_text("{}"), "streamxf.source/trainer_state.json"),
        (lambda path: (path / "logs" / "new").write_text("new"), "streamxf.source/logs/new"),
        (lambda path: (path / "logs" / ".hidden").unlink(), "streamxf.source"),
        (lambda path: (path / "latest").unlink(), "streamxf.source"),
        (
            lambda path: torch.save({"state": {0: {"m": torch.ones(2)}}}, path / "optimizer.pt"),
            "optimizer.pt/state.0.m",
        ),
    ],
    ids=["changed", "new", "gone", "link", "tensors"],
)
def test_diff_finds_whatever_is_different(folder, change, named):
    pack(folder, folder.parent / "packed")
    change(folder)
    found = diff(folder.parent / "packed", folder)
    assert not found.same
    assert named in [*found.added, *found.removed, *(each.name for each in found.changed)]


def test_diff_says_what_it_did_not_compare(folder):
    pack(folder, folder.parent / "packed")
    found = diff(folder, folder)
    assert found.same
    assert len(found.not_compared) == 2
    assert str(found).startswith("the same, as far as they were compared")
    found = diff(folder.parent / "packed", folder / "optimizer.pt", prefixes=("optimizer.pt/", ""))
    assert not found.changed
    pack(folder / "model.safetensors", folder.parent / "model")
    assert diff(folder.parent / "model", folder / "model.safetensors").not_compared == ()
    assert diff(folder.parent / "model", folder).not_compared


def test_links_that_were_packed_as_files_are_the_same(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "hub").mkdir()
    save_file({"w": torch.arange(300.0)}, tmp_path / "blobs" / "1234")
    (tmp_path / "hub" / "model.safetensors").symlink_to("../blobs/1234")
    pack(tmp_path / "hub", tmp_path / "packed")
    assert diff(tmp_path / "packed", tmp_path / "hub").same


def test_a_file_its_packed_copy_and_what_that_becomes_are_the_same(tmp_path):
    torch.save({"a": {"w": torch.randn(5, 5), "n": 3}, "b": [torch.zeros(2), "text"]}, tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "packed", "zstd")
    unpack(tmp_path / "packed", tmp_path / "b.pt")
    for path in ("packed", "b.pt"):
        found = diff(tmp_path / "a.pt", tmp_path / path)
        assert (found.same, found.equal) == (True, 4)


class Config(dict[str, torch.Tensor]):
    """Of which tensors are not found without its code."""


def test_objects_that_are_kept_as_bytes_are_not_called_the_same(tmp_path, run):
    for name, size in (("one", 4), ("other", 9)):
        torch.save({"model": Config(w=torch.ones(size)), "n": torch.ones(2)}, tmp_path / f"{name}.pt")
        pack(tmp_path / f"{name}.pt", tmp_path / name)
    for first, second in (("one", "other"), ("one.pt", "other"), ("one", "one.pt")):
        found = diff(tmp_path / first, tmp_path / second)
        assert (found.same, found.differs, [*found.incomparable]) == (False, False, ["model"])
        done = run.exits(2, "diff", tmp_path / first, tmp_path / second, err="")
        assert "NOT ALL COMPARED: 1 item not comparable" in done.out
    assert diff(tmp_path / "one", tmp_path / "other", only=["n"]).same
    for name in ("one", "other"):
        (tmp_path / f"of {name}").mkdir()
        (tmp_path / f"{name}.pt").rename(tmp_path / f"of {name}" / "model.pt")
        pack(tmp_path / f"of {name}", tmp_path / name, overwrite=True)
    assert diff(tmp_path / "one", tmp_path / "other").differs
    assert diff(tmp_path / "one", tmp_path / "of one").same


def damage(path: Path) -> None:
    """Flip a bit in the first data file."""
    file = path / data_files(path)[0]
    flip(file)


def test_a_folder_of_which_nothing_was_lost(tmp_path):
    folder = folder_of_all_kinds(tmp_path / "run")
    pack(folder, tmp_path / "packed", file_size=50_000)
    salvage(tmp_path / "packed", tmp_path / "salvaged")
    assert unpack(tmp_path / "salvaged", tmp_path / "back").restored
    assert contents(tmp_path / "back") == contents(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_what_is_left_of_a_file_is_written_if_it_is_asked_for(tmp_path, name):
    state = {f"w{number}": torch.randn(50, 60) for number in range(4)}
    (save_file if name.endswith(".safetensors") else torch.save)(state, tmp_path / name)
    pack(tmp_path / name, tmp_path / "packed", "zstd", file_size=20_000)
    damage(tmp_path / "packed")
    found, _ = salvage(tmp_path / "packed", tmp_path / "salvaged")
    (lost,) = {damage.item for damage in found.damaged}
    target = tmp_path / f"back-{name}"
    with pytest.raises(MetadataError, match="only") as raised:
        unpack(tmp_path / "salvaged", target)
    assert raised.value.item == lost
    assert not unpack(tmp_path / "salvaged", target, only=["*"]).restored
    back = load_file(target) if name.endswith(".safetensors") else torch.load(target)
    assert back.keys() == state.keys() - {lost}
    assert all(torch.equal(back[each], state[each]) for each in back)
