"""In an environment that has what `streamxf[cli]` needs and no torch, checkpoints are read, checked and converted."""

import os
import subprocess
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from packaging.requirements import Requirement

import streamxf
from tests.test_package import ROOT

STATE = {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(300, dtype=torch.bfloat16), "step": 7}
TO_INSTALL = "this needs PyTorch, which is not installed: pip install 'streamxf[torch]'"


def needed(requirements: list[str]) -> dict[str, Path]:
    """What is installed of packages and of all that they need, by the names in its site."""
    found, waiting = dict[str, Path](), [*map(Requirement, requirements)]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        if wanted.name in seen or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name)
        package = distribution(wanted.name)
        waiting += map(Requirement, package.requires or ())
        tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}
        found |= {top: Path(str(package.locate_file(top))) for top in tops}
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of that environment."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, place in needed(project["dependencies"] + project["optional-dependencies"]["cli"]).items():
        (site / name).symlink_to(place)
    (site / "streamxf.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints and a file of torch.save."""
    folder = tmp_path_factory.mktemp("run")
    for name in ("step-1", "step-2"):
        dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder / name))
    dcp.save(STATE, checkpoint_id=folder / "stock")
    torch.save(STATE, folder / "saved.pt")
    return folder


def ran(python: Path, run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    return subprocess.run([python, *arguments], cwd=run, env=own, capture_output=True, text=True, check=False)


WITHOUT = {
    "inspect step-1 --values": "bfloat16",
    "inspect stock": "bfloat16",
    "inspect saved.pt": "bfloat16",
    "verify step-1 stock": "no damage found",
    "cat step-1 w --text": "0.0 1.0 2.0\n3.0 4.0 5.0\n",
    "cat step-1 step --text": "7\n",
    "diff step-1 step-2": "the same",
    "list .": "step-2",
    "salvage step-1 salvaged": "3 items salvaged",
    "transcode step-1 copied --chain zstd": "wrote 3 items",
    "unpack step-1 made.safetensors --skip-objects": "wrote 2 tensors",
    "pack saved.pt packed": "wrote 5 items",
    "stock step-1": "",
    "clean step-1 --dry-run": "nothing to remove",
}


@pytest.mark.parametrize("command", WITHOUT)
def test_commands_that_need_no_torch(python: Path, run: Path, command: str) -> None:
    done = ran(python, run, "-m", "streamxf.cli", *command.split())
    assert (done.returncode, done.stderr.count("torch")) == (0, 0), done.stderr
    assert WITHOUT[command] in done.stdout + done.stderr


def test_what_was_written_without_torch_is_what_torch_writes(python: Path, run: Path) -> None:
    assert ran(python, run, "-m", "streamxf.cli", "unpack", "step-1", "again.pt").returncode == 0
    found = torch.load(run / "again.pt")
    assert torch.equal(found["w"], STATE["w"])
    assert torch.equal(found["b"], STATE["b"])
    assert found["step"] == 7


def test_a_checkpoint_is_read_into_numpy(python: Path, run: Path) -> None:
    code = "checkpoint = streamxf.Checkpoint('step-1', framework='numpy')"
    code = f"import streamxf; {code}; print(checkpoint['w'][1].tolist(), checkpoint['step'].read())"
    assert ran(python, run, "-c", code).stdout == "[3.0, 4.0, 5.0] 7\n"


NEEDING = ("FileSystemWriter", "Checkpoint('step-1')['w'].read()", "load_intact('step-1')", "Follower('run', into={})")


@pytest.mark.parametrize("code", NEEDING)
def test_what_needs_torch_says_so(python: Path, run: Path, code: str) -> None:
    done = ran(python, run, "-c", f"import streamxf; streamxf.{code}")
    assert f"\nModuleNotFoundError: {TO_INSTALL}\n" in done.stderr


def test_a_command_that_needs_torch_says_so(python: Path, run: Path) -> None:
    done = ran(python, run, "-m", "streamxf.cli", "demo")
    assert (done.returncode, done.stderr) == (2, f"streamxf demo: {TO_INSTALL}\n")


def test_numbers_that_numpy_lacks(python: Path, run: Path) -> None:
    done = ran(python, run, "-m", "streamxf.cli", "cat", "step-1", "b", "--text")
    assert done.stderr == "streamxf cat: numpy has no bfloat16: install ml_dtypes [file step-1, item b]\n"
