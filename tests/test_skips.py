"""What tests leave out stands in one line at the end of a run."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS_FOLDER = Path(__file__).parent

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


def imports_of(file: Path) -> set[str]:
    """The modules that a file of tests imports when it is imported, and those that they import of tests."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            home = (
                str(node.module) if not node.level else ".".join(["tests", *file.relative_to(TESTS_FOLDER).parts[:-1]])
            )
            names = [f"{home}.{alias.name}" for alias in node.names] + [home]
        for name in names:
            own = TESTS_FOLDER.parent / f"{name.replace('.', '/')}.py"
            found |= imports_of(own) if name.startswith("tests.") and own.exists() else {name.partition(".")[0]}
    return found


@pytest.mark.parametrize("file", [*TESTS_FOLDER.rglob("conftest.py")], ids=lambda file: file.parent.name)
def test_a_conftest_imports_only_what_all_tests_need(file: Path):
    """One that is missing stops the run of all tests before any can be skipped."""
    project = tomllib.loads((TESTS_FOLDER.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [
        *project["dependencies"],
        *(each for extra in ("torch", "cli", "s3", "testing") for each in extras[extra]),
    ]
    needed += ["pytest", "streamxf", "tests"]
    distributions = {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in needed}  # type: ignore[index]
    assert imports_of(file) - sys.stdlib_module_names <= distributions
