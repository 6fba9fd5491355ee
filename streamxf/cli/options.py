"""Arguments and options that several commands have, so that each has one name, one help text and one meaning.

Keys are given by their locations, never on the command line, where other users could read them.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from getpass import getpass
from typing import Annotated, Any, Literal

import typer

from streamxf.environment import KEYS_VARIABLE
from streamxf.errors import KeyMissingError, ParameterError
from streamxf.proportion import MAX_EXPANSION

PASSPHRASE_VARIABLE = "STREAMXF_PASSPHRASE"
PROMPT = "prompt"


def existing(path: str) -> str:
    """Refuse a local path where nothing is; storage elsewhere is asked by the command itself."""
    from streamxf.storage.storage import is_url

    if not is_url(path) and not os.path.lexists(path):
        raise typer.BadParameter(f"there is no file or folder {path!r}")
    return path


def key(location: str) -> Any:
    """The key at a location, for the library's arguments."""
    try:
        return key_at(location)
    except ParameterError as error:
        raise typer.BadParameter(str(error)) from None


def key_at(location: str) -> Any:
    """The key at a location; raises what `streamxf.keys.read_key` raises.

    ``prompt`` asks for what a key file holds. Where a passphrase protects the key it is taken from the environment
    variable STREAMXF_PASSPHRASE, or asked for.
    """
    from streamxf.keys.file import key_line, read_line
    from streamxf.keys.location import find, maker

    if location == PROMPT:
        return read_line(key_line(_asked("Key (what a key file holds; it is not shown): ", "a key is asked for")))
    try:
        return find(location)
    except KeyMissingError:
        scheme, _, rest = location.partition(":")
        if scheme == "file" or (scheme == "env" and rest in os.environ):
            return maker(scheme)(rest, _passphrase(f"Passphrase of {location}: ", f"{location} has a passphrase"))
        raise


def new_passphrase(file: str) -> str:
    """A passphrase for a new file: that of STREAMXF_PASSPHRASE, or one that is typed twice."""
    first = _passphrase(f"New passphrase for {file}: ", "a passphrase is asked for")
    if PASSPHRASE_VARIABLE not in os.environ and getpass("The same again: ") != first:
        raise ParameterError("the two passphrases differ; nothing was written")
    return first


def _passphrase(question: str, why: str) -> str:
    given = os.environ.get(PASSPHRASE_VARIABLE)
    return given if given is not None else _asked(question, why)


def _asked(question: str, why: str) -> str:
    if not sys.stdin.isatty():
        raise KeyMissingError(
            f"{why}, and there is no terminal to ask at; give the key as file:PATH or env:VARIABLE, and its "
            f"passphrase, if it has one, in {PASSPHRASE_VARIABLE}"
        )
    answer = getpass(question)
    if not answer:
        raise ParameterError("nothing was typed")
    return answer


def location(*names: str, help: str, **more: Any) -> Any:
    """An option that takes the location of a key, for an argument that takes the key."""
    return typer.Option(*names, parser=key, metavar="LOCATION", help=help, **more)


def codecs_behind(incomplete: str) -> list[str]:
    """For the shell: a chain's text with each codec that may stand at its end. Imports none of them."""
    from streamxf.registry import CodecRegistry, short_name

    before, plus, begun = incomplete.rpartition("+")
    names = map(short_name, CodecRegistry().names())
    return [f"{before}{plus}{name}" for name in names if name.startswith(begun)]


Path = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        callback=existing,
        show_default=False,
        help="A checkpoint's folder or file, or its URL (s3://...; options of the storage come from fsspec's own "
        "configuration, FSSPEC_S3_ENDPOINT_URL for one).",
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        callback=existing,
        show_default=False,
        help="A training run's folder, with a folder for each checkpoint, or its URL.",
    ),
]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", show_default=False, help="The new checkpoint's folder, or its URL.")
]
Chain = Annotated[
    str | None,
    typer.Option(
        metavar="CHAIN",
        autocompletion=codecs_behind,
        help="The codecs to store with, such as floatzip, zstd:level=3+checksum or floatzip+encrypt; '' for none. By "
        "default floatzip, and with --encrypt-to floatzip+encrypt. streamxf codecs lists them.",
    ),
]
EncryptTo = Annotated[
    list[Any] | None, location("--encrypt-to", help="A key that may read what is written; may be given several times.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Only items whose names match, as '*.weight'; may be given several times."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing checkpoint.")]
FileSize = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Bytes in one data file, before the chain: at most as much is done again after a kill.",
    ),
]
Key = Annotated[
    list[Any] | None,
    location(
        "--key",
        "-k",
        envvar=KEYS_VARIABLE,
        help="Where a key is: file:PATH, env:VARIABLE, aws-kms:ARN, a location of an installed provider, or prompt. "
        "May be given several times. Never the key itself: other users could read it.",
    ),
]
Trust = Annotated[list[Any] | None, location("--trust", help="The public key of a trusted signer (file:..., env:...).")]
Unsigned = Annotated[
    bool, typer.Option("--allow-unsigned", help="Accept what a private key opens without a signature.")
]
Require = Annotated[
    Literal["published", "bound", "encrypted"] | None,
    typer.Option(
        metavar="LEVEL",
        help="The weakest item that is acceptable with keys: published, which is the default, bound or encrypted.",
    ),
]
Signer = Annotated[Any, location("--signer", help="The signing key that vouches for it (file:..., env:...).")]
Vouch = Annotated[
    bool, typer.Option("--vouch", help="Vouch for a checkpoint that anyone could have written, since it is not signed.")
]
SaveIds = Annotated[list[str] | None, typer.Option("--expect-save-id", metavar="ID", help="The only acceptable save.")]
MaxExpansion = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="How many times as much as is stored may be decoded, compared or printed; 256 MiB is always allowed. A "
        "checkpoint that is nearly all zeros may need more.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Remove nothing; list what would be removed.")]
Yes = Annotated[bool, typer.Option("--yes", help="Remove without asking.")]
Verify = Annotated[
    Literal["none", "sample", "whole"],
    typer.Option(
        metavar="HOW",
        help="What has to be intact for a checkpoint to count as good: its metadata and the sizes of its files, a "
        "sample of its tensors as well, or all of it.",
    ),
]
RunId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Which run is meant, if the folder holds checkpoints of several; streamxf list --json shows the ids.",
    ),
]
Access = dict[str, Any]
"""What reads a checkpoint, for the library's arguments: stands for the options in `_GROUPS`."""
Written = dict[str, Any]
"""The same of what a checkpoint is written with."""
Keys = dict[str, Any]
"""The same of keys alone, and of whose signatures count."""
Terms = dict[str, Any]
"""The same of what recipients are changed with."""
_KEYS: dict[str, tuple[Any, Any]] = {"key": (Key, None), "trust": (Trust, None), "allow_unsigned": (Unsigned, False)}
_GROUPS = {
    "access": {**_KEYS, "require": (Require, None), "max_expansion": (MaxExpansion, MAX_EXPANSION)},
    "keys": _KEYS,
    "terms": {**_KEYS, "signer": (Signer, None), "vouch": (Vouch, False), "expect_save_id": (SaveIds, None)},
    "written": {"chain": (Chain, None), "encrypt_to": (EncryptTo, None), "signer": (Signer, None)},
}


def expanded(command: Callable[..., int]) -> Callable[..., int]:
    """A command with the options that its parameters in `_GROUPS` stand for."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        group = _GROUPS.get(each.name, {each.name: (each.annotation, each.default)})
        parameters += [
            inspect.Parameter(name, each.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in group.items()
        ]

    @wraps(command)
    def run(**given: Any) -> int:
        for name in _GROUPS.keys() & signature.parameters.keys():
            given[name] = {("keys" if option == "key" else option): given.pop(option) for option in _GROUPS[name]}
        return command(**given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; progress is not shown.")]
