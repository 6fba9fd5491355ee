"""``streamxf keygen``, ``rekey`` and ``recipients``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Literal

import streamxf
from streamxf.cli import options
from streamxf.cli.show import Output
from streamxf.errors import KeyFileError, KeyMissingError, ParameterError
from streamxf.keys.key import X25519

Kind = Literal["symmetric", "hybrid", "x25519", "signing"]


def keygen(
    file: str = options.argument("FILE", "The file for the secret key; it must be new."),
    kind: Kind = options.value(
        "KIND",
        "symmetric: one secret writes and reads. hybrid: a key pair, whose public half writes and whose private half "
        "reads, safe against quantum computers; x25519: the same without that. signing: proves who wrote.",
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
    """Generate a key.

    The secret is written to the file, which only you can read, and nowhere else. Keep a copy in a safe place: without
    its key a checkpoint is lost.

    Examples:
    streamxf keygen checkpoint.key
    streamxf keygen team.key --kind hybrid --passphrase
    """
    from streamxf.keys import Key, PrivateKey, SigningKey, write_key

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
    if os.path.realpath(place) == os.path.realpath(file):
        raise ParameterError(f"the secret key and its public half need files of their own, and both would be {place!r}")
    return place


def rekey(
    path: str = options.PATH,
    recipient: list[Any] = options.location("Who can read from now on; repeatable.", *options.RECIPIENT, default=...),
    *,
    terms: options.Group,
    out: Output,
) -> int:
    """Change who can read a checkpoint or a file: the holders of exactly these keys.

    Only a checkpoint's metadata is rewritten, in one step; data files keep their bytes. A file that streamxf.open wrote
    is copied without being decrypted, and replaced in one step. Whoever could read before may have kept the data key.

    Examples:
    streamxf rekey /checkpoints/step-1000 --key file:old.key --recipient file:new.key
    streamxf rekey weights.pt.sxf --key file:old.key --recipient file:new.key
    """
    if terms["keys"] is None:
        raise KeyMissingError("pass the key that opens the checkpoint now: --key file:PATH")
    written = streamxf.rekey(path, recipients=recipient, **terms)
    said = f"rewritten: {', '.join(written)}" if written else "nothing changed: it is already for these keys alone"
    return out.result({"path": path, "rewritten": written}, said)


def recipients(
    path: str = options.PATH,
    add: list[Any] | None = options.location("A recipient to add; repeatable."),
    remove: list[str] | None = options.value(
        "ID", "A recipient to remove: the id as listed, or the location of the key."
    ),
    *,
    terms: options.Group,
    out: Output,
) -> int:
    """List who may read a checkpoint or a file, and add or remove recipients.

    Without a key the list is not authenticated. Only wrapped keys are rewritten; whoever could read before may have
    kept the data key.

    Examples:
    streamxf recipients /checkpoints/step-1000
    streamxf recipients /checkpoints/step-1000 --key file:team.key --add file:auditor.pub
    streamxf recipients /checkpoints/step-1000 --key file:team.key --remove 0123456789abcdef
    """
    signer, vouch = terms.pop("signer"), terms.pop("vouch")
    if terms["keys"] is None and (add or remove):
        raise KeyMissingError("pass the key that opens the checkpoint: --key file:PATH")
    less = [options.key_at(entry) if ":" in entry or entry == options.PROMPT else entry for entry in remove or ()]
    if add:
        streamxf.add_recipient(path, recipients=add, signer=signer, vouch=vouch, **terms)
    for entry in less:
        streamxf.remove_recipient(path, recipient=entry, **terms)
    found = streamxf.recipients(path, **terms)
    signers = [signer for signer in found.signers if signer is not None]
    facts = {"path": path, **asdict(found), "signers": signers, "unsigned": None in found.signers}
    return out.result(facts, str(found))
