"""Run as a process: reads the tensor "t" of a checkpoint box by box, and prints by how many MiB it has grown."""

import os
import sys
from pathlib import Path

from streamxf.checkpoint.reading import Box
from streamxf.format.items import TensorItem
from streamxf.formats.opening import open_source
from streamxf.storage.opening import open_storage


def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) // 1024


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each worker has memory of its own
    with open_source(open_storage(sys.argv[1])) as reader:
        item = reader.stored["t"]
        assert isinstance(item, TensorItem)
        list(reader.read_boxes([Box(item, (0, 0), (1, 1))]))  # now codecs and threads are there
        before = peak()
        for _ in reader.read_boxes(Box.of(item)):
            pass
        print(peak() - before)


if __name__ == "__main__":
    main()
