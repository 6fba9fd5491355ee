"""How ``streamxf`` begins: what it imports for its help, what it says without its extra, and completion."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamxf
from streamxf.cli.run import COMMANDS
from streamxf.version import __version__
from tests.cli.command import Run
from tests.formats.samples import WRITERS, written

NAMES = list(COMMANDS)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)


# -- help ------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    done = python(
        "import sys; from streamxf.cli.__main__ import main\n"
        f"for arguments in [['--help'], *([name, '--help'] for name in {NAMES!r})]:\n"
        "    assert main(arguments) == 0, arguments\n"
        "    heavy = {'torch', 'numpy', 'cryptography', 'zstandard', 'fsspec'} & set(sys.modules)\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: streamxf") == 1 + len(NAMES)
    assert "<bool>" not in done.stdout


FILES = ("safetensors", "torch.save", "Hugging Face", "Hugging Face .bin")
WITH_VALUES = ("encrypted", "stock", "safetensors", "torch.save")


def commands_on(kind: str, folder: Path) -> Iterator[list[str]]:
    """All that commands can do with a sample of a format: look, check, convert there and back, and save the rest."""
    folder.mkdir()
    path = str(written(kind, {f"layers.{layer}.w": torch.zeros(4, 4) for layer in range(3)}, folder))
    keys = ["--key", "env:KEY"] if kind == "encrypted" else []
    yield ["inspect", path]
    if kind in WITH_VALUES:
        yield ["inspect", path, "--values", *keys]
    if kind == "compressed":
        for view in (["--tree"], ["--items"], ["--json", "--items"], ["--html", str(folder / "page.html")]):
            yield ["inspect", path, *view]
    yield ["verify", path, *keys]
    yield ["unpack", path, str(folder / "out.safetensors"), *keys]
    if kind in (*FILES, "stock"):
        yield ["pack", path, str(folder / "packed")]
    if kind not in FILES:
        access = [*keys, "--recipient", "env:KEY"] if keys else []
        yield ["transcode", path, str(folder / "copy"), *access]
        yield ["salvage", path, str(folder / "salvaged"), *access, *(["--rank", "0"] if kind == "rank-local" else [])]


def test_no_torch_is_imported_for_what_needs_none(tmp_path: Path):
    """Importing torch and its distributed packages takes seconds, and the answer a few milliseconds."""
    commands = [each for number, kind in enumerate(WRITERS) for each in commands_on(kind, tmp_path / str(number))]
    save_file({"w": torch.zeros(4)}, tmp_path / "w.safetensors")
    streamxf.pack(tmp_path / "w.safetensors", tmp_path / "packed")
    commands += [["unpack", str(tmp_path / "packed"), str(tmp_path / "again.safetensors")]]
    done = python(
        "import sys; from streamxf.cli.__main__ import main\n"
        f"for command in {commands!r}:\n"
        "    assert main(command) == 0, command\n"
        "    assert 'torch' not in sys.modules, command\n",
        KEY=bytes(range(32)).hex(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    writes = [command for command in commands if command[0] not in ("inspect", "verify")]
    assert (done.stdout.count("wrote "), len(writes)) == (31, 31)
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "w.safetensors").read_bytes()


def test_verifying_a_small_file_imports_little(tmp_path: Path):
    with streamxf.open(tmp_path / "small.sxf", "wb", chain="zstd+checksum") as file:
        file.write(bytes(500))
    done = python(
        "import sys; from streamxf.cli.__main__ import main\n"
        f"assert main(['verify', {str(tmp_path / 'small.sxf')!r}]) == 0\n"
        "needless = {'torch', 'numpy', 'asyncio', 'fsspec', 'rich', 'streamxf.cli.demo'} & set(sys.modules)\n"
        "assert not needless, needless\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_first_save_makes_little_that_it_does_not_need(tmp_path: Path):
    """All that is made here comes before the first byte of the first save of every process."""
    done = python(
        "import re, sys, torch, torch.distributed.checkpoint as dcp, streamxf.descriptor\n"
        "made, real = [], re.compile\n"
        "re.compile = lambda *given: made.append(given) or real(*given)\n"
        "import streamxf; writer = streamxf.FileSystemWriter\n"
        "assert not made, made\n"
        f"dcp.save({{'w': torch.ones(100)}}, storage_writer=writer({str(tmp_path / 'saved')!r}))\n"
        "needless = {'streamxf.stream.plain', 'streamxf.stream.container', 'fsspec'} & {*sys.modules}\n"
        "assert not needless, needless\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_list_of_commands(run: Run):
    done = run.exits(0, "--help")
    for name in NAMES:
        assert f" {name} " in done.out
    bare = run()
    assert (bare.code, bare.out.strip(), bare.err) == (2, done.out.strip(), "")


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_an_example_and_json(run: Run, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = run.exits(0, name, "--help")
    assert f"streamxf {name}" in done.out.partition("Examples")[2]
    assert ("--json" in done.out) == (name != "cat")  # whose output is what a file holds


def test_the_version(run: Run):
    run.exits(0, "--version", out=f"streamxf {__version__}\n")


# -- without the extra -----------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [["rich"], ["typer"], ["rich", "typer"]], ids=" ".join)
def test_without_the_extra_it_says_what_to_install(absent: list[str]):
    done = python(
        "import importlib.abc, sys\n"
        f"absent = {absent!r}\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in absent: raise ModuleNotFoundError(name)\n"
        "real = __import__('importlib.util').util.find_spec\n"
        "__import__('importlib.util').util.find_spec = lambda name: None if name in absent else real(name)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from streamxf.cli.__main__ import main\n"
        "raise SystemExit(main(['verify', '.']))"
    )
    assert done.returncode == 2
    assert done.stderr == f"streamxf: the command line needs {' and '.join(absent)}: pip install 'streamxf[cli]'\n"
    assert done.stdout == ""


# -- completion ------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path):
    """A function that runs bash with ``streamxf`` on its path."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = tmp_path / "bin" / "streamxf"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m streamxf.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"

    def run(script: str) -> list[str]:
        environment = os.environ | {"PATH": path, "HOME": str(tmp_path), "SHELL": bash, "COLUMNS": "80"}
        done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


COMPLETE = """
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
$(complete -p streamxf | sed 's/.*-F \\([^ ]*\\).*/\\1/') streamxf
echo "${{COMPREPLY[@]}}"
"""
COMPLETED = {
    'streamxf ""': NAMES,
    "streamxf re": [name for name in NAMES if name.startswith("re")],
    "streamxf verify --expect": ["--expect-save-id"],
    'streamxf pack a b --chain ""': ["checksum", "encrypt", "floatzip", "lz4", "zstd"],
    "streamxf transcode a b --chain zst": ["zstd"],
    "streamxf pack a b --chain floatzip+ch": ["floatzip+checksum"],
    'streamxf keygen new.key --kind ""': ["symmetric", "hybrid", "x25519", "signing", "hybrid-signing"],
}


def test_bash_completes(shell):
    asked = "".join(COMPLETE.format(words=words) for words in COMPLETED)
    found = shell(f'eval "$(streamxf --show-completion; true)"\n{asked}')
    assert [sorted(line.split()) for line in found] == [sorted(wanted) for wanted in COMPLETED.values()]


def test_completion_is_installed_where_bash_finds_it(shell, tmp_path: Path):
    shell("streamxf --install-completion; true")
    assert (tmp_path / ".bashrc").exists()
    found = shell(f"source ~/.bashrc\n{COMPLETE.format(words='streamxf verif')}")
    assert found == ["verify"]
