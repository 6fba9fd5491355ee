"""The command: ``python -m benchmarks.run [--smoke] [NAME...]``.

Tables go to stdout as Markdown, results as JSON into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Settings, machine, markdown, store

NAMES = ("save_load", "overhead", "memory", "small_items")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that were named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--smoke", action="store_true", help="very small data: shows that everything works")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default: 5)")
    parser.add_argument("--mib", type=int, default=256, help="size of the state in save_load, in MiB (default: 256)")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written (default: the temporary folder)")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(NAMES)):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if min(options.rounds, options.mib) < 1:
        parser.error("--rounds and --mib must be at least 1")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    facts = machine()
    print(f"{facts['processor']}, {facts['cpus']} CPUs, torch {facts['torch']}, {facts['time']}\n", flush=True)
    with TemporaryDirectory(prefix="streamxf-bench-", dir=options.folder) as temporary:
        settings = Settings(options.smoke, 1 if options.smoke else options.rounds, options.mib, Path(temporary))
        for name in options.names or NAMES:
            result = import_module(f"benchmarks.{name}").run(settings)
            path = store(result, settings)
            print(markdown(result), flush=True)
            print(f"benchmarks: {path.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
