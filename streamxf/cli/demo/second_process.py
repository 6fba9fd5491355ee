"""``python -m streamxf.cli.demo.second_process PATH < KEY``: loads a checkpoint of which it knows only path and key.

Names, dtypes, shapes and the chain come out of the checkpoint's own metadata. It prints JSON: a fingerprint of each
tensor, and the chain that was recorded.
"""

from __future__ import annotations

import json
import sys

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

import streamxf
from streamxf.cli.demo.proof import fingerprint
from streamxf.cli.demo.quiet import quiet_torch


def main() -> None:
    """Load and report."""
    quiet_torch()
    reader = streamxf.FileSystemReader(sys.argv[1], keys=sys.stdin.buffer.read())
    metadata = reader.read_metadata()
    state = {
        name: torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata)
    }
    load(state, storage_reader=reader)
    recorded = next(iter(metadata.storage_data.values())).transform_descriptors
    tensors = {name: fingerprint(tensor) for name, tensor in state.items()}
    json.dump({"tensors": tensors, "descriptors": list(recorded or ())}, sys.stdout)


if __name__ == "__main__":
    main()
