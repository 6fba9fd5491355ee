"""``streamxf tune``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import ParameterError
from streamxf.wording import many, printable, rate_text, size_text

if TYPE_CHECKING:
    from streamxf.chain import Chain
    from streamxf.cli.timing import Side, Timing
    from streamxf.tuning.estimate import Estimate, Recommendation

EXAMPLES = (
    "streamxf tune model.safetensors --bandwidth 2GB/s",
    "streamxf tune /checkpoints/step-1000 --at /checkpoints",
    "streamxf tune model.safetensors --at /checkpoints --runs 3",
    "streamxf tune --at /checkpoints --runs 5 --size 1GiB --chain floatzip --chain lz4",
)

NO_CHAIN = "no chain"
_WIDTH = 80
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LONGEST_LABEL = 32
_SIZE = 2**28


def tune(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            callback=lambda path: path and options.existing(path),
            show_default=False,
            help="A checkpoint of any format, or its URL; with --runs, random weights in bf16 are saved without it.",
        ),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            parser=units.rate,
            help="Of the storage: 500MB/s, 2GB/s. By default the disk is measured, by writing random data for two "
            "seconds.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Whose disk to measure, by default the folder of PATH; with --runs, where to save, in a temporary "
            "folder, by default in the current one.",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Save and load by each chain so many times, instead of an estimate."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="SIZE", parser=units.size, help="With --runs: how much to save; 256MiB if not given."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --runs: the writer's thread_count; 1 if not given.")
    ] = None,
    chain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHAIN",
            autocompletion=options.codecs_behind,
            help="A chain to try, such as floatzip or zstd:level=3+checksum+encrypt; '' for none. May be given several "
            "times; by default some of each kind.",
        ),
    ] = None,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Let the default chains encrypt, too.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Threads that code; by default as many as there are CPUs."),
    ] = None,
    key: options.Key = None,
    trust: options.Trust = None,
    allow_unsigned: options.Unsigned = False,
    json: options.Json = False,
) -> int:
    """Find out which chain suits this data and this storage.

    Each chain codes a sample of the data, some MiB. From that and from the bandwidth follows what a save and a load of
    all of it would take.

    With --runs, a part of the data is really saved and loaded. The chains take turns, after one round to warm up, and
    medians count. Saves are synced to the disk, and loads read from it, not from the cache. Every load is compared bit
    for bit. That needs disk space for its saves and memory for twice --size, and nothing else should be running.
    """
    from streamxf.keys import KeyRing

    without = {"--bandwidth": bandwidth, "--workers": workers}
    for option, value in (without if runs is not None else {"--size": size, "--threads": threads}).items():
        if value is not None:
            raise ParameterError(f"{option} goes {'without' if runs is not None else 'with'} --runs")
    chains = _chains_to_try(chain, encrypt)
    ring = KeyRing.of(key, trust, allow_unsigned)
    if runs is not None:
        return _save_and_load(path, at or ".", chains, ring, size or _SIZE, runs, threads or 1, json)
    if path is None:
        raise ParameterError("there is nothing to estimate: name a checkpoint or file, or save random weights (--runs)")
    return _estimate(path, at, chains, ring, bandwidth, workers, json)


def _chains_to_try(texts: Sequence[str] | None, encrypt: bool) -> list[Chain]:
    """The given chains, or those that are tried by default. Those that encrypt do so under a key made for that."""
    from streamxf.chain import Chain
    from streamxf.codecs.encrypt import Encrypt
    from streamxf.keys import Key
    from streamxf.tuning.tuner import CANDIDATES

    key = Key.generate()
    if texts:
        if encrypt:
            raise ParameterError("--encrypt is for the default chains; add +encrypt to yours")
        return [Chain.parse(text, key) for text in texts]
    return [Chain([*codecs, Encrypt(key)] if encrypt else codecs) for codecs in CANDIDATES]


# -- estimates -------------------------------------------------------------------------------------------------


def _estimate(
    path: str, at: str | None, chains: list[Chain], keys: Any, bandwidth: float | None, workers: int | None, json: bool
) -> int:
    from streamxf.tuning.tuner import tune as estimate

    if bandwidth is not None and at is not None:
        raise ParameterError("--at measures the bandwidth, and --bandwidth sets it: pass only one of them")
    rate = bandwidth if bandwidth is not None else _measured(at if at is not None else _folder_of(path), json)
    with show.progress("Trying chains", json) as bar:
        found = estimate(path, bandwidth=rate, chains=chains, keys=keys, workers=workers, progress=bar)
    if json:
        _estimate_as_json(path, found, measured=bandwidth is None)
        return FINE
    source = "measured" if bandwidth is None else "as given"
    show.console().print(
        f"{size_text(found.raw_bytes)} to storage of {rate_text(found.bandwidth)} ({source}), "
        f"{many(found.workers, 'worker')}, measured on {size_text(found.sampled_bytes)}"
    )
    rows = [
        (each.chain, each, f"{each.encode_bytes_per_second / 1e9:.2f}", f"{each.decode_bytes_per_second / 1e9:.2f}")
        for each in found.estimates
    ]
    _print_figures(rows, ("encode\nGB/s", "decode\nGB/s"), str(found.chain))
    show.console().print(found.reason)
    return FINE


def _folder_of(path: str) -> str:
    if "://" in path or "::" in path:
        raise ParameterError("the bandwidth of a URL cannot be measured: pass it, such as --bandwidth 500MB/s")
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


def _measured(folder: str, json: bool) -> float:
    from streamxf.tuning.bandwidth import measure_bandwidth

    with show.progress("Measuring the disk", json) as bar:
        return measure_bandwidth(folder, progress=bar)


def _estimate_as_json(path: str, found: Recommendation, measured: bool) -> None:
    fields = ("stored_bytes", "encode_bytes_per_second", "decode_bytes_per_second", "save_seconds", "load_seconds")
    show.as_json(
        {
            "path": path,
            "chain": str(found.chain),
            "reason": found.reason,
            "raw_bytes": found.raw_bytes,
            "sampled_bytes": found.sampled_bytes,
            "bandwidth_bytes_per_second": found.bandwidth,
            "bandwidth_measured": measured,
            "workers": found.workers,
            "candidates": [
                {"chain": each.chain, **{name: getattr(each, name) for name in fields}} for each in found.estimates
            ],
        }
    )


# -- saves and loads -------------------------------------------------------------------------------------------


def _save_and_load(
    path: str | None, at: str, chains: list[Chain], keys: Any, size: int, runs: int, threads: int, json: bool
) -> int:
    from streamxf.cli.timing import measure, portion_of, random_weights
    from streamxf.tuning.estimate import choose

    if not os.path.isdir(at):
        raise ParameterError(f"--at {at!r}: the folder does not exist")
    if path is None:
        state = random_weights(size)
    else:
        with show.progress("Reading", json) as bar:
            state = portion_of(path, keys, size, bar)
    sides = [_side(each, threads) for each in chains]
    with TemporaryDirectory(prefix="streamxf-tune-", dir=at) as folder, show.progress("Saving", json) as bar:
        found = measure(state, sides, Path(folder), runs, progress=bar)
    best = found[choose(found)]
    if json:
        _timings_as_json(path, at, found, best)
    else:
        _print_timings(path, at, found, best, runs)
    return FINE if all(each.correct for each in found) else FAILED


def _timings_as_json(path: str | None, at: str, found: list[Timing], best: Timing) -> None:
    fields = ("stored_bytes", "save_seconds", "load_seconds", "correct")
    show.as_json(
        {
            "path": path,
            "at": at,
            "good": all(each.correct for each in found),
            "chain": best.side,
            "raw_bytes": best.raw_bytes,
            "items": best.items,
            "candidates": [{"chain": each.side, **{name: getattr(each, name) for name in fields}} for each in found],
        }
    )


def _print_timings(path: str | None, at: str, found: list[Timing], best: Timing, runs: int) -> None:
    out = show.console()
    out.print(
        f"{size_text(best.raw_bytes)} of {path or 'random weights'} in {many(best.items, 'tensor')}, saved at {at}\n"
        f"Medians of {many(runs, 'run')} of each chain in turn, after one to warm up."
    )
    rows = []
    for each in found:
        save, load = (f"{each.raw_bytes / took / 1e6:,.0f}" for took in (each.save_seconds, each.load_seconds))
        rows.append((each.side, each, save, load))
    _print_figures(rows, ("save\nMB/s", "load\nMB/s"), best.side)
    for each in found:
        if not each.correct:
            out.print(f"NOT IDENTICAL AFTER A LOAD by {each.side or NO_CHAIN}: do not save with it")


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


# -- what people see -------------------------------------------------------------------------------------------


def _print_figures(
    found: Sequence[tuple[str, Timing | Estimate, str, str]], speeds: tuple[str, str], best: str
) -> None:
    """A table and charts of what chains took, and the one to choose. `found` has a chain, its figures and two speeds,
    whose headings are `speeds`.
    """
    out = show.console()
    numbers = ("stored", "of raw", *speeds, "save", "load")
    table = show.table("chain", *numbers, right=numbers)
    for chain, each, *rates in found:
        cells = size_text(each.stored_bytes), f"{each.stored_bytes / each.raw_bytes:.3f}", *rates
        seconds = f"{each.save_seconds:,.3f} s", f"{each.load_seconds:,.3f} s"
        show.row(table, chain or NO_CHAIN, *cells, *seconds, style="bold" if chain == best else "")
    out.print(table)
    width = min(out.width, _WIDTH)
    out.print("\n".join(chart("seconds to save", [(chain, each.save_seconds) for chain, each, *_ in found], width)))
    out.print("\n".join(chart("seconds to load", [(chain, each.load_seconds) for chain, each, *_ in found], width)))
    out.print(f"\nrecommended: {best or NO_CHAIN}")


def chart(title: str, bars: Sequence[tuple[str, float]], width: int) -> list[str]:
    """The lines of a bar chart, none of them longer than `width`: labels, and numbers that are not negative."""
    labels = [printable(label or NO_CHAIN, _LONGEST_LABEL) for label, _ in bars]
    values = [f"{value:,.3f}" for _, value in bars]
    left, right = max(map(len, labels)), max(map(len, values))
    room = max(8, width - left - right - 4)
    longest = max(value for _, value in bars) or 1.0
    drawn = [_drawn(value / longest, room) for _, value in bars]
    lines = zip(labels, drawn, values, strict=True)
    return [title, *(f"  {label:<{left}} {bar} {value:>{right}}" for label, bar, value in lines)]


def _drawn(share: float, room: int) -> str:
    """A bar that fills a share of the room."""
    if not show.can_show(_EIGHTHS):
        return ("#" * max(1, round(share * room))).ljust(room)
    whole, eighths = divmod(max(1, round(share * room * 8)), 8)
    return (_EIGHTHS[8] * whole + (_EIGHTHS[eighths] if eighths else "")).ljust(room)
