"""``streamxf pack``."""

from __future__ import annotations

from dataclasses import asdict

from streamxf.cli import options, units
from streamxf.cli.show import Output

EXAMPLES = (
    "streamxf pack model.safetensors /checkpoints/model",
    "streamxf pack hub/ /checkpoints/model --chain floatzip+encrypt --encrypt-to file:model.key",
    "streamxf pack checkpoint-500/ /checkpoints/run-500",
    "streamxf pack last.pt s3://bucket/last --chain zstd:level=3+checksum",
)


def pack(
    source: str = options.PATH,
    target: str = options.TARGET,
    *,
    written: options.Written,
    overwrite: bool = options.OVERWRITE,
    file_size: str = options.FILE_SIZE,
    access: options.Access,
    out: Output,
) -> int:
    """Write a .safetensors or torch.save file, a folder or a stock DCP checkpoint as a checkpoint of streamxf.

    Of a folder, all regular files are packed, also in the folders below it: tensors as tensors, whatever file holds
    them, everything else as bytes, and unpack writes them again, byte for byte. A link to a file is packed as that
    file; anything else is left out and named. Workers read and encode block by block, so memory does not depend on the
    size of the model.

    If the command fails or is killed, the same command resumes.
    """
    from streamxf.tools.convert.pack import pack as write

    with out.progress("Packing") as bar:
        size = units.size(file_size)
        done = write(source, target, overwrite=overwrite, **written, **access, file_size=size, progress=bar)
    return out.result({"target": target, **asdict(done)}, str(done))
