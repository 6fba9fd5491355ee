"""``streamxf pack``."""

from __future__ import annotations

from dataclasses import asdict

from streamxf.cli import options, show, units
from streamxf.cli.exits import FINE

EXAMPLES = (
    "streamxf pack model.safetensors /checkpoints/model",
    "streamxf pack hub/ /checkpoints/model --chain floatzip+encrypt --encrypt-to file:model.key",
    "streamxf pack checkpoint-500/ /checkpoints/run-500",
    "streamxf pack last.pt s3://bucket/last --chain zstd:level=3+checksum",
)


def pack(
    source: options.Path,
    target: options.Target,
    *,
    written: options.Written,
    overwrite: options.Overwrite = False,
    file_size: options.FileSize = "256MiB",
    access: options.Access,
    json: options.Json = False,
) -> int:
    """Write a .safetensors or torch.save file, a folder or a stock DCP checkpoint as a checkpoint of streamxf.

    Of a folder, all regular files are packed, also in the folders below it: tensors as tensors, whatever file holds
    them, everything else as bytes, and unpack writes them again, byte for byte. A link to a file is packed as that
    file; anything else is left out and named. Workers read and encode block by block, so memory does not depend on the
    size of the model.

    If the command fails or is killed, the same command resumes.
    """
    from streamxf.tools.convert.pack import pack as write

    with show.progress("Packing", json) as bar:
        done = write(
            source,
            target,
            overwrite=overwrite,
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
