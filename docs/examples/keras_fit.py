"""Keras with any backend: python keras_fit.py RUN. Killed and started again, it resumes where it saved last."""

import os
import sys
from pathlib import Path

import keras
import numpy as np

import streamxf

STEPS, SAVE_EVERY = 12, 3


class SaveModel(keras.callbacks.Callback):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if (epoch + 1) % SAVE_EVERY == 0:
            with streamxf.open(self.path, "wb", chain="floatzip+checksum") as file:
                keras.src.saving.saving_lib.save_model(self.model, file)
        print(f"step {epoch + 1} loss {logs['loss']:.9f}", flush=True)


def main(folder: Path) -> None:
    os.makedirs(folder, exist_ok=True)
    path = folder / "model.keras.sxf"
    keras.utils.set_random_seed(0)
    data = np.random.default_rng(0).standard_normal((32, 64), dtype="float32")
    begin = 0
    if path.exists():
        with streamxf.open(path) as file:
            model = keras.src.saving.saving_lib.load_model(file)
        begin = int(model.optimizer.iterations)  # one for each epoch here
        print(f"resumed from step {begin}", flush=True)
    else:
        layers = [keras.layers.Dense(256, "gelu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        model.compile("adamw", "mse")
    model.fit(
        data,
        data.sum(axis=1, keepdims=True),
        epochs=STEPS,
        initial_epoch=begin,
        shuffle=False,
        verbose=0,
        callbacks=[SaveModel(path)],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
