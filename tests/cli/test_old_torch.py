"""Commands beside a torch that has no extensions of DCP yet: the error names the version that is needed."""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf

# Torch 2.6 lacks this module; everything else that streamxf imports before it is there. Each script runs in a copy of a
# process that has imported no more than that.
OLD = """
import json, os, sys, tempfile, torch, torch.distributed.checkpoint, traceback
torch.__version__ = "2.6.0"
sys.modules["torch.distributed.checkpoint._extension"] = None
for name, script in json.load(sys.stdin).items():
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                exec(script)
                code = 0
            except SystemExit as end:
                code = end.code
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        shown = [os.pread(file.fileno(), 2**20, 0).decode() for file in (out, err)]
    print(json.dumps([name, code, *shown]), flush=True)
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def command(*arguments: str) -> str:
    return f"from streamxf.cli.__main__ import main; sys.exit(main({arguments!r}))"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """What came of each script."""
    path = str(tmp_path_factory.mktemp("checkpoint") / "plain")
    save({"w": torch.arange(100.0), "step": 7}, storage_writer=streamxf.FileSystemWriter(path))
    scripts = {
        "transcode": command("transcode", path, f"{path}-2"),
        # whether or not the package is installed that has the weights
        "demo": f"import streamxf.cli.demo; streamxf.cli.demo.load_model = dict; {command('demo')}",
        "verify": command("verify", path),
        "inspect": command("inspect", path),
        "diff": command("diff", path, path),
        "writer": "import streamxf; streamxf.FileSystemWriter",
        "encode": "import streamxf; assert streamxf.decode(streamxf.encode(b'abc')) == b'abc'",
    }
    ran = subprocess.run(
        [sys.executable, "-c", OLD], input=json.dumps(scripts), capture_output=True, text=True, check=True
    )
    return {name: Done(*rest) for name, *rest in map(json.loads, ran.stdout.splitlines())}


def test_a_command_says_which_torch_it_needs(done: dict[str, Done]):
    assert done["demo"].code == 2
    (line,) = done["demo"].err.splitlines()
    assert line.startswith("streamxf demo: torch 2.6.0 is too old: streamxf needs torch 2.7 or newer")


@pytest.mark.parametrize("name", ["inspect", "diff", "verify", "transcode"])
def test_what_needs_no_torch_works_with_any(done: dict[str, Done], name: str):
    assert (done[name].code, done[name].err) == (0, "")


def test_so_does_the_library(done: dict[str, Done]):
    assert "UnsupportedError: torch 2.6.0 is too old: streamxf needs torch 2.7 or newer" in done["writer"].err


def test_what_needs_no_checkpoint_still_works(done: dict[str, Done]):
    assert done["encode"].code == 0, done["encode"].err
