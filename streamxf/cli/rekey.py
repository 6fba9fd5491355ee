"""``streamxf rekey``."""

from __future__ import annotations

from typing import Annotated, Any

from streamxf.cli import options, show
from streamxf.cli.exits import FINE
from streamxf.errors import KeyMissingError

EXAMPLES = (
    "streamxf rekey /checkpoints/step-1000 --key file:old.key --to file:new.key",
    "streamxf rekey weights.pt.sxf --key file:old.key --to file:new.key",
)


def rekey(
    path: options.Path,
    to: Annotated[
        list[Any],
        options.location("--to", help="Who may read from now on; may be given several times.", show_default=False),
    ],
    key: options.Key = None,
    signer: options.Signer = None,
    trust: options.Trust = None,
    allow_unsigned: options.Unsigned = False,
    vouch: options.Vouch = False,
    expect_save_id: options.SaveIds = None,
    json: options.Json = False,
) -> int:
    """Encrypt a checkpoint or a file for other keys, and for no one else.

    Only a checkpoint's metadata is rewritten, in one step; data files keep their bytes. A file that streamxf.open wrote
    is copied without being decrypted, and replaced in one step. Whoever could read before may have kept what it takes
    to read the data as it is now.
    """
    from streamxf.tools.rekey.rekey import rekey as change

    if key is None:
        raise KeyMissingError("pass the key that opens the checkpoint now: --key file:PATH")
    written = change(
        path,
        key,
        to,
        signer=signer,
        trust=trust,
        allow_unsigned=allow_unsigned,
        vouch=vouch,
        expect_save_id=expect_save_id,
    )
    if json:
        show.as_json({"path": path, "rewritten": written})
    else:
        said = f"rewritten: {', '.join(written)}" if written else "nothing changed: it is already for these keys alone"
        show.console().print(said)
    return FINE
