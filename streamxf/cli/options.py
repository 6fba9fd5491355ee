"""Arguments and options: a command's own, and those of several, each with one name, one help text and one meaning.

Keys are given by their locations, never on the command line, where other users could read them.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from getpass import getpass
from typing import Any, Literal

import typer

from streamxf.budget import MAX_EXPANSION
from streamxf.environment import KEYS_VARIABLE
from streamxf.errors import KeyMissingError, ParameterError

PASSPHRASE_VARIABLE = "STREAMXF_PASSPHRASE"
PROMPT = "prompt"

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _BYTES |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?) *([a-z]*)", re.ASCII | re.IGNORECASE)


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
    from streamxf.keys import find_key, read_text

    if location == PROMPT:
        cure = "give the key as file:PATH or env:VARIABLE"
        return read_text(_asked("Key (what a key file holds; it is not shown): ", "a key is asked for", cure))
    return find_key(location, lambda: _passphrase(f"Passphrase of {location}: ", f"{location} has a passphrase"))


def new_passphrase(file: str) -> str:
    """A passphrase for a new file: that of STREAMXF_PASSPHRASE, or one that is typed twice."""
    first = _passphrase(f"New passphrase for {file}: ", "a passphrase is asked for")
    if PASSPHRASE_VARIABLE not in os.environ and getpass("The same again: ") != first:
        raise ParameterError("the two passphrases differ; nothing was written")
    return first


def _passphrase(question: str, why: str) -> str:
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    return passphrase if passphrase is not None else _asked(question, why, f"set {PASSPHRASE_VARIABLE}")


def _asked(question: str, why: str, cure: str) -> str:
    if not sys.stdin.isatty():
        raise KeyMissingError(f"{why}, and there is no terminal to ask at; {cure}")
    answer = getpass(question)
    if not answer:
        raise ParameterError("nothing was typed")
    return answer


def argument(metavar: str, text: str, default: Any = ..., **more: Any) -> Any:
    """A parameter that is given by its position."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=False, **more)


def flag(text: str, *short: str) -> Any:
    """An option without a value. Options bear the names of their parameters, and may have a `short` one, too."""
    return typer.Option(False, *short, help=text)


def value(metavar: str, text: str, default: Any = None, **more: Any) -> Any:
    """An option with a value; one whose parameter is a list may be given several times."""
    return typer.Option(default, metavar=metavar, help=text, **more)


def location(text: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option with the location of a key, for an argument that takes the key."""
    return typer.Option(default, *names, metavar="LOCATION", help=text, **{"parser": key, **more})


def existing(path: str | None) -> str | None:
    """Refuse a local path where nothing is; storage elsewhere is asked by the command itself."""
    from streamxf.places import is_url

    if path is not None and not is_url(path) and not os.path.lexists(path):
        raise typer.BadParameter(f"there is no file or folder {path!r}")
    return path


def codecs_behind(incomplete: str) -> list[str]:
    """For the shell: a chain's text with each codec that may stand at its end. Imports none of them."""
    from streamxf.codec import CodecRegistry

    before, plus, begun = incomplete.rpartition("+")
    names = map(CodecRegistry.short_name, CodecRegistry().names())
    return [f"{before}{plus}{name}" for name in names if name.startswith(begun)]


# quantities as people write them: 2h, 2GB, 256MiB


def seconds(text: str) -> float:
    """``90``, ``90s``, ``30m``, ``2h`` or ``7d`` in seconds; raises BadParameter for anything else."""
    from streamxf.manager.retention import duration

    found = duration(text)
    if found is None:
        raise typer.BadParameter(f"{text!r:.40} is not a time; write 90s, 30m, 2h or 7d")
    return found


def size(text: str) -> int:
    """``256MiB``, ``2GB`` or a number of bytes in bytes; raises BadParameter for anything else, and for nothing."""
    match = _QUANTITY.fullmatch(text.strip())
    found = float(match[1]) * _BYTES.get(match[2].lower(), 0) if match is not None else 0
    if not 1 <= found < math.inf:
        raise typer.BadParameter(f"{text!r:.40} is not a size; write 256MiB, 2GB or a number of bytes")
    return int(found)


def count(text: str) -> int:
    """``3``, or ``unlimited``, which is -1; raises BadParameter for anything else, and for 0."""
    if text in ("unlimited", "-1"):
        return -1
    if not re.fullmatch("0*[1-9][0-9]*", text, re.ASCII):
        raise typer.BadParameter(f"{text!r:.40} is not a count; write a number from 1, or unlimited (or -1)")
    return int(text)


def number(text: str) -> int:
    """A whole number from 0; raises BadParameter for anything else."""
    if not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        raise typer.BadParameter(f"{text!r:.40} is not a whole number")
    return int(text)


def metric(text: str) -> tuple[str, str]:
    """``loss`` or ``accuracy:max``: the name of a metric, and whether lower (min) or higher values are better."""
    name, _, mode = text.rpartition(":")
    return (name, mode) if name and mode in ("min", "max") else (text, "min")


PATH = argument(
    "PATH",
    "A checkpoint's folder or file, or its URL (s3://...; storage options come from fsspec's configuration, such as "
    "FSSPEC_S3_ENDPOINT_URL).",
    callback=existing,
)
PATHS = argument(
    "PATH...",
    "A checkpoint's folder or file, or its URL, as for other commands; several give one report.",
    callback=lambda paths: [*map(existing, paths)],
)
RUN = argument("RUN", "A training run's folder, with a folder for each checkpoint, or its URL.", callback=existing)
TARGET = argument("TARGET", "The new checkpoint's folder, or its URL.")
ONLY = value("PATTERN", "Only items whose names match, such as '*.weight'; repeatable.")
OVERWRITE = flag("Replace an existing checkpoint.")
FILE_SIZE = value(
    "SIZE", "Size of one data file, before the chain: at most this much is repeated after an interruption.", "256MiB"
)
SAVE_IDS = value("ID", "Accept only the save with this id.")
DRY_RUN = flag("Remove nothing; list what would be removed.", "--dry-run", "-n")
YES = flag("Remove without asking.")
VERIFY = value(
    "HOW",
    "What must be intact for a checkpoint to count as good: its metadata and file sizes (none), a sample of its "
    "tensors too (sample), or everything (whole).",
    "sample",
)
Verify = Literal["none", "sample", "whole"]
RUN_ID = value("ID", "The run, if the folder has checkpoints of several; streamxf list --json shows the ids.")


Group = dict[str, Any]
"""The library's arguments by their names; a parameter of this type stands for the options that `_GROUPS` has for it."""
Several = list[Any] | None
RECIPIENT = ("--recipient", "-r")
ARGUMENTS = {"key": "keys", "recipient": "recipients", "add": "recipients"}
"""The library's arguments that take several, by the option that is given once for each."""
_SIGNER = (Any, location("Signing key (file:..., env:...)."))
_KEYS: dict[str, tuple[Any, Any]] = {
    "key": (
        Several,
        location(
            "Location of a key: file:PATH, env:VARIABLE, aws-kms:ARN, one of an installed provider, or prompt. "
            "Repeatable. Never the key itself, which other users could see.",
            "--key",
            "-k",
            envvar=KEYS_VARIABLE,
        ),
    ),
    "trust": (Several, location("The public key of a trusted signer (file:..., env:...).")),
    "allow_unsigned": (bool, flag("Accept unsigned checkpoints that a private key opens.")),
}
_PROTECTION: dict[str, tuple[Any, Any]] = {
    **_KEYS,
    "require": (
        Literal["published", "bound", "encrypted"] | None,
        value("LEVEL", "Minimum protection to accept with keys: published, the default, bound or encrypted."),
    ),
}
# what opens a checkpoint, and how protected it has to be; on which terms it is read, is written, and has its recipients
# changed; and how results appear
_GROUPS: dict[str, dict[str, tuple[Any, Any]]] = {
    "keys": _KEYS,
    "protection": _PROTECTION,
    "access": {
        **_PROTECTION,
        "max_expansion": (
            int,
            value(
                "N",
                "Limit on what a checkpoint may expand to, as a multiple of its stored size; 256 MiB is always "
                "allowed. Checkpoints that are mostly zeros may need more.",
                MAX_EXPANSION,
                min=1,
            ),
        ),
    },
    "terms": {
        **_KEYS,
        "signer": _SIGNER,
        "vouch": (bool, flag("Vouch for an unsigned checkpoint, which anyone could have written.")),
        "expect_save_id": (list[str] | None, SAVE_IDS),
    },
    "written": {
        "chain": (
            list[str] | None,
            value(
                "CHAIN",
                "Codecs of the output, such as floatzip, zstd:level=3+checksum or floatzip+encrypt; '' for none, raw "
                "for bare bytes that can be mapped into memory. By default floatzip, and with --recipient "
                "floatzip+encrypt. streamxf codecs lists them. NAME=CHAIN is for items whose names match, such as "
                "'embedding.*=raw'; repeatable, the last that matches counts.",
                autocompletion=codecs_behind,
            ),
        ),
        "recipient": (Several, location("A key that can read the result; repeatable.", *RECIPIENT)),
        "signer": _SIGNER,
    },
    "resealed": {
        "recipient": (Several, location("The key of a reader, besides those of --key; repeatable.", *RECIPIENT)),
        "signer": _SIGNER,
    },
    "out": {"json": (bool, flag("Print JSON, without progress."))},
}


def expanded(command: Callable[..., int]) -> Callable[..., int]:
    """A command with the options that its parameters in `_GROUPS` stand for."""
    from streamxf.cli.show import Output

    signature = inspect.signature(command, eval_str=True)
    groups = {name: _GROUPS[name] for name in signature.parameters if name in _GROUPS}
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        for name, (kind, default) in groups.get(each.name, {each.name: (each.annotation, each.default)}).items():
            if kind is bool and not default.param_decls:
                default.param_decls = (f"--{name.replace('_', '-')}",)  # else typer adds its opposite, --no-...
            parameters.append(inspect.Parameter(name, each.KEYWORD_ONLY, annotation=kind, default=default))

    @wraps(command)
    def run(**given: Any) -> int:
        for name, group in groups.items():
            facts = {ARGUMENTS.get(option, option): given.pop(option) for option in group}
            given[name] = Output(**facts) if name == "out" else facts
            if "chain" in facts:
                from streamxf.chain import Chains

                facts["chain"] = Chains.by_text(facts["chain"] or ())
        return command(**given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
