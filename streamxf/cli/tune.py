"""``streamxf tune``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import streamxf
from streamxf.cli import options, units
from streamxf.cli.exits import FAILED, FINE
from streamxf.cli.show import Output, TextTable, as_json, say
from streamxf.errors import ParameterError
from streamxf.wording import many, rate_text, size_text

if TYPE_CHECKING:
    from streamxf.chain import Chain
    from streamxf.keys import KeyRing


_SIZE = 2**28
_MEASURED = ("stored_bytes", "save_seconds", "load_seconds", "correct")

DONE = {"save rate": "save_bytes_per_second", "load rate": "load_bytes_per_second"}
_CODED = {"encode": "encode_bytes_per_second", "decode": "decode_bytes_per_second"}


def tune(
    path: str | None = options.argument(
        "PATH",
        "A checkpoint of any format, or its URL; with --runs, random weights in bf16 are saved without it.",
        None,
        callback=options.existing,
    ),
    bandwidth: float | None = options.value(
        "RATE",
        "Bandwidth of the storage: 500MB/s, 2GB/s. By default the disk is measured by writing for two seconds.",
        parser=units.rate,
    ),
    at: str | None = options.value(
        "FOLDER",
        "Where to measure the disk, by default the folder of PATH; with --runs, where to save, in a temporary folder, "
        "by default of the current one.",
    ),
    runs: int | None = options.value("N", "Save and load by each chain N times, instead of an estimate.", min=1),
    size: int | None = options.value("SIZE", "With --runs: how much to save; 256MiB if not given.", parser=units.size),
    threads: int | None = options.value("N", "With --runs: the writer's thread_count; 1 if not given.", min=1),
    chain: list[str] | None = options.value(
        "CHAIN",
        "A chain to try, such as floatzip or zstd:level=3+checksum+encrypt; '' for none. Repeatable; by default some "
        "of each kind.",
        autocompletion=options.codecs_behind,
    ),
    encrypt: bool = options.flag("Add encryption to the default chains."),
    workers: int | None = options.value("N", "Threads for coding; by default one for each CPU.", min=1),
    *,
    keys: options.Group,
    out: Output,
) -> int:
    """Find the best chain for this data and this storage.

    Each chain codes a sample of the data, a few MiB. The times of a save and a load of all of it are estimated from
    that and the bandwidth.

    With --runs, a part of the data is saved and loaded instead. The chains take turns, after one round to warm up, and
    medians are shown. Saves are synced to the disk, and loads bypass the page cache. Every load is compared bit for
    bit. That needs disk space for the saves and memory for twice --size, and an idle machine.

    Examples:
    streamxf tune model.safetensors --bandwidth 2GB/s
    streamxf tune /checkpoints/step-1000 --at /checkpoints
    streamxf tune model.safetensors --at /checkpoints --runs 3
    streamxf tune --at /checkpoints --runs 5 --size 1GiB --chain floatzip --chain lz4
    """
    from streamxf.keys import KeyRing

    without = {"--bandwidth": bandwidth, "--workers": workers}
    for option, value in (without if runs is not None else {"--size": size, "--threads": threads}).items():
        if value is not None:
            raise ParameterError(f"{option} goes {'without' if runs is not None else 'with'} --runs")
    chains = _chains_to_try(chain, encrypt)
    ring = KeyRing.of(**keys)
    if runs is not None:
        return _save_and_load(path, at or ".", chains, ring, size or _SIZE, runs, threads or 1, out)
    if path is None:
        raise ParameterError("there is nothing to estimate: name a checkpoint or file, or save random weights (--runs)")
    return _estimate(path, at, chains, ring, bandwidth, workers, out)


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
        return [Chain.parse(text, keys=key) for text in texts]
    more = [Encrypt(key)] if encrypt else []
    return [Chain([*Chain.parse(text), *more]) for text in CANDIDATES]


def _estimate(
    path: str,
    at: str | None,
    chains: list[Chain],
    keys: KeyRing,
    bandwidth: float | None,
    workers: int | None,
    out: Output,
) -> int:
    from streamxf.tuning.estimate import FIGURES, measure_bandwidth

    if bandwidth is not None and at is not None:
        raise ParameterError("--at measures the bandwidth, and --bandwidth sets it: pass only one of them")
    source = "measured" if bandwidth is None else "as given"
    if bandwidth is None:
        if at is None and ("://" in path or "::" in path):
            raise ParameterError("the bandwidth of a URL cannot be measured: pass it, such as --bandwidth 500MB/s")
        folder = at if at is not None else path if os.path.isdir(path) else os.path.dirname(path) or "."
        with out.progress("Measuring the disk") as bar:
            bandwidth = measure_bandwidth(folder, progress=bar)
    with out.progress("Trying chains") as bar:
        found = streamxf.tune(path, bandwidth=bandwidth, chains=chains, keys=keys, workers=workers, progress=bar)
    if out.json:
        facts = {name: value for name, value in found.to_dict().items() if "/" not in name}
        facts |= {"path": path, "bandwidth_measured": source == "measured"}
        as_json(facts | {"candidates": _facts_of(found.estimates, FIGURES)})
        return FINE
    say(
        f"{size_text(found.raw_bytes)} to storage of {rate_text(found.bandwidth)} ({source}), "
        f"{many(found.workers, 'worker')}, measured on {size_text(found.sampled_bytes)}"
    )
    best = next(each for each in found.estimates if each.chain == str(found.chain))
    print_figures("chain", found.estimates, _CODED, best)
    say(f"recommended: {best.label}\n{found.reason}")
    return FINE


def _save_and_load(
    path: str | None, at: str, chains: list[Chain], keys: KeyRing, size: int, runs: int, threads: int, out: Output
) -> int:
    from streamxf.cli.timing import Side, measure, portion_of, random_weights
    from streamxf.tuning.estimate import choose

    if not os.path.isdir(at):
        raise ParameterError(f"--at {at!r}: the folder does not exist")
    if path is None:
        state = random_weights(size)
    else:
        with out.progress("Reading") as bar:
            state = portion_of(path, keys, size, bar)
    sides = [Side.of(chain, thread_count=threads) for chain in chains]
    with TemporaryDirectory(prefix="streamxf-tune-", dir=at) as folder, out.progress("Saving") as bar:
        found = measure(state, sides, Path(folder), runs, progress=bar)
    best = found[choose(found)]
    wrong = [each.label for each in found if not each.correct]
    if out.json:
        facts = {"path": path, "at": at, "good": not wrong, "chain": best.chain, "items": best.items}
        as_json(facts | {"raw_bytes": best.raw_bytes, "candidates": _facts_of(found, _MEASURED)})
        return FAILED if wrong else FINE
    say(
        f"{size_text(best.raw_bytes)} of {path or 'random weights'} in {many(best.items, 'tensor')}, saved at {at}\n"
        f"Medians of {many(runs, 'run')} of each chain in turn, after one to warm up."
    )
    print_figures("chain", found, DONE, best)
    say(f"recommended: {best.label}")
    for each in wrong:
        say(f"NOT IDENTICAL AFTER A LOAD by {each}: do not save with it")
    return FAILED if wrong else FINE


def print_figures(heading: str, found: Sequence[Any], rates: Mapping[str, str], best: Any = None) -> None:
    """A table of sizes, times, and rates by heading and attribute, of timings or estimates; `best` stands out."""
    numbers = ("stored", "of raw", "save", "load", *rates)
    table = TextTable(heading, *numbers, right=numbers)
    for each in found:
        times = (f"{took:,.3f} s" for took in (each.save_seconds, each.load_seconds))
        speeds = (rate_text(getattr(each, name)) for name in rates.values())
        sizes = size_text(each.stored_bytes), f"{each.stored_bytes / each.raw_bytes:.3f}"
        table.row(each.label, *sizes, *times, *speeds, style="bold" if each is best else "")
    table.print()


def _facts_of(found: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in ("chain", *names)} for each in found]
