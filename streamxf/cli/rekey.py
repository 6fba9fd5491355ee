"""``streamxf rekey``."""

from __future__ import annotations

from typing import Annotated

import typer

from streamxf.cli import show
from streamxf.cli.exits import FINE
from streamxf.cli.keys import key_at, keys_at
from streamxf.cli.options import (
    JsonOption,
    KeyOption,
    PathArgument,
    SaveIdOption,
    SignerOption,
    TrustOption,
    UnsignedOption,
    VouchOption,
)
from streamxf.errors import KeyMissingError

EXAMPLES = (
    "streamxf rekey /checkpoints/step-1000 --key file:old.key --to file:new.key",
    "streamxf rekey weights.pt.sxf --key file:old.key --to file:new.key",
)


def rekey(
    path: PathArgument,
    to: Annotated[
        list[str],
        typer.Option(
            "--to", metavar="LOCATION", help="Who may read from now on; may be given several times.", show_default=False
        ),
    ],
    key: KeyOption = None,
    signer: SignerOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    vouch: VouchOption = False,
    expect_save_id: SaveIdOption = None,
    json: JsonOption = False,
) -> int:
    """Encrypt a checkpoint or a file for other keys, and for nobody else.

    Only a checkpoint's metadata is rewritten, in one step; data files keep their bytes. A file that streamxf.open wrote
    is written anew beside itself, without being decrypted, and takes its place in one step. Whoever could read before
    may have kept what he needs to read the data as it is now.
    """
    from streamxf.dcp.rekey.rekey import rekey as change

    opens = keys_at(key)
    if opens is None:
        raise KeyMissingError("--key has to say what opens the checkpoint now: --key file:PATH")
    written = change(
        path,
        opens,
        keys_at(to),
        signer=key_at(signer),
        trust=keys_at(trust),
        allow_unsigned=allow_unsigned,
        vouch=vouch,
        expect_save_id=expect_save_id,
    )
    if json:
        show.as_json({"path": path, "rewritten": written})
    elif written:
        show.console().print(f"rewritten: {', '.join(written)}")
    else:
        show.console().print("nothing had to change: it was for these keys alone already")
    return FINE
