"""``streamxf tune``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from streamxf.cli import options, show, units
from streamxf.cli.candidates import ChainsOption, EncryptOption, chains_to_try, print_figures
from streamxf.cli.exits import FINE
from streamxf.errors import ParameterError
from streamxf.wording import many, rate_text, size_text

if TYPE_CHECKING:
    from streamxf.tuning.estimate import Recommendation

EXAMPLES = (
    "streamxf tune model.safetensors --bandwidth 2GB/s",
    "streamxf tune /checkpoints/step-1000 --at /checkpoints",
)


def tune(
    path: options.Path,
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
        str | None, typer.Option(metavar="FOLDER", help="Whose disk to measure; by default the folder of PATH.")
    ] = None,
    chain: ChainsOption = None,
    encrypt: EncryptOption = False,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads that code; by default as many as there are CPUs.")
    ] = None,
    *,
    keys: options.Keys,
    json: options.Json = False,
) -> int:
    """Estimate which chain suits this data and this storage.

    Each chain codes a sample of the data, some MiB. From that and from the bandwidth follows what a save and a load of
    all of it would take. bench really saves and loads.
    """
    from streamxf.keys import KeyRing
    from streamxf.tuning.tuner import tune as estimate

    if bandwidth is not None and at is not None:
        raise ParameterError("--at measures the bandwidth, and --bandwidth sets it: pass only one of them")
    chains = chains_to_try(chain, encrypt)
    ring = KeyRing.of(**keys)
    rate = bandwidth if bandwidth is not None else _measured(at if at is not None else _folder_of(path), json)
    with show.progress("Trying chains", json) as bar:
        found = estimate(path, bandwidth=rate, chains=chains, keys=ring, workers=workers, progress=bar)
    if json:
        _print_json(path, found, measured=bandwidth is None)
    else:
        _print(found, measured=bandwidth is None)
    return FINE


def _folder_of(path: str) -> str:
    if "://" in path or "::" in path:
        raise ParameterError("the bandwidth of a URL cannot be measured: pass it, such as --bandwidth 500MB/s")
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


def _measured(folder: str, json: bool) -> float:
    from streamxf.tuning.bandwidth import measure_bandwidth

    with show.progress("Measuring the disk", json) as bar:
        return measure_bandwidth(folder, progress=bar)


def _print_json(path: str, found: Recommendation, measured: bool) -> None:
    figures = ("stored_bytes", "encode_bytes_per_second", "decode_bytes_per_second", "save_seconds", "load_seconds")
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
                {"chain": each.chain, **{name: getattr(each, name) for name in figures}} for each in found.estimates
            ],
        }
    )


def _print(found: Recommendation, measured: bool) -> None:
    out = show.console()
    source = "measured" if measured else "as given"
    out.print(
        f"{size_text(found.raw_bytes)} to storage of {rate_text(found.bandwidth)} ({source}), "
        f"{many(found.workers, 'worker')}, measured on {size_text(found.sampled_bytes)}"
    )
    rows = [
        (each.chain, each, f"{each.encode_bytes_per_second / 1e9:.2f}", f"{each.decode_bytes_per_second / 1e9:.2f}")
        for each in found.estimates
    ]
    print_figures(rows, ("encode\nGB/s", "decode\nGB/s"), str(found.chain))
    out.print(found.reason)
