"""`ManagerCallback`: a Hugging Face Trainer saves when a `CheckpointManager` says so."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from streamxf.errors import ParameterError
from streamxf.manager.manager import CheckpointManager


class ManagerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there when types are checked
    """The manager decides when the Trainer saves and what it keeps::

        trainer = Trainer(model, TrainingArguments("run", save_strategy="no"), ...)
        with streamxf.CheckpointManager("run", name="checkpoint-{}", save=500, keep=3) as manager:
            trainer.add_callback(ManagerCallback(manager))
            trainer.train(resume_from_checkpoint=manager.latest())

    The metrics of a checkpoint are those that the Trainer logs at its step, including evaluation. Each saved step is
    logged, so that its loss is known. After a signal the Trainer saves and stops.

    Add it after all other callbacks, which may stop training, since a checkpoint is complete once it has been called.

    Raises ParameterError when training begins, if the Trainer decides when to save or what to keep, or saves elsewhere.
    """

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._metrics: dict[str, float] = {}
        self._saved = 0  # the step of the last save

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.save_strategy != "no":
            raise ParameterError('the manager decides when to save, so use TrainingArguments(save_strategy="no")')
        if args.save_total_limit is not None:
            raise ParameterError("the manager decides what to keep: use its keep=, and no save_total_limit")
        first = f"{args.output_dir}/checkpoint-0"
        if os.path.realpath(str(self._manager.path(0))) != os.path.realpath(first):
            raise ParameterError(
                f"the Trainer saves to {first} where the manager expects {self._manager.path(0)}: use "
                f"CheckpointManager({args.output_dir!r}, name='checkpoint-{{}}')"
            )
        self._saved = state.global_step
        if state.is_world_process_zero and not self._saved:
            self._manager.warn_of_starting_over("train(resume_from_checkpoint=manager.latest())")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._metrics = {}
        if self._manager.should_save(state.global_step, last=control.should_training_stop) or control.should_save:
            self._begin(state, control)
        if self._manager.stopping:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        self._metrics |= {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_training_stop and self._saved != state.global_step:  # by EarlyStoppingCallback, say
            self._begin(state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._manager.commit(state.global_step, metrics=self._metrics)

    def _begin(self, state: Any, control: Any) -> None:
        self._manager.begin(state.global_step)
        self._saved = state.global_step
        control.should_save = control.should_log = True
