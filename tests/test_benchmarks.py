"""The harness of the benchmarks, and one pass of all of them over very small data."""

import json
from pathlib import Path

import pytest

from benchmarks import harness, run
from benchmarks.harness import Result, alternate, markdown, ratio


def test_sides_alternate_and_the_first_round_does_not_count():
    calls = []

    def side(name):
        def measure():
            calls.append(name)
            return {"save": float(len(calls))}

        return measure

    seconds = alternate({"a": side("a"), "b": side("b")}, rounds=3)
    assert calls == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert seconds == {"a": {"save": [4.0, 5.0, 8.0]}, "b": {"save": [3.0, 6.0, 7.0]}}


def test_a_ratio_compares_within_rounds():
    assert ratio([1.0, 20.0, 300.0], [2.0, 10.0, 100.0]) == 2.0
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0])


def test_markdown_has_a_cell_for_each_column():
    result = Result("name", "Title", "Note.", [{"writer": "a", "s": 0.12345}, {"writer": "b", "s": 2}])
    assert markdown(result).splitlines() == [
        "### Title",
        "",
        "Note.",
        "",
        "| writer | s |",
        "| --- | ---: |",
        "| a | 0.123 |",
        "| b | 2 |",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the memory benchmark reads /proc")
def test_every_benchmark_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    assert run.main(["--smoke", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    stored = {json.loads(file.read_text())["name"] for file in (tmp_path / "results").iterdir()}
    assert stored == set(run.NAMES)
    assert printed.count("### ") == len(run.NAMES)
    assert "| NO |" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        run.main(["save_lode"])
    assert "save_lode" in capsys.readouterr().err
