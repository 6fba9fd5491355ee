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
    *,
    terms: options.Terms,
    json: options.Json = False,
) -> int:
    """Encrypt a checkpoint or a file for other keys, and for no one else.

    Only a checkpoint's metadata is rewritten, in one step; data files keep their bytes. A file that streamxf.open wrote
    is copied without being decrypted, and replaced in one step. Whoever could read before may have kept what it takes
    to read the data as it is now.
    """
    from streamxf.tools.rekey.rekey import rekey as change

    key = terms.pop("keys")
    if key is None:
        raise KeyMissingError("pass the key that opens the checkpoint now: --key file:PATH")
    written = change(path, key, to, **terms)
    if json:
        show.as_json({"path": path, "rewritten": written})
    else:
        said = f"rewritten: {', '.join(written)}" if written else "nothing changed: it is already for these keys alone"
        show.console().print(said)
    return FINE
