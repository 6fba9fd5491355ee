"""Runs a script with a torch that takes the CPU for CUDA where Megatron Core's checkpoints insist on a GPU."""

import runpy
import sys

import torch

if __name__ == "__main__":  # not in the processes that Megatron spawns
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
