"""`ManagedCheckpoint`: Lightning's Trainer saves when a `CheckpointManager` says so."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Any

from streamxf.errors import ParameterError
from streamxf.integrations.lightning import packages
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.signals import StopSignals

_FILE = "lightning.ckpt"
_NAMES = "lightning.pytorch", "pytorch_lightning"
_BASES: Any = [import_module(f"{name}.callbacks").Checkpoint for name in packages(*_NAMES) or _NAMES]


class ManagedCheckpoint(*_BASES):  # type: ignore[misc]
    """The manager decides when the Trainer saves and what it keeps, in place of ``ModelCheckpoint``::

        with streamxf.CheckpointManager("run", save=500, keep=3) as manager:
            managed = ManagedCheckpoint(manager)
            Trainer(callbacks=[managed]).fit(model, ckpt_path=managed.latest())

    A checkpoint is the Trainer's, ``lightning.ckpt`` in the step's folder. Its metrics are those that the model has
    logged for its step; those of a later validation during ``fit`` are added. After a signal the Trainer saves and
    stops. Inside the manager's block, ``ckpt_path="best"`` means the best by the manager's rules.

    With several ranks initialize torch.distributed before the manager is made.

    Raises ParameterError when training begins, if the Trainer saves in the background: by ``AsyncCheckpointIO``.
    """

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._step = self._saved = 0  # the last step, and the last one that was saved
        self._others: set[str] = set()
        self._validations: set[str] = set()  # the names of validation's metrics
        self._validated = 0  # the step of the last one
        self._best: str | None = None
        self._sigterm: Any = None

    def latest(self) -> str | None:
        """What to resume from, as ``ckpt_path``; None if there is none yet. Raises as `CheckpointManager.latest`."""
        path = self._manager.latest()
        return None if path is None else f"{path}/{_FILE}"

    def best(self) -> str | None:
        """The best one, as ``ckpt_path``; None if there is no metric, or none has it. As `CheckpointManager.best`."""
        path = self._manager.best()
        return None if path is None else f"{path}/{_FILE}"

    @property
    def best_model_path(self) -> str:
        """What ``ckpt_path="best"`` stands for. Lightning asks several times, and it is verified once for each save."""
        if self._best is None:
            self._best = self.best() or ""
        return self._best

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if any(base.__name__ == "AsyncCheckpointIO" for base in type(trainer.strategy.checkpoint_io).__mro__):
            raise ParameterError(
                "AsyncCheckpointIO is still writing when the Trainer says that a save is done: remove it"
            )
        self._sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = self._saved = trainer.global_step
        if trainer.is_global_zero and not self._step:
            self._manager.warn_of_starting_over("fit(..., ckpt_path=managed.latest())")
        if isinstance(getattr(self._sigterm, "__self__", None), StopSignals):
            signal.signal(signal.SIGTERM, self._sigterm)  # Lightning's would end training before it is saved

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self._step:
            return  # gradients are accumulated
        self._step = trainer.global_step
        if self._manager.should_save(self._step):
            self._save(trainer)
        if self._manager.stopping:
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._others = set(trainer.callback_metrics) - self._validations

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return  # what was validated may have other weights
        self._validations |= set(trainer.callback_metrics) - self._others
        self._validated = trainer.global_step
        if self._saved == self._validated > 0:
            self._commit(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step != self._saved:
            self._save(trainer)

    def _save(self, trainer: Any) -> None:
        self._saved = trainer.global_step
        path = f"{self._manager.begin(self._saved)}/{_FILE}"
        trainer.save_checkpoint(path)
        saved = getattr(trainer.strategy.checkpoint_io, "saved", None)  # ChainCheckpointIO's
        self._commit(trainer, {_FILE: saved[1]} if saved is not None and saved[0] == path else {})

    def _commit(self, trainer: Any, digests: dict[str, str] | None = None) -> None:
        self._best = None
        old = self._validations if self._validated != self._saved else set()
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name not in old}
        self._manager.commit(self._saved, metrics=metrics, digests=digests)
