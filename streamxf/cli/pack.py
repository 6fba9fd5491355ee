"""``streamxf pack``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FINE

EXAMPLES = (
    "streamxf pack model.safetensors /checkpoints/model",
    "streamxf pack hub/ /checkpoints/model --chain floatzip+encrypt --encrypt-to file:model.key",
    "streamxf pack checkpoint-500/ /checkpoints/run-500 --exclude 'runs/*'",
    "streamxf pack last.pt s3://bucket/last --chain zstd:level=3+checksum",
)


def pack(
    source: options.Path,
    target: options.Target,
    *,
    written: options.Written,
    overwrite: options.Overwrite = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="PATTERN",
            help="Paths to leave out of a folder, such as 'optimizer.pt' or '*.log'; may be given several times.",
        ),
    ] = None,
    follow_links: Annotated[
        bool,
        typer.Option(
            "--follow-links", help="Pack links to files outside the folder as these files, as in the hub's cache."
        ),
    ] = False,
    file_size: options.FileSize = "256MiB",
    access: options.Access,
    json: options.Json = False,
) -> int:
    """Write a .safetensors or torch.save file, a folder or a stock DCP checkpoint as a checkpoint of streamxf.

    A folder is packed whole, with the folders below it: tensors as tensors, whatever file holds them, everything else
    as bytes, and unpack writes it again, byte for byte. Links within the folder, empty folders and permissions are
    kept. What cannot be restored is refused. Workers read and encode block by block, so memory does not depend on the
    size of the model.

    If the command fails or is killed, the same command resumes.
    """
    from streamxf.tools.convert.pack import pack as write

    with show.progress("Packing", json) as bar:
        done = write(
            source,
            target,
            overwrite=overwrite,
            exclude=exclude or (),
            follow_links=follow_links,
            **written,
            **access,
            file_size=units.size(file_size),
            progress=bar,
        )
    if json:
        show.as_json({"target": target, **asdict(done)})
    else:
        show.console().print(str(done))
    return FINE
