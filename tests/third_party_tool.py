"""A tool that somebody else could have written, of what docs/api.md has for everybody: the mean of several checkpoints.

Usage: third_party_tool.py KEY MEAN CHECKPOINT...
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy

from streamxf import Checkpoint, CheckpointWriter
from streamxf.errors import ParameterError, StreamxfError
from streamxf.places import open_storage, put_small, read_small
from streamxf.reading import Box, BoxReader, TensorItem


def average(key: str, to: str, places: Sequence[str]) -> int:
    """Write the mean of each tensor of float32, and all else as the first checkpoint has it; returns how many means."""
    count = 0
    with ExitStack() as stack:
        readers = [stack.enter_context(Checkpoint(place, keys=key, framework="numpy")) for place in places]
        writer = stack.enter_context(CheckpointWriter(to, "floatzip+encrypt", recipients=key))
        for name, item in readers[0].stored.items():
            for place, reader in zip(places, readers, strict=True):
                if name not in reader.stored or shape_of(reader, name) != shape_of(readers[0], name):
                    raise ParameterError(f"{place} has no {name} of the same shape")
            if isinstance(item, TensorItem) and item.dtype == "float32":
                writer.add(name, means_of(readers, name), dtype=item.dtype, shape=item.shape)
                count += 1
            else:
                writer[name] = readers[0][name].read()
    put_small(open_storage(to), "average.json", json.dumps({"of": list(places)}).encode())
    return count


def shape_of(reader: BoxReader, name: str) -> tuple[int, ...] | None:
    item = reader.stored[name]
    return item.shape if isinstance(item, TensorItem) else None


def means_of(readers: Sequence[BoxReader], name: str) -> Iterator[bytes]:
    """The elements, row-major, a few MiB at a time."""
    each = [reader.read_boxes(Box.of(reader.stored[name], 2**16)) for reader in readers]
    for arrays in zip(*each, strict=True):
        yield numpy.mean([array.view(numpy.float32) for array in arrays], axis=0, dtype=numpy.float32).tobytes()


if __name__ == "__main__":
    key, to, *places = sys.argv[1:]
    try:
        print(average(key, to, places), read_small(open_storage(to), "average.json", 2**16))
    except StreamxfError as error:
        sys.exit(f"third_party_tool: {error}")
