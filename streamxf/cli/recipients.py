"""``streamxf recipients``."""

from __future__ import annotations

from typing import Annotated

import typer

from streamxf.cli import facts, show
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
    "streamxf recipients /checkpoints/step-1000",
    "streamxf recipients /checkpoints/step-1000 --key file:team.key --add file:auditor.pub",
    "streamxf recipients /checkpoints/step-1000 --key file:team.key --remove 0123456789abcdef",
)


def recipients(
    path: PathArgument,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="LOCATION", help="Somebody more who may read; may be given several times."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove", metavar="ID", help="Somebody who may no longer: the id as listed, or the key's location."
        ),
    ] = None,
    key: KeyOption = None,
    signer: SignerOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    vouch: VouchOption = False,
    expect_save_id: SaveIdOption = None,
    json: JsonOption = False,
) -> int:
    """List who may read a checkpoint, let somebody more read it, or somebody no longer.

    Without a key the list is what the storage says, which may not be true. Only metadata is rewritten; whoever could
    read before may have kept what he needs to read the data as it is now.
    """
    from streamxf.dcp.rekey.rekey import add_recipient, remove_recipient
    from streamxf.dcp.rekey.rekey import recipients as listed

    keys = keys_at(key)
    if keys is None and (add or remove):
        raise KeyMissingError("--key has to say what opens the checkpoint: --key file:PATH")
    trusted = keys_at(trust)
    more = keys_at(add)
    less = [entry if _is_id(entry) else key_at(entry) for entry in remove or ()]
    if more is not None:
        add_recipient(
            path,
            keys,
            more,
            signer=key_at(signer),
            trust=trusted,
            allow_unsigned=allow_unsigned,
            vouch=vouch,
            expect_save_id=expect_save_id,
        )
    for entry in less:
        remove_recipient(path, keys, entry, trust=trusted, allow_unsigned=allow_unsigned, expect_save_id=expect_save_id)
    found = listed(path, keys, trust=trusted, allow_unsigned=allow_unsigned, expect_save_id=expect_save_id)
    if json:
        show.as_json({"path": path, **facts.of_recipients(found)})
    else:
        show.console().print(str(found))
    return FINE


def _is_id(text: str) -> bool:
    return len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
