"""torchtitan's checkpointer in a loop of its own: torchrun --nproc-per-node 2 torchtitan_checkpointer.py RUN [MODE].

Killed and started again, it resumes where it saved last. MODE is torchtitan's --checkpoint.async-mode.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

import streamxf
from streamxf.integrations.torchtitan import ManagedCheckpointer

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


class Progress:
    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main(folder: str, mode: str = "disabled") -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizers = default_adamw(implementation="for-loop").build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=STEPS)
    progress = Progress()
    config = ManagedCheckpointer.Config(
        enable=True,
        manager={"save": streamxf.Schedule(steps=SAVE_EVERY), "keep": streamxf.Retention(last=2, every=6)},
        async_mode=mode,
        last_save_model_only=False,
        initial_load_model_only=False,
    )
    checkpointer = config.build(
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=folder,
    )
    if checkpointer.load() and rank == 0:
        print(f"resumed from step {progress.step}", flush=True)

    while progress.step < STEPS:
        progress.step += 1
        torch.manual_seed(1000 * progress.step + rank)
        data = torch.randn(32, 64)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        checkpointer.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        if rank == 0:
            print(f"step {progress.step} loss {loss.item():.9f}", flush=True)
        checkpointer.save(progress.step, last_step=progress.step == STEPS)
        if checkpointer.manager.stopping:
            break
    checkpointer.close()
    dist.barrier()  # a thread of gloo's that still holds a tensor of the save would abort Python at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
