"""Run as a process: reads the tensor "t" of a checkpoint box by box, and prints by how many MiB it has grown."""

from __future__ import annotations

import sys
from pathlib import Path

from streamxf.formats.opening import open_source
from streamxf.formats.source import Box, boxes_of


def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) // 1024


def main() -> None:
    with open_source(sys.argv[1]) as source:
        entry = source.contents.entries["t"]
        list(source.read([Box(entry, (0, 0), (1, 1))]))  # now codecs and threads are there
        before = peak()
        for _ in source.read(boxes_of(entry, 4)):
            pass
        print(peak() - before)


if __name__ == "__main__":
    main()
