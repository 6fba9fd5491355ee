"""``streamxf bench``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamxf.cli import show, units
from streamxf.cli.candidates import ChainsOption, EncryptOption, chains_to_try, print_charts
from streamxf.cli.exits import FAILED, FINE
from streamxf.cli.keys import keys_at
from streamxf.cli.options import JsonOption, KeyOption, TrustOption, UnsignedOption
from streamxf.errors import ParameterError
from streamxf.wording import many, size_text

if TYPE_CHECKING:
    from streamxf.chain import Chain
    from streamxf.cli.timing import Side, State, Timing

EXAMPLES = (
    "streamxf bench model.safetensors --at /checkpoints",
    "streamxf bench --at /checkpoints --size 1GiB --chain floatzip --chain lz4",
)

_CLOSE = 1.05


@dataclass(frozen=True)
class _Found:
    """A chain, and what it took; `label` is the chain as people read it."""

    chain: Chain
    timing: Timing

    @property
    def label(self) -> str:
        return str(self.chain) or "no chain"


def bench(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            show_default=False,
            help="A checkpoint of any format, whose tensors are saved and loaded; by default random weights in bf16.",
        ),
    ] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="FOLDER", help="Where to save; a folder is made there, and removed again.")
    ] = ".",
    size: Annotated[
        int,
        typer.Option(
            "--size", metavar="SIZE", parser=units.size, help="How much to save: 256MiB, 2GB; it is in memory."
        ),
    ] = "256MiB",  # type: ignore[assignment]  # a parser reads the default, too
    runs: Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Timed saves and loads of each chain.")] = 3,
    threads: Annotated[int, typer.Option("--threads", min=1, metavar="N", help="The writer's thread_count.")] = 1,
    chain: ChainsOption = None,
    encrypt: EncryptOption = False,
    key: KeyOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    json: JsonOption = False,
) -> int:
    """Really save and load some data through several chains, and say which suits it and this disk.

    The chains take turns, and medians count. Saves are synced to the disk, and loads read from it, not from the cache.
    Every load is compared bit for bit. While it runs it needs the disk that its saves take, twice the memory of --size,
    and nothing else should be busy.
    """
    from streamxf.cli.portion import portion_of, random_weights
    from streamxf.keys import KeyRing

    if not os.path.isdir(at):
        raise ParameterError(f"--at {at!r}: the folder does not exist")
    chains = chains_to_try(chain, encrypt)
    if path is None:
        state = random_weights(size)
    else:
        keys = KeyRing.of(keys_at(key), keys_at(trust), allow_unsigned)
        with show.progress("Reading", json) as bar:
            state = portion_of(path, keys, size, bar)
    with TemporaryDirectory(prefix="streamxf-bench-", dir=at) as folder:
        found = _measured(state, chains, Path(folder), runs, threads, json)
    best = _best(found)
    good = all(each.timing.correct for each in found)
    if json:
        show.as_json(_facts(path, at, found, best, good))
    else:
        _print(path, at, found, best, runs)
    return FINE if good else FAILED


def _measured(state: State, chains: list[Chain], folder: Path, runs: int, threads: int, json: bool) -> list[_Found]:
    from streamxf.cli.timing import measure

    sides = [_side(each, threads) for each in chains]
    with show.progress("Saving and loading", json) as bar:
        timings = measure(state, sides, folder, runs, from_disk=True, progress=bar)
    return [_Found(*pair) for pair in zip(chains, timings, strict=True)]


def _side(chain: Chain, threads: int) -> Side:
    from streamxf.cli.timing import Side
    from streamxf.dcp.reader import FileSystemReader
    from streamxf.dcp.writer import FileSystemWriter

    encryption: Any = chain.encryption
    keys = list(encryption.recipients) if encryption is not None else None
    return Side(
        str(chain),
        partial(FileSystemWriter, thread_count=threads, _extensions=list(chain)),
        partial(FileSystemReader, keys=keys),
    )


def _best(found: list[_Found]) -> _Found:
    """Of those whose save is about as fast as the fastest, the smallest, as `streamxf.tune` chooses."""
    limit = _CLOSE * min(each.timing.save_seconds for each in found)
    close = [each for each in found if each.timing.save_seconds <= limit]
    return min(close, key=lambda each: (each.timing.stored, each.timing.save_seconds))


def _facts(path: str | None, at: str, found: list[_Found], best: _Found, good: bool) -> dict[str, Any]:
    return {
        "path": path,
        "at": at,
        "good": good,
        "chain": str(best.chain),
        "raw_bytes": best.timing.raw,
        "items": best.timing.items,
        "candidates": [
            {
                "chain": str(each.chain),
                "stored_bytes": each.timing.stored,
                "save_seconds": each.timing.save_seconds,
                "load_seconds": each.timing.load_seconds,
                "correct": each.timing.correct,
            }
            for each in found
        ],
    }


def _print(path: str | None, at: str, found: list[_Found], best: _Found, runs: int) -> None:
    out = show.console()
    timing = best.timing
    what = path if path is not None else "random weights"
    out.print(
        f"{size_text(timing.raw)} of {what} in {many(timing.items, 'tensor')}, saved at {at}\n"
        f"Medians of {many(runs, 'run')} of each chain in turn, after one to warm up."
    )
    numbers = ("stored", "of raw", "save", "\nMB/s", "load", "\nMB/s")
    table = show.table("chain", *numbers, right=numbers)
    for each in found:
        one = each.timing
        table.add_row(
            each.label,
            size_text(one.stored),
            f"{one.stored / one.raw:.3f}",
            f"{one.save_seconds:,.3f} s",
            f"{one.raw / one.save_seconds / 1e6:,.0f}",
            f"{one.load_seconds:,.3f} s",
            f"{one.raw / one.load_seconds / 1e6:,.0f}",
            style="bold" if each is best else "",
        )
    out.print(table)
    print_charts(out, [(each.label, each.timing.save_seconds, each.timing.load_seconds) for each in found])
    out.print(f"\nrecommended: {best.label}")
    for each in found:
        if not each.timing.correct:
            out.print(f"NOT REPRODUCED BIT FOR BIT by {each.label}: do not save with it")
