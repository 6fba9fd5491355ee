"""What is wrong with the machine, or with what a process knows, is no damage: every tool raises or names it as what it
is, no note of damage is left, and the same checkpoint is tried again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from . import troubled

TOOLS = ("resume", "latest", "verify", "load_intact", "salvage", "diff")
FINE = ("step 2", "step-2", "OK: no damage found", "all", "all", "same")
OBJECT = (
    *("raised ObjectError", "step-2", "OK: no damage found", "refused thing: ObjectError", "all"),
    "thing: that of the first cannot be read: * ObjectError: *",
)
UNKNOWN = (
    *("raised NotAllowedError", "step-2"),
    "OK: no damage found (1 check skipped: that 1 tensor can be loaded here, which needs framework_of_somebody.Scaled)",
    *("refused scaled: NotAllowedError", "all", "same"),
)
CASES = {
    ("a device", ""): FINE,
    ("an object", "its own code"): OBJECT,
    ("an object", "an import"): OBJECT,
    ("a class", ""): UNKNOWN,
    ("many files", "few open files"): FINE,
    ("many files", "no open files"): ("raised EMFILE",) * 6,
    ("many files", "no threads"): FINE,
    ("many files", "bad sectors once"): FINE,
    ("many files", "bad sectors"): (
        *("raised EIO", "raised EIO", "DAMAGED in * places", "raised MetadataError", "raised MetadataError"),
        "raised EIO",
    ),
    ("a large tensor", "little memory"): (
        "step 2",
        "step-2",
        "OK: no damage found",
        *["raised MemoryError"] * 2,
        "same",
    ),
}


def run_python(*arguments: object, path: Path | None = None) -> str:
    command = [sys.executable, "-W", "ignore", "-m", troubled.__name__, *map(str, arguments)]
    environment = None if path is None else {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("what", "kind"), CASES, ids=[" ".join(case).strip().replace(" ", "-") for case in CASES])
def test_trouble_is_told_as_what_it_is(what: str, kind: str, tmp_path: Path) -> None:
    framework = tmp_path / "site"
    framework.mkdir()
    (framework / "framework_of_somebody.py").write_text(troubled.FRAMEWORK)
    run = tmp_path / "run"
    run_python("save", run, what, path=framework)
    found = json.loads(run_python("use", run, what, kind))
    wanted = dict(zip(TOOLS, CASES[what, kind], strict=True))
    wrong = {name: text for name, text in found.items() if not fnmatchcase(text, wanted[name].replace("[", "[[]"))}
    assert not wrong
    assert run_python("resume", run, what, path=framework) == "step 2\n"
