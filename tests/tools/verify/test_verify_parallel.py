"""`verify` where workers read: pieces that cannot be read, what is in flight, and interrupts."""

import errno
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Checksum, engine
from streamxf.tools.verify import reading
from streamxf.tools.verify.reading import GuardedAccess, pieces_of
from tests.dcp.helpers import KEY, data_files, full_chain, index_of, save
from tests.forge import Places
from tests.polling import SECONDS
from tests.tools.verify.read_files import name_of

MIB = 2**20
CHAINS: dict[str, Any] = {"none": list, "checksum": lambda: [Checksum()], "full": full_chain}


def fail_at(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    """Let each read fail that has the byte at this place of a file."""
    read = GuardedAccess.read_into

    def failing(file: GuardedAccess, position: int, out: memoryview) -> int:
        if name_of(file).endswith(".distcp") and position <= bad < position + len(out):
            raise OSError(errno.EIO, "a sector that cannot be read")
        return read(file, position, out)

    monkeypatch.setattr(GuardedAccess, "read_into", failing)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_sector_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: str) -> None:
    save({"a": torch.randn(90_000), "b": torch.randn(80_000)}, tmp_path, CHAINS[chain](), block_size=1 << 16)
    key = KEY if chain == "full" else None
    (place,) = index_of(tmp_path).items["a"].places
    (file,) = data_files(tmp_path)
    stored = file.read_bytes()[place.at : place.at + place.size]
    for block in (0, 3):
        begin = Places.of(stored).blocks[block][0] if chain != "none" else MIB // 10 * block
        with monkeypatch.context() as patch:
            fail_at(patch, place.at + begin + 500)
            report = streamxf.verify(tmp_path, keys=key)
        found = [(damage.file, damage.item, damage.block, damage.error) for damage in report.damaged]
        assert found == [(file.name, "a", 0 if chain == "none" else block, "OSError")]
        assert "a sector" in report.damaged[0].message
    assert streamxf.verify(tmp_path, keys=key).ok


def test_a_sector_between_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In header, table and footer, which the calling thread reads: the item is named, and the other one is intact."""
    save({"a": torch.randn(90_000), "b": torch.randn(80_000)}, tmp_path, [Checksum()], block_size=1 << 16)
    for name, item in index_of(tmp_path).items.items():
        (place,) = item.places
        for position in (place.at + 10, place.at + place.size - 40, place.at + place.size - 1):
            with monkeypatch.context() as patch:
                fail_at(patch, position)
                report = streamxf.verify(tmp_path)
            assert {damage.item for damage in report.damaged} == {name}, position


@pytest.mark.parametrize("chain", ["none", "checksum"])
def test_what_is_in_flight_is_bounded(tmp_path: Path, chain: str) -> None:
    state = {str(number): torch.randint(0, 9, (6 * MIB,), dtype=torch.int32) for number in range(3)}
    save(state, tmp_path, CHAINS[chain]())
    shared = engine.shared()
    shared.budget.peak_jobs = shared.budget.peak_bytes = 0
    assert streamxf.verify(tmp_path).ok
    assert 1 < shared.budget.peak_jobs <= 2 * shared.workers + 2
    assert 0 < shared.budget.peak_bytes <= engine.MAX_BYTES_IN_FLIGHT
    assert (shared.budget.jobs, shared.budget.bytes) == (0, 0)


@pytest.mark.parametrize("chain", ["none", "checksum"])
def test_workers_read_and_each_byte_is_read_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: str
) -> None:
    save({"w": torch.randn(4 * MIB)}, tmp_path, CHAINS[chain]())
    (path,) = data_files(tmp_path)
    caller = threading.get_ident()
    by: Counter[bool] = Counter()
    read = GuardedAccess.read_into

    def counted(file: GuardedAccess, position: int, out: memoryview) -> int:
        by[threading.get_ident() == caller] += len(out)
        return read(file, position, out)

    monkeypatch.setattr(GuardedAccess, "read_into", counted)
    assert streamxf.verify(tmp_path).ok
    assert by[False] > 0.5 * path.stat().st_size  # the caller does a job itself where the workers are late
    assert by.total() < 1.1 * path.stat().st_size


@pytest.mark.parametrize("chain", CHAINS)
def test_an_interrupt_leaves_nothing_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: str) -> None:
    save({"w": torch.randn(MIB), "v": torch.randn(MIB)}, tmp_path, CHAINS[chain]())
    caller = threading.get_ident()
    calls = Counter[str]()
    read = GuardedAccess.read_into

    def interrupted(file: GuardedAccess, position: int, out: memoryview) -> int:
        calls["all"] += 1
        if threading.get_ident() == caller and position > 0 and name_of(file).endswith(".distcp"):
            raise KeyboardInterrupt
        return read(file, position, out)

    key = KEY if chain == "full" else None
    with monkeypatch.context() as patch:
        patch.setattr(GuardedAccess, "read_into", interrupted)
        with pytest.raises(KeyboardInterrupt):
            streamxf.verify(tmp_path, keys=key)
        ended = calls["all"]
    budget = engine.shared().budget
    assert (budget.jobs, budget.bytes) == (0, 0)
    assert calls["all"] == ended > 0
    assert streamxf.verify(tmp_path, keys=key).ok


def test_pieces_that_nobody_wants_any_more_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their file is closed next."""
    begun, goes_on, over = threading.Event(), threading.Event(), []
    wait = engine.Job.wait

    class Source:
        parallel = True

        def slice(self, at: int, size: int) -> "Source":
            return self

        def expect(self, *spans: tuple[int, int]) -> None: ...

        def read_at(self, at: int, size: int) -> bytes:
            if at:
                begun.set()
                assert goes_on.wait(SECONDS)
                over.append(at)
            return b"piece"

    def waited(job: Any) -> None:
        goes_on.set()
        wait(job)

    monkeypatch.setattr(engine.Job, "wait", waited)
    pieces = pieces_of(Source(), 0, 5 * reading._STEP)  # type: ignore[arg-type]
    try:
        assert next(pieces) == b"piece"
        assert begun.wait(SECONDS)
        pieces.close()  # type: ignore[attr-defined]
        assert over
    finally:
        goes_on.set()
