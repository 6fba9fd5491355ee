"""``streamxf unpack``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from streamxf.cli import options, units
from streamxf.cli.show import Output

EXAMPLES = (
    "streamxf unpack run/checkpoint-12 model.safetensors --model",
    "streamxf unpack /checkpoints/step-1000 model.safetensors --prefix model.",
    "streamxf unpack /checkpoints/step-1000 step-1000.pt",
    "streamxf unpack /checkpoints/step-1000 hub/ --format huggingface --prefix model. --shard-size 2GB",
)


def unpack(
    source: str = options.PATH,
    target: str = options.argument("TARGET", "What to write, or its URL."),
    format: Literal["safetensors", "torch", "huggingface", "dcp"] | None = options.value(
        "FORMAT",
        "safetensors, torch, huggingface, or dcp, a checkpoint that torch's own reader loads. By default what TARGET "
        "ends in (.safetensors; .pt, .pth, .bin, .ckpt), else what was packed if that was a file or a folder, else a "
        "Hugging Face folder.",
    ),
    only: list[str] | None = options.ONLY,
    prefix: str = options.value("TEXT", "Only items with this prefix, which is removed from their names.", ""),
    shard_size: str = options.value("SIZE", "Bytes of tensors in one file of a Hugging Face folder.", "5GB"),
    model: bool = options.flag(
        "Only the model's tensors, by the names that the module and from_pretrained know. PATH may be what a Trainer, "
        "Lightning or torchtitan saved."
    ),
    skip_objects: bool = options.flag("Leave out non-tensor objects if the format has no place for them."),
    overwrite: bool = options.flag("Replace an existing target; of folders only Hugging Face ones."),
    *,
    access: options.Access,
    out: Output,
) -> int:
    """Write a checkpoint as a .safetensors or torch.save file, a Hugging Face folder or a stock DCP checkpoint.

    What pack made of a file or a folder becomes the same file or folder again, byte for byte. In another format, only
    the model of a packed folder is written. Tensors are written block by block, so memory does not depend on the size
    of the model.

    A local TARGET takes its place when all of it is written. If the command fails or is killed, the same command starts
    over.
    """
    from streamxf.tools.convert.unpack import unpack as write

    with out.progress("Unpacking") as bar:
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
    return out.result({"target": target, **asdict(done)}, str(done))
