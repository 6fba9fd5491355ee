"""What tools are tried on: a run of two checkpoints, whose places are known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from streamxf import Checksum, Encrypt, FloatZip, ZStandard
from tests.dcp import helpers
from tests.forge import Places

BLOCK = 1 << 16
CHAINS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "floatzip": lambda: [FloatZip()],
    "zstd": lambda: [ZStandard()],
    "checksum": lambda: [Checksum()],
    "full": helpers.full_chain,
    "sealed": lambda: [Checksum(), Encrypt(helpers.KEY)],
    "values": lambda: [ZStandard()],
    "sealed values": helpers.full_chain,
}


class World:
    """A run of two checkpoints of the items `a`, `b` and `o`, the newer one of which, `folder`, is to be damaged. With
    values there is also `p`, which shares a container with `o`.
    """

    def __init__(self, run: Path, chain: str) -> None:
        self.run, self.older, self.folder = run, run / "step-1", run / "step-2"
        self.keys = helpers.KEY if chain == "full" or chain.startswith("sealed") else None
        generator = torch.Generator().manual_seed(3)
        tensors = {name: torch.randn(60, 1000, generator=generator) for name in "ab"}
        values = {"o": [1, 2.5, "a value"], "p": "another" * 50_000}
        self.state: dict[str, Any] = tensors | (values if "values" in chain else {"o": {"an object"}})
        if not run.exists():
            for folder in (self.older, self.folder):
                helpers.save(self.state, folder, CHAINS[chain](), block_size=BLOCK)
        (self.file,) = helpers.data_files(self.folder)
        self.metadata = self.folder / ".metadata"
        self.pickled = len(helpers.sections_of(self.folder)[0])
        self.data = self.file.read_bytes()
        places = {name: item.places[0] for name, item in helpers.index_of(self.folder).items.items()}
        self.places = {name: (place.at, place.at + place.size) for name, place in places.items()}

    def block(self, item: str, number: int) -> tuple[int, int]:
        """Where a block of an item begins, with its head, and ends."""
        start, stop = self.places[item]
        head, end = Places.of(self.data[start:stop]).blocks[number]
        return start + head, start + end

    def replace(self, start: int, stop: int, data: bytes | None = None) -> None:
        """Put `data`, or zeros, in the place of bytes of the file."""
        self.file.write_bytes(self.data[:start] + (bytes(stop - start) if data is None else data) + self.data[stop:])
