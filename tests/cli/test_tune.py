"""``streamxf tune``, by estimates and by saves and loads."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer import BadParameter

from streamxf.cli import timing, units
from streamxf.cli.__main__ import main
from streamxf.keys import KeyRing
from streamxf.tuning.estimate import measure_bandwidth
from tests.cli.command import Run
from tests.progress.recorder import Recorder

FEW = ["--chain", "floatzip", "--chain", ""]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file of weights, 2.5 MiB of them."""
    torch.manual_seed(0)
    tensors = {f"layers.{n}.weight": (torch.randn(512, 512) * 0.02).to(torch.bfloat16) for n in range(5)}
    save_file(tensors | {"empty": torch.zeros(0)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


# -- estimates -------------------------------------------------------------------------------------


def test_slow_storage_wants_the_smallest(run: Run, weights: Path):
    done = run("tune", weights, "--bandwidth", "1MB/s", *FEW, "--json")
    assert done.code == 0
    assert done.json["chain"] == "floatzip"
    assert done.json["bandwidth_bytes_per_second"] == 1e6
    assert not done.json["bandwidth_measured"]
    smallest, none = done.json["candidates"]
    assert (smallest["chain"], none["chain"]) == ("floatzip", "")
    assert smallest["stored_bytes"] < 0.7 * none["stored_bytes"]
    assert smallest["save_seconds"] == pytest.approx(smallest["stored_bytes"] / 1e6)


def test_a_table_and_a_reason(run: Run, weights: Path):
    done = run("tune", weights, "--bandwidth", "1MB/s", *FEW, "--chain", "zstd:level=3+checksum")
    assert (done.code, done.err) == (0, "")
    assert "2.5 MiB to storage of 1.00 MB/s (as given)" in done.out
    assert "\nrecommended: floatzip\nstorage is the limit: " in done.out
    assert [line.split()[0] for line in done.out.splitlines() if "MiB" in line][1:4] == [
        "floatzip",
        "no",
        "zstd:level=3+checksum",
    ]


def test_the_disk_is_measured_where_nothing_is_given(run: Run, weights: Path, tmp_path: Path):
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run("tune", weights, *FEW, "--json")
    assert done.code == 0
    assert done.json["bandwidth_measured"]
    assert done.json["bandwidth_bytes_per_second"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_encryption_is_tried_for_all_or_none(run: Run, encrypted: Path, key_file: Path):
    key = ["--key", f"file:{key_file}"]
    done = run("tune", encrypted, *key, "--bandwidth", "1GB/s", "--encrypt", "--json")
    assert done.code == 0
    assert all(each["chain"].endswith("encrypt") for each in done.json["candidates"])
    assert run("tune", encrypted, *key, "--bandwidth", "1GB/s", "--chain", "lz4", "--chain", "lz4+encrypt").code == 2
    assert run("tune", encrypted, *key, "--bandwidth", "1GB/s", "--encrypt", *FEW).code == 2
    assert run("tune", encrypted, "--bandwidth", "1GB/s").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bandwidth", "fast"],
        ["--bandwidth", "0"],
        ["--bandwidth", "1GB/s", "--at", "."],
        ["--bandwidth", "1GB/s", "--chain", "nonesuch"],
        ["--bandwidth", "1GB/s", "--workers", "0"],
        ["--at", "/no/such/folder"],
    ],
)
def test_what_an_estimate_cannot_begin_with(run: Run, weights: Path, arguments: list[str]):
    done = run("tune", weights, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_the_bandwidth_of_a_url_has_to_be_given(run: Run):
    done = run("tune", "s3://bucket/checkpoint")
    assert done.code == 2
    assert "--bandwidth" in done.err


def test_the_bandwidth_is_that_of_what_was_written(tmp_path: Path):
    counter = Recorder()
    assert measure_bandwidth(tmp_path, seconds=0, progress=counter) > 0
    assert counter.done == counter.expected == 64 * 2**20
    assert not list(tmp_path.iterdir())


# -- saves and loads -------------------------------------------------------------------------------


def test_it_saves_loads_and_leaves_nothing(run: Run, weights: Path, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = run("tune", weights, "--at", disk, "--runs", 1, *FEW, "--chain", "zstd+encrypt", "--json")
    assert done.code == 0
    assert done.json["good"]
    assert (done.json["items"], done.json["raw_bytes"]) == (5, 5 * 2**19)
    assert [each["chain"] for each in done.json["candidates"]] == ["floatzip", "", "zstd:level=3+encrypt"]
    assert all(each["save_seconds"] > 0 and each["load_seconds"] > 0 for each in done.json["candidates"])
    assert done.json["candidates"][0]["stored_bytes"] < 0.7 * 5 * 2**19
    assert not list(disk.iterdir())


def test_random_weights_and_what_people_see(run: Run, tmp_path: Path):
    done = run("tune", "--at", tmp_path, "--size", "1MiB", "--runs", 1, *FEW)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("1.0 MiB of random weights in 1 tensor")
    assert [line.split()[0] for line in done.out.splitlines() if " s " in line] == ["floatzip", "no"]
    assert "\nrecommended: " in done.out
    assert not list(tmp_path.iterdir())


def test_a_load_that_gives_something_else_is_a_failure(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "same_bits", lambda *_: False)
    done = run("tune", "--at", tmp_path, "--size", "1MiB", "--runs", 1, "--chain", "lz4")
    assert done.code == 1
    assert "NOT IDENTICAL AFTER A LOAD by lz4:level=0" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["--at", "/no/such/folder", "--runs", "1"],
            ["--size", "0", "--runs", "1"],
            ["--size", "much", "--runs", "1"],
        ),
        *(["--runs", "0"], ["no such file", "--runs", "1"], ["--runs", "1", "--bandwidth", "1GB/s"]),
        *(["--runs", "1", "--workers", "2"], ["--size", "1MB"], ["--threads", "2"], []),
    ],
    ids=" ".join,
)
def test_what_cannot_be_saved_and_loaded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
):
    monkeypatch.chdir(tmp_path)
    done = run("tune", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runs", "1", "--bandwidth", "1GB/s"], "--bandwidth goes without --runs"),
        (["--size", "1MB"], "--size goes with --runs"),
    ],
)
def test_options_of_the_other_way_are_named(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in run("tune", "--at", tmp_path, *arguments).err


# -- what both are made of -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 300_000, 2**20, 2**21 + 1, 2**30])
def test_a_portion_is_bounded_and_of_the_data(weights: Path, size: int):
    from safetensors.torch import load_file

    whole = load_file(weights)
    if size == 1:
        size = 2  # an element has two bytes
    state = timing.portion_of(str(weights), KeyRing(), size)
    assert 0 < sum(tensor.nbytes for tensor in state.values()) <= size
    for name, tensor in state.items():
        assert timing.same_bits(tensor, whole[name][tuple(map(slice, tensor.shape))])
    if size >= 2**20:
        assert sum(tensor.nbytes for tensor in state.values()) >= min(size // 2, 5 * 2**19)
    if size == 2**30:
        assert len(state) == 5


@pytest.mark.parametrize("size", [2**16, 2**20, 3 * 2**20, 5 * 2**20, 2**30])
def test_a_portion_is_as_large_as_it_was_asked_to_be(tmp_path: Path, size: int):
    """Also where one tensor is half of the whole, as an embedding is."""
    tensors = {f"layers.{n}.weight": torch.zeros(256, 256) for n in range(8)}
    tensors |= {f"layers.{n}.bias": torch.zeros(256) for n in range(8)}
    tensors["embedding"] = torch.zeros(2000, 256)
    save_file(tensors, tmp_path / "model.safetensors")
    there = sum(tensor.nbytes for tensor in tensors.values())
    state = timing.portion_of(str(tmp_path / "model.safetensors"), KeyRing(), size)
    taken = sum(tensor.nbytes for tensor in state.values())
    assert min(size, there) - 1024 < taken <= size  # a row of the embedding is a KiB


def test_random_weights_have_the_size_that_is_asked_for():
    for size in (2, 1000, 2**20, 3 * 2**25 + 2**20 + 6):
        state = timing.random_weights(size)
        assert sum(tensor.nbytes for tensor in state.values()) == size
        assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("text", "value"), [("2GB/s", 2e9), ("500mb/s", 5e8), ("2e9B/s", 2e9), ("1.5 GiB/s", 1.5 * 2**30), ("7MB", 7e6)]
)
def test_rates(text: str, value: float):
    assert units.rate(text) == value


@pytest.mark.parametrize("text", ["500", "2e9", "7/s"])
def test_a_rate_needs_a_unit(run: Run, weights: Path, text: str):
    done = run("tune", weights, "--bandwidth", text)
    assert done.code == 2
    assert f"{text!r} has no unit; write {text.removesuffix('/s')}MB/s or 2GB/s" in done.err


@pytest.mark.parametrize("text", ["", "GB/s", "-1", "1e", "2 parsecs", "inf", "nan"])
def test_what_is_no_quantity(text: str):
    for read in (units.rate, units.size, units.seconds):
        with pytest.raises(BadParameter):
            read(text)


@pytest.mark.parametrize("command", [["tune", "--bandwidth", "1GB/s"], ["tune", "--runs", "1", "--at", "."]], ids=str)
def test_who_shows_progress_is_told_of_all_of_it(weights: Path, tmp_path: Path, monkeypatch, command: list[str]):
    monkeypatch.chdir(tmp_path)
    told = []

    def bar(title: str) -> nullcontext[Recorder]:
        told.append(Recorder())
        return nullcontext(told[-1])

    monkeypatch.setattr("streamxf.progress.ProgressBar", bar)
    assert main([command[0], str(weights), *command[1:], *FEW]) == 0
    assert told
    assert all(counter.done == counter.expected > 0 for counter in told)
