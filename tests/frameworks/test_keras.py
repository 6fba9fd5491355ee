"""docs/examples/keras_fit.py, killed, damaged and resumed; and the `.weights.h5` files of docs/frameworks.md."""

import io
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamxf
from streamxf.errors import KeyMissingError, PolicyError

from .damaged import assert_falls_back, flip, truncate
from .killed import EXAMPLES, assert_managed

KEY = streamxf.Key.generate()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_killed_and_resumed(backend: str, tmp_path: Path) -> None:
    if find_spec("keras") is None or find_spec(backend) is None:  # importing keras is up to its process
        pytest.skip(f"needs keras and {backend}")
    folder = assert_managed(tmp_path, [sys.executable], [EXAMPLES / "keras_fit.py"], KERAS_BACKEND=backend)
    assert streamxf.verify(folder / "step-12" / "model.keras.sxf").ok


@pytest.mark.slow
def test_damaged_and_resumed(tmp_path: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("needs keras")
    command: list[str | Path] = [sys.executable, EXAMPLES / "keras_fit.py"]
    assert_falls_back(tmp_path, command, "model.keras.sxf", KERAS_BACKEND="torch")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Trains for 6 epochs unless told otherwise; the epochs that were trained."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    from streamxf.integrations.keras import ManagedModelCheckpoint

    class Note(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[int] = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epochs.append(epoch)

    def run(*callbacks: Any, resume: bool = True, chain: Any = None, keys: Any = None, **manager: Any) -> list[int]:
        note, data = Note(), np.ones((8, 4), dtype="float32")
        with streamxf.CheckpointManager(tmp_path / "run", **{"save": 4, **manager}) as made:
            managed = ManagedModelCheckpoint(made, chain, keys=keys)
            if resume and (model := managed.load()) is not None:
                assert int(model.optimizer.iterations) == managed.epoch, "one for each epoch here"
            else:
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("adamw", "mse")
            model.fit(
                data,
                data[:, :1],
                validation_data=(data, data[:, :1]),
                epochs=6,
                initial_epoch=managed.epoch,
                verbose=0,
                callbacks=[note, *callbacks, managed],
            )
        return note.epochs

    return run


def test_the_manager_decides_what_is_saved(tmp_path: Path, train: Callable[..., list[int]]) -> None:
    assert train() == [0, 1, 2, 3, 4, 5]
    records = streamxf.list_checkpoints(tmp_path / "run")
    assert [record.step for record in records] == [4, 6], "and the last one"
    assert all(record.metrics is not None and {*record.metrics} == {"loss", "val_loss"} for record in records)
    assert train() == []


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_resumed_from_the_one_before_a_damaged_one(
    damage: Callable[[Path], None], tmp_path: Path, train: Callable[..., list[int]]
) -> None:
    train()
    damage(tmp_path / "run" / "step-6" / "model.keras.sxf")
    assert train() == [4, 5]
    assert train() == [], "it has been saved again"


def test_who_stops_training_saves_first(tmp_path: Path, train: Callable[..., list[int]]) -> None:
    keras = pytest.importorskip("keras")
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
    assert train(stopping, save=100) == [0, 1]
    told = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: signal.raise_signal(signal.SIGTERM) if epoch == 2 else None
    )
    assert train(told, save=100) == [2]
    assert [record.step for record in streamxf.list_checkpoints(tmp_path / "run")] == [2, 3]
    assert train() == [3, 4, 5]


def test_who_starts_over_in_a_run_is_told_how_to_go_on(train: Callable[..., list[int]]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "training starts over")
        train()
        train()
    with pytest.warns(UserWarning, match=r"has step 6: to resume from there, call managed\.load\(\)"):
        train(resume=False)


def test_a_chain_that_encrypts_loads_nothing_else(train: Callable[..., list[int]]) -> None:
    train()
    for options in {"chain": "floatzip+encrypt", "keys": KEY}, {"chain": [streamxf.Encrypt(KEY)]}:
        with pytest.raises(PolicyError, match="the chain in use encrypts"):
            train(**options)
        assert train(resume=False, **options)
        assert train(**options) == []
        with pytest.raises(KeyMissingError):
            train()
        assert train(resume=False)


def test_weights_are_read_at_random(tmp_path: Path) -> None:
    """HDF5 seeks while it writes, so a file is encoded when it is complete; while it reads, it may seek."""
    h5py = pytest.importorskip("h5py")
    values = np.arange(3_000_000)
    with h5py.File(tmp_path / "model.weights.h5", "w") as weights:
        weights["layers/dense/vars/0"] = values
        weights["layers/dense/vars/1"] = [1.5, 2.5]
    path = tmp_path / "model.weights.h5.sxf"
    with (
        open(tmp_path / "model.weights.h5", "rb") as source,
        streamxf.open(path, "wb", chain="floatzip+encrypt", keys=KEY) as target,
    ):
        shutil.copyfileobj(source, target)
    with streamxf.open(path, keys=KEY) as file, h5py.File(file) as weights:
        assert weights["layers/dense/vars/1"][...].tolist() == [1.5, 2.5]
        assert weights["layers/dense/vars/0"][2_000_000:2_000_003].tolist() == [2_000_000, 2_000_001, 2_000_002]
    with pytest.raises(io.UnsupportedOperation), streamxf.open(path, "wb") as file, h5py.File(file, "w"):
        pass
    assert streamxf.verify(path, keys=KEY).ok, "what failed has replaced nothing"


def test_files_have_no_name(tmp_path: Path) -> None:
    """Keras would put the weights, not encrypted, beside a file that has one."""
    with streamxf.open(tmp_path / "model.keras.sxf", "wb", chain="encrypt", keys=KEY) as file:
        assert not hasattr(file, "name")
    with streamxf.open(tmp_path / "model.keras.sxf", keys=KEY) as file:
        assert not hasattr(file, "name")
