"""The code on docs/security.md, for the tests that run it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
ARN = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"

_FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of code, with the title and language of its fence."""

    language: str
    title: str | None
    code: str
    line: int


def blocks() -> list[Block]:
    """All blocks of the page, in its order."""
    text = PAGE.read_text()
    found = [
        Block(match["language"], match["title"], match["code"], text.count("\n", 0, match.start("code")))
        for match in _FENCE.finditer(text)
    ]
    assert text.count("```") == 2 * len(found)
    return found


def titled(title: str) -> str:
    """The code of the one block with this title."""
    (code,) = (block.code for block in blocks() if block.title == title)
    return code
