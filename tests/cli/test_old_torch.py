"""Commands beside a torch that has no extensions of DCP yet: the error names the version that is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# torch 2.6 lacks this module; everything else that streamxf imports before it is there
OLD = """
import sys, torch, torch.distributed.checkpoint
torch.__version__ = "2.6.0"
sys.modules["torch.distributed.checkpoint._extension"] = None
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", OLD + code], capture_output=True, text=True)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(f"from streamxf.cli.__main__ import main; sys.exit(main({arguments!r}))")


def test_a_command_says_which_torch_it_needs(plain: Path):
    done = command("verify", str(plain))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("streamxf verify: torch 2.6.0 is too old: streamxf needs torch 2.7 or newer")


def test_what_needs_no_torch_works_with_any(plain: Path):
    for arguments in (("inspect", str(plain)), ("diff", str(plain), str(plain))):
        done = command(*arguments)
        assert (done.returncode, done.stderr) == (0, "")


def test_so_does_the_library():
    done = python("import streamxf; streamxf.FileSystemWriter")
    assert "UnsupportedError: torch 2.6.0 is too old: streamxf needs torch 2.7 or newer" in done.stderr


def test_what_needs_no_checkpoint_still_works():
    done = python("import streamxf; assert streamxf.decode(streamxf.encode(b'abc')) == b'abc'")
    assert done.returncode == 0, done.stderr
