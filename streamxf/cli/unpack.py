"""``streamxf unpack``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FINE

EXAMPLES = (
    "streamxf unpack run/checkpoint-12 model.safetensors --model",
    "streamxf unpack /checkpoints/step-1000 model.safetensors --prefix model.",
    "streamxf unpack /checkpoints/step-1000 step-1000.pt",
    "streamxf unpack /checkpoints/step-1000 hub/ --format huggingface --prefix model. --shard-size 2GB",
)


def unpack(
    source: options.Path,
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="What to write, or its URL.")],
    format: Annotated[
        Literal["safetensors", "torch", "huggingface", "dcp"] | None,
        typer.Option(
            metavar="FORMAT",
            help="safetensors, torch, huggingface, or dcp, a checkpoint that torch's own reader loads. By default what "
            "TARGET ends in (.safetensors; .pt, .pth, .bin, .ckpt), else what was packed if that was a file or a "
            "folder, else a Hugging Face folder.",
        ),
    ] = None,
    only: options.Only = None,
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix", metavar="TEXT", help="Only items with this prefix, which is removed from their names."
        ),
    ] = "",
    shard_size: Annotated[
        str, typer.Option("--shard-size", metavar="SIZE", help="Bytes of tensors in one file of a Hugging Face folder.")
    ] = "5GB",
    model: Annotated[
        bool,
        typer.Option(
            "--model",
            help="Only the model's tensors, by the names that the module and from_pretrained know. PATH may be what a "
            "Trainer, Lightning or torchtitan saved.",
        ),
    ] = False,
    skip_objects: Annotated[
        bool, typer.Option("--skip-objects", help="Leave out non-tensor objects if the format has no place for them.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing target; of folders only Hugging Face ones.")
    ] = False,
    *,
    access: options.Access,
    json: options.Json = False,
) -> int:
    """Write a checkpoint as a .safetensors or torch.save file, a Hugging Face folder or a stock DCP checkpoint.

    What pack made of a file or a folder becomes the same file or folder again, byte for byte. In another format, only
    the model of a packed folder is written. Tensors are written block by block, so memory does not depend on the size
    of the model.

    A local TARGET takes its place when all of it is written. If the command fails or is killed, the same command starts
    over.
    """
    from streamxf.tools.convert.unpack import unpack as write

    with show.progress("Unpacking", json) as bar:
        done = write(
            source,
            target,
            format=format,
            only=only or (),
            prefix=prefix,
            shard_size=units.size(shard_size),
            skip_objects=skip_objects,
            model=model,
            overwrite=overwrite,
            **access,
            progress=bar,
        )
    if json:
        show.as_json({"target": target, **asdict(done)})
    else:
        show.console().print(str(done))
    return FINE
