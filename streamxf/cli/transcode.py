"""``streamxf transcode``."""

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
    TrustOption,
    UnsignedOption,
)

EXAMPLES = (
    "streamxf transcode /checkpoints/step-1000 /archive/step-1000 --chain zstd:level=9+checksum",
    "streamxf transcode /checkpoints/step-1000 --in-place --chain floatzip+encrypt --encrypt-to file:new.key",
)


def transcode(
    source: PathArgument,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET]", show_default=False, help="The copy's folder, or its URL."),
    ] = None,
    chain: ChainOption = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace the source, once all of the new checkpoint is written.")
    ] = False,
    encrypt_to: EncryptToOption = None,
    signer: SignerOption = None,
    overwrite: OverwriteOption = False,
    file_size: FileSizeOption = "256MiB",
    key: KeyOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    require: RequireOption = None,
    json: JsonOption = False,
) -> int:
    """Copy a DCP checkpoint through another chain.

    Items are copied block by block, with all checks of a load. No tensor is held whole, except one that a stream
    transform of torch's made. Names, shards and objects stay as they are.

    If the command fails or is killed, the same command resumes. With --in-place the old checkpoint loads until the new
    one does, and there must be room for both.
    """
    from streamxf.tools.convert.transcode import transcode as write

    with show.progress("Transcoding", json) as bar:
        done = write(
            source,
            target,
            chain,
            in_place=in_place,
            overwrite=overwrite,
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
        show.as_json({"target": source if target is None else target, **asdict(done)})
    else:
        print(wrapped(str(done), sys.stdout))
    return FINE
