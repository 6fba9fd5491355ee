"""`ManagedCheckpointer`: torchtitan's checkpointer with the schedule, retention and resume of a `CheckpointManager`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer import CheckpointManager as TorchtitanManager

from streamxf.errors import is_damage
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.record import numbers_in


class ManagedCheckpointer(TorchtitanManager):  # type: ignore[misc]  # torchtitan is not there when types are checked
    """Replaces torchtitan's ``CheckpointManager``, with all its options and modes::

        checkpoint = ManagedCheckpointer.Config(enable=True, manager={"save": Schedule(seconds=1800), "keep": 3})

    `manager` has arguments for `streamxf.CheckpointManager`; `interval` and `keep_latest_k` are the defaults of `save`
    and `keep`.

    Attributes
    ----------
    manager : CheckpointManager, optional
        None if nothing is saved: with ``load_only``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(TorchtitanManager.Config):  # type: ignore[misc]
        """torchtitan's, and one more."""

        manager: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        """Arguments for streamxf.CheckpointManager."""

        def to_dict(self) -> dict[str, Any]:
            return {**TorchtitanManager.Config.to_dict(self), "manager": repr(self.manager)}  # it becomes JSON

    def __init__(self, config: Config, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        self.manager: CheckpointManager | None = None
        if self.enable and not self.load_only:
            given = {"save": self.interval, "keep": self.keep_latest_k or None, **config.manager}
            self.manager = CheckpointManager(self.folder, **given)

    def __del__(self) -> None:
        """Nothing: torchtitan's would wait for the other ranks whenever this object goes away."""

    def dcp_save(self, state_dict: dict[str, Any], checkpoint_id: str, *args: Any, **kwargs: Any) -> Any:
        assert self.manager is not None  # by _should_save
        step = numbers_in(checkpoint_id)[-1]
        self.manager.begin(step)
        result = super().dcp_save(state_dict, checkpoint_id, *args, **kwargs)
        saved = getattr(result, "upload_completion", result)
        self.manager.commit(step, after=saved if isinstance(saved, Future) else None)
        return result

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        if self.manager is None:
            return False
        first = curr_step == 1 and self.enable_first_step_checkpoint
        return self.manager.should_save(curr_step, last=last_step or first)

    def _load(self, step: int = -1) -> bool:
        damaged: dict[str, str] = {}
        while self.manager is not None and step == -1 and (path := self.manager.latest(damaged)) is not None:
            try:
                return bool(super()._load(numbers_in(str(path))[-1]))
            except CheckpointException as error:  # the same on all ranks
                failures = [failure for failure, _ in error.failures.values()]
                if not all(map(is_damage, failures)):
                    raise
                damaged[os.path.basename(str(path))] = f"{type(failures[0]).__name__}: {failures[0]}"
        return bool(super()._load(step))

    def _find_load_step(self, folder: str = "") -> int:
        # _load has looked, on all ranks: torchtitan calls this only where the folder is already seen
        return -1 if self.manager is not None else int(super()._find_load_step(folder))

    def _should_purge(self) -> bool:
        return False

    def _close(self) -> None:
        super()._close()
        if self.manager is not None:
            self.manager.__exit__(*sys.exc_info())  # torchtitan closes after an error, too
