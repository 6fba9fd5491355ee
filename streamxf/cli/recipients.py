"""``streamxf recipients``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from streamxf.cli import options
from streamxf.cli.show import Output
from streamxf.errors import KeyMissingError
from streamxf.keys.derive import is_key_id

EXAMPLES = (
    "streamxf recipients /checkpoints/step-1000",
    "streamxf recipients /checkpoints/step-1000 --key file:team.key --add file:auditor.pub",
    "streamxf recipients /checkpoints/step-1000 --key file:team.key --remove 0123456789abcdef",
)


def recipients(
    path: str = options.PATH,
    add: list[Any] | None = options.location("A recipient to add; may be given several times."),
    remove: list[str] | None = options.value(
        "ID", "A recipient to remove: the id as listed, or the location of the key."
    ),
    *,
    terms: options.Terms,
    out: Output,
) -> int:
    """List who may read a checkpoint or a file, and add or remove recipients.

    Without a key the list is what the storage says, which may not be true. Only keys are rewritten; whoever could read
    before may have kept what it takes to read the data as it is now.
    """
    from streamxf.tools.rekey.rekey import add_recipient, remove_recipient
    from streamxf.tools.rekey.rekey import recipients as listed

    key, signer, vouch = (terms.pop(name) for name in ("keys", "signer", "vouch"))
    if key is None and (add or remove):
        raise KeyMissingError("pass the key that opens the checkpoint: --key file:PATH")
    less = [entry if is_key_id(entry) else options.key_at(entry) for entry in remove or ()]
    if add:
        add_recipient(path, key, add, signer=signer, vouch=vouch, **terms)
    for entry in less:
        remove_recipient(path, key, entry, **terms)
    found = listed(path, key, **terms)
    signers = [signer for signer in found.signers if signer is not None]
    facts = {"path": path, **asdict(found), "signers": signers, "unsigned": None in found.signers}
    return out.result(facts, str(found))
