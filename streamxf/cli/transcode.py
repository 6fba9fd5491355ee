"""``streamxf transcode``."""

from __future__ import annotations

from dataclasses import asdict

from streamxf.cli import options, units
from streamxf.cli.show import Output

EXAMPLES = (
    "streamxf transcode /checkpoints/step-1000 /archive/step-1000 --chain zstd:level=9+checksum",
    "streamxf transcode /checkpoints/step-1000 --in-place --chain floatzip+encrypt --encrypt-to file:new.key",
)


def transcode(
    source: str = options.PATH,
    target: str | None = options.argument("[TARGET]", "The copy's folder, or its URL.", None),
    *,
    written: options.Written,
    in_place: bool = options.flag("Replace the source, once all of the new checkpoint is written."),
    overwrite: bool = options.OVERWRITE,
    file_size: str = options.FILE_SIZE,
    access: options.Access,
    out: Output,
) -> int:
    """Copy a DCP checkpoint through another chain.

    Items are copied block by block, with all checks of a load; no tensor is held whole, except one that a stream
    transform of torch's made. Names, shards and objects stay as they are.

    If the command fails or is killed, the same command resumes. With --in-place the old checkpoint loads until the new
    one does; both need space until then.
    """
    from streamxf.tools.convert.transcode import transcode as write

    with out.progress("Transcoding") as bar:
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
    return out.result({"target": source if target is None else target, **asdict(done)}, str(done))
