"""Makes torch-VERSION.tar.xz beside this file: what DCP of the torch that runs this saves.

    python3.10 -m venv older && older/bin/pip install --no-deps torch==1.13.1
    older/bin/pip install 'numpy<2' zstandard && older/bin/python tests/torch_on_cpu.py
    older/bin/python tests/dcp/older/make.py

It has folders: `one`, saved by one process; `two`, by two processes with a tensor sharded over both; and from torch
2.7 on `zstd`, by torch's own extension. Needs no streamxf, and runs from torch 1.13 and Python 3.8 on.
"""

import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

try:
    import torch.distributed.checkpoint as dcp
except ImportError:  # torch 1.13
    import torch.distributed._shard.checkpoint as dcp

from torch.distributed._shard import sharded_tensor

BIAS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16)
WEIGHT = torch.arange(8, dtype=torch.float32).reshape(4, 2)


def state():
    if torch.__version__.startswith("1.13."):  # whose DCP saves each nested dict as one object
        return {"weight": WEIGHT, "model.bias": BIAS, "step": 7}
    return {"weight": WEIGHT, "model": {"bias": BIAS}, "step": 7}


def save(state_dict, path, no_dist, **options):
    writer = dcp.FileSystemWriter(path, sync_files=False, **options)
    if hasattr(dcp, "save"):  # which sees by itself whether there is a process group
        dcp.save(state_dict, storage_writer=writer)
    else:
        dcp.save_state_dict(state_dict, writer, no_dist=no_dist)


def of_two(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    part = WEIGHT[2 * rank : 2 * rank + 2].clone()
    shard = sharded_tensor.Shard.from_tensor_and_offsets(part, [2 * rank, 0], rank)
    weight = sharded_tensor.init_from_local_shards([shard], [4, 2])
    save({**state(), "weight": weight}, f"{folder}/two", no_dist=False)
    dist.destroy_process_group()


def main():
    version = torch.__version__.split("+")[0]
    with tempfile.TemporaryDirectory() as folder:
        save(state(), f"{folder}/one", no_dist=True)
        mp.spawn(of_two, (folder,), nprocs=2)
        if tuple(map(int, version.split(".")[:2])) >= (2, 7):
            from torch.distributed.checkpoint._extension import ZStandard

            save(state(), f"{folder}/zstd", no_dist=True, _extensions=[ZStandard()])
        file = Path(__file__).with_name(f"torch-{version}.tar.xz")
        with tarfile.open(file, "w:xz") as archive:
            for path in sorted(Path(folder).glob("*/*")):
                entry = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
                entry.size = path.stat().st_size
                archive.addfile(entry, io.BytesIO(path.read_bytes()))
    print(file, os.path.getsize(file))


if __name__ == "__main__":
    sys.exit(main())
