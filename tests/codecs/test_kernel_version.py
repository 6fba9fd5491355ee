"""The compiled kernel is of the same version as the Python code that calls it, or is not used."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamxf.codecs.floatzip import kernel
from streamxf.codecs.floatzip.kernel import VERSION

OLDER = """
import sys
from types import ModuleType

name = "streamxf.codecs.floatzip._kernel"
sys.modules[name] = older = ModuleType(name)  # without what was added since
older.VERSION = int(sys.argv[1])
from streamxf.codecs.floatzip import kernel
print(kernel.implementation())
"""
SAVE = """
import warnings
import torch, streamxf
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

warnings.simplefilter("ignore")
state = {"weight": torch.arange(300_000.0)}
save(state, storage_writer=streamxf.FileSystemWriter(sys.argv[2], chain="floatzip+checksum"))
found = {"weight": torch.zeros(300_000)}
load(found, storage_reader=streamxf.FileSystemReader(sys.argv[2]))
assert torch.equal(found["weight"], state["weight"])
"""


def run(code: str, *arguments: object, wanted: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "STREAMXF_KERNEL": wanted}, capture_output=True, text=True)


def test_a_save_works_without_what_an_older_kernel_lacks(tmp_path: Path) -> None:
    """As in a clone that was updated and not built."""
    done = run(OLDER + SAVE, 0, tmp_path / "x")
    assert (done.returncode, done.stdout) == (0, "numpy\n"), done.stderr
    assert done.stderr.count("build it with `pip install -e .` again; until then NumPy is used") == 1


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_kernel_of_another_version_is_not_called(version: int) -> None:
    for wanted, code in (("", 0), ("numpy", 0), ("compiled", 1)):
        done = run(OLDER, version, wanted=wanted)
        assert done.returncode == code
        assert ("build it with `pip install -e .` again" in done.stderr) == (wanted != "numpy")
        assert ("until then" in done.stderr) == (wanted == "")


def test_the_kernels_version_changes_with_its_functions() -> None:
    """If this fails because a function takes or returns something else, raise VERSION in both files as well."""
    source = Path(kernel.__file__).parent
    text = (source / "_kernel.c").read_text()
    assert re.findall(r"^#define VERSION (\d+)$", text, re.MULTILINE) == [str(VERSION)]
    table = text[text.index("static PyMethodDef methods[]") :].partition("};")[0]
    signatures = (source / "_kernel.pyi").read_text()
    known = hashlib.sha256(re.sub(r"\s+", " ", table + signatures).encode()).hexdigest()[:16]
    assert (VERSION, known) == (4, "811d9a795e1528d2")
