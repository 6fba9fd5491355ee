"""Saves in torch's own process for that, changes the weights, and says whether the checkpoint has the old ones."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from .helpers import assert_kept, load, on_host, weights, writer

LIMIT = 100


def main(device: str, folder: str) -> None:
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}.store", rank=0, world_size=1)
    kind = torch.device(device)
    state = {"w": weights(9, kind), "gaps": weights(3, kind)[:, ::2], "step": torch.ones((), device=kind)}
    own = writer(Path(folder))
    for _ in range(2):
        wanted = on_host(state)
        saved = dcp.async_save(state, storage_writer=own, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        for tensor in state.values():
            tensor.add_(1)
        saved.result(LIMIT)
        assert_kept(load(state, Path(folder)), wanted)
    print("same", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
