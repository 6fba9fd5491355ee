"""``streamxf inspect``."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from tests.cli.command import Run
from tests.cli.terminal import at_terminal
from tests.tools.inspect.parsed import Page

HOSTILE = "[red]a[/red]\x1b[2J\n\u202e</script><img src=x onerror=alert(1)>"


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """A checkpoint of four equal layers."""
    path = tmp_path / "layered"
    state = {f"model.layers.{layer}.mlp.weight": torch.zeros(64, 64) for layer in range(4)}
    state["model.embed.weight"] = torch.zeros(1000, 64, dtype=torch.bfloat16)
    save({**state, "step": 3}, storage_writer=streamxf.FileSystemWriter(path, _extensions=[streamxf.ZStandard()]))
    return path


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A checkpoint with a name that would steer a terminal or a browser."""
    path = tmp_path / "hostile"
    save({HOSTILE: torch.zeros(64, 64)}, storage_writer=streamxf.FileSystemWriter(path))
    return path


def test_everything_at_a_glance(run: Run, layered: Path):
    done = run.exits(0, "inspect", layered, err="")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].startswith(f"{layered}: streamxf, 2 files, ")
    assert "5 tensors, 80,384 elements" in lines
    assert any(line.startswith("189.0 KiB in memory, ") for line in lines)
    assert any(line.startswith("1 non-tensor object: ") for line in lines)
    assert any(line.startswith("float32 4 64.0 KiB ") for line in lines)
    assert any(line.startswith("zstd 6 189.0 KiB ") for line in lines)
    assert any(line.startswith("model.embed.weight bfloat16 1000 x 64 125.0 KiB ") for line in lines)
    assert any(line.startswith("written by streamxf ") and f"torch {torch.__version__}" in line for line in lines)


def test_json(run: Run, layered: Path):
    found = run("inspect", layered, "--json", "--items", "--tree", "--top", 2).json
    assert (found["format"], found["tensors"], found["objects"]) == ("streamxf", 5, 1)
    assert found["raw_bytes"] == 4 * 64 * 64 * 4 + 1000 * 64 * 2
    assert len(found["largest_tensors"]) == 2
    assert {item["name"] for item in found["entries"]} == {
        *(f"model.layers.{layer}.mlp.weight" for layer in range(4)),
        "model.embed.weight",
        "step",
    }
    (model,) = (module for module in found["tree"] if module["name"] == "model")
    layers = next(module for module in model["modules"] if module["name"].startswith("layers"))
    assert (layers["name"], layers["times"], layers["shape"]) == ("layers.[0-3].mlp.weight", 4, [64, 64])


def test_the_tree_has_equal_layers_in_one_line(run: Run, layered: Path):
    done = run("inspect", layered, "--tree")
    assert "layers.[0-3].mlp.weight" in done.out
    assert "largest" not in done.out
    level = run("inspect", layered, "--tree", "--depth", 1).out
    assert "layers.[" not in level
    assert run("inspect", layered, "--depth", 1).out == level


def test_every_item(run: Run, layered: Path):
    listed = run("inspect", layered, "--items").out
    assert [line.split()[-1] for line in listed.splitlines()[-7:] if "model" in line] == [
        name
        for name in (item["name"] for item in run("inspect", layered, "--items", "--json").json["entries"])
        if name.startswith("model")
    ]
    assert "object" in listed


def test_an_encrypted_checkpoint_needs_no_key(run: Run, encrypted: Path, key_file: Path):
    done = run.exits(0, "inspect", encrypted, "--json")
    assert done.json["by_chain"][0]["descriptors"][-1] == "streamxf.encrypt/1"
    assert done.json["key_ids"][0].startswith("aeskw:")
    assert any("not authenticated" in note for note in done.json["notes"])
    with_key = run("inspect", encrypted, "--json", "--key", f"file:{key_file}")
    assert not any("not authenticated" in note for note in with_key.json["notes"])


@pytest.mark.parametrize("kind", ["stock DCP", "safetensors", "torch.save"])
def test_what_others_wrote(run: Run, tmp_path: Path, kind: str):
    state = {"a.weight": torch.zeros(10, 10), "a.bias": torch.zeros(10)}
    path = tmp_path / "x.safetensors"
    if kind == "safetensors":
        save_file(state, path, {"made": "by hand"})
    elif kind == "torch.save":
        torch.save(state, path)
    else:
        save(state, storage_writer=StockWriter(path))
    found = run("inspect", path, "--json").json
    assert (found["format"], found["tensors"], found["raw_bytes"]) == (kind, 2, 440)
    assert found["by_chain"][0]["chain"] == ""
    assert ("made: by hand" in run("inspect", path).out) is (kind == "safetensors")


def test_names_neither_steer_the_terminal_nor_are_markup(run: Run, hostile: Path):
    for arguments in ([], ["--tree"], ["--items"]):
        out = run("inspect", hostile, *arguments).out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert r"[red]a[/red]\x1b[2J\n\u202e</script>" in out


@pytest.mark.slow
def test_at_a_terminal_of_80_columns(layered: Path):
    code, shown = at_terminal(["inspect", layered, "--tree"])
    assert code == 0
    body = [line for line in shown.splitlines() if "layers.[0-3]" in line]
    assert body
    assert "64 x 64" in body[0]


def test_nothing_is_cut_where_no_terminal_is(run: Run, tmp_path: Path):
    name = "a" * 400 + ".weight"
    save({name: torch.zeros(3)}, storage_writer=StockWriter(tmp_path / "long"))
    for arguments in ([], ["--tree"], ["--items"]):
        assert name in run("inspect", tmp_path / "long", *arguments).out


def test_the_page(run: Run, layered: Path, tmp_path: Path):
    file = tmp_path / "page.html"
    assert run.exits(0, "inspect", layered, "--html", file).out.endswith(f"the page is in {file}\n")
    assert Page.read(file).data["dtypes"] == ["float32", "bfloat16"]
    assert run("inspect", layered, "--html", file, "--json").json["tensors"] == 5  # over the older page


@pytest.mark.parametrize("text", ["precious", "<html>"])
def test_only_a_page_is_written_over(run: Run, layered: Path, tmp_path: Path, text: str):
    file = tmp_path / "model.safetensors"
    file.write_text(text)
    assert "not an HTML page" in run.exits(2, "inspect", layered, "--html", file).err
    assert file.read_text() == text


def test_the_viewer_is_written_over_pages_alone(run: Run, tmp_path: Path):
    file = tmp_path / "viewer.html"
    for more in ([], ["--json"]):
        assert str(file) in run.exits(0, "viewer", file, *more).out
    assert "connect-src 'none'" in file.read_text()
    file.write_text("precious")
    assert "not an HTML page" in run.exits(2, "viewer", file).err
