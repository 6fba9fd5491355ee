"""The page's table of limits is that of the code, which has no others."""

import re
from pathlib import Path

from streamxf import descriptor
from streamxf.codecs import zstd
from streamxf.codecs.floatzip import planes
from streamxf.format import limits
from streamxf.keys import envelope, file, ring

MODULES = (limits, descriptor, zstd, planes, envelope, file, ring)
# Each follows from others, is a number in a sentence of the page, or no part of the format.
OTHERS = {
    "MAX_HEADER": "the sum of a header's fields",
    "MAX_INDEX_EXPANSION": "64 x index_len + 65536",
    "MAX_INT": "2^63, of checkpoints of other writers",
    "MAX_LEVEL": "of zstd, which readers need not know",
}
PAGES = Path(__file__).parents[2] / "docs"


def value_of(text: str) -> int:
    """A number as the page writes it: 64, 2^53 - 1."""
    power, less = re.fullmatch(r"(\d+(?:\^\d+)?)(?: - (\d))?", text).groups()  # type: ignore[union-attr]
    base, _, exponent = power.partition("^")
    return int(base) ** int(exponent or 1) - int(less or 0)


def test_tables() -> None:
    pages = "".join(file.read_text() for file in [PAGES / "format.md", *PAGES.glob("format/*.md")])
    rows = [row.split(" | ") for row in re.findall(r"^\| (`MAX_.*) \|$", pages, re.MULTILINE)]
    found = {
        name.strip("`"): value_of(value)
        for names, values, _ in rows
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }
    assert len(found) > 30
    in_code = {
        name: value
        for module in MODULES
        for name, value in vars(module).items()
        if name.startswith("MAX_") and name not in OTHERS
    }
    assert in_code == found
    assert set(re.findall(r"`(MAX_\w+)`", pages)) == found.keys()
