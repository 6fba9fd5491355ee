"""Runs a script with an accelerate that takes the CPU for an accelerator, since it shards on nothing else."""

import os
import runpy
import sys
from typing import Any

from accelerate.state import PartialState
from accelerate.utils import DistributedType

_made = PartialState.__init__


def _on_cpu(self: PartialState, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    self.distributed_type = DistributedType.MULTI_XPU


os.environ["ACCELERATE_USE_CPU"] = "true"
PartialState.__init__ = _on_cpu  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
