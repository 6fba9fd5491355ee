"""Errors advise in the words of Python, commands in those of the terminal: ``rank=`` is ``--rank`` there."""

from __future__ import annotations

import re

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
    (r"streamxf\.(clean|pack|salvage|verify)\b(?!\()", r"streamxf \1"),
    (r"\b([Tt])he same call\b", r"\1he same command"),
    (r" ?What takes keys= alone gets both in it: keys=KeyRing\(\[\.\.\.\], trust=\.\.\.\)", ""),
    (r"the signer's VerifyKey in trust=", "the signer's public key by --trust"),
    (r"have it saved with Encrypt\(\.\.\., signer=\.\.\.\)", "have it saved with --signer"),
    (r"\bkeys(?:=|\[\d+\])(?:\.\.\.)?", "--key"),
    *((rf"\b{word}=True", "--" + word.replace("_", "-")) for word in _FLAGS),
    *((rf"\({word}\)", "(--" + word.replace("_", "-") + ")") for word in _FLAGS),
    *((rf"\b{word}='(\w+)'", "--" + word.replace("_", "-") + r" \1") for word in _VALUES),
    *((rf"\b{word}(?:=|\[\d+\])(?:\.\.\.)?", "--" + word.replace("_", "-")) for word in (*_VALUES, *_FLAGS)),
)
_COMPILED = [(re.compile(pattern), replacement) for pattern, replacement in _RULES]


def in_terminal_words(text: str) -> str:
    """An error's message, with options where it names arguments, and commands where it names functions."""
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text
