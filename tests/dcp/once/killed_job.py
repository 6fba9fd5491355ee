"""Under torchrun: loads that read once, until a rank is killed in the middle of one. Arguments: a folder, and whether
ranks `die` of the signal by which torchrun ends them, or a framework handles it, so that they `stay`.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.dcp.once.meeting import Meeting

VICTIM = 2


def dying(folder: Path, original: Any) -> Any:
    def begin(*args: Any, **kwargs: Any) -> Any:
        wait = original(*args, **kwargs)
        (folder / "died").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
        return wait

    return begin


def main(folder: Path, how: str) -> None:
    torch.set_num_threads(1)
    if how == "stay":
        signal.signal(signal.SIGTERM, lambda *_: None)
    dist.init_process_group("gloo")
    path, state = folder / "checkpoint", {f"w{number}": torch.randn(1500, 1000) for number in range(8)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain="zstd"))
    for number in range(3):
        dies = number == 2 and dist.get_rank() == VICTIM
        with patch.object(Meeting, "begin", dying(folder, Meeting.begin) if dies else Meeting.begin):
            reader = streamxf.FileSystemReader(path, read="once")
            dcp.load(state, storage_reader=reader)
        assert reader.report is not None
        assert reader.report.read == "once"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
