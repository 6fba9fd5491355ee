"""The command ``streamxf``, also as ``python -m streamxf.cli``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from streamxf import environment
from streamxf.cli.exits import INTERRUPTED, USAGE

NEEDED = ("rich", "typer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default of the process's own arguments; returns its exit status."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # which NumPy would start, and no command needs
    environment.ignored = True  # commands have chains of their own, and compare them with torch's own writer
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        print(f"streamxf: the command line needs {' and '.join(absent)}: pip install 'streamxf[cli]'", file=sys.stderr)
        return USAGE
    try:
        from streamxf.cli.run import run

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # while that was imported, or before signals were watched
        print("streamxf: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
