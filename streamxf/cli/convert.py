"""``streamxf pack``, ``unpack``, ``transcode``, ``consolidate``, ``stock`` and ``rename``; ``keygen``, ``sign``,
``rekey`` and ``recipients``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Literal

import streamxf
from streamxf.cli import options
from streamxf.cli.show import Output
from streamxf.errors import KeyFileError, KeyMissingError, ParameterError
from streamxf.wording import many


def pack(
    source: str = options.PATH,
    target: str = options.TARGET,
    *,
    written: options.Group,
    overwrite: bool = options.OVERWRITE,
    file_size: str = options.FILE_SIZE,
    access: options.Group,
    out: Output,
) -> int:
    """Write a .safetensors or torch.save file, a folder or a stock DCP checkpoint as a checkpoint of streamxf.

    Objects of unknown classes are kept as bytes of their file, and named.

    All regular files of a folder are packed, including those in subfolders: tensors of any file as tensors, everything
    else as bytes; unpack writes the files again, byte for byte. A link to a file is packed as that file; anything else
    is left out and named. Workers read and encode block by block, so memory does not depend on the size of the model.

    If the command fails or is killed, the same command resumes.

    Examples:
    streamxf pack model.safetensors /checkpoints/model
    streamxf pack hub/ /checkpoints/model --chain floatzip+encrypt --recipient file:model.key
    streamxf pack checkpoint-500/ /checkpoints/run-500
    streamxf pack last.pt s3://bucket/last --chain zstd:level=3+checksum
    """
    with out.progress("Packing") as bar:
        size = options.size(file_size)
        done = streamxf.pack(source, target, overwrite=overwrite, **written, **access, file_size=size, progress=bar)
    return out.result({"target": target, **asdict(done)}, str(done))


def unpack(
    source: str = options.PATH,
    target: str = options.argument("TARGET", "The file or folder to write, or its URL."),
    format: Literal["safetensors", "torch", "huggingface", "dcp"] | None = options.value(
        "FORMAT",
        "safetensors, torch, huggingface, or dcp, a checkpoint that torch's own reader loads. By default the format of "
        "TARGET's suffix (.safetensors; .pt, .pth, .bin, .ckpt), else that of the packed file or folder, else a "
        "Hugging Face folder.",
    ),
    only: list[str] | None = options.ONLY,
    prefix: str = options.value("TEXT", "Only items with this prefix, which is removed from their names.", ""),
    shard_size: str = options.value("SIZE", "Bytes of tensors in one file of a Hugging Face folder.", "5GB"),
    model: bool = options.flag(
        "Only the model's tensors, under the names that the module and from_pretrained use. PATH may be a checkpoint "
        "of a Trainer, Lightning or torchtitan."
    ),
    skip_objects: bool = options.flag(
        "Leave out non-tensor objects that the format cannot store, or that cannot be constructed here."
    ),
    overwrite: bool = options.flag("Replace an existing file or Hugging Face folder."),
    *,
    access: options.Group,
    out: Output,
) -> int:
    """Write a checkpoint as a .safetensors or torch.save file, a Hugging Face folder or a stock DCP checkpoint.

    A packed file or folder becomes the same file or folder again, byte for byte. In another format, only the model of a
    packed folder is written. Tensors are written block by block, so memory does not depend on the size of the model.

    A local TARGET appears only once it is complete. If the command fails or is killed, the same command starts
    over.

    Examples:
    streamxf unpack run/checkpoint-12 model.safetensors --model
    streamxf unpack /checkpoints/step-1000 model.safetensors --prefix model.
    streamxf unpack /checkpoints/step-1000 step-1000.pt
    streamxf unpack /checkpoints/step-1000 hub/ --format huggingface --prefix model. --shard-size 2GB
    """
    with out.progress("Unpacking") as bar:
        done = streamxf.unpack(
            source,
            target,
            format=format,
            only=only or (),
            prefix=prefix,
            shard_size=options.size(shard_size),
            skip_objects=skip_objects,
            model=model,
            overwrite=overwrite,
            **access,
            progress=bar,
        )
    return out.result({"target": target, **asdict(done)}, str(done))


def transcode(
    source: str = options.PATH,
    target: str | None = options.argument("TARGET", "The copy's folder, or its URL.", None),
    *,
    written: options.Group,
    in_place: bool = options.flag("Replace the source once the new checkpoint is complete."),
    overwrite: bool = options.OVERWRITE,
    file_size: str = options.FILE_SIZE,
    access: options.Group,
    out: Output,
) -> int:
    """Copy a DCP checkpoint through another chain.

    Items are copied block by block, with all the checks of a load; only tensors saved with one of torch's stream
    transforms are held in memory as a whole. Names, shards and objects do not change.

    If the command fails or is killed, the same command resumes. With --in-place the old checkpoint loads until the new
    one does; both need space until then.

    Examples:
    streamxf transcode /checkpoints/step-1000 /archive/step-1000 --chain zstd:level=9+checksum
    streamxf transcode /checkpoints/step-1000 --in-place --chain floatzip+encrypt --recipient file:new.key
    """
    with out.progress("Transcoding") as bar:
        how = {**written, **access, "file_size": options.size(file_size)}
        done = streamxf.transcode(source, target, in_place=in_place, overwrite=overwrite, **how, progress=bar)
    return out.result({"target": source if target is None else target, **asdict(done)}, str(done))


def consolidate(
    path: str = options.PATH,
    *,
    resealed: options.Group,
    file_size: str = options.FILE_SIZE,
    access: options.Group,
    out: Output,
) -> int:
    """Have a checkpoint of an incremental save be whole by itself.

    What it shares with others, by links or by naming their files, is written to its own folder, through the same chain,
    in one step and under a new save id. Then the others may be removed. If the command is killed, the old checkpoint or
    the new one loads, and the same command resumes; both need space until then.

    One that is encrypted needs all recipients' keys: by --recipient, unless --key has them. One that is signed needs
    --signer.

    Examples:
    streamxf consolidate s3://bucket/run/step-120
    """
    with out.progress("Consolidating") as bar:
        how = {**access, "file_size": options.size(file_size)}
        done = streamxf.consolidate(path, **resealed, **how, progress=bar)
    if done is None:
        return out.result({"path": path, "files": 0}, "nothing changed: it is whole by itself, and no increment")
    return out.result({"path": path, **asdict(done)}, str(done))


def stock(path: str = options.PATH, *, out: Output) -> int:
    """Let torch's own readers read a checkpoint that was saved without the pickle that they need.

    The pickle is put at the head of the checkpoint's metadata, in one step. No key is needed, and nothing else changes.

    Examples:
    streamxf stock /checkpoints/step-1000
    """
    from streamxf.tools.rekey.rekey import stock as add

    written = add(path)
    said = f"rewritten: {', '.join(written)}" if written else "nothing changed: torch's own readers can read it"
    return out.result({"path": path, "rewritten": written}, said)


def rename(
    path: str = options.PATH,
    names: list[str] = options.argument(
        "OLD=NEW...", "The old name and the new one; each '*' stands for the same text in both."
    ),
    *,
    terms: options.Group,
    out: Output,
) -> int:
    """Rename items of a checkpoint, without touching its data.

    Only metadata is rewritten, in one step. 'module.*=*' removes a prefix, '*=module.*' adds one. A full name takes
    precedence over patterns, and the first matching pattern over later ones.

    An encrypted checkpoint needs --key for each recipient that vouches for it; a signed one needs --signer, to be
    signed again.

    Examples:
    streamxf rename /checkpoints/step-1000 'model.module.*=model.*'
    streamxf rename /checkpoints/step-1000 head.weight=lm_head.weight --key file:team.key
    """
    wanted: dict[str, str] = {}
    for pair in names:
        old, equals, new = pair.partition("=")
        if not equals or old in wanted:
            raise ParameterError(f"{pair!r:.80} is not OLD=NEW, or stands there twice")
        wanted[old] = new
    done = streamxf.rename(path, wanted, **terms)
    text = f"renamed: {many(len(done), 'item')}" if done else "nothing changed: the items have these names"
    return out.result({"path": path, "renamed": done}, text)


def sign(path: str = options.PATH, *, terms: options.Group, out: Output) -> int:
    """Sign a checkpoint, encrypted or not.

    Its data is read once, and not changed; only metadata is rewritten, in one step. Signatures by others stay, up to
    four in all. An encrypted checkpoint needs --key for each recipient that vouches for it.

    Readers name whose signatures they accept in --trust.

    Examples:
    streamxf sign /checkpoints/model --signer file:publisher.key
    streamxf verify /checkpoints/model --trust file:publisher.pub
    """
    if terms["signer"] is None:
        raise ParameterError("name the key that signs (--signer); streamxf keygen FILE --kind signing makes one")
    with out.progress("Signing") as bar:
        done = streamxf.sign(path, **terms, progress=bar)
    return out.result({"path": path, "rewritten": done}, f"signed: {path}")


Kind = Literal["symmetric", "hybrid", "x25519", "signing", "hybrid-signing"]


def keygen(
    file: str = options.argument("FILE", "The file for the secret key; it must be new."),
    kind: Kind = options.value(
        "KIND",
        "symmetric: one secret writes and reads. hybrid: a key pair, whose public half writes and whose private half "
        "reads, safe against quantum computers; x25519: the same without that. signing: proves who wrote; "
        "hybrid-signing: the same by two signatures, one of them safe against quantum computers.",
        "symmetric",
    ),
    public: str | None = options.value(
        "FILE", "The file for the public half of a pair; by default next to the secret one, with the suffix .pub."
    ),
    passphrase: bool = options.flag(
        "Protect the file with a passphrase, typed when asked for, or taken from STREAMXF_PASSPHRASE."
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
    elif kind in ("signing", "hybrid-signing"):
        key = SigningKey.generate(*["ed25519+mldsa65"] if kind == "hybrid-signing" else [])
        half, use = key.verify_key, "readers name it in --trust"
    else:
        key = PrivateKey.generate(*["hpke-x25519"] if kind == "x25519" else [])
        half, use = key.public, "whoever has it can write for you, and not read"
    write_key(file, key, options.new_passphrase(file) if passphrase else None)
    lines = [f"{key.kind} key {key.id}", f"secret  {file}  keep it, and a copy in a safe place"]
    if half is not None and other is not None:
        try:
            write_key(other, half)
        except BaseException:
            os.unlink(file)
            raise
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

    Only a checkpoint's metadata is rewritten, in one step; data files do not change. A file that streamxf.open wrote is
    copied without being decrypted, and replaced in one step. Former readers may have kept the data key.

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

    Without a key the list is not authenticated. Only wrapped keys are rewritten; former readers may have kept the data
    key.

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
