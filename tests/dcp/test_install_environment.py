"""``STREAMXF_CHAIN`` installs a chain when torch is imported, in whatever process that is, and nothing happens without.

The entry point is that of pyproject.toml, in a package of the same name that is found first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import streamxf

from .helpers import KEY, stored_chain

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHAIN = "floatzip+checksum+encrypt"

# no line of it is about streamxf
SAVING = """
import multiprocessing, sys, torch
import torch.distributed.checkpoint as dcp

def save(path):
    dcp.save({"weight": torch.ones(1000), "step": 7}, checkpoint_id=path)

if __name__ == "__main__":
    save(sys.argv[1])
    child = multiprocessing.get_context("spawn").Process(target=save, args=(sys.argv[2],))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_entry_points(tmp_path_factory.mktemp("installed"))


def with_entry_points(folder: Path) -> Path:
    """A folder in which importlib finds the package's entry points."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / f"streamxf-{streamxf.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: streamxf\nVersion: {streamxf.__version__}\n")
    lines = [f"[{group}]\n{name} = {value}\n" for group, found in points.items() for name, value in found.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def run(installed: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (installed, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command], env=environment, capture_output=True, text=True, timeout=300
    )


def test_a_script_and_its_children(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(SAVING)
    key = tmp_path / "key"
    streamxf.write_key(key, KEY)
    paths = tmp_path / "one", tmp_path / "two"
    ran = run(installed, tmp_path / "saving.py", *paths, STREAMXF_CHAIN=CHAIN, STREAMXF_KEYS=f"file:{key}")
    assert ran.returncode == 0, ran.stderr
    assert [stored_chain(path) for path in paths] == [CHAIN, CHAIN]


LOADED = "import sys, torch; print(sorted(name for name in sys.modules if name.startswith('streamxf')))"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_chain_nothing_else_is_imported(value: str | None, installed: Path) -> None:
    ran = run(installed, "-c", LOADED, **({} if value is None else {"STREAMXF_CHAIN": value}))
    assert ran.stdout.strip() == "['streamxf_autoload']", ran.stderr


def test_a_broken_streamxf_stops_the_import_of_torch_only_with_a_chain(installed: Path, tmp_path: Path) -> None:
    """As a folder of that name is, from which Python is started."""
    (tmp_path / "streamxf").mkdir()
    (tmp_path / "streamxf" / "__init__.py").write_text("raise ImportError('half of it')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch"
    assert run(installed, "-c", code).returncode == 0
    ran = run(installed, "-c", code, STREAMXF_CHAIN="zstd")
    assert ran.returncode != 0
    assert "half of it" in ran.stderr


@pytest.mark.parametrize(
    ("value", "why"), [("floatzip+encrypt", "chain text: 'encrypt' needs"), (" ", "it names no codecs")]
)
def test_a_chain_that_cannot_be_installed_stops_the_import_of_torch(value: str, why: str, installed: Path) -> None:
    ran = run(installed, "-c", "import torch", STREAMXF_CHAIN=value)
    assert ran.returncode != 0
    assert f"STREAMXF_CHAIN is set, and could not be installed: {why}" in ran.stderr


def test_the_first_key_encrypts_and_all_open(installed: Path) -> None:
    code = "import torch, streamxf; print([key.id for key in streamxf.installed().keys], streamxf.installed().chain)"
    keys = [streamxf.Key.generate() for _ in range(2)]
    variables = {f"KEY_{number}": key.reveal().hex() for number, key in enumerate(keys)}
    ran = run(installed, "-c", code, STREAMXF_CHAIN="encrypt", STREAMXF_KEYS="env:KEY_0 env:KEY_1", **variables)
    assert ran.stdout.strip() == f"{[key.id for key in keys]} encrypt", ran.stderr


@pytest.mark.parametrize("first", ["streamxf.dcp.writer", "streamxf.dcp.install"])
def test_streamxf_may_be_imported_first(first: str, installed: Path) -> None:
    """The entry point is then called while streamxf's own modules are being imported."""
    code = f"import {first}, streamxf, torch.distributed.checkpoint as dcp; print(type(dcp.FileSystemWriter('a')))"
    ran = run(installed, "-c", code, STREAMXF_CHAIN="zstd")
    assert ran.stdout.strip() == "<class 'streamxf.dcp.writer.FileSystemWriter'>", ran.stderr


def test_a_script_that_installs_by_itself_comes_first(installed: Path) -> None:
    """What it undoes is its own."""
    code = (
        "import streamxf, torch; inner = streamxf.install('lz4'); print(streamxf.installed().chain); "
        "inner.uninstall(); print(streamxf.installed().chain)"
    )
    ran = run(installed, "-c", code, STREAMXF_CHAIN="zstd")
    assert ran.stdout.split() == [str(streamxf.Chain.parse(name)) for name in ("lz4", "zstd")], ran.stderr


def test_torchs_switch_turns_it_off(installed: Path) -> None:
    code = "import torch, streamxf; print(streamxf.installed())"
    ran = run(installed, "-c", code, STREAMXF_CHAIN="zstd", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ran.stdout.strip() == "None", ran.stderr


def test_commands_do_without(installed: Path, tmp_path: Path) -> None:
    """`demo` and `bench` compare a chain with torch's own writer."""
    code = (
        "import sys; from streamxf.cli.__main__ import main; main(['codecs']); import torch, streamxf; "
        "print(streamxf.installed(), file=sys.stderr)"
    )
    ran = run(installed, "-c", code, STREAMXF_CHAIN="zstd")
    assert ran.stderr.strip() == "None"
