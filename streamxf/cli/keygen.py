"""``streamxf keygen``."""

from __future__ import annotations

import os
from typing import Any, Literal

from streamxf.cli import options
from streamxf.cli.show import Output
from streamxf.errors import KeyFileError, ParameterError

Kind = Literal["symmetric", "hybrid", "x25519", "signing"]

EXAMPLES = ("streamxf keygen checkpoint.key", "streamxf keygen team.key --kind hybrid --passphrase")


def keygen(
    file: str = options.argument("FILE", "The file for the secret key; it must be new."),
    kind: Kind = options.value(
        "KIND",
        "symmetric: one secret writes and reads. hybrid: a pair, whose public half writes and whose private half "
        "reads, also safe from quantum computers; x25519: the same without that. signing: shows who wrote.",
        "symmetric",
    ),
    public: str | None = options.value(
        "FILE", "The file for the public half of a pair; by default next to the secret one, with the suffix .pub."
    ),
    passphrase: bool = options.flag(
        "Protect the file by a passphrase, which is asked for, or taken from STREAMXF_PASSPHRASE."
    ),
    *,
    out: Output,
) -> int:
    """Make a new key.

    The secret is written to the file, which only you can read, and nowhere else. Keep a copy in a safe place: without
    its key a checkpoint is lost.
    """
    from streamxf.keys import Key, PrivateKey, SigningKey, write_key
    from streamxf.keys.derive import X25519

    other = _public_place(file, kind, public)
    for place in (file, other):
        if place is not None and os.path.lexists(place):
            raise KeyFileError("the file exists, and a key file is never overwritten; name another", file=place)
    key: Any
    if kind == "symmetric":
        key, half, use = Key.generate(), None, ""
    elif kind == "signing":
        key = SigningKey.generate()
        half, use = key.verify_key, "readers name it in --trust"
    else:
        key = PrivateKey.generate(*[X25519] if kind == "x25519" else [])
        half, use = key.public, "whoever has it can write for you, and not read"
    write_key(file, key, options.new_passphrase(file) if passphrase else None)
    if half is not None and other is not None:
        try:
            write_key(other, half)
        except BaseException:
            os.unlink(file)
            raise
    lines = [f"{key.kind} key {key.id}", f"secret  {file}  keep it, and a copy in a safe place"]
    if other is not None:
        lines.append(f"public  {other}  give it away: {use}")
    return out.result({"kind": key.kind, "id": key.id, "secret": file, "public": other}, "\n".join(lines))


def _public_place(file: str, kind: Kind, public: str | None) -> str | None:
    if file.startswith("file:"):
        raise ParameterError("this takes a path, without 'file:' before it")
    if kind == "symmetric":
        if public is not None:
            raise ParameterError("a symmetric key has no public half: leave --public out, or take --kind hybrid")
        return None
    place = public if public is not None else f"{os.path.splitext(file)[0]}.pub"
    if os.path.abspath(place) == os.path.abspath(file):
        raise ParameterError(f"the secret key and its public half need files of their own, and both would be {place!r}")
    return place
