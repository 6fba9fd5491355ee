"""`CheckpointManager(incremental=N)` where files cannot be linked: increments need files of their base, which stay."""

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Retention, Storage
from streamxf.manager import forget as forgetting
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.pins import in_turn, pin_base
from streamxf.manager.record import Record, Taken
from streamxf.places import open_storage
from streamxf.writing import Pins
from tests.checkpoint.test_increments_beside import SURE
from tests.checkpoint.test_increments_beside import run as run  # a fixture
from tests.cli.command import Run
from tests.storage.stores import MemoryStorage

FROZEN = torch.randn(30_000, generator=torch.Generator().manual_seed(1))


def state_at(step: int) -> dict[str, Any]:
    return {"frozen": FROZEN.clone(), "weight": torch.arange(5000.0) + step, "step": step}


def save(manager: CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save(step, state_at(step))
        manager.wait()


def saved(run: Storage, *steps: int, **how: Any) -> None:
    with CheckpointManager(run, **how) as manager:
        save(manager, *steps)


def steps_in(run: Storage) -> list[int]:
    return [each.step for each in list_checkpoints(run) if each.complete]


def assert_all_hold(run: Storage, **how: Any) -> None:
    for record in list_checkpoints(run):
        if record.complete:
            state = {"frozen": torch.zeros(30_000), "weight": torch.zeros(5000), "step": None}
            with CheckpointManager(run, **how) as manager:
                assert manager.resume(state, step=record.step) == record.step
            wanted = state_at(record.step)
            assert state["step"] == record.step
            assert all(torch.equal(state[name], wanted[name]) for name in ("frozen", "weight"))
            assert streamxf.verify(run.child(record.name), keys=how.get("keys")).ok


def needs(run: Storage) -> dict[int, list[str]]:
    return {each.step: [*each.needs] for each in list_checkpoints(run)}


def test_a_base_stays_as_long_as_it_is_needed(run: Storage) -> None:
    with CheckpointManager(run, incremental=4, keep=2) as manager:
        for step in range(1, 11):
            save(manager, step)
            first = (step - 1) // 4 * 4 + 1
            kept = {step, max(1, step - 1), first} | ({first - 4} if step == first and step > 1 else set())
            assert steps_in(run) == sorted(kept)
    assert needs(run) == {9: [], 10: ["step-9"]}
    assert_all_hold(run)


def test_forget_says_why_a_base_stays(run: Storage) -> None:
    saved(run, 1, 2, 3, 4, incremental=9)
    report = streamxf.forget(run, Retention(last=1, steps=[2]), dry_run=True)
    assert report.kept == {"step-1": ("step-2 needs it",), "step-2": ("step 2",), "step-4": ("last 1",)}
    assert report.removed == ("step-3",)
    own = {each.name: each.bytes for each in list_checkpoints(run)}
    assert report.bytes == own["step-3"]
    assert streamxf.forget(run, Retention(last=1)).removed == ("step-2", "step-3")
    assert steps_in(run) == [1, 4]
    assert_all_hold(run)


def test_what_lacks_its_base_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run, place = Run(capsys), open_storage(tmp_path / "run", abilities=SURE)
    state = {**state_at(1), **{f"w{number}": torch.randn(40_000).to(torch.bfloat16) for number in range(3)}}
    with CheckpointManager(place, incremental=9) as manager:
        for step in (1, 2):
            for number in range(3):
                state[f"w{number}"][::50] *= 1.01
            manager.save(step, state)
    (note,) = [note for note in streamxf.inspect(tmp_path / "run/step-2").notes if "increment" in note]
    assert "needs files in step-1" in note
    assert "`streamxf consolidate`" in note
    lines = run("list", tmp_path / "run").out.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines if "step-" in line] == [
        "own; full; step-2 needs it",
        "own; increment; needs step-1",
    ]
    assert "2 complete checkpoints" in lines[-1]
    base = {file.name for file in (tmp_path / "run/step-1").glob("*.distcp")}
    shutil.rmtree(tmp_path / "run/step-1")
    done = run("list", tmp_path / "run").out
    assert "own; increment; needs step-1, which is missing\n" in done
    assert "0 complete checkpoints" in done
    (listed,) = run("list", tmp_path / "run", "--json").json["checkpoints"]
    assert (listed["needs"], listed["missing"]) == (["step-1"], ["step-1"])
    report = streamxf.verify(tmp_path / "run/step-2")
    assert {each.file for each in report.damaged} == {f"../step-1/{name}" for name in base}
    assert "and with it 5 items" in str(report)


def test_a_limit_counts_a_base_with_what_needs_it(run: Storage) -> None:
    saved(run, *range(1, 7), incremental=4)
    size = {each.step: each.bytes or 0 for each in list_checkpoints(run)}
    assert size[5] > 3 * size[6]
    with_base = size[4] + size[1] + size[5] + size[6]
    assert streamxf.forget(run, Retention(max_bytes=with_base), dry_run=True).removed == ("step-2", "step-3")
    report = streamxf.forget(run, Retention(max_bytes=with_base - 1))
    assert report.removed == ("step-1", "step-2", "step-3", "step-4")
    assert report.bytes == sum(size[step] for step in (1, 2, 3, 4))
    assert_all_hold(run)


def save_before(patch: pytest.MonkeyPatch, name: str, manager: CheckpointManager) -> None:
    """Have step 3 saved just before this part of `forget`."""
    real = getattr(forgetting, name)

    def saved(*arguments: Any) -> Any:
        save(manager, 3)
        return real(*arguments)

    patch.setattr(forgetting, name, saved)


def test_what_is_pinned_meanwhile_is_not_removed(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was decided what goes, and before anything has."""
    with CheckpointManager(run, incremental=9) as manager:
        save(manager, 1)
        manager.save(2, {"step": 2})
        save_before(monkeypatch, "announce_removal", manager)
        report = streamxf.forget(run, Retention(steps=[2]))
        assert report.removed == ()
        assert report.in_use == {"step-1": "step-3 needs it: `streamxf consolidate` ends that"}
    assert steps_in(run) == [1, 2, 3]
    assert needs(run)[3] == ["step-1"]


def test_what_is_being_removed_is_no_base(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointManager(run, incremental=9) as manager:
        save(manager, 1)
        manager.save(2, {"step": 2})
        save_before(monkeypatch, "_remove_unchanged", manager)
        assert streamxf.forget(run, Retention(steps=[2])).removed == ("step-1",)
        monkeypatch.undo()
    assert steps_in(run) == [2, 3]
    assert needs(run)[3] == []


def test_a_save_over_a_base_keeps_what_others_need(run: Storage) -> None:
    with warnings.catch_warnings(action="ignore"), CheckpointManager(run, incremental=9) as manager:
        save(manager, 1, 2)
        save(manager, 1, 3)
        assert_all_hold(run)
        manager.begin(1)
        run.child("step-1").put("model.bin", b"of a framework", sync=False)
        manager.commit(1)
        manager.wait()
    assert streamxf.verify(run.child("step-2")).ok
    streamxf.forget(run, Retention(last=1))
    assert steps_in(run) == [1, 3] if needs(run)[3] == ["step-1"] else [3]
    assert streamxf.verify(run.child("step-3")).ok


def test_a_line_never_builds_on_another(run: Storage) -> None:
    with CheckpointManager(run, incremental=9) as manager:
        save(manager, 1, 2, 3)
        state: dict[str, Any] = {"weight": torch.zeros(5000)}
        assert manager.resume(state, step=2) == 2
        save(manager, 4, 5)
    assert needs(run) == {1: [], 2: ["step-1"], 3: ["step-1"], 4: [], 5: ["step-4"]}
    report = streamxf.forget(run, abandoned=True)
    assert report.removed == ("step-3",)
    assert_all_hold(run)


def test_pins_of_removed_checkpoints_go_with_them(run: Storage) -> None:
    saved(run, 1, 2, 3, incremental=9)
    streamxf.forget(run, Retention(last=1))
    assert [*Pins.of(run.child("step-1")).by] == ["step-3"]
    assert sum("pin" in name for name in run.child("step-1").names()) == 1
    saved(run, 4, keep=1)
    assert steps_in(run) == [4]


def test_a_pin_that_nobody_vouches_for_keeps_nothing(run: Storage, caplog: pytest.LogCaptureFixture) -> None:
    key = streamxf.Key.generate()
    saved(run, 1, 2, chain="encrypt", keys=key)
    other = MemoryStorage()
    saved(other, 1, 9, incremental=9)
    run.child("step-9").put(".metadata", other.child("step-9").read(".metadata", 0, 10**6), make=True)
    assert pin_base(run.child("step-1"), str(list_checkpoints(other)[1].save_id), "step-9") == ""
    assert streamxf.forget(run, 1, keys=key).removed == ("step-1",)
    assert "step-1: a pin of step-9 keeps nothing" in caplog.text


def test_an_increment_that_lost_its_base_is_passed_over(run: Storage, caplog: pytest.LogCaptureFixture) -> None:
    saved(run, 1, 2, 3, 4, incremental=2)
    place = run.child("step-3")
    place.remove([*place.names()])  # as a framework's rotation does
    place.remove_all()
    caplog.set_level(logging.CRITICAL)
    state: dict[str, Any] = {"weight": torch.zeros(5000)}
    with CheckpointManager(run, incremental=2) as manager:
        assert manager.resume(state) == 2
        assert "step-3/" in manager.skipped["step-4"]
        save(manager, 5, 6)
    assert needs(run)[6] == ["step-5"]
    assert streamxf.verify(run.child("step-6")).ok


def test_encrypted_increments_need_no_key_of_their_base(run: Storage) -> None:
    key = streamxf.Key.generate()
    saved(run, 1, 2, chain="floatzip+encrypt", keys=key, incremental=9)
    assert needs(run)[2] == ["step-1"]
    assert_all_hold(run, chain="floatzip+encrypt", keys=key)


def test_what_a_place_may_store_later_shares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    late = MemoryStorage().told({"stored": False, "in_one_step": True})
    saved(late, 1, 2, incremental=9)
    assert needs(late) == {1: [], 2: []}


def test_what_goes_goes_before_what_it_needs() -> None:
    needed = {"step-5": ("step-4", "step-1"), "step-4": ("step-1",), "step-2": (), "step-1": ()}
    records = [Record(name, needs=needs) for name, needs in needed.items()]
    assert [[each.name for each in part] for part in in_turn(records)] == [["step-5", "step-2"], ["step-4"], ["step-1"]]
    circle = [Record("a-1", needs=("b-2",)), Record("b-2", needs=("a-1",))]
    assert [*in_turn(circle)] == [circle]


def test_what_is_needed_counts_until_nothing_needs_it() -> None:
    sizes = {"step-1": 100, "step-2": 10, "step-3": 10}
    records = {n: Record(n, bytes=size, needs=("step-1",) if size == 10 else ()) for n, size in sizes.items()}
    taken = Taken(records.values())
    for name, left in (("step-1", 120), ("step-3", 110), ("step-2", 0)):
        taken.drop(records[name])
        assert taken.bytes == left


def test_what_stays_as_it_is_needed_has_nothing_verified(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each save the rules are applied, of which most remove nothing."""
    with CheckpointManager(run, incremental=9, keep=2) as manager:
        save(manager, 1, 2)
        asked: list[Any] = []
        real = forgetting.newest
        monkeypatch.setattr(forgetting, "newest", lambda *given, **how: asked.append(given) or real(*given, **how))
        save(manager, 3)
        assert not asked
        save(manager, 4)
        assert asked
    assert steps_in(run) == [1, 3, 4]
