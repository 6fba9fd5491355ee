"""``streamxf unpack``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from streamxf.cli import show, units
from streamxf.cli.exits import FINE
from streamxf.cli.keys import keys_at
from streamxf.cli.options import JsonOption, KeyOption, PathArgument, RequireOption, TrustOption, UnsignedOption

EXAMPLES = (
    "streamxf unpack /checkpoints/step-1000 model.safetensors --prefix model.",
    "streamxf unpack /checkpoints/step-1000 step-1000.pt",
    "streamxf unpack /checkpoints/step-1000 hub/ --format huggingface --prefix model. --shard-size 2GB",
)


def unpack(
    source: PathArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="What to write, or its URL.")],
    format: Annotated[
        Literal["safetensors", "torch", "huggingface", "dcp"] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="safetensors, torch, huggingface, or dcp, a checkpoint that torch's own reader loads. By default that "
            "of TARGET's suffix (.safetensors; .pt, .pth, .bin, .ckpt), else what was packed, else huggingface.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PATTERN", help="Only items whose names match, as '*.weight'; may be given several times."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Only items whose names begin with this, and without it.")
    ] = "",
    shard_size: Annotated[
        str, typer.Option("--shard-size", metavar="SIZE", help="Of tensors in one file of a Hugging Face folder.")
    ] = "5GB",
    skip_objects: Annotated[
        bool, typer.Option("--skip-objects", help="Leave out non-tensor objects if the format has no place for them.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the target; of folders only Hugging Face ones.")
    ] = False,
    key: KeyOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    require: RequireOption = None,
    json: JsonOption = False,
) -> int:
    """Write a checkpoint as a .safetensors or torch.save file, a Hugging Face folder or a stock DCP checkpoint.

    What pack made of a file or a folder becomes the same file or folder again, byte for byte. In another format, only
    the model of a packed folder is written. Tensors are read and written block by block, so memory does not depend on
    the size of the model.

    A local TARGET appears when all of it is written. If the command fails or is killed, the same command starts over.
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
            overwrite=overwrite,
            keys=keys_at(key),
            trust=keys_at(trust),
            allow_unsigned=allow_unsigned,
            require=require,
            progress=bar,
        )
    if json:
        show.as_json({"target": target, **asdict(done)})
    else:
        show.console().print(str(done))
    return FINE
