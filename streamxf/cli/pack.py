"""``streamxf pack``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from streamxf.cli import show, units
from streamxf.cli.exits import FINE
from streamxf.cli.keys import key_at, keys_at
from streamxf.cli.lines import wrapped
from streamxf.cli.options import (
    ChainOption,
    EncryptToOption,
    FileSizeOption,
    JsonOption,
    KeyOption,
    OverwriteOption,
    PathArgument,
    RequireOption,
    SignerOption,
    TargetArgument,
    TrustOption,
    UnsignedOption,
)

EXAMPLES = (
    "streamxf pack model.safetensors /checkpoints/model",
    "streamxf pack hub/ /checkpoints/model --chain floatzip+encrypt --encrypt-to file:model.key",
    "streamxf pack checkpoint-500/ /checkpoints/run-500 --exclude 'runs/*'",
    "streamxf pack last.pt s3://bucket/last --chain zstd:level=3+checksum",
)


def pack(
    source: PathArgument,
    target: TargetArgument,
    chain: ChainOption = None,
    encrypt_to: EncryptToOption = None,
    signer: SignerOption = None,
    overwrite: OverwriteOption = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="PATTERN",
            help="Paths in a folder to leave out, such as 'optimizer.pt' or '*.log'; may be given several times.",
        ),
    ] = None,
    follow_links: Annotated[
        bool,
        typer.Option(
            "--follow-links",
            help="Pack links to files outside of the folder, as in the hub's cache, as these files.",
        ),
    ] = False,
    file_size: FileSizeOption = "256MiB",
    key: KeyOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    require: RequireOption = None,
    json: JsonOption = False,
) -> int:
    """Write a .safetensors or torch.save file, a folder or a stock DCP checkpoint as a checkpoint of streamxf.

    A folder is packed whole, with its subfolders: tensors as tensors, in whatever file they are, and everything else as
    bytes. unpack writes it again, byte for byte. Links within the folder, empty folders and permissions are kept. What
    could not be restored is refused. Workers read and encode block by block, so memory does not depend on the size of
    the model.

    If the command fails or is killed, the same command resumes.
    """
    from streamxf.tools.convert.pack import pack as write

    with show.progress("Packing", json) as bar:
        done = write(
            source,
            target,
            chain,
            overwrite=overwrite,
            exclude=exclude or (),
            follow_links=follow_links,
            encrypt_to=keys_at(encrypt_to),
            signer=key_at(signer),
            keys=keys_at(key),
            trust=keys_at(trust),
            allow_unsigned=allow_unsigned,
            require=require,
            file_size=units.size(file_size),
            progress=bar,
        )
    if json:
        show.as_json({"target": target, **asdict(done)})
    else:
        print(wrapped(str(done), sys.stdout))
    return FINE
