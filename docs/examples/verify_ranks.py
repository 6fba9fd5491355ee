"""A checkpoint verified by the ranks of a job: torchrun --nproc-per-node 8 verify_ranks.py PATH KEY"""

import sys
from concurrent.futures import Executor, Future

import torch.distributed as dist

import streamxf


class Ranks(Executor):
    """All ranks make the same calls. Each makes its share of the tasks, and all get the results."""

    def __init__(self):
        self.tasks = []

    def submit(self, call, /, *args, **kwargs):
        future = Shared(self)
        self.tasks.append((future, call, args))
        return future

    def share(self):
        tasks, self.tasks = self.tasks, []
        rank, ranks = dist.get_rank(), dist.get_world_size()
        own = [made(call, args) for _, call, args in tasks[rank::ranks]]
        found = [None] * ranks
        dist.all_gather_object(found, (len(tasks), own))
        if len({count for count, _ in found}) > 1:
            sys.exit("the ranks do not see the same files")
        for number, (future, *_) in enumerate(tasks):
            result, error = found[number % ranks][1][number // ranks]
            future.set_exception(RuntimeError(error)) if error else future.set_result(result)


class Shared(Future):
    def __init__(self, ranks):
        super().__init__()
        self.ranks = ranks

    def result(self, timeout=None):
        if not self.done():
            self.ranks.share()
        return super().result(timeout)


def made(call, args):
    try:
        return call(*args), None
    except Exception as error:  # then all ranks do the task themselves
        return None, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    dist.init_process_group("gloo")
    path, *keys = sys.argv[1:]  # locations of keys, such as env:CHECKPOINT_KEY
    report = streamxf.verify(path, keys=keys or None, executor=Ranks())
    if dist.get_rank() == 0:
        print(report)
    dist.destroy_process_group()
    sys.exit(not report.ok)
