"""What no writer stores, through everything that streamxf does: whatever is refused gets an error of streamxf's."""

import shutil
from pathlib import Path

import pytest

from streamxf.errors import StreamxfError

from .made import STRANGE
from .tools import tools_for

pytestmark = pytest.mark.filterwarnings("ignore")


SAMPLE = {"dtype int1", "a quantized tensor", "a shape of [2147483648, 2147483648]", "a path through a file", "a set"}


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive) for name in STRANGE]
)
def test_every_tool_reads_it_or_refuses_it(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "in").mkdir()
    path = STRANGE[name](tmp_path / "in")
    wrong = {}
    for label, tool in tools_for(path).items():
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        try:
            tool(path, scratch)
        except StreamxfError:
            pass
        except Exception as error:
            wrong[label] = error
        shutil.rmtree(scratch)
    assert not wrong
