"""The demonstration, step by step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import streamxf
from streamxf.cli.demo import show
from streamxf.cli.demo.damage import Damage, flip_one_bit
from streamxf.cli.demo.proof import Proof, prove
from streamxf.cli.demo.sides import full_chain, sides
from streamxf.cli.show import progress
from streamxf.cli.timing import State, Timing, measure
from streamxf.keys import Key


@dataclass(frozen=True)
class Shown:
    """What the demonstration showed; dictionaries have the name of each dtype.

    Attributes
    ----------
    good : bool
        Whether everything was as it should be.
    """

    good: bool
    measured: dict[str, list[Timing]]
    proofs: dict[str, Proof]
    damage: Damage

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        error = self.damage.error
        return {
            "good": self.good,
            "timings": {dtype: [_timing(row) for row in rows] for dtype, rows in self.measured.items()},
            "second_process": {dtype: _proof(one) for dtype, one in self.proofs.items()},
            "flipped": {
                "file": self.damage.file,
                "item": self.damage.item,
                "byte": self.damage.byte,
                "bit": self.damage.bit,
                "found": self.damage.found,
                "message": "" if error is None else str(error),
            },
        }


def _timing(row: Timing) -> dict[str, Any]:
    facts = asdict(row)
    facts["raw_bytes"], facts["stored_bytes"] = facts.pop("raw"), facts.pop("stored")
    return facts


def _proof(found: Proof) -> dict[str, Any]:
    return {
        "good": found.good,
        "tensors": len(found.equal) + len(found.different),
        "different": found.different,
        "descriptors": found.descriptors,
        "failure": found.failure,
    }


def run(name: str, states: dict[str, State], console: Console, runs: int) -> Shown:
    """Save, measure, prove and damage.

    Parameters
    ----------
    name : str
        What the weights are.
    states : dict
        State dicts of tensors by the name of their dtype.
    runs : int
        Timed runs of each writer.
    """
    key = Key.generate()
    console.print(f"{name}, saved through the chain {streamxf.Chain(full_chain(key))}", markup=False)
    with TemporaryDirectory(prefix="streamxf-demo-") as temporary:
        return _steps(states, key, Path(temporary), console, runs)


def _steps(states: dict[str, State], key: Key, folder: Path, console: Console, runs: int) -> Shown:
    measured = {}
    for dtype, state in states.items():
        with progress(f"Saving and loading {dtype}", console.quiet) as bar:
            measured[dtype] = measure(state, sides(key), folder / dtype, runs, progress=bar)
    show.timings(console, measured, runs)
    good = all(row.correct for rows in measured.values() for row in rows)
    show.verdict(console, good, "every load of every writer gave the saved tensors back")

    show.heading(console, "Loaded in a second process, which was told the path and the key only")
    last = {dtype: folder / dtype / str(len(rows) - 1) for dtype, rows in measured.items()}
    proofs = {dtype: prove(state, last[dtype], key) for dtype, state in states.items()}
    for dtype, found in proofs.items():
        show.proof(console, dtype, found)
    good &= all(found.good for found in proofs.values())

    show.heading(console, "The chain that it found in the metadata, in the order in which it is undone")
    dtype, state = next(iter(states.items()))
    show.chain(console, proofs[dtype].descriptors)

    show.heading(console, f"One bit of the {dtype} checkpoint flipped, and loaded again")
    damage = flip_one_bit(state, last[dtype], key)
    show.damage(console, damage)
    good &= damage.found

    console.print()
    show.verdict(console, good, "everything was as it should be" if good else "not everything was as it should be")
    return Shown(good, measured, proofs, damage)
