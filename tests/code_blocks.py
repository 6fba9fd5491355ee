"""The blocks of code on a page of the documentation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code; `line` is how many lines of the page stand before it."""

    language: str
    title: str | None
    code: str
    line: int


def blocks_of(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        yield Block(match["language"], match["title"], match["code"], text.count("\n", 0, match.start("code")))
