"""``STREAMXF_CHAIN`` installs a chain when torch is imported, in whatever process that is, and nothing happens without.

The entry point is that of pyproject.toml, in a package of the same name that is found first.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.chain import Chain
from streamxf.keys import write_key
from streamxf_autoload import KNOWN
from tests.cli import preloaded

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


ONCE_MORE = "from streamxf import environment; environment.ignored = False"  # for that process has run a command
WITHOUT_MODULES = "for name in [*sys.modules]: name.startswith('streamxf') and sys.modules.pop(name)"
LOOK = "torch._import_device_backends()"


def run_copy(
    installed: Path, code: str, *arguments: Path, before: str = ONCE_MORE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """As `run` with "-c", in a copy of a process that has imported torch, which now looks for entry points again."""
    look = f"import sys, torch; sys.path.insert(0, {str(installed)!r})\n{before}\n{LOOK}\n"
    return preloaded.script(look + code, *arguments, **variables)


def test_a_script_and_its_children(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(SAVING)
    key = tmp_path / "key"
    write_key(key, KEY)
    paths = tmp_path / "one", tmp_path / "two"
    command = "-W", "always", tmp_path / "saving.py", *paths
    ran = run(installed, *command, STREAMXF_CHAIN=CHAIN, STREAMXF_KEYS=f"file:{key}")
    assert ran.returncode == 0, ran.stderr
    assert "streamxf" not in ran.stderr
    assert [stored_chain(path) for path in paths] == [CHAIN, CHAIN]


@pytest.mark.parametrize("variables", [{}, {"STREAMXF_CHAIN": "", "STREAMXF_KEYS": ""}], ids=["unset", "empty"])
def test_without_a_chain_nothing_else_is_imported(variables: dict[str, str], installed: Path) -> None:
    code = "print([name for name in sys.modules if name.startswith('streamxf')])"
    ran = run_copy(installed, code, before=WITHOUT_MODULES, **variables)
    assert ran.stdout.strip() == "['streamxf_autoload']", ran.stderr


def test_a_misspelt_variable_is_named_and_stops_nothing(installed: Path, tmp_path: Path) -> None:
    known = dict.fromkeys(sorted(KNOWN), "")
    named = {"STREAMXF_TEST_KEY": bytes(range(32)).hex(), "STREAMXF_KEYS": "env:STREAMXF_TEST_KEY"}
    told = run_copy(installed, "", **{**known, **named}).stderr
    assert not [name for name in (*known, *named) if f"'{name}'" in told]
    full = "import io; sys.stderr = io.TextIOWrapper(open('/dev/full', 'wb', 0), write_through=True)"
    ran = run_copy(installed, f"{full}; {LOOK}; print('on')", STREAMXF_CHIAN="encrypt", STREAMXF_QX="1")
    assert (ran.returncode, ran.stdout) == (0, "on\n")
    assert ran.stderr.endswith("'STREAMXF_CHIAN' is not one of streamxf's; STREAMXF_CHAIN may be meant\n")
    assert "STREAMXF_QX" not in ran.stderr


def test_every_variable_is_known() -> None:
    sources = map(Path.read_text, ROOT.glob("streamxf/**/*.py"))
    read = {name for text in sources for name in re.findall(r"\bSTREAMXF_[A-Z_]+", text)} - {"STREAMXF_"}
    assert sorted(read) == sorted(KNOWN)


def test_a_broken_streamxf_stops_the_import_of_torch_only_with_a_chain(installed: Path, tmp_path: Path) -> None:
    """As a folder of that name is, from which Python is started."""
    (tmp_path / "streamxf").mkdir()
    (tmp_path / "streamxf" / "__init__.py").write_text("raise ImportError('half of it')\n")
    before = f"{WITHOUT_MODULES}\nsys.path.insert(0, {str(tmp_path)!r})"
    assert run_copy(installed, "", before=before).returncode == 0
    ran = run_copy(installed, "", before=before, STREAMXF_CHAIN="zstd")
    assert ran.returncode == 1
    assert (
        ran.stderr == "streamxf: STREAMXF_CHAIN or STREAMXF_KEYS is set, and streamxf fails: ImportError: half of it\n"
    )


WRONG = [
    ("floatzip+encrypt", None, "chain text: 'encrypt' needs exactly one key in STREAMXF_KEYS"),
    (" ", None, "it names no codecs"),
]
WRONG += [("zstd+encrypt", "file:/nowhere/key", "No such file"), ("zstd", "nonsense", "")]

TRYING = """
import sys, torch
import torch.distributed.checkpoint as dcp

class Derived(dcp.FileSystemWriter):
    pass

class DerivedReader(dcp.FileSystemReader):
    pass

STATE = {"w": torch.zeros(4)}
path = sys.argv[1]
for name, call in {
    "save": lambda: dcp.save(STATE, checkpoint_id=path),
    "writer": lambda: dcp.FileSystemWriter(path),
    "derived writer": lambda: Derived(path),
    "save in the background": lambda: dcp.async_save(STATE, checkpoint_id=path).result(),
    "load": lambda: dcp.load(STATE, checkpoint_id=path),
    "reader": lambda: dcp.FileSystemReader(path),
    "derived reader": lambda: DerivedReader(path),
}.items():
    try:
        call()
        print("done", name)
    except BaseException as error:
        print("cannot be used" in str(error) and "refused", name)
"""


@pytest.mark.parametrize(("chain", "keys", "why"), WRONG)
def test_what_cannot_be_installed_refuses_every_save_and_load(
    chain: str, keys: str | None, why: str, installed: Path, tmp_path: Path
) -> None:
    """Torch's own advice would be to turn the variable off, and with it encryption."""
    variables = {"STREAMXF_CHAIN": chain, "STREAMXF_KEYS": keys or ""}
    ran = run_copy(installed, TRYING, tmp_path / "checkpoint", **variables)
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "streamxf" in line]
    assert line.startswith(f"streamxf: STREAMXF_{'CHAIN' if keys is None else 'KEYS'} cannot be used: ")
    assert why in line
    assert "AUTOLOAD" not in ran.stderr
    assert {line.split()[0] for line in ran.stdout.splitlines()} == {"refused"}
    assert not list(tmp_path.iterdir())


def test_with_strict_it_ends_the_process(installed: Path) -> None:
    ran = run_copy(installed, "import torch; print('on')", STREAMXF_CHAIN="zsdt", STREAMXF_STRICT="1")
    assert (ran.returncode, ran.stdout) == (1, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("streamxf: STREAMXF_CHAIN cannot be used: ")
    assert "zsdt" in line


def test_what_a_script_installs_itself_is_not_refused(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, torch, streamxf, torch.distributed.checkpoint as dcp\n"
        "with streamxf.install('zstd'): dcp.save({'w': torch.zeros(4)}, checkpoint_id=sys.argv[1])\n"
        "try: streamxf.installed()\n"
        "except streamxf.StreamxfError as error: print(error)"
    )
    ran = run_copy(installed, code, tmp_path / "checkpoint", STREAMXF_CHAIN="zsdt")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("STREAMXF_CHAIN cannot be used: ")
    assert stored_chain(tmp_path / "checkpoint", None) == "zstd"


def test_keys_alone_are_enough_to_read_and_change_no_writer(installed: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    write_key(key, KEY)
    save({"w": torch.ones(4)}, storage_writer=streamxf.FileSystemWriter(tmp_path / "sealed", chain="encrypt", keys=KEY))
    code = (
        "import sys, torch, streamxf, torch.distributed.checkpoint as dcp\n"
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
        "state = {'w': torch.zeros(4)}\n"
        "dcp.load(state, checkpoint_id=f'{sys.argv[1]}/sealed')\n"
        "dcp_to_torch_save(f'{sys.argv[1]}/sealed', f'{sys.argv[1]}/whole.pt')\n"
        "dcp.save(state, checkpoint_id=f'{sys.argv[1]}/stock')\n"
        "dcp.async_save(state, checkpoint_id=f'{sys.argv[1]}/later').result()\n"
        "print(state['w'].sum().item(), type(dcp.FileSystemWriter('a')).__module__, streamxf.installed())"
    )
    ran = run_copy(installed, code, tmp_path, STREAMXF_KEYS=f"file:{key}")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("4.0 torch.distributed.checkpoint.filesystem <streamxf installation: no chain, keys")
    assert [stored_chain(tmp_path / name, None) for name in ("stock", "later")] == ["", ""]
    assert torch.load(tmp_path / "whole.pt")["w"].sum() == 4


OWN_SAVES = """
import sys, torch, streamxf, torch.distributed.checkpoint as dcp
path, state = sys.argv[1], {"w": torch.ones(4)}
for _ in range(2):
    dcp.save(state, checkpoint_id=path)
state["w"].zero_()
try:
    dcp.load(state, checkpoint_id=path)
except dcp.CheckpointException as error:
    print(error.failures[0][0])
dcp.load(state, storage_reader=streamxf.FileSystemReader(path, require=None))
print(state["w"].sum().item())
"""


def test_who_saves_with_keys_alone_is_told_how_to_load_that(installed: Path, tmp_path: Path) -> None:
    """Readers that have keys refuse what anybody could have put there; to hear of it at the restart would be late."""
    key = tmp_path / "key"
    write_key(key, KEY)
    ran = run_copy(installed, OWN_SAVES, tmp_path / "checkpoint", STREAMXF_KEYS=f"file:{key}")
    (warning,) = [line for line in ran.stderr.splitlines() if "FileSystemWriter" in line]
    assert "saves without encryption, which readers refuse while STREAMXF_KEYS is set: unset STREAMXF_KEYS" in warning
    refusal, loaded = ran.stdout.splitlines()
    ways_out = "unset STREAMXF_KEYS if you know that it was not encrypted, or load it with FileSystemReader(path, req"
    assert ways_out in refusal
    assert loaded == "4.0"


def test_keys_that_cannot_be_used_refuse_loads_alone(installed: Path, tmp_path: Path) -> None:
    ran = run_copy(installed, TRYING, tmp_path / "checkpoint", STREAMXF_KEYS="prompt")
    found = dict(reversed(line.split(maxsplit=1)) for line in ran.stdout.splitlines())
    assert {name for name, what in found.items() if what == "refused"} == {"load", "reader", "derived reader"}
    assert {found[name] for name in ("save", "writer", "derived writer", "save in the background")} == {"done"}
    assert "STREAMXF_KEYS cannot be used" in ran.stderr
    assert "every load is refused" in ran.stderr


def test_importing_warns_where_torchs_switch_turns_it_off(installed: Path) -> None:
    """Or nobody would see that nothing is encrypted."""
    for code, printed in {
        "import streamxf": "",
        "import torch, streamxf; print(streamxf.installed())": "None\n",
    }.items():
        off = run(installed, "-W", "always", "-c", code, STREAMXF_CHAIN="zstd", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert off.stdout == printed
        assert "STREAMXF_CHAIN is set, and nothing is installed: TORCH_DEVICE_BACKEND_AUTOLOAD keeps" in off.stderr
    on = run(installed, "-W", "error", "-c", "import streamxf", STREAMXF_CHAIN="zstd")
    assert (on.returncode, on.stderr) == (0, "")


def test_importing_warns_where_streamxf_is_no_installed_package(installed: Path) -> None:
    code = "import importlib.metadata as m; m.entry_points = lambda **_: (); import streamxf"
    ran = run(installed, "-W", "always", "-c", code, STREAMXF_CHAIN="zstd")
    assert "STREAMXF_CHAIN is set, and nothing is installed: streamxf is on the path, but not" in ran.stderr


def test_the_first_key_encrypts_and_all_open(installed: Path) -> None:
    code = "import torch, streamxf; print([key.id for key in streamxf.installed().keys], streamxf.installed().chain)"
    keys = [streamxf.Key.generate() for _ in range(2)]
    variables = {f"KEY_{number}": key.reveal().hex() for number, key in enumerate(keys)}
    ran = run_copy(installed, code, STREAMXF_CHAIN="encrypt", STREAMXF_KEYS="env:KEY_0 env:KEY_1", **variables)
    assert ran.stdout.strip() == f"{[key.id for key in keys]} encrypt", ran.stderr


@pytest.mark.parametrize("first", ["streamxf.dcp.writer", "streamxf.dcp.install"])
def test_streamxf_may_be_imported_first(first: str, installed: Path) -> None:
    """The entry point is then called while streamxf's own modules are being imported."""
    code = f"import {first}, streamxf, torch.distributed.checkpoint as dcp; print(type(dcp.FileSystemWriter('a')))"
    ran = run(installed, "-W", "always", "-c", code, STREAMXF_CHAIN="zstd")
    assert ran.stdout.strip() == "<class 'streamxf.dcp.writer.FileSystemWriter'>", ran.stderr
    assert "streamxf" not in ran.stderr


def test_a_script_that_installs_by_itself_comes_first(installed: Path) -> None:
    """What it undoes is its own."""
    code = (
        "import streamxf, torch; inner = streamxf.install('lz4'); print(streamxf.installed().chain); "
        "inner.uninstall(); print(streamxf.installed().chain)"
    )
    ran = run_copy(installed, code, STREAMXF_CHAIN="zstd")
    assert ran.stdout.split() == [str(Chain.parse(name)) for name in ("lz4", "zstd")], ran.stderr


def test_commands_do_without(installed: Path) -> None:
    """`demo` and `bench` compare a chain with torch's own writer. The process that is copied has run a command."""
    code = "import streamxf; print(streamxf.installed())"
    ran = run_copy(installed, code, before="", STREAMXF_CHAIN="zstd", STREAMXF_KEYS="nonsense")
    assert (ran.stdout, ran.stderr) == ("None\n", "")
