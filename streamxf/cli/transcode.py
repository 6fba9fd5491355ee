"""``streamxf transcode``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamxf.cli import options, show, units
from streamxf.cli.exits import FINE

EXAMPLES = (
    "streamxf transcode /checkpoints/step-1000 /archive/step-1000 --chain zstd:level=9+checksum",
    "streamxf transcode /checkpoints/step-1000 --in-place --chain floatzip+encrypt --encrypt-to file:new.key",
)


def transcode(
    source: options.Path,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", show_default=False, help="The copy's folder, or its URL.")
    ] = None,
    *,
    written: options.Written,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace the source, once all of the new checkpoint is written.")
    ] = False,
    overwrite: options.Overwrite = False,
    file_size: options.FileSize = "256MiB",
    access: options.Access,
    json: options.Json = False,
) -> int:
    """Copy a DCP checkpoint through another chain.

    Items are copied block by block, with all checks of a load; no tensor is held whole, except one that a stream
    transform of torch's made. Names, shards and objects stay as they are.

    If the command fails or is killed, the same command resumes. With --in-place the old checkpoint loads until the new
    one does; both need space until then.
    """
    from streamxf.tools.convert.transcode import transcode as write

    with show.progress("Transcoding", json) as bar:
        done = write(
            source,
            target,
            in_place=in_place,
            overwrite=overwrite,
            **written,
            **access,
            file_size=units.size(file_size),
            progress=bar,
        )
    if json:
        show.as_json({"target": source if target is None else target, **asdict(done)})
    else:
        show.console().print(str(done))
    return FINE
