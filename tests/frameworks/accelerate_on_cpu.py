"""Runs a script with an accelerate that takes the CPU for an accelerator, since it shards on nothing else."""

from __future__ import annotations

import runpy
import sys

from accelerate.state import PartialState
from accelerate.utils import DistributedType

PartialState(cpu=True)
PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
