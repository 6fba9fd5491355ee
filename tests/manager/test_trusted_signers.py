"""A run without encryption whose job trusts signers: nothing else counts there, nor do others' notes."""

from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf import CheckpointManager, Retention
from streamxf.checkpoint.notes import Note
from streamxf.errors import ParameterError
from streamxf.format.run import RunFacts
from streamxf.manager.forget import forget
from streamxf.manager.latest import latest
from streamxf.manager.listing import Run

from .runs import blank, state_at

SIGNER, OTHER = (streamxf.SigningKey.generate() for _ in range(2))
ONES: dict[str, Any] = {"unsigned": {}, "by another": {"signer": OTHER}}


def job(run: Path, signer: Any = SIGNER, trust: Any = SIGNER, **more: Any) -> CheckpointManager:
    reader = {} if trust is None else {"trust": trust.verify_key}
    return CheckpointManager(run, "zstd", writer={"signer": signer} if signer else {}, reader=reader, **more)


def saved(manager: CheckpointManager, *steps: int, **metrics: float) -> None:
    with manager:
        for step in steps:
            manager.save(step, state_at(step), metrics=metrics)


@pytest.fixture(params=ONES.values(), ids=ONES)
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Two checkpoints of the job, and then one that it does not trust."""
    saved(job(tmp_path), 1, 2, loss=0.5)
    saved(job(tmp_path, request.param.get("signer"), None), 3, loss=0.1)
    return tmp_path


def test_it_resumes_from_what_is_signed(run: Path) -> None:
    with job(run, keep=Retention(best=1, metric="loss")) as manager:
        assert manager.resume(blank()) == 2
        assert manager.best() == str(run / "step-2")
    with job(run, trust=None) as manager:
        assert manager.resume(blank()) == 3


def test_listings_name_what_is_signed(run: Path) -> None:
    trust = SIGNER.verify_key
    assert latest(run) == str(run / "step-3")
    assert latest(run, trust=trust) == str(run / "step-2")
    records = {record.name: record for record in Run.at(run, trust=trust).read().records}
    assert [name for name, record in records.items() if record.counts] == ["step-1", "step-2"]
    assert "sign" in records["step-3"].note


def test_nothing_else_is_removed_by_its_rules(run: Path) -> None:
    keep = Retention(last=1)
    assert forget(run, keep, trust=SIGNER.verify_key).removed == ("step-1",)
    saved(job(run, keep=keep), 4)
    assert sorted(path.name for path in run.glob("step-*")) == ["step-3", "step-4"]


@pytest.mark.parametrize("signer", [None, OTHER, SIGNER])
def test_notes_count_if_they_are_signed(run: Path, signer: Any) -> None:
    record = Run.at(run).record("step-2")
    assert record is not None
    said = {"save_id": record.save_id, "time": 2**50, "metrics": RunFacts.metrics_json({"loss": 9.0}), "sha256": {}}
    (run / "step-2" / ".streamxf-note-00000000").write_bytes(Note.seal(said, signer=signer))
    found = Run.at(run, trust=SIGNER.verify_key).record("step-2")
    assert found is not None
    assert found.metrics == {"loss": 9.0 if signer is SIGNER else 0.5}


def test_its_own_notes_count_at_its_next_start(tmp_path: Path) -> None:
    with job(tmp_path) as manager:
        manager.save(1, state_at(1))
        manager.commit(1, metrics={"loss": 0.25})
    notes = [Note.parse(path.read_bytes()) for path in (tmp_path / "step-1").glob(".streamxf-note-*")]
    assert [note.signed_by([SIGNER.verify_key]) for note in notes] == [True]
    with job(tmp_path, keep=Retention(last=1, best=1, metric="loss")) as manager:
        assert manager.resume(blank()) == 1
        assert manager.best() == str(tmp_path / "step-1")


@pytest.mark.parametrize("signer", [None, OTHER])
def test_a_job_that_does_not_trust_itself_is_refused(tmp_path: Path, signer: Any) -> None:
    with pytest.raises(ParameterError, match="a second start could not resume"):
        job(tmp_path, signer)
