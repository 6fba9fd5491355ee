"""``streamxf bench``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamxf.cli import options, show, units
from streamxf.cli.candidates import NO_CHAIN, ChainsOption, EncryptOption, chains_to_try, print_figures
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError
from streamxf.wording import many, size_text

if TYPE_CHECKING:
    from streamxf.chain import Chain
    from streamxf.cli.timing import Side, Timing

EXAMPLES = (
    "streamxf bench model.safetensors --at /checkpoints",
    "streamxf bench --at /checkpoints --size 1GiB --chain floatzip --chain lz4",
)

_CLOSE = 1.05


def bench(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            show_default=False,
            help="A checkpoint of any format, whose tensors are saved and loaded; by default random weights in bf16.",
        ),
    ] = None,
    at: Annotated[str, typer.Option(metavar="FOLDER", help="Where to save; a temporary folder is made there.")] = ".",
    size: Annotated[
        int, typer.Option(metavar="SIZE", parser=units.size, help="How much to save: 256MiB, 2GB.")
    ] = "256MiB",  # type: ignore[assignment]  # a parser reads the default, too
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Timed saves and loads of each chain.")] = 3,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="The writer's thread_count.")] = 1,
    chain: ChainsOption = None,
    encrypt: EncryptOption = False,
    *,
    keys: options.Keys,
    json: options.Json = False,
) -> int:
    """Save and load some data through several chains, and recommend one for this data and disk.

    The chains take turns, and medians count. Saves are synced to the disk, and loads read from it, not from the cache.
    Every load is compared bit for bit. It needs disk space for its saves and memory for twice --size, and nothing else
    should be running.
    """
    from streamxf.cli.timing import measure, portion_of, random_weights
    from streamxf.keys import KeyRing

    if not os.path.isdir(at):
        raise ParameterError(f"--at {at!r}: the folder does not exist")
    chains = chains_to_try(chain, encrypt)
    if path is None:
        state = random_weights(size)
    else:
        with show.progress("Reading", json) as bar:
            state = portion_of(path, KeyRing.of(**keys), size, bar)
    sides = [_side(each, threads) for each in chains]
    with TemporaryDirectory(prefix="streamxf-bench-", dir=at) as folder, show.progress("Saving", json) as bar:
        found = measure(state, sides, Path(folder), runs, progress=bar)
    best = _best(found)
    good = all(each.correct for each in found)
    if json:
        _print_json(path, at, found, best, good)
    else:
        _print(path, at, found, best, runs)
    return FINE if good else FAILED


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


def _best(found: list[Timing]) -> Timing:
    """Of those whose save is about as fast as the fastest, the smallest, as `streamxf.tune` chooses."""
    limit = _CLOSE * min(each.save_seconds for each in found)
    close = [each for each in found if each.save_seconds <= limit]
    return min(close, key=lambda each: (each.stored_bytes, each.save_seconds))


def _print_json(path: str | None, at: str, found: list[Timing], best: Timing, good: bool) -> None:
    fields = ("stored_bytes", "save_seconds", "load_seconds", "correct")
    show.as_json(
        {
            "path": path,
            "at": at,
            "good": good,
            "chain": best.side,
            "raw_bytes": best.raw_bytes,
            "items": best.items,
            "candidates": [{"chain": each.side, **{name: getattr(each, name) for name in fields}} for each in found],
        }
    )


def _print(path: str | None, at: str, found: list[Timing], best: Timing, runs: int) -> None:
    out = show.console()
    what = path if path is not None else "random weights"
    out.print(
        f"{size_text(best.raw_bytes)} of {what} in {many(best.items, 'tensor')}, saved at {at}\n"
        f"Medians of {many(runs, 'run')} of each chain in turn, after one to warm up."
    )
    rows = []
    for each in found:
        save, load = (f"{each.raw_bytes / took / 1e6:,.0f}" for took in (each.save_seconds, each.load_seconds))
        rows.append((each.side, each, save, load))
    print_figures(rows, ("save\nMB/s", "load\nMB/s"), best.side)
    for each in found:
        if not each.correct:
            out.print(f"NOT IDENTICAL AFTER A LOAD by {each.side or NO_CHAIN}: do not save with it")
