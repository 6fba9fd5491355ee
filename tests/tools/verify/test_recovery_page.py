"""What docs/recovery.md prints runs as it stands, in its order, in one folder, and says what the page says."""

import re
from pathlib import Path

import pytest

from tests.code_blocks import blocks_of

PAGE = Path(__file__).parents[3] / "docs" / "recovery.md"


def comparable(output: str) -> str:
    """Without what differs from run to run: ids, times, and a size that depends on random numbers."""
    return re.sub(r"[0-9a-f]{32}|[0-9.]+ (?:s|MiB)\b", "-", output)


def test_it_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    printed = ""
    compared = 0
    for block in blocks_of(PAGE.read_text()):
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, str(PAGE), "exec"), namespace)
            printed = capsys.readouterr().out
        elif block.language == "text":
            assert comparable(printed) == comparable(block.code)
            compared += 1
    assert compared >= 3
