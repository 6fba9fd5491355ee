"""The command ``python -m benchmarks.run [--smoke] [NAME...]``.

Tables go to stdout as Markdown, progress to stderr, and each result into benchmarks/results/ as soon as its benchmark
is done. ``python -m benchmarks.publish`` then brings the newest results into docs/.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import child
from benchmarks.harness import Settings
from benchmarks.machine import describe, machine
from benchmarks.result import RESULTS, markdown, store

NAMES = (
    "sizes",
    "times",
    "throttled",
    "objects",
    "memory",
    "save_load",
    "harm",
    "small_items",
    "encryption",
    "rekey",
    "many_items",
    "manager",
    "granite",
    "differences",
)
UNPUBLISHED = (
    "gpu",
    "cores",
    "scaling",
    "read_once",
    "incremental",
)  # run by their names alone, or in a smoke run


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that were named, or all of them."""
    options = _options(arguments)
    child.smoke = options.smoke
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    print(f"{describe(machine())}\n", flush=True)
    with TemporaryDirectory(prefix="streamxf-bench-", dir=options.folder) as temporary:
        folder = Path(temporary)
        settings = Settings(
            options.smoke,
            1 if options.smoke else options.rounds,
            options.mib,
            folder,
            folder if options.smoke else _cache(),
        )
        results = options.results or (folder / "results" if options.smoke else RESULTS)
        for name in options.names or (NAMES + UNPUBLISHED if options.smoke else NAMES):
            _run(name, settings, results)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--smoke", action="store_true", help="very small data: shows that everything works")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the headline state (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written (default: the temporary folder)")
    parser.add_argument("--results", type=Path, help="where results go (default: benchmarks/results; smoke: nowhere)")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - {*NAMES, *UNPUBLISHED}):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join([*NAMES, *UNPUBLISHED])}")
    if min(options.rounds, options.mib) < 1:
        parser.error("--rounds and --mib must be at least 1")
    return options


def _run(name: str, settings: Settings, results: Path) -> None:
    print(f"benchmarks: {name}", file=sys.stderr, flush=True)
    facts = machine()
    start = time.perf_counter()
    result = import_module(f"benchmarks.{name}").run(settings)
    seconds = time.perf_counter() - start
    if result is None:
        return
    path = store(result, settings, facts, results, seconds)
    print(markdown(result), flush=True)
    place = "" if settings.smoke else f", results in {path}"
    print(f"benchmarks: {name} took {seconds:.0f} s{place}", file=sys.stderr, flush=True)


def _cache() -> Path:
    """Where the trained state is kept, outside of the checkout: ``make clean`` need not train again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamxf-benchmarks"


if __name__ == "__main__":
    sys.exit(main())
