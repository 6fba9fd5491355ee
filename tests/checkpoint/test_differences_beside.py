"""Differences in object stores, whose files are read by one thread, and where bases are named in their own folders."""

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Storage
from streamxf.checkpoint.memory import SaveMemory
from streamxf.manager.pins import pin_base
from tests.checkpoint.test_differences import stepped, weights
from tests.checkpoint.test_increments_beside import run as run  # a fixture
from tests.dcp.helpers import raw_bytes


def test_chains_of_differences_in_stores(run: Storage) -> None:
    memory, states = SaveMemory(), [{"x": weights(torch.bfloat16, 3000, 1000), "y": weights(torch.bfloat16, 1500)}]
    for step in range(12):  # of more files than are open at a time
        base = run.child(f"step-{step - 1}") if step else None
        writer = streamxf.CheckpointWriter(run.child(f"step-{step}"), memory=memory, base=base, block_size=1 << 18)
        writer.pin = pin_base
        with writer:
            for name, tensor in states[-1].items():
                writer[name] = tensor
        assert writer.report is not None
        assert writer.report.differences == (2 if step else 0), writer.report
        states.append({name: stepped(tensor, 0.01, step) for name, tensor in states[-1].items()})
    for step in (3, 11):
        place, state = run.child(f"step-{step}"), states[step]
        with streamxf.Checkpoint(place) as checkpoint:
            for name, tensor in state.items():
                assert torch.equal(raw_bytes(checkpoint[name].read()), raw_bytes(tensor))
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(into, storage_reader=streamxf.FileSystemReader(place), no_dist=True)
        assert all(torch.equal(raw_bytes(into[name]), raw_bytes(tensor)) for name, tensor in state.items())
        assert streamxf.verify(place).ok
        assert not streamxf.diff(place, place).changed
