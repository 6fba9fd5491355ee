"""``inspect(values=True, executor=)`` and ``diff(executor=)``: the results of one process, whatever happens there."""

import os
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, Key
from streamxf.budget import Budget
from streamxf.errors import PolicyError
from streamxf.keys.ring import format_key
from streamxf.tools import fleet
from streamxf.tools.diff.difference import Difference
from streamxf.tools.inspect.inspect import Summary
from tests.altered import flip
from tests.dcp.helpers import KEY, data_files, full_chain, save
from tests.dcp.shards import rows, save_shards
from tests.tools.executors import Backwards, Deadly, Elsewhere, Losing

STATE: dict[str, Any] = {f"w{number:02}": torch.randn(200, 300) for number in range(12)} | {
    "codes": torch.randint(-5, 5, (3000,)),
    "nan": torch.tensor([1.0, float("nan"), -float("inf")]),
    "empty": torch.zeros(0, 3),
    "turned": torch.randn(30, 20).t(),
    "step": torch.tensor(3),
    "lr": {"a": 0.1},
}


@pytest.fixture(autouse=True)
def short_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "TASK_BYTES", 2**19)


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "encrypted", full_chain(), block_size=1 << 16, thread_count=2)
    return tmp_path / "encrypted"


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A file of torch.save, with other values."""
    state = STATE | {"w01": STATE["w01"] + 1, "codes": -STATE["codes"], "turned": STATE["turned"] + 1, "lr": {"a": 0.2}}
    state["w02"] = state["w02"].bfloat16()
    del state["w03"]
    torch.save({f"model.{name}": value for name, value in state.items()}, tmp_path / "later.pt")
    return tmp_path / "later.pt"


def values(path: Any, executor: Executor | None = None, keys: Any = KEY) -> Summary:
    return streamxf.inspect(path, keys=keys, values=True, executor=executor)


def compared(first: Any, second: Any, executor: Executor | None = None, keys: Any = KEY) -> Difference:
    how: dict[str, Any] = {"encrypted": (True, False), "prefixes": ("", "model."), "values": True}
    return streamxf.diff(first, second, keys=keys, executor=executor, **how)


# -- the same results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "processes", "elsewhere", "backwards", "losing"])
def test_results_are_those_of_one_process(
    encrypted: Path, later: Path, processes: Executor, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    lossy = Losing(lambda number: number % 3 == 1)
    executor = {"processes": processes, "elsewhere": Elsewhere(), "backwards": Backwards(), "losing": lossy}.get(kind)
    executor = executor or ThreadPoolExecutor(3)
    keys = KEY if kind in ("threads", "processes") else "env:SOME_KEY"
    found, alone = values(encrypted, executor, keys), values(encrypted)
    assert (found.notes[len(alone.notes) :] != ()) == (kind == "losing")
    assert found.values == alone.values
    assert list(found.values.statistics) == list(alone.values.statistics)  # type: ignore[union-attr]
    difference, one = compared(encrypted, later, executor, keys), compared(encrypted, later)
    assert (difference.notes != ()) == (kind == "losing")
    assert replace(difference, notes=()) == one
    assert [change.name for change in one.changed] == ["codes", "lr.a", "turned", "w01", "w02"]
    if kind in ("elsewhere", "backwards"):
        assert len(executor.sent) > 8  # type: ignore[attr-defined]
        assert KEY.reveal() not in b"".join(executor.sent)  # type: ignore[attr-defined]
    if kind == "threads":
        executor.shutdown()


def test_damage_is_that_of_one_process(encrypted: Path, later: Path, processes: Executor) -> None:
    file = max(data_files(encrypted), key=lambda path: path.stat().st_size)
    for part in (3, 8):
        flip(file, file.stat().st_size * part // 12)
    alone = compared(encrypted, later)
    assert len(alone.incomparable) == 2
    found = compared(encrypted, later, processes)
    assert found == alone
    assert list(found.incomparable) == list(alone.incomparable)
    one, there = values(encrypted).values, values(encrypted, processes).values
    assert one is not None
    assert len(one.unreadable) == 2
    assert there == one
    file.unlink()
    assert compared(encrypted, later, processes) == compared(encrypted, later)


@pytest.mark.parametrize("collectives", [True, False])
def test_shards_of_ranks_and_their_own_items(tmp_path: Path, collectives: bool) -> None:
    """Without collectives an item of several ranks has another name in reports than where it is stored."""
    whole = torch.randn(64, 100)
    states = [{"w": rows(whole, rank, 3), "own": torch.full((50,), rank)} for rank in range(3)]
    if collectives:
        states = [{"w": state["w"]} for state in states]
    save_shards(tmp_path / "a", states, full_chain, use_collectives=collectives)
    dcp.save({"w": whole}, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"), no_dist=True)
    with ThreadPoolExecutor(2) as threads:
        found, alone = values(tmp_path / "a", threads), values(tmp_path / "a")
        assert found == alone
        assert len(alone.values.statistics) == (1 if collectives else 4)  # type: ignore[union-attr]
        how: dict[str, Any] = {"keys": KEY, "encrypted": (True, False)}
        difference = streamxf.diff(tmp_path / "a", tmp_path / "stock", executor=threads, **how)
        assert difference == streamxf.diff(tmp_path / "a", tmp_path / "stock", **how)
        assert difference.elements == 6400


def test_packed_folders(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    torch.save({"w": torch.randn(50, 40).t(), "v": torch.randn(3000)}, tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "config.json").write_text("{}")
    streamxf.pack(tmp_path / "model", tmp_path / "packed")
    executor = Elsewhere()
    found = streamxf.diff(tmp_path / "model", tmp_path / "packed", executor=executor)
    assert found.same
    assert found == streamxf.diff(tmp_path / "model", tmp_path / "packed")
    assert executor.sent
    assert values(tmp_path / "model", executor, None) == values(tmp_path / "model", keys=None)


def test_nothing_to_read(tmp_path: Path) -> None:
    torch.save({"lr": 0.1}, tmp_path / "a.pt")
    executor = Elsewhere()
    assert values(tmp_path / "a.pt", executor, None) == values(tmp_path / "a.pt", keys=None)
    assert streamxf.diff(tmp_path / "a.pt", tmp_path / "a.pt", executor=executor).same
    assert not executor.sent


def test_tasks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_TASK_ITEMS", 10)
    monkeypatch.setattr(fleet, "_MOST", 3)
    save({f"{number:03}": torch.full((4,), number) for number in range(95)}, tmp_path / "a", [Checksum()])
    executor = Backwards()
    waiting: list[int] = []
    submit = executor.submit
    monkeypatch.setattr(executor, "submit", lambda *args: (waiting.append(len(executor.waiting)), submit(*args))[1])
    assert values(tmp_path / "a", executor, None) == values(tmp_path / "a", keys=None)
    assert len(executor.sent) == 10
    assert max(waiting) == 3


# -- many checkpoints, each by one worker ----------------------------------------------------------------------------


def test_many_checkpoints_and_files_are_rekeyed_and_copied_by_an_executor(tmp_path: Path, processes: Executor) -> None:
    new, paths = Key.generate(), [tmp_path / f"step-{number}" for number in range(3)]
    for path in paths:
        save({"w": torch.arange(9)}, path, full_chain())
    with streamxf.open(tmp_path / "a.sxf", "wb", chain=[Encrypt(KEY)]) as file:
        file.write(b"abc")
    paths.append(tmp_path / "a.sxf")
    change = partial(streamxf.rekey, keys=KEY, recipients=new)
    assert [*processes.map(change, paths)] == [(".metadata",)] * 3 + [("a.sxf",)]
    assert [*processes.map(change, paths)] == [()] * 4  # repeated
    with streamxf.open(paths.pop(), keys=new) as file:
        assert file.read() == b"abc"
    targets = [path.with_name(f"copy-{path.name}") for path in paths]
    copy = partial(streamxf.transcode, chain="zstd", keys=new)
    assert [made.items for made in processes.map(copy, paths, targets)] == [1, 1, 1]
    for path, target in zip(paths, targets, strict=True):
        assert streamxf.diff(path, target, keys=new, encrypted=(True, False)).same


# -- the limit of the whole ----------------------------------------------------------------------------------------


def test_how_much_is_read_is_limited_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has the whole limit; all of them together have no more."""
    monkeypatch.setattr("streamxf.budget.FREE", 0)
    monkeypatch.setattr(fleet, "_TASK_ITEMS", 1)
    shared = torch.randn(20_000)
    torch.save({f"{number:02}": shared.view(100, 200).t() for number in range(9)}, tmp_path / "a.pt")
    path, limit = tmp_path / "a.pt", 5
    with pytest.raises(PolicyError) as one:
        streamxf.inspect(path, values=True, max_expansion=limit)
    with pytest.raises(PolicyError) as there:
        streamxf.inspect(path, values=True, max_expansion=limit, executor=Elsewhere())
    assert str(there.value).partition(" besides")[0] == str(one.value).partition(" besides")[0]
    alone = streamxf.diff(path, path, max_expansion=limit)
    found = streamxf.diff(path, path, max_expansion=limit, executor=Elsewhere())
    assert 0 < len(alone.incomparable) < 9
    assert list(found.incomparable) == list(alone.incomparable)
    assert (found.equal, found.elements) == (alone.equal, alone.elements)


def test_what_was_asked_of_a_budget() -> None:
    budget = Budget(1, 2**29)
    budget.spend(2**28, "it")
    with pytest.raises(PolicyError):
        budget.spend(2**29, "it")
    budget.spend_once("a", 5, "it")
    budget.spend_once("a", 5, "it")
    assert budget.asked == 2**28 + 2**29 + 5
    assert budget.renewed().asked == 0


# -- what the executor loses, and alters -----------------------------------------------------------------------------


class Stubborn(OSError):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Raising(Deadly):
    """Raises what cannot be pickled, in other processes."""

    def read(self, path: str, start: int, stop: int) -> bytes:
        if os.getpid() != self.parent_id:
            raise Stubborn("no")
        return super().read(path, start, stop)


def test_exceptions_that_cannot_be_pickled(encrypted: Path, later: Path, processes: Executor) -> None:
    storage = Raising(str(encrypted))
    found = values(storage, processes)
    assert "cannot be pickled" in found.notes[-1]
    assert found.values == values(encrypted).values
    difference = compared(storage, later, processes)
    assert "cannot be pickled" in difference.notes[-1]
    assert replace(difference, notes=()) == compared(storage, later)
