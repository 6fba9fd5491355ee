"""From the JSON of a vector to what the two readers take as keys."""

from __future__ import annotations

from typing import Any

from reference_decoder import Keys

from streamxf.keys import Key, KeyRing, PrivateKey, VerifyKey


def reference_keys_of(vector: dict[str, Any]) -> Keys:
    """For the second decoder."""
    held = tuple((entry["kind"], bytes.fromhex(entry["secret"])) for entry in vector["keys"])
    trust = tuple(bytes.fromhex(public) for public in vector.get("trust", ()))
    return Keys(held, trust, vector.get("allow_unsigned", False))


def keyring_of(vector: dict[str, Any]) -> KeyRing:
    """For streamxf."""
    held = [
        Key(bytes.fromhex(entry["secret"]))
        if entry["kind"] == "aeskw"
        else PrivateKey(bytes.fromhex(entry["secret"]), entry["kind"])
        for entry in vector["keys"]
    ]
    trust = [VerifyKey(bytes.fromhex(public)) for public in vector.get("trust", ())]
    return KeyRing(held or None, trust=trust or None, allow_unsigned=vector.get("allow_unsigned", False))
