"""The Python that README.md and docs/quickstart.md print runs as it stands, block after block, in an empty folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/quickstart.md")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(text):
    """Blocks of Python, each moved to its line in the page, so that a traceback shows where it stands."""
    for match in BLOCK.finditer(text):
        if match[1] == "python":
            yield "\n" * (text.count("\n", 0, match.start(2))) + match[2]


def test_blocks_keep_their_lines():
    text = "a\n```python\nx\n```\n```sh\nls\n```\n```python\ny\n```\n"
    assert list(python_blocks(text)) == ["\n\nx\n", "\n" * 8 + "y\n"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_language(page):
    languages = {match[1] for match in BLOCK.finditer((ROOT / page).read_text())}
    assert "python" in languages
    assert languages <= {"python", "sh", "text"}, "a block of another kind would not be run"


@pytest.mark.parametrize("page", PAGES)
def test_it_runs_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    for block in python_blocks((ROOT / page).read_text()):
        exec(compile(block, page, "exec"), namespace)
    assert (tmp_path / "checkpoint" / ".metadata").is_file()
