"""``streamxf inspect --values`` and ``--fail-on``."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from tests.altered import flip
from tests.cli.command import Run
from tests.cli.terminal import at_terminal
from tests.dcp.shards import rows, save_shards

BAD = "layers.1.w"
KINDS = ["streamxf", "stock", "safetensors", "huggingface", "torch"]


def state(broken: bool = True) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = {
        "layers.0.w": torch.randn(64, 32).bfloat16(),
        BAD: torch.randn(100),
        "half": torch.randn(9).to(torch.float8_e4m3fn),
        "count": torch.tensor([3, -5, 0]),
    }
    if broken:
        found[BAD][7:9] = float("nan")
        found[BAD][50] = -float("inf")
        found["moment"] = torch.zeros(40)
    return found


def write(path: Path, kind: str, broken: bool = True) -> Path:
    found = state(broken)
    match kind:
        case "streamxf":
            save({**found, "step": 5}, storage_writer=streamxf.FileSystemWriter(path))
        case "stock":
            save({**found, "step": 5}, storage_writer=StockWriter(path))
        case "torch":
            torch.save({**found, "step": 5}, path)
        case "safetensors":
            path = path.with_suffix(".safetensors")
            save_file(found, path)
        case "huggingface":
            path.mkdir()
            names = sorted(found)
            shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
            for shard, inside in shards.items():
                save_file({name: found[name] for name in inside}, path / shard)
            placed = {name: shard for shard, inside in shards.items() for name in inside}
            (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return path


def values_of(run: Run, *arguments: object) -> dict[str, dict[str, Any]]:
    found = run("inspect", *arguments, "--values", "--items", "--json").json
    return {item["name"]: item["values"] for item in found["entries"]}


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_of_any_format(run: Run, tmp_path: Path, kind: str):
    path = write(tmp_path / "x", kind)
    done = run.exits(0, "inspect", path, "--values", "--items", "--json", err="")
    nothing = {"not_numbers": [], "unreadable": {}, "unread": {}}
    assert done.json["flagged"] == {"with_nan": [BAD], "with_inf": [BAD], "all_zero": ["moment"], **nothing}
    found = {item["name"]: item["values"] for item in done.json["entries"]}
    assert {name: value for name, value in found.items() if value is None} == dict.fromkeys(
        ["step"] if kind not in ("safetensors", "huggingface") else []
    )
    for name, tensor in state().items():
        numbers = tensor.double()
        finite = numbers[numbers.isfinite()]
        assert found[name]["elements"] == tensor.numel()
        assert found[name]["nan"] == int(numbers.isnan().sum())
        assert found[name]["inf"] == int(numbers.isinf().sum())
        assert found[name]["zeros"] == int((numbers == 0).sum())
        assert (found[name]["min"], found[name]["max"]) == (finite.min().item(), finite.max().item())
        assert found[name]["mean"] == pytest.approx(finite.mean().item())
        assert found[name]["std"] == pytest.approx(finite.std(correction=0).item())
        histogram = found[name]["histogram"]
        assert sum(histogram["counts"]) + histogram["below"] + histogram["above"] == len(finite)
    assert "NaN" not in done.out
    assert "Infinity" not in done.out
    assert {tensor["name"] for tensor in done.json["largest_tensors"] if tensor["values"]["nan"]} == {BAD}


def test_a_checkpoint_without_all_its_files_is_damaged(run: Run, tmp_path: Path):
    path = write(tmp_path / "x", "streamxf")
    (file,) = path.glob("*.distcp")
    assert run("inspect", path).code == 0
    for spoil in (lambda: os.truncate(file, file.stat().st_size - 1), file.unlink):
        spoil()
        assert file.name in run.exits(1, "inspect", path).out


def test_without_the_option_nothing_is_read(run: Run, tmp_path: Path):
    path = write(tmp_path / "x", "streamxf")
    for file in path.glob("*.distcp"):
        file.write_bytes(bytes(file.stat().st_size))
    done = run.exits(0, "inspect", path, "--items", "--json")
    assert "flagged" not in done.json
    assert "values" not in done.json["entries"][0]
    damaged = run.exits(1, "inspect", path, "--values")
    assert "damage in 5 tensors" in damaged.out
    assert "next: `streamxf verify`" in damaged.out


def test_what_needs_attention_stands_out(run: Run, tmp_path: Path):
    shown = run("inspect", write(tmp_path / "x", "torch"), "--values").out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "NaN in 1 tensor, infinities in 1 tensor, only zeros in 1 tensor" in lines
    assert f"2 NaN, 1 Inf of 100 elements {BAD}" in lines
    assert "all zeros moment" in lines
    assert "tensors, the largest first dtype shape zeros min max mean std distribution" in lines
    (count,) = (line for line in lines if line.startswith("count "))
    assert count.startswith("count int64 3 33.3 % -5 3 -0.667 3.3 █")
    (zeros,) = (line for line in lines if line.startswith("moment "))
    assert zeros == "moment float32 40 100 % 0 0 0 0 █"
    fine = run("inspect", write(tmp_path / "y", "torch", broken=False), "--values").out
    assert "no NaN, no infinities, no tensor of zeros\n" in fine


@pytest.mark.slow
def test_at_a_terminal_it_stands_out_in_colour(tmp_path: Path):
    path = write(tmp_path / "x", "safetensors")
    code, shown = at_terminal(["inspect", path, "--values"])
    assert code == 0
    assert "\x1b[1;31m  2 NaN, 1 Inf of 100 elements" in shown
    assert "\x1b[1;33m  all zeros" in shown
    assert all(len(line) <= 81 for line in shown.split("distribution")[1].splitlines() if "\x1b" not in line)
    _, fine = at_terminal(["inspect", write(tmp_path / "y", "safetensors", broken=False), "--values"])
    assert "\x1b[1;32mno NaN, no infinities, no tensor of zeros\x1b[0m" in fine


def test_every_item_with_its_values(run: Run, tmp_path: Path):
    lines = [
        line.split() for line in run("inspect", write(tmp_path / "x", "stock"), "--values", "--items").out.splitlines()
    ]
    assert [
        *("dtype", "shape", "in", "memory", "stored", "ratio", "NaN", "Inf"),
        *["zeros", "min", "max", "mean", "std", "name"],
    ] in lines
    (bad,) = (line for line in lines if line[-1:] == [BAD] and line[0] == "float32")
    assert bad[-9:-5] == ["2", "1", "0", "%"]
    (step,) = (line for line in lines if line[-1:] == ["step"])
    assert step[-8:-1] == ["-"] * 7


@pytest.mark.parametrize(
    ("what", "broken", "code"),
    [
        *[("nan", True, 1), ("inf", True, 1), ("nan,inf", True, 1), ("zeros", True, 1), ("nan,inf,zeros", False, 0)],
        *[("", True, 2), ("nan,", True, 2), ("negative", True, 2)],
    ],
)
def test_the_exit_code_tells(run: Run, tmp_path: Path, what: str, broken: bool, code: int):
    path = write(tmp_path / "x", "safetensors", broken)
    for more in ([], ["--json"]):
        assert run("inspect", path, "--fail-on", what, *more).code == code
    if code == 2:
        assert "is unknown; choose from nan, inf, zeros" in run("inspect", path, "--fail-on", what).err
    else:
        assert "flagged" in run("inspect", path, "--fail-on", what, "--json").json


@pytest.mark.parametrize(("value", "failing"), [("nan", "nan"), ("inf", "inf"), ("-inf", "inf"), ("0", "zeros")])
def test_only_what_was_asked_for_fails(run: Run, tmp_path: Path, value: str, failing: str):
    save_file({"w": torch.tensor([float(value)])}, tmp_path / "x.safetensors")
    codes = {
        what: run("inspect", tmp_path / "x.safetensors", "--fail-on", what).code for what in ("nan", "inf", "zeros")
    }
    assert codes == {what: int(what == failing) for what in codes}


def test_shards_do_not_matter(run: Run, tmp_path: Path):
    whole = torch.randn(60, 7)
    whole[31, 2] = float("nan")
    save_shards(tmp_path / "x", [{"w": rows(whole, rank, 3)} for rank in range(3)])
    torch.save({"w": whole}, tmp_path / "x.pt")
    one, other = (values_of(run, tmp_path / name)["w"] for name in ("x", "x.pt"))
    assert one["std"] == pytest.approx(other["std"])
    assert {**one, "mean": None, "std": None} == {**other, "mean": None, "std": None}


def test_what_is_encrypted_needs_its_key(run: Run, encrypted: Path, key_file: Path):
    assert run("inspect", encrypted).code == 0
    assert "is encrypted for key id" in run.exits(2, "inspect", encrypted, "--values").err
    assert run("inspect", encrypted, "--values", "--key", f"file:{key_file}").code == 0


def test_tensors_without_numbers_are_skipped(run: Run, tmp_path: Path):
    state = {"a": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "b": torch.ones(2)}
    state["c"] = torch.ones(3).as_subclass(Strange)
    save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "x"))
    done = run.exits(0, "inspect", tmp_path / "x", "--values")
    assert "2 tensors skipped: the elements are not numbers, or only torch can read them" in " ".join(done.out.split())
    assert run("inspect", tmp_path / "x", "--values", "--json").json["flagged"]["not_numbers"] == ["a", "c"]


class Strange(torch.Tensor):
    """One that this process could make, and `inspect` does not ask for."""


def test_a_damaged_pickle_is_not_taken_for_what_only_torch_can_read(tmp_path: Path):
    save({"a": torch.ones(3)}, storage_writer=StockWriter(tmp_path))
    (file,) = tmp_path.glob("*.distcp")
    begin, end = (file.read_bytes().index(part) for part in (b"ctorch._utils", b"archive/.data"))
    for at in range(begin, end, 3):
        flip(file, at)
        assert not streamxf.inspect(tmp_path, values=True).as_dict()["flagged"]["not_numbers"]
        flip(file, at)


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor])
def test_what_cannot_be_read_is_named_and_the_rest_counted(tmp_path: Path, executor: Any, run: Run):
    path = write(tmp_path / "x", "streamxf")
    with streamxf.Checkpoint(path) as checkpoint:
        places = {name: checkpoint.stored[name].places[0] for name in ("half", "layers.0.w")}
    for place in places.values():
        flip(path / place.file, place.at + place.size // 2)
    if executor is not None:
        with executor(2) as pool:
            values = streamxf.inspect(path, values=True, executor=pool).values
        assert values is not None
        assert [*values.unreadable] == [*places]
        assert values.nan == (BAD,)
        assert values.unknown == ()
        return
    done = run.exits(1, "inspect", path, "--values", "--items", "--json", err="")
    found = done.json["flagged"]
    assert found["with_nan"] == [BAD]
    assert found["not_numbers"] == []
    assert {*found["unreadable"]} == {*places}
    assert {each["name"] for each in done.json["entries"] if each["values"] is None} == {*places, "step"}
    done = run.exits(1, "inspect", path, "--values")
    assert "only zeros in 1 tensor, damage in 2 tensors" in done.out
    notes = [line for line in done.out.splitlines() if line.startswith("note ")]
    assert [line.split()[1] for line in notes] == [*places]
    assert all(f"item {name}" in line for name, line in zip(places, notes, strict=True))
    done = run.exits(1, "inspect", path, "--values", "--html", tmp_path / "page.html")
    assert "half could not be read" in (tmp_path / "page.html").read_text()


def test_hostile_names(run: Run, tmp_path: Path):
    torch.save({"[red]\x1b[2J\n\u202e": torch.full((3,), float("nan"))}, tmp_path / "x.pt")
    out = run("inspect", tmp_path / "x.pt", "--values").out
    assert out.count(r"[red]\x1b[2J\n\u202e") == 2
    assert "\x1b" not in out
