"""The code on the page about writing a codec is the code of the package that it walks through."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "writing-a-codec.md"
FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<file>[^"]*)")?\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)


def test_the_page_shows_codec_packaging_and_test_whole() -> None:
    shown = {block["file"]: block["code"] for block in FENCE.finditer(PAGE.read_text())}
    for path in ("src/acme_codec/delta.py", "pyproject.toml", "tests/test_delta.py"):
        file = f"tests/acme_codec/{path}"
        assert shown[file] == (ROOT / file).read_text()
