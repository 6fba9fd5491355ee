"""Errors advise in the words of Python, commands in those of the terminal: ``rank=`` is ``--rank`` there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_FLAGS = (
    "allow_unsigned",
    "follow_links",
    "in_place",
    "merge_ranks",
    "overwrite",
    "partial",
    "skip_objects",
    "vouch",
    "without_metadata",
)
_VALUES = ("encrypt_to", "exclude", "expect_save_id", "format", "only", "prefix", "rank", "require", "signer", "trust")
_RULES = (
    (r"streamxf\.salvage\(path, keys=keys, without_metadata=True\)", "streamxf salvage PATH TARGET --without-metadata"),
    (r"streamxf\.salvage\(path, keys=keys\)", "streamxf salvage PATH TARGET"),
    (r"streamxf\.verify\(path, keys\)", "streamxf verify PATH"),
    (r"load the rest with streamxf\.salvage", "load the rest with streamxf salvage PATH TARGET"),
    (r"streamxf\.(clean|pack|salvage|verify)\b(?!\()", r"streamxf \1"),
    (r"\b([Tt])he same call\b", r"\1he same command"),
    (r" ?What takes keys= alone gets both in it: keys=KeyRing\(\[\.\.\.\], trust=\.\.\.\)", ""),
    (r"the signer's VerifyKey in trust=", "the signer's public key by --trust"),
    (r"have it saved with Encrypt\(\.\.\., signer=\.\.\.\)", "have it saved with --signer"),
    (r"\bkeys(?:=|\[\d+\])(?:\.\.\.)?", "--key"),
    *((rf"\b{word}=True", "--" + word.replace("_", "-")) for word in _FLAGS),
    *((rf"\({word}\)", "(--" + word.replace("_", "-") + ")") for word in _FLAGS),
    *((rf"\b{word}='(\w+)'", "--" + word.replace("_", "-") + r" \1") for word in _VALUES),
    # not in a URL, where a value follows
    *((rf"\b{word}(?:=(?!\w)|\[\d+\])(?:\.\.\.)?", "--" + word.replace("_", "-")) for word in (*_VALUES, *_FLAGS)),
)
_COMPILED = [(re.compile(pattern), replacement) for pattern, replacement in _RULES]


def in_terminal_words(text: str) -> str:
    """An error's message, with options where it names arguments, and commands where it names functions."""
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text


def with_paths(text: str, paths: Sequence[str], file: str | None = None) -> str:
    """The text with a path in the place of the PATH in commands that it names.

    Parameters
    ----------
    paths : sequence of str
        Those that the command was given.
    file : str, optional
        What the text is about: of several paths, the one that it belongs to.
    """
    paths = list(dict.fromkeys(paths))
    if len(paths) > 1 and file is not None:
        paths = [path for path in paths if _is_of(path, file)]
    if len(paths) != 1:
        return text
    return re.sub(r"(?<=streamxf )(salvage|verify) PATH\b", lambda match: f"{match[1]} {shlex.quote(paths[0])}", text)


def _is_of(path: str, file: str) -> bool:
    """Whether a file that an error names is this path, or in it; some errors name it as the metadata does."""
    inside = os.path.join(path, "")
    return file == path or file.startswith(inside) or (not os.path.isabs(file) and os.path.exists(inside + file))
