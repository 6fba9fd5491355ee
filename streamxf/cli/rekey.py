"""``streamxf rekey``."""

from __future__ import annotations

from typing import Any

from streamxf.cli import options
from streamxf.cli.show import Output
from streamxf.errors import KeyMissingError

EXAMPLES = (
    "streamxf rekey /checkpoints/step-1000 --key file:old.key --to file:new.key",
    "streamxf rekey weights.pt.sxf --key file:old.key --to file:new.key",
)


def rekey(
    path: str = options.PATH,
    to: list[Any] = options.location("Who may read from now on; may be given several times.", default=...),
    *,
    terms: options.Terms,
    out: Output,
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
    said = f"rewritten: {', '.join(written)}" if written else "nothing changed: it is already for these keys alone"
    return out.result({"path": path, "rewritten": written}, said)
