"""`diff` of files and folders, and ``streamxf diff``."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard

import streamxf
from streamxf.errors import KeyMissingError, MetadataError, NoCheckpointError, PolicyError
from streamxf.keys.file import write_key
from streamxf.tools.convert.packed import ITEM
from streamxf.tools.diff.diff import diff
from tests.dcp.shards import rows, save_shards


def state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {"half": torch.randn(100).bfloat16(), "n": torch.tensor(3), "step": 5, "w": torch.randn(64, 32)}


def write(path: Path, kind: str, seed: int = 0) -> Path:
    found = state(seed)
    match kind:
        case "streamxf":
            save(found, storage_writer=streamxf.FileSystemWriter(path))
        case "stock":
            save(found, storage_writer=StockWriter(path))
        case "torch":
            torch.save(found, path)
    return path


KINDS = ["streamxf", "stock", "torch"]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_the_same_state_in_any_two_formats(tmp_path, first, second):
    one, other = write(tmp_path / "a", first), write(tmp_path / "b", second)
    found = diff(one, other)
    assert (found.same, found.equal, found.elements) == (True, 4, 64 * 32 + 100 + 1)
    changed = diff(one, write(tmp_path / "c", second, seed=1))
    assert [change.name for change in changed.changed] == ["half", "w"]
    far = (state(0)["w"].double() - state(1)["w"].double()).abs()
    assert changed.changed[1].distance.largest == far.max().item()
    assert changed.changed[1].distance.mean == pytest.approx(far.mean().item())


def test_shards_do_not_matter(tmp_path):
    whole = torch.arange(48.0).view(12, 4)
    for ranks in (2, 3):
        save_shards(tmp_path / str(ranks), [{"w": rows(whole, rank, ranks)} for rank in range(ranks)])
    assert diff(tmp_path / "2", tmp_path / "3").same


@pytest.mark.parametrize(
    "writer",
    [streamxf.FileSystemWriter, lambda path: StockWriter(path, _extensions=[StockZStandard()])],
    ids=["streamxf", "stock zstd"],
)
def test_damage_to_one_item_leaves_the_others(run, tmp_path, writer):
    good = write(tmp_path / "good", "torch")
    bad = tmp_path / "bad"
    save(state(0), storage_writer=writer(bad))
    places = streamxf.FileSystemReader(bad).read_metadata().storage_data
    (place,) = (place for index, place in places.items() if index.fqn == "w")
    file = bad / place.relative_path
    data = bytearray(file.read_bytes())
    data[place.offset : place.offset + 8] = bytes(8)
    file.write_bytes(data)
    found = diff(good, bad)
    assert list(found.incomparable) == ["w"]
    assert found.incomparable["w"].startswith("that of the second cannot be read: ")
    assert (found.same, found.equal, found.elements) == (False, 3, 101)
    done = run.exits(2, "diff", good, bad, err="")
    assert ": NOT ALL COMPARED: 1 item not comparable" in done.out
    assert "not comparable: w: that of the second cannot be read: " in done.out


def test_metadata_that_is_damaged_and_a_missing_key_are_no_differences(tmp_path, key):
    good = write(tmp_path / "good", "streamxf")
    bad = write(tmp_path / "bad", "streamxf")
    (bad / ".metadata").write_bytes((bad / ".metadata").read_bytes()[:-1])
    with pytest.raises(MetadataError):
        diff(good, bad)
    writer = streamxf.FileSystemWriter(tmp_path / "secret", _extensions=[streamxf.Encrypt(key)])
    save(state(0), storage_writer=writer)
    with pytest.raises(KeyMissingError):
        diff(good, tmp_path / "secret")
    with pytest.raises(PolicyError):
        diff(good, tmp_path / "secret", keys=key)
    assert diff(good, tmp_path / "secret", keys=key, encrypted=(False, True)).same
    assert diff(tmp_path / "secret", write(tmp_path / "a.pt", "torch"), keys=key).same
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoCheckpointError):
        diff(good, tmp_path / "empty")


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_same_to_the_command(run, tmp_path):
    done = run.exits(0, "diff", write(tmp_path / "a", "streamxf"), write(tmp_path / "b", "torch"), err="")
    assert done.out.splitlines() == [
        f"{tmp_path / 'a'} and {tmp_path / 'b'}: the same",
        "4 items the same; 0 of 2,149 compared elements differ",
    ]


def test_differences_are_listed(run, tmp_path):
    one = {"a": torch.zeros(4), "old": torch.zeros(1), "o": 1, "shape": torch.zeros(2)}
    other = {"a": torch.tensor([0.0, 2.0, float("nan"), 0.0]), "new": torch.zeros(1), "o": 2, "shape": torch.zeros(3)}
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    done = run.exits(1, "diff", tmp_path / "a.pt", tmp_path / "b.pt", err="")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].endswith("DIFFERENT: 3 items changed, 1 item only in the first, 1 item only in the second")
    for line in (
        "changed: a: values: 2 of 4 elements differ, by 2 at most and 0.6667 on average, 1 became NaN",
        "changed: o: 1 became 2",
        "changed: shape: [2] became [3]",
        "only in the first: old",
        "only in the second: new",
    ):
        assert line in lines
    short = run("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--top", 1).out
    assert "changed: 2 more" in short


def test_json(run, tmp_path):
    one = {"big": torch.tensor([0]), "x": torch.zeros(2)}
    other = {"big": torch.tensor([2**62 + 1]), "x": torch.tensor([float("inf"), 0.0])}
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    done = run.exits(1, "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json")
    big, infinite = done.json["changed"]
    assert big["distance"]["largest"] == 2**62 + 1
    counts = {"elements": 2, "differing": 1, "without": 1, "to_nan": 0, "from_nan": 0, "other_nan": 0}
    assert infinite["distance"] == counts | {"largest": None, "mean": None, "statistics": None}
    assert "Infinity" not in done.out
    same = run("diff", tmp_path / "a.pt", tmp_path / "a.pt", "--json")
    assert (same.code, same.json["same"], same.json["equal"]) == (0, True, 2)


def test_a_nan_has_no_distance(run, tmp_path):
    nan = torch.tensor([0x7FC0, 0x7FC0, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    other = torch.tensor([0x7FC1, 0x7FC0, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    torch.save({"w": nan}, tmp_path / "a.pt")
    torch.save({"w": other}, tmp_path / "b.pt")
    done = run.exits(1, "diff", tmp_path / "a.pt", tmp_path / "b.pt")
    assert "w: values: 1 of 3 elements differ, 1 NaN with other bits" in " ".join(done.out.split())
    found = run("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").json["changed"][0]["distance"]
    assert (found["largest"], found["mean"], found["other_nan"]) == (None, None, 1)


def test_what_the_difference_is(run, tmp_path):
    one = {"a": torch.zeros(100), "b": torch.zeros(3), "c": torch.zeros(2)}
    other = {"a": torch.arange(100) * 0.5, "b": torch.tensor([-1.0, 0.0, float("inf")]), "c": torch.zeros(2)}
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    done = run.exits(1, "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--values", err="")
    shown = done.out.partition("B minus A")[2]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "zeros min max mean std distribution"
    assert lines[2].startswith("a 1.0 % 0 49.5 24.8 14.4 █")
    assert lines[3].startswith("b 33.3 % -1 0 -0.5 0.5 █")
    assert not any(line.startswith("c ") for line in lines)
    assert "B minus A" not in run("diff", tmp_path / "a.pt", tmp_path / "b.pt").out
    a, b = run("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--values", "--json").json["changed"]
    figures = a["distance"]["statistics"]
    assert (figures["elements"], figures["zeros"], figures["min"], figures["max"]) == (100, 1, 0, 49.5)
    assert figures["mean"] == pytest.approx(24.75)
    assert sum(figures["histogram"]["counts"]) == 100
    assert b["distance"]["statistics"]["inf"] == 1


def test_names_behind_a_prefix(run, tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    save({"model": {"w": torch.zeros(2)}, "step": 1}, storage_writer=streamxf.FileSystemWriter(tmp_path / "trained"))
    arguments = ("diff", tmp_path / "trained", tmp_path / "model.safetensors")
    assert "1 name of the first are names of the second behind 'model.'" in run.exits(1, *arguments).out
    assert run(*arguments, "--prefix-a", "model.").code == 0
    assert run(*arguments, "--only", "nothing").code == 2


def test_one_of_them_is_encrypted(run, tmp_path, key):
    good = write(tmp_path / "good", "streamxf")
    save(state(0), storage_writer=streamxf.FileSystemWriter(tmp_path / "secret", _extensions=[streamxf.Encrypt(key)]))
    write_key(tmp_path / "x.key", key)
    arguments = ("diff", good, tmp_path / "secret", "--key", f"file:{tmp_path / 'x.key'}")
    assert "--plain-a or --plain-b" in run(*arguments).err
    assert run(*arguments, "--plain-a").code == 0
    assert run("diff", tmp_path / "secret", good, *arguments[3:], "--plain-b").code == 0


def test_hostile_names_do_not_reach_the_terminal(run, tmp_path):
    name = "[red]\x1b[2J\nx"
    torch.save({name: torch.zeros(1), name + "1": 5}, tmp_path / "a.pt")
    torch.save({name: torch.ones(1), name + "2": 5}, tmp_path / "b.pt")
    out = run("diff", tmp_path / "a.pt", tmp_path / "b.pt").out
    assert "\x1b[2J" not in out
    assert out.count(r"[red]\x1b[2J\nx") == 3


def test_where_the_record_of_what_was_packed_is_gone_items_are_compared(run, tmp_path):
    model = tmp_path / "model.safetensors"
    save_file({f"w{number}": torch.randn(5000) for number in range(4)}, model)
    for name in ("one", "other"):
        streamxf.pack(model, tmp_path / name, chain="zstd", file_size=20_000)
    with streamxf.Checkpoint(tmp_path / "one") as checkpoint:
        (place,) = checkpoint.stored[ITEM].places
    (tmp_path / "one" / place.file).unlink()
    for first, second in (("one", "other"), ("other", "one")):
        found = diff(tmp_path / first, tmp_path / second)
        assert found.equal >= 3
        (text,) = found.not_compared
        assert text.startswith(f"{tmp_path}/one: what else was packed, since this cannot be read: the file that holds")


def test_what_else_lies_in_a_models_folder_is_named(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        save_file({"w": torch.zeros(3)}, tmp_path / name / "model.safetensors")
    assert not any(diff(tmp_path / "one", tmp_path / "other").not_compared)
    (tmp_path / "other" / "config.json").write_text("{}")
    (text,) = diff(tmp_path / "one", tmp_path / "other").not_compared
    assert text == f"{tmp_path}/other: what else is in the folder, such as config.json"
