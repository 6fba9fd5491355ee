"""Keras with any backend: python keras_fit.py RUN. Killed and started again, it resumes where it saved last."""

import sys

import keras
import numpy as np

import streamxf
from streamxf.integrations.keras import ManagedModelCheckpoint

EPOCHS, SAVE_EVERY = 12, 3


class PrintLoss(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        print(f"step {epoch + 1} loss {logs['loss']:.9f}", flush=True)


def make_model() -> keras.Model:
    layers = [keras.layers.Dense(256, "gelu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("adamw", "mse")
    return model


def main(folder: str) -> None:
    keras.utils.set_random_seed(0)
    data = np.random.default_rng(0).standard_normal((32, 64), dtype="float32")
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=2) as manager:
        managed = ManagedModelCheckpoint(manager, "floatzip+checksum")
        model = managed.load() or make_model()
        if managed.epoch:
            print(f"resumed from step {managed.epoch}", flush=True)
        model.fit(
            data,
            data.sum(axis=1, keepdims=True),
            epochs=EPOCHS,
            initial_epoch=managed.epoch,
            shuffle=False,
            verbose=0,
            callbacks=[PrintLoss(), managed],
        )


if __name__ == "__main__":
    main(sys.argv[1])
