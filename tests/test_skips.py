"""What tests leave out stands in one line at the end of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.skips import Skips

def pytest_configure(config):
    config.pluginmanager.register(Skips())
"""

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(2))
@pytest.mark.skipif(True, reason="there is no browser")
def test_of_a_page(number): ...

def test_of_a_mount():
    pytest.skip("nothing may be mounted")

def test_that_runs(): ...
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_one_line_counts_them_by_their_reasons(tmp_path: Path, processes: str):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes, tmp_path]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]
    assert line.startswith("skipped: 2 there is no browser; 1 nothing may be mounted; 1 could not import")
    assert line.endswith("(a file)")
