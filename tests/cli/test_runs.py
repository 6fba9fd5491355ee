"""``streamxf list``, ``latest`` and ``forget``."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from streamxf.manager.catalog import change_catalog

import streamxf
from cli.command import Run
from cli.conftest import flip_bit
from cli.terminal import at_terminal
from streamxf.checkpoint.storage import Storage
from streamxf.manager.holds import hold
from streamxf.manager.listing import list_checkpoints, mark_of
from streamxf.manager.record import Record

DAY = 86400
LOSSES = {100: 0.5, 200: 0.25, 300: math.nan, 1000: 0.75}


@pytest.fixture
def folder(tmp_path: Path, plain: Path) -> Path:
    """A run: four steps, a day apart, and a save that was killed."""
    made = tmp_path / "run"
    saved = {}
    for number, (step, loss) in enumerate(LOSSES.items()):
        name = f"step-{step}"
        shutil.copytree(plain, made / name)
        mark = mark_of(Storage.of(made), name)
        size = sum(file.stat().st_size for file in (made / name).iterdir())
        saved[name] = Record(name, 1.7e9 + number * DAY, size, {"loss": loss}, mark=mark)
    change_catalog(Storage.of(made), lambda catalog: catalog.saved.update(saved))
    shutil.copytree(plain, made / "step-1100")
    (made / "step-1100" / ".metadata").unlink()
    return made


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


# -- list ------------------------------------------------------------------------------------------


def test_list(run: Run, folder: Path):
    done = run("list", folder)
    assert (done.code, done.err) == (0, "")
    lines = [line.split() for line in done.out.splitlines() if "step-" in line]
    assert [line[0] for line in lines] == [f"step-{step}" for step in (*LOSSES, 1100)]
    assert [line[1] for line in lines] == ["100", "200", "300", "1,000", "1,100"]
    assert [line[-3:] for line in lines[:4]] == [["loss", f"{loss:.4g}", "complete"] for loss in LOSSES.values()]
    assert lines[4][-1] == "unfinished"
    assert "4 complete checkpoints, " in done.out


def test_list_as_json(run: Run, folder: Path, plain: Path):
    with hold(folder / "step-200"):
        facts = run("list", folder, "--json").json
    size = sum(file.stat().st_size for file in plain.iterdir())
    first, *_, killed = facts["checkpoints"]
    assert first == {
        "name": "step-100", "step": 100, "time": 1.7e9, "bytes": size, "metrics": {"loss": 0.5}, "state": "complete"
    }  # fmt: skip
    assert [each["metrics"] for each in facts["checkpoints"][1:]] == [
        {"loss": 0.25},
        {"loss": None},
        {"loss": 0.75},
        {},
    ]
    assert killed["state"] == "unfinished"
    assert "bytes" not in killed
    assert list(facts["in_use"]) == ["step-200"]


def test_list_says_who_reads(run: Run, folder: Path):
    with hold(folder / "step-200"):
        (line,) = (line for line in run("list", folder).out.splitlines() if "step-200" in line)
    assert "complete; " in line
    assert " reads it, since " in line


def test_list_with_a_time_that_cannot_be(run: Run, folder: Path):
    for time in (-1e15, 1e18):
        odd = Record("step-100", time, mark=mark_of(Storage.of(folder), "step-100"))
        change_catalog(Storage.of(folder), lambda catalog, odd=odd: catalog.saved.update({"step-100": odd}))
        done = run("list", folder)
        assert done.code == 0
        assert "step-100 " in done.out


def test_list_of_nothing(run: Run, tmp_path: Path, plain: Path):
    (tmp_path / "empty").mkdir()
    assert run("list", tmp_path / "empty").out == "there are no checkpoints\n"
    assert run("list", tmp_path / "empty", "--json").json["checkpoints"] == []
    assert run("list", tmp_path / "nothing").code == 2
    assert run("list", plain / ".metadata").code == 2


def test_a_name_cannot_steer_the_terminal(run: Run, folder: Path):
    (folder / "step-100").rename(folder / "step-\x1b[31m100")
    assert "\x1b" not in run("list", folder).out + run("forget", folder, "-l1", "--dry-run").out


# -- latest ----------------------------------------------------------------------------------------


def test_latest(run: Run, folder: Path):
    done = run("latest", folder)
    assert (done.code, done.out, done.err) == (0, f"{folder}/step-1000\n", "")


def test_latest_passes_over_what_is_damaged(run: Run, folder: Path):
    flip_bit(folder / "step-1000")
    (folder / "step-300" / ".metadata").write_bytes(b"")
    done = run("latest", folder)
    assert (done.code, done.out) == (0, f"{folder}/step-200\n")
    assert "step-1000 is passed over: " in done.err
    assert "step-300 is passed over: " in done.err
    facts = run("latest", folder, "--json", "--verify", "whole").json
    assert facts["latest"] == f"{folder}/step-200"
    assert list(facts["skipped"]) == ["step-1000", "step-300"]
    assert run("latest", folder, "--verify", "none").out == f"{folder}/step-1000\n"


def test_latest_of_none(run: Run, folder: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = run("latest", tmp_path / "empty")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"streamxf latest: {tmp_path}/empty: there is no complete checkpoint\n"
    for step in LOSSES:
        flip_bit(folder / f"step-{step}")
    done = run("latest", folder, "--json")
    assert (done.code, done.json["latest"], len(done.json["skipped"])) == (1, None, 4)
    assert done.err.endswith("no complete checkpoint passes the check\n")


def test_latest_with_a_key(run: Run, tmp_path: Path, encrypted: Path, key_file: Path):
    shutil.copytree(encrypted, tmp_path / "run" / "step-1")
    assert run("latest", tmp_path / "run", "--key", f"file:{key_file}").out == f"{tmp_path}/run/step-1\n"
    done = run("latest", tmp_path / "run")
    assert (done.code, done.out) == (2, "")  # a key that is missing is no damage
    assert "key" in done.err


# -- forget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stay"),
    [
        ("--keep-last 2", [300, 1000]),
        ("-l 1", [1000]),
        ("--keep-last unlimited", [100, 200, 300, 1000]),
        ("-H 2", [300, 1000]),
        ("-d 3", [200, 300, 1000]),
        ("-d 5", [100, 200, 300, 1000]),
        ("-w 1", [1000]),
        ("-m 1", [1000]),
        ("-y 1", [1000]),
        ("-y 2", [100, 1000]),
        ("--keep-within 1d", [300, 1000]),
        ("--keep-within 30h", [300, 1000]),
        ("--keep-every 100", [100, 200, 300, 1000]),
        ("--keep-every 200", [200, 1000]),
        ("--keep-step 100 --keep-step 300", [100, 300, 1000]),
        ("--keep-best 1 --metric loss", [200, 1000]),
        ("--keep-best 1 --metric loss --mode max", [1000]),
        ("--keep-best 2 --metric loss -l 2", [100, 200, 300, 1000]),
        ("--max-size 1B", [1000]),
        ("--max-size 2TB", [100, 200, 300, 1000]),
        ("--max-size 1B --keep-step 100", [100, 1000]),
    ],
)
def test_each_option(run: Run, folder: Path, arguments: str, stay: list[int]):
    words = arguments.split()
    facts = run("forget", folder, *words, "--dry-run", "--json").json
    assert list(facts["reasons"]) == [f"step-{step}" for step in stay]
    assert all(facts["reasons"].values())
    assert steps(folder) == [*LOSSES, 1100]
    done = run("forget", folder, *words, "--yes", "--json")
    assert done.code == 0
    assert done.json == facts | {"dry_run": False}
    assert steps(folder) == [*stay, 1100]
    assert run("forget", folder, *words, "--yes", "--json").json["removed"] == []


def test_what_it_prints(run: Run, folder: Path):
    rules = ["--keep-last", "1", "--keep-best", "1", "--metric", "loss"]
    done = run("forget", folder, *rules, "--yes")
    assert (done.code, done.err) == (0, "")
    first, *lines = done.out.splitlines()
    assert first.startswith("removed 2 checkpoints, ")
    assert lines == [
        "removed: step-100",
        "removed: step-300",
        "kept: step-200: best 1 by loss",
        "kept: step-1000: last 1",
    ]


def test_without_a_rule_it_refuses(run: Run, folder: Path):
    for arguments in ([], ["--yes"], ["--dry-run"], ["--mode", "max", "--yes"]):
        done = run("forget", folder, *arguments)
        assert done.code == 2
        assert "nothing says what is to stay" in done.err
    assert steps(folder) == [*LOSSES, 1100]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--keep-last 0", "'0' is not a count"),
        ("--keep-last all", "'all' is not a count"),
        ("--keep-daily -2", "'-2' is not a count"),
        ("--keep-every 0", "every=0"),
        ("--keep-step -1", "steps="),
        ("--keep-within 0", "within="),
        ("--keep-within soon", "is not a time"),
        ("--max-size 0", "is not a size"),
        ("--keep-best 2", "--metric NAME go together"),
        ("--metric loss --keep-last 1", "--metric NAME go together"),
        ("--keep-best 2 --metric loss --mode least", "least"),
        ("--keep-last 1 --verify some", "some"),
    ],
)
def test_what_makes_no_sense(run: Run, folder: Path, arguments: str, says: str):
    done = run("forget", folder, *arguments.split(), "--yes")
    assert done.code == 2
    assert says in done.err
    assert steps(folder) == [*LOSSES, 1100]


def test_nothing_is_removed_unasked(run: Run, folder: Path):
    for arguments in ([], ["--json"]):
        done = run("forget", folder, "--keep-last", "1", *arguments)
        assert done.code == 2
        assert "--yes" in done.err
    assert steps(folder) == [*LOSSES, 1100]


@pytest.mark.parametrize(("typed", "stay"), [("y\n", [1000]), ("n\n", [*LOSSES])])
def test_at_a_terminal_it_asks(folder: Path, typed: str, stay: list[int]):
    code, shown = at_terminal(["forget", folder, "-l", "1"], typed)
    assert code == 0
    assert "would remove: step-100" in shown
    assert "Remove them? [y/N]" in shown
    assert ("nothing was removed" in shown) == (len(stay) > 1)
    assert steps(folder) == [*stay, 1100]


def test_what_is_read_stays(run: Run, folder: Path):
    with hold(folder / "step-200"):
        done = run("forget", folder, "-l", "1", "--yes", "--json")
    assert (done.code, list(done.json["in_use"])) == (0, ["step-200"])
    assert steps(folder) == [200, 1000, 1100]
    assert run("forget", folder, "-l", "1", "--yes", "--json").json["removed"] == ["step-200"]


def test_where_nothing_passes_the_check_nothing_is_removed(run: Run, folder: Path):
    for step in LOSSES:
        flip_bit(folder / f"step-{step}")
    done = run("forget", folder, "-l", "1", "--yes", "--json")
    assert (done.code, done.json["removed"]) == (0, [])
    assert steps(folder) == [*LOSSES, 1100]


def test_what_cannot_be_removed_is_named(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    done = run("forget", folder, "-l", "3", "--yes")
    assert done.code == 1
    assert "not removed: step-100: PermissionError: " in done.out
    monkeypatch.undo()
    assert run("forget", folder, "-l", "3", "--yes").code == 0
    assert steps(folder) == [200, 300, 1000, 1100]


def test_in_an_object_store(run: Run, folder: Path):
    import fsspec

    fsspec.filesystem("memory").put(str(folder), "/cli-run", recursive=True)
    try:
        assert run("latest", "memory://cli-run").out == "memory://cli-run/step-1000\n"
        assert len(run("list", "memory://cli-run", "--json").json["checkpoints"]) == 5
        assert len(run("forget", "memory://cli-run", "-l", "1", "--yes", "--json").json["removed"]) == 3
        assert run("latest", "memory://cli-run").out == "memory://cli-run/step-1000\n"
    finally:
        fsspec.filesystem("memory").rm("/cli-run", recursive=True)


def test_the_library_says_the_same(run: Run, folder: Path):
    told = run("list", folder, "--json").json["checkpoints"]
    assert [each["name"] for each in told] == [each.name for each in list_checkpoints(folder)]
    assert run("latest", folder).out.strip() == streamxf.latest(folder)


def test_a_metric_that_no_checkpoint_has(run: Run, folder: Path):
    """Or a typing error would remove all the best."""
    done = run("forget", folder, "--keep-best", "1", "--metric", "los", "--yes")
    assert done.code == 2
    assert "no checkpoint has the metric 'los'; there are loss" in " ".join(done.err.split())
    assert steps(folder) == [*LOSSES, 1100]
