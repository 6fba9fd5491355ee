"""The code on the page about writing a codec is the code of the package that it walks through."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "writing-a-codec.md"
FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<file>[^"]*)")?\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_codec_whole() -> None:
    shown = {block["file"]: block["code"] for block in FENCE.finditer(PAGE.read_text())}
    file = "tests/acme_codec/src/acme_codec/delta.py"
    assert shown[file] == (ROOT / file).read_text()
    assert {"tests/acme_codec/pyproject.toml", "tests/acme_codec/tests/test_delta.py"} < shown.keys()
