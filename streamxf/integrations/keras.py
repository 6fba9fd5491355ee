"""`ManagedModelCheckpoint`: Keras saves through a chain when a `CheckpointManager` says so."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.saving import saving_lib  # the public functions take paths only

from streamxf.manager.manager import CheckpointManager
from streamxf.manager.record import numbers_in
from streamxf.reading import ChainLike, KeysLike
from streamxf.stream.plain import ChainFiles

_FILE = "model.keras.sxf"


class ManagedModelCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not there when types are checked
    """The manager decides after which epochs to save and what to keep, in place of ``ModelCheckpoint``::

        with streamxf.CheckpointManager("run", save=1, keep=3) as manager:
            managed = ManagedModelCheckpoint(manager, "floatzip+checksum")
            model = managed.load() or make_model()
            model.fit(data, epochs=12, initial_epoch=managed.epoch, callbacks=[managed])

    A checkpoint is a ``.keras`` file in a chain, ``model.keras.sxf`` in the folder of its epoch; its metrics are those
    of the epoch. The end of training is always saved; after a signal Keras saves and stops. Add it last, since other
    callbacks may stop training. `chain` and `keys` are those of `ChainCheckpointIO`, with the same refusals; the
    default is ``[FloatZip()]``. `epoch` is the number of epochs that the model of `load` was trained.
    """

    def __init__(self, manager: CheckpointManager, chain: ChainLike | None = None, *, keys: KeysLike = None) -> None:
        super().__init__()
        self._manager = manager
        self._files = ChainFiles(chain, keys=keys)
        self.epoch = self._step = self._saved = 0
        self._metrics: dict[str, float] = {}

    def load(self, **options: Any) -> Any:
        """The newest model that is as it was saved, optimizer included; None if there is none yet. `options` are those
        of ``keras.saving.load_model``. Raises as `CheckpointManager.latest` and `streamxf.open`.
        """
        if (folder := self._manager.latest()) is None:
            return None
        with self._files.read(f"{folder}/{_FILE}", ()) as file:
            model = saving_lib.load_model(file, **options)
        self.epoch = numbers_in(str(folder))[-1]
        return model

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self._manager.warn_of_starting_over("managed.load()")

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._step, self._metrics = epoch + 1, dict(logs or {})
        if self._manager.should_save(self._step, last=self.model.stop_training):
            self._save()
        if self._manager.stopping:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        if self._step != self._saved:
            self._save()

    def _save(self) -> None:
        with self._files.write(f"{self._manager.begin(self._step)}/{_FILE}") as (file, digest):
            saving_lib.save_model(self.model, file)
        self._manager.commit(self._step, metrics=self._metrics, digests={_FILE: digest.hexdigest()})
        self._saved = self._step
