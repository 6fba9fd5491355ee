"""A tool that somebody else could have written, of what docs/api.md has for everybody: audits, and writes a mean.

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
        found = [audited(reader) for reader in readers]
        for name, item in readers[0].stored.items():
            if any(each.get(name) != found[0][name] for each in found):
                raise ParameterError(f"{name} is not alike in all: {[each.get(name) for each in found]}")
            if isinstance(item, TensorItem) and item.dtype == "float32":
                writer.add(name, means_of(readers, name), dtype=item.dtype, shape=item.shape)
                count += 1
            else:
                writer[name] = readers[0][name].read()
    put_small(open_storage(to), "average.json", json.dumps({"of": list(places), "items": found[0]}).encode())
    return count


def audited(reader: BoxReader) -> dict[str, str]:
    """What each item is; all of it is read."""
    found = {}
    for name, item in reader.stored.items():
        if isinstance(item, TensorItem):
            read = sum(array.nbytes for array in reader.read_boxes(Box.of(item)))
            found[name] = f"{item.dtype} {[*item.shape]}, {read} of {item.size} bytes"
        else:
            found[name] = str(type(reader.load_object(name)))
    return found


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
