"""What the benchmarks share, their peers, and one pass of several over very small data."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks import publish, run, throttled
from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.data.quantized import E4M3, E5M2, fp8, mxfp4, nvfp4
from benchmarks.data.training import SMOKE, training_state
from benchmarks.dcp_sides import FULL, STOCK, Run, empty_target
from benchmarks.harness import MIB, Settings, alternate, timed
from benchmarks.kernels import OneThread, encoded_bytes, kernels_alone, zipnn_one_thread
from benchmarks.peers import PEERS
from benchmarks.result import Result, Spread, Table, goal_row, markdown, ratios, store
from benchmarks.sizes import plane_entropy
from streamxf import Checksum, FloatZip

MACHINE = {
    "time": "2026-01-02T03:04:05+00:00",
    "cpus": 2,
    "memory_gib": 23.5,
    "avx512": False,
    "system": "Linux",
    "python_version": "3.11.7",
    "packages": {"torch": "2.13.0"},
    "commit": "0123456789ab",
}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def four_bits(packed):
    codes = packed.view(torch.uint8)
    return E2M1[torch.stack([codes & 15, codes >> 4], -1).long()].flatten(1)


@pytest.fixture
def settings(tmp_path):
    return Settings(smoke=False, rounds=3, mib=1, folder=tmp_path / "work", cache=tmp_path / "cache")


@pytest.fixture
def state():
    """Values that are easily lost on the way, and a size that is no multiple of a block."""
    torch.manual_seed(3)
    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40])
    weights = torch.empty(700, 1000).normal_(0, 0.02)
    state = {
        f"{name}.{dtype}": value.to(dtype)
        for name, value in (("odd", odd), ("weight", weights))
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }
    return {**state, "steps": torch.arange(1000), "step": torch.tensor(7.0), "none": torch.empty(0, 3)}


# -- measuring -------------------------------------------------------------------------------------------------------


def test_sides_alternate_and_the_first_round_does_not_count():
    calls = []

    def side(name):
        def measure():
            calls.append(name)
            return {"save": float(len(calls))}

        return measure

    seconds = alternate({name: side(name) for name in "abc"}, rounds=9)
    rounds = [tuple(calls[start : start + 3]) for start in range(0, len(calls), 3)]
    assert len(rounds) == 10
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 3, "a side that always follows the same other pays for what that one leaves behind"
    for name in "abc":
        measured = [float(place) for place, called in enumerate(calls, 1) if called == name]
        assert seconds[name] == {"save": measured[1:]}


def test_a_ratio_compares_within_rounds():
    assert ratios([1.0, 20.0, 300.0], [2.0, 10.0, 100.0]).values == (0.5, 2.0, 3.0)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_a_spread_has_a_median_with_its_range():
    spread = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.low, spread.high) == (3.0, 1.0, 5.0)
    assert spread.text(3) == "3.000 (1.000-5.000)"
    assert Spread.of([2.0]).text(1) == "2.0"
    with pytest.raises(ValueError, match="at least one round"):
        Spread.of([])


@pytest.mark.parametrize(
    ("value", "at_least", "reached"),
    [(1.0, False, "yes"), (1.1, False, "**no**"), (1.0, True, "yes"), (0.9, True, "**no**")],
)
def test_the_median_decides_whether_a_goal_is_reached(value, at_least, reached):
    row = goal_row("save", "stock", Spread.of([value, 0.0, 9.0]), 1.0, at_least=at_least)
    assert row["reached"] == reached
    assert row["goal"] == (">= 1" if at_least else "<= 1")


def test_entropy_counts_planes_of_rotated_elements():
    words = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    assert plane_entropy({"all": words}) == pytest.approx(1.0)
    assert plane_entropy({"zero": torch.zeros(1000)}) == 0.0
    # sign and exponent of these differ in the sign only, which the rotation takes out of the exponent's plane
    signs = torch.tensor([1.0, -1.0]).repeat(500).bfloat16()
    assert plane_entropy({"signs": signs}) == pytest.approx(1 / 16)


# -- sides -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [STOCK, FULL, *PEERS], ids=lambda side: side.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_side_gives_back_each_bit_and_leaves_the_state_alone(side, threads, state, tmp_path):
    before = {name: tensor.clone() for name, tensor in state.items()}
    checkpoint = Run(side, state, empty_target(state), tmp_path, threads)
    seconds = checkpoint.save_and_load()
    assert min(seconds.values()) > 0
    assert checkpoint.stored_bytes() > 1000
    for name, tensor in before.items():
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), state[name].reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("side", [STOCK, *PEERS], ids=lambda side: side.name)
def test_a_load_that_gives_other_bits_is_found_out(side, tmp_path):
    state = {"weight": torch.full((8, 8), 0.0)}
    checkpoint = Run(side, state, empty_target(state), tmp_path, 1)
    checkpoint.save()
    state["weight"][3, 3] = -0.0
    with pytest.raises(AssertionError, match="did not give back weight"):
        checkpoint.load()


def test_kernels_run_alone(tmp_path):
    state = {"weight": torch.empty(1000, 1000).normal_(0, 0.02).bfloat16()}
    assert set(OneThread(state, [FloatZip()]).compress_and_decompress()) == {"compress", "decompress"}
    assert set(zipnn_one_thread(state)) == {"compress", "decompress"}
    seconds = kernels_alone(state, [FloatZip(), Checksum()], tmp_path / "kernels")
    assert list(seconds) == ["streamxf.floatzip", "streamxf.checksum", "container CRC", "write", "fsync"]
    stored = encoded_bytes(state, [FloatZip(), Checksum()])
    assert 0.6 < stored / state["weight"].nbytes < 0.75
    assert (tmp_path / "kernels").stat().st_size == stored + 2 * 8  # the head of each block


def test_a_training_state_is_made_once_and_always_the_same(tmp_path):
    first = training_state(tmp_path / "first", SMOKE)
    again = training_state(tmp_path / "again", SMOKE)
    assert list(first) == ["parameters", "exp_avg", "exp_avg_sq"]
    for part, tensors in first.items():
        assert all(torch.equal(tensor, again[part][name]) for name, tensor in tensors.items())
        assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    (file,) = (tmp_path / "first").iterdir()
    made = file.stat().st_mtime_ns
    training_state(tmp_path / "first", SMOKE)
    assert file.stat().st_mtime_ns == made


def test_matrices_have_the_sizes_that_were_asked_for():
    matrices = gaussian_matrices(6, 1.5, torch.bfloat16)
    assert [tuple(matrix.shape) for matrix in matrices.values()] == [(768, 1024)] * 4
    assert all(matrix.untyped_storage().nbytes() == 1.5 * MIB for matrix in matrices.values())
    assert len(gaussian_matrices(1, 2, torch.float32)) == 1


@pytest.fixture(scope="module")
def pacing_library(tmp_path_factory):
    if shutil.which(os.environ.get("CC", "cc")) is None or not throttled.MEMORY.is_dir():
        pytest.skip("the library that paces files needs a C compiler, and Linux")
    return throttled.built(tmp_path_factory.mktemp("pace"))


def paced_seconds(library, folder, size, speed):
    """Seconds to write a file, to write and sync it, and to read it, in a child that has the library."""
    device = throttled.loaded(library)
    path = Path(folder) / "paced"

    def write(sync):
        with path.open("wb", buffering=0) as file:
            file.write(bytes(size))
            if sync:
                os.fsync(file.fileno())

    device.pace(os.fsencode(folder), speed, 0)
    seconds = [timed(lambda: write(False))]
    device.pace(os.fsencode(folder), speed, size)
    seconds.append(timed(lambda: write(True)))
    with path.open("rb", buffering=0) as file:
        seconds.append(timed(lambda: os.preadv(file.fileno(), [bytearray(size)], 0)))
    return seconds


def test_a_paced_device_is_not_faster_than_it_should_be(pacing_library, tmp_path):
    arguments = {"library": str(pacing_library), "folder": str(tmp_path), "size": MIB, "speed": 10 * MIB}
    assert min(in_child("tests.test_benchmarks", "paced_seconds", preload=pacing_library, **arguments)) >= 0.1


def test_a_side_that_gets_round_the_device_is_found_out(pacing_library):
    with pytest.raises(AssertionError, match="and 0 slowly"):
        throttled.child(str(pacing_library), 1, [0.25], 1)  # not preloaded


# -- results ---------------------------------------------------------------------------------------------------------


def result_of(name):
    table = Table([{"side": "a", "s": Spread.of([1.0, 2.0]), "n": 1234}], "Seconds", digits=1)
    return Result(name, "Title", "Note.", [table])


def test_markdown_has_a_cell_for_each_column():
    assert markdown(result_of("one")).splitlines() == [
        *("## Title", "", "Note.", "", "### Seconds", "", "| side | s | n |", "| --- | ---: | ---: |"),
        "| a | 1.5 (1.0-2.0) | 1,234 |",
    ]
    with pytest.raises(ValueError, match="columns"):
        markdown(Result("one", "Title", "Note.", [Table([{"a": 1}, {"b": 1}])]))


def published_at(folder):
    return json.loads((folder / "results.json").read_text())


def stored_on(day, model="Xeon", **facts):
    return {**MACHINE, "time": f"2026-01-0{day}T00:00:00+00:00", "cpu_model_name": model, **facts}


def test_the_newest_results_are_published(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "NAMES", ("one", "two"))
    results, target = tmp_path / "results", tmp_path / "docs" / "benchmarks"
    command = ["--results", str(results), "--target", str(target)]
    for day in (1, 3, 2):
        store(result_of("one"), settings, stored_on(day), results, 2.0)
    assert publish.main(command) == 1  # nothing of the other yet
    assert not target.exists()

    store(result_of("two"), settings, stored_on(2), results, 2.0)
    assert publish.main(command) == 0
    names = {"one.md", "two.md", "machine.md", "results.json"}
    assert {path.name for path in target.iterdir()} == names
    content = published_at(target)["Xeon, 2 CPUs"]["one"]
    assert content["machine"]["time"].startswith("2026-01-03")
    assert content["tables"][0]["rows"][0]["s"]["values"] == [1.0, 2.0]
    assert "23.5 GiB" in (target / "machine.md").read_text()


def test_what_was_not_run_again_stays_published(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "NAMES", ("one", "two"))
    results, target = tmp_path / "results", tmp_path / "docs"
    for name in ("one", "two"):
        store(result_of(name), settings, stored_on(2), results, 2.0)
    publish.publish(results, target)
    for name, day in (("one", 1), ("two", 3)):
        store(result_of(name), settings, stored_on(day), tmp_path / "elsewhere", 2.0)
    publish.publish(tmp_path / "elsewhere", target)
    published = published_at(target)
    assert {name: content["machine"]["time"][:10] for name, content in published["Xeon, 2 CPUs"].items()} == {
        "one": "2026-01-02",
        "two": "2026-01-03",
    }
    publish.publish(tmp_path / "nothing", target)
    assert published_at(target) == published


def test_a_machine_is_published_beside_the_others(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "NAMES", ("one",))
    target = tmp_path / "docs"
    for number, facts in enumerate(
        (
            stored_on(2, "Xeon(R)"),
            stored_on(3, "EPYC"),
            stored_on(4, "EPYC", avx512=True),
            stored_on(5, "EPYC", cpus=64),
            stored_on(6, "Xeon"),  # the first one again
        )
    ):
        store(result_of("one"), settings, facts, tmp_path / str(number), 2.0)
        publish.publish(tmp_path / str(number), target)
    days = {machine: contents["one"]["machine"]["time"][9] for machine, contents in published_at(target).items()}
    assert days == {"Xeon, 2 CPUs": "6", "EPYC, 2 CPUs": "3", "EPYC with AVX-512, 2 CPUs": "4", "EPYC, 64 CPUs": "5"}
    lines = (target / "one.md").read_text().splitlines()
    headings = [line.removeprefix("### ") for line in lines if line.startswith("### ")]
    assert headings == sorted(days, key=days.__getitem__, reverse=True)
    assert lines.count("Note.") == 1
    assert lines.count("| a | 1.5 (1.0-2.0) | 1,234 |") == len(days)
    overview = (target / "machine.md").read_text()
    assert all(f"| one | {machine} | 2026-01-0{day}" in overview for machine, day in days.items())


def test_goals_of_all_machines_are_in_one_table(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "NAMES", ("one",))
    loads = goal_row("load", "stock", Spread.of([0.5]), 0.6)
    older = [goal_row("save", "stock", Spread.of([0.9]), 0.5) | {"at": "4 MiB"}]
    newer = [goal_row("save", "stock", Spread.of([0.4]), 0.5) | {"at": "24 MiB"}, loads | {"at": ""}]
    for facts, rows in ((stored_on(1), older), (stored_on(2, "EPYC"), newer)):
        result = Result("one", "Title", f"Note of {facts['cpu_model_name']}.", [Table(rows, "Goals", digits=1)])
        store(result, settings, facts, tmp_path / "results", 2.0)
    publish.publish(tmp_path / "results", tmp_path / "docs")
    assert (tmp_path / "docs" / "one.md").read_text().rstrip().split("\n\n") == [
        *("## Title", "### Goals"),
        "| what | against | goal | EPYC, 2 CPUs | Xeon, 2 CPUs |\n| --- | --- | --- | --- | --- |\n"
        "| save | stock | <= 0.5 | 0.4, 24 MiB | 0.9, 4 MiB, **missed** |\n| load | stock | <= 0.6 | 0.5 |  |",
        *("### EPYC, 2 CPUs", "Note of EPYC.", "Measured 2026-01-02 at commit 0123456789ab."),
        *("### Xeon, 2 CPUs", "Note of Xeon.", "Measured 2026-01-01 at commit 0123456789ab."),
    ]


def test_the_page_has_all_that_was_published_and_nothing_else():
    page = "".join((publish.PUBLISHED.parent / name).read_text() for name in ("benchmarks.md", "compared.md"))
    included = re.findall(r'^(?:--8<-- ")?docs/benchmarks/(\w+)\.md"?$', page, re.MULTILINE)
    assert sorted(included) == sorted(section.stem for section in publish.PUBLISHED.glob("*.md"))
    assert set(included) == {*run.NAMES, "machine"}


def test_sections_are_those_of_the_published_results():
    published = published_at(publish.PUBLISHED)
    for name in run.NAMES:
        assert (publish.PUBLISHED / f"{name}.md").read_text() == publish.section(name, published)


def test_results_of_a_smoke_run_are_never_published(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(publish, "NAMES", ("one",))
    smoke = Settings(True, 1, 1, settings.folder, settings.cache)
    store(result_of("one"), smoke, MACHINE, tmp_path, 2.0)
    with pytest.raises(FileNotFoundError, match="make bench ARGS=one"):
        publish.publish(tmp_path, tmp_path / "docs")


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_benchmarks_run_on_very_small_data(tmp_path, capsys):
    """One of them; make bench-smoke runs all."""
    results = tmp_path / "results"
    assert run.main(["differences", "--smoke", "--folder", str(tmp_path), "--results", str(results)]) == 0
    assert [path.name for path in results.iterdir()] == ["differences"]
    assert sum(line.startswith("## ") for line in capsys.readouterr().out.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        run.main(["save_lode"])
    assert "save_lode" in capsys.readouterr().err


# -- data ------------------------------------------------------------------------------------------------------------


def test_quantized_weights_are_the_weights_but_for_rounding():
    generator = torch.Generator().manual_seed(1)
    weight = torch.empty(40, 96).normal_(0, 0.02, generator=generator)
    weights = {"w": weight, "bias": weight[0], "odd": weight[:, :7]}
    for dtype, step in ((E4M3, 2**-3), (E5M2, 2**-2)):
        for rows in (False, True):
            state = fp8(weights, dtype, rows=rows)
            assert set(state) == {"w", "w_scale", "odd", "odd_scale"}
            assert state["w"].dtype == dtype
            assert state["w"].float().abs().max() == torch.finfo(dtype).max
            torch.testing.assert_close(state["w"].float() * state["w_scale"], weight, rtol=step / 2, atol=1e-6)
    state = mxfp4(weights)
    assert set(state) == {"w", "w_scale"}
    scales = state["w_scale"].float().repeat_interleave(32, 1)
    assert ((four_bits(state["w"]) * scales - weight).abs() <= scales * 2).all()  # up to 8 is cut to 6
    state = nvfp4(weights)
    scales = state["w_scale"].float().repeat_interleave(16, 1) * state["w_global_scale"]
    assert ((four_bits(state["w"]) * scales - weight).abs() <= scales * 1.3).all()


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("name", ["compared", "differences"])
def test_charts_are_those_of_the_published_results(tmp_path, name, ground):
    publish.draw_charts(published_at(publish.PUBLISHED), tmp_path)
    made, there = ((at / f"{name}-{ground}.svg").read_text() for at in (tmp_path, publish.PUBLISHED.parent / "images"))
    texts = re.findall("<text[^>]*>([^<]+)</text>", made)
    assert texts == re.findall("<text[^>]*>([^<]+)</text>", there), "make bench-publish draws it anew"
    assert {"streamxf", *(("stock DCP", "1.00") if name == "compared" else ("moonclip", "2.2% changed"))} <= set(texts)
    pages = "".join((publish.PUBLISHED.parents[1] / page).read_text() for page in ("README.md", "docs/incremental.md"))
    assert f"images/{name}-{ground}.svg" in pages
