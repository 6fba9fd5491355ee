"""Packed, damaged, salvaged: files come back if nothing of them was lost, and the rest can be written into new ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamxf.errors import MetadataError
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.unpack import unpack
from streamxf.tools.salvage.salvage import salvage
from tests.altered import flip
from tests.tools.convert.folders import contents, folder_of_all_kinds
from tests.tools.convert.states import data_files

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")


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
