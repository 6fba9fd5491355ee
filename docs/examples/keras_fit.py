"""Keras with any backend: python keras_fit.py RUN. Killed and started again, it resumes where it saved last."""

import sys

import keras
import numpy as np

import streamxf

STEPS, SAVE_EVERY = 12, 3


class SaveModel(keras.callbacks.Callback):
    def __init__(self, manager: streamxf.CheckpointManager) -> None:
        super().__init__()
        self.manager = manager

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        step = epoch + 1
        print(f"step {step} loss {logs['loss']:.9f}", flush=True)
        if self.manager.should_save(step, last=step == STEPS):
            path = f"{self.manager.begin(step)}/model.keras.sxf"
            with streamxf.open(path, "wb", chain="floatzip+checksum") as file:
                keras.src.saving.saving_lib.save_model(self.model, file)
            self.manager.commit(step, metrics=logs)
        self.model.stop_training = self.manager.stopping


def main(folder: str) -> None:
    keras.utils.set_random_seed(0)
    data = np.random.default_rng(0).standard_normal((32, 64), dtype="float32")
    begin = 0
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=2) as manager:
        last = manager.latest()
        if last is not None:
            with streamxf.open(f"{last}/model.keras.sxf") as file:
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
            callbacks=[SaveModel(manager)],
        )


if __name__ == "__main__":
    main(sys.argv[1])
