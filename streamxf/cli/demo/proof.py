"""The proof: a second process gets a path and a key, loads what it finds there, and its tensors are compared."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from streamxf.cli.timing import State, as_bytes
from streamxf.keys import Key

Fingerprint = list[object]


@dataclass(frozen=True)
class Proof:
    """What the second process found.

    Attributes
    ----------
    equal, different : list of str
        Names of the tensors that came back bit for bit, and of all others: altered, lost or invented.
    descriptors : list of str
        The chain as the metadata records it, in the order in which a reader applies it.
    failure : str or None
        The end of what the process complained about, if it failed.
    """

    equal: list[str]
    different: list[str]
    descriptors: list[str]
    failure: str | None = None

    @property
    def good(self) -> bool:
        """Whether every tensor came back."""
        return self.failure is None and not self.different and bool(self.equal)


def fingerprint(tensor: torch.Tensor) -> Fingerprint:
    """Dtype, shape and SHA-256 of a tensor, in a form that survives JSON."""
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(as_bytes(tensor).numpy().data).hexdigest()]


def prove(state: State, path: Path, key: Key) -> Proof:
    """Load the checkpoint at `path` in a second process and compare it with `state`.

    The key goes through a pipe: other users of a machine can read a process's arguments.
    """
    command = [sys.executable, "-m", "streamxf.cli.demo.second_process", str(path)]
    done = subprocess.run(command, input=key.reveal(), capture_output=True, check=False)
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return Proof([], sorted(state), [], complaint[-1])
    found = json.loads(done.stdout)
    expected = {name: fingerprint(tensor) for name, tensor in state.items()}
    names = sorted(expected.keys() | found["tensors"].keys())
    equal = [name for name in names if expected.get(name) == found["tensors"].get(name)]
    return Proof(equal, sorted(set(names) - set(equal)), found["descriptors"])
