"""docs/examples/keras_fit.py, killed, damaged and resumed; and the `.weights.h5` files of docs/frameworks/keras.md."""

from __future__ import annotations

import io
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import streamxf

from .damaged import assert_falls_back
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
