"""What a manager is given, and what it makes of a mistake."""

import hashlib
import math
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamxf
from streamxf import CheckpointManager, Retention, forget, hold
from streamxf.checkpoint.access import Access
from streamxf.errors import KeyMissingError, NoCheckpointError, ParameterError
from streamxf.manager.notes import Authority
from streamxf.manager.sessions import Sessions
from streamxf.storage.opening import open_storage
from tests.dcp.helpers import stored_chain

from .runs import blank, complete, is_at, resumed, resumed_by, saved_run, state_at


@pytest.mark.parametrize("step", [10.0, None, "10", "/../../evil-9", -1, True], ids=repr)
def test_a_step_is_an_integer(tmp_path: Path, step: Any):
    """Or what is saved under its name would not be found again."""
    with CheckpointManager(tmp_path / "run") as manager:
        for call in (
            lambda: manager.should_save(step),
            lambda: manager.save(step, state_at(1)),
            lambda: manager.begin(step),
            lambda: manager.path(step),
        ):
            with pytest.raises(ParameterError, match="it is an integer from 0"):
                call()
    assert not (tmp_path / "run").exists()


ODD: list[Any] = [
    *(10**400, 2**60, -1, math.nan, True, None, np.int64(7), np.float64(1.5), torch.tensor(7), torch.tensor(1.5)),
    *(torch.ones(2), b"x", "", "7", "\udc80", "a\0b", [], [7], {"\udc80": 1}, {"a\0b": "1"}, {1: 2}, object()),
]
CALLS: dict[str, Any] = {
    "step": lambda manager, odd: manager.save(odd, state_at(7)),
    "state=": lambda manager, odd: manager.save(7, [odd]),
    "state= ": lambda manager, odd: manager.resume([odd]),
    "metric": lambda manager, odd: manager.save(7, state_at(7), metrics={"loss": odd}),
    "metrics": lambda manager, odd: manager.save(7, state_at(7), metrics=odd),
    "after": lambda manager, odd: [manager.begin(7), manager.save(8, state_at(8)), manager.commit(8, after=odd)],
    "digests": lambda manager, odd: manager.commit(1, digests=odd),
    "digests: ": lambda manager, odd: manager.commit(1, digests={"x": odd}),
    "rename": lambda manager, odd: manager.resume(blank(), rename=odd if odd is None else [odd]),
    "skip": lambda manager, odd: manager.latest(odd),
    "keep": lambda manager, odd: CheckpointManager(manager.path(1), keep=odd),
    "max_age": lambda manager, odd: Retention(max_age=odd),
    "mtbf": lambda manager, odd: streamxf.Schedule(optimal=True, mtbf=odd),
    "run_id": lambda manager, odd: streamxf.latest(f"{manager.path(1)}/..", run_id=odd),
    "mode": lambda manager, odd: streamxf.latest(f"{manager.path(1)}/..", mode=odd),
    "storage_options": lambda manager, odd: streamxf.list_checkpoints(f"{manager.path(1)}/..", storage_options=odd),
    "is no path": lambda manager, odd: streamxf.latest(odd),
    "writer": lambda manager, odd: CheckpointManager(manager.path(1), writer=[odd]),
}


@pytest.mark.parametrize("argument", CALLS)
def test_each_argument_is_taken_or_named(tmp_path: Path, argument: str):
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, state_at(1))
        for odd in ODD:
            try:
                CALLS[argument](manager, odd)
            except ParameterError as error:
                if argument not in str(error):
                    raise
            except NoCheckpointError:
                assert argument in ("is no path", "storage_options", "rename")
            else:
                assert resumed(tmp_path / "run") in (1, 7, 8)
    assert resumed(tmp_path / "run") in (1, 7, 8)


def test_digests_are_of_files_that_the_save_wrote(tmp_path: Path):
    with CheckpointManager(tmp_path) as manager:
        folder = Path(str(manager.begin(1)))
        (folder / "model.bin").write_bytes(b"1")
        digest = hashlib.sha256(b"1").hexdigest()
        for path in ("model.bim", f"{folder}/model.bin", ".streamxf-saving"):
            with pytest.raises(ParameterError, match=rf"digests: .*{path}: the save wrote no such file"):
                manager.commit(1, digests={"model.bin": digest, path: digest})
            assert complete(tmp_path) == []
        manager.commit(1, digests={"model.bin": digest})
        with pytest.raises(ParameterError, match="step-1 is complete"):
            manager.commit(1, digests={"model.bin": digest})
    assert complete(tmp_path) == ["step-1"]


def test_integers_of_numpy_will_do(tmp_path: Path):
    with CheckpointManager(tmp_path) as manager:
        manager.save(np.int64(7), state_at(7), metrics={"loss": np.float32(0.5), "accuracy": torch.tensor(1)})
    (record,) = streamxf.list_checkpoints(tmp_path)
    assert (record.step, record.metrics) == (7, {"loss": 0.5, "accuracy": 1.0})


@pytest.mark.parametrize(
    ("fault", "names"),
    {
        "for the step as its last number": ["step", "step-{:,}", "{:g}", "{}-of-8", "{0.foo}", "step-{}-{}", None],
        "it has a `/`": ["{}/x", "runs/step-{}"],
        "it begins with a dot": [".{}", "..{}"],
        "not printable": ["step\n{}"],
        "a number of more than": ["1" * 30 + "-{}"],
    }.items(),
)
def test_a_name_has_the_step_as_its_last_number(tmp_path: Path, fault: str, names: list[Any]):
    for name in names:
        with pytest.raises(ParameterError, match=fault):
            CheckpointManager(tmp_path, name=name)


@pytest.mark.parametrize("metrics", [{"loss": None}, {"loss": "x"}, {"loss": torch.ones(2)}, [0.5]], ids=repr)
def test_metrics_are_numbers(tmp_path: Path, metrics: Any):
    with CheckpointManager(tmp_path) as manager, pytest.raises(ParameterError, match="metric"):
        manager.save(1, state_at(1), metrics=metrics)


@pytest.mark.parametrize("keep", ["3", 1.5, True, [1]], ids=repr)
def test_what_is_kept(tmp_path: Path, keep: Any):
    saved_run(tmp_path, 1)
    with pytest.raises(ParameterError, match=r"^keep="):
        CheckpointManager(tmp_path, keep=keep)
    with pytest.raises(ParameterError, match=r"^keep="):
        forget(tmp_path, keep)


def test_what_is_installed_is_used(tmp_path: Path):
    """Or a job that encrypts everything would save its checkpoints for all to read."""
    key = streamxf.Key.generate()
    with streamxf.install(chain="floatzip+encrypt", keys=key):
        saved_run(tmp_path, 1)
        assert resumed(tmp_path) == 1
    assert stored_chain(tmp_path / "step-1", key) == "floatzip+encrypt"


def test_keys_beside_an_installed_chain_are_for_reading(tmp_path: Path):
    """The public key writes, and the private one that is given resumes."""
    private = streamxf.PrivateKey.generate()
    signer = streamxf.SigningKey.generate()
    with streamxf.install([streamxf.Encrypt(private.public, signer=signer)]):
        with CheckpointManager(tmp_path, keys=private) as manager:
            manager.save(1, state_at(1))
            assert resumed_by(manager) == 1
        with CheckpointManager(tmp_path) as manager, pytest.raises(KeyMissingError):
            manager.resume(blank())
    with streamxf.install("zstd"), pytest.raises(ParameterError, match="the chain does not encrypt"):
        CheckpointManager(tmp_path, keys=private)


def test_what_it_saves_it_can_read(tmp_path: Path):
    """Or each start would go back to before the first save with the new key."""
    old, new = streamxf.Key.generate(), streamxf.Key.generate()
    with pytest.raises(
        ParameterError, match=rf"encrypts to {new.id}, and keys= reads {old.id} alone.*keys=\[new, old\]"
    ):
        CheckpointManager(tmp_path, chain=[streamxf.Encrypt(new)], keys=old)
    with CheckpointManager(tmp_path, chain=[streamxf.Encrypt(new)], keys=[new, old]):
        """The way to change keys."""


def test_who_only_encrypts_resumes_from_no_plaintext(tmp_path: Path):
    saved_run(tmp_path, 3)
    chain = [streamxf.Encrypt(streamxf.PrivateKey.generate().public, signer=streamxf.SigningKey.generate())]
    with CheckpointManager(tmp_path, chain) as manager, pytest.raises(KeyMissingError, match="plaintext=True"):
        manager.resume(blank())


def test_trust_of_the_manager_replaces_the_signer_of_the_chain(tmp_path: Path):
    key, (signer, other) = streamxf.Key.generate(), (streamxf.SigningKey.generate() for _ in range(2))
    with CheckpointManager(tmp_path, [streamxf.Encrypt(key, signer=signer)]) as manager:
        manager.save(1, state_at(1))
    chain = [streamxf.Encrypt(key, signer=other)]
    with streamxf.install(chain):
        for given in ({}, {"chain": chain}):
            with CheckpointManager(tmp_path, **given) as manager, pytest.raises(NoCheckpointError, match="not trusted"):
                manager.resume(blank())
            with CheckpointManager(tmp_path, **given, reader={"trust": signer.verify_key}) as manager:
                assert manager.resume(blank()) == 1


def test_late_metrics_of_what_was_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with CheckpointManager(tmp_path, keep=Retention(best=1, metric="accuracy", mode="max")) as manager:
        for step in (1, 2):
            manager.save(step, state_at(step), metrics={"accuracy": 0.0})
        manager.wait()
        manager.commit(1, metrics={"accuracy": 1.0})
    assert "step-1 has been removed" in caplog.text
    assert complete(tmp_path) == ["step-2"]


def test_a_link_is_held_by_what_it_leads_to(tmp_path: Path):
    saved_run(tmp_path, 1, 2, 3)
    (tmp_path / "best").symlink_to("step-1")
    with hold(tmp_path / "best"):
        (tmp_path / "best").unlink()
        assert forget(tmp_path, 1).removed == ("step-2",)
    with pytest.raises(NoCheckpointError), hold(tmp_path / "nope" / "step-9"):
        pass
    assert not (tmp_path / "nope").exists()


@pytest.mark.parametrize(("code", "ended"), [(0, True), (None, True), (1, False)])
def test_an_exit_is_a_failure_if_its_code_says_so(tmp_path: Path, code: int | None, ended: bool):
    with pytest.raises(SystemExit), CheckpointManager(tmp_path) as manager:
        manager.save(1, state_at(1))
        raise SystemExit(code)
    (session,) = Sessions(open_storage(tmp_path), "step-{}", Authority(Access())).earlier()
    assert session.ended is ended


class _NeitherTrueNorFalse(UserDict[str, Any]):
    """As a TensorDict, and a mapping of NumPy arrays, are."""

    def __bool__(self) -> bool:
        raise RuntimeError("the truth of this mapping is not defined")


@pytest.mark.parametrize("mode", [False, "thread"])
def test_no_mapping_is_asked_for_its_truth(tmp_path: Path, mode: Any) -> None:
    odd = _NeitherTrueNorFalse
    options = {"async_save": mode, "writer": odd({"thread_count": 1}), "reader": odd()}
    with CheckpointManager(tmp_path, **options) as manager:
        manager.save(1, odd(state_at(1)), metrics=odd({"loss": 1.0}))
    state = odd(blank())
    with CheckpointManager(tmp_path, **options) as manager:
        assert manager.resume(state, rename=odd()) == 1
        assert manager.latest(skip=odd()) == str(tmp_path / "step-1")
    assert is_at(state.data, 1)


def test_a_state_without_anything_is_named(tmp_path: Path) -> None:
    saved_run(tmp_path, 1)
    with CheckpointManager(tmp_path) as manager, pytest.warns(UserWarning, match="empty at its top"):
        manager.resume({})
