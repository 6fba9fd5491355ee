"""Lines of text that end between words at a terminal, and nowhere else in a file or pipe."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO


def wrapped(text: str, stream: TextIO) -> str:
    """The text as it is to be printed to `stream`. A word that is longer than a line stays whole, so that a path can be
    copied.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if len(line) > width else line
        for line in text.split("\n")
    )
