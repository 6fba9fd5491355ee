"""The page's table of limits is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from streamxf.format import limits
from streamxf.keys import envelope

PAGES = Path(__file__).parents[2] / "docs"


def value_of(text: str) -> int:
    """A number as the page writes it: 64, 2^53 - 1."""
    power, less = re.fullmatch(r"(\d+(?:\^\d+)?)(?: - (\d))?", text).groups()  # type: ignore[union-attr]
    base, _, exponent = power.partition("^")
    return int(base) ** int(exponent or 1) - int(less or 0)


def test_the_table() -> None:
    page = (PAGES / "format.md").read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (`MAX_.*) \|$", page, re.MULTILINE)]
    found = {
        name.strip("`"): value_of(value)
        for names, values, _ in rows
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }
    assert len(found) > 20
    for name, value in found.items():
        assert getattr(limits if hasattr(limits, name) else envelope, name) == value, name
    text = "".join(file.read_text() for file in [PAGES / "format.md", *PAGES.glob("format/*.md")])
    assert set(re.findall(r"`(MAX_\w+)`", text)) == found.keys()
