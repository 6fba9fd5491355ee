"""The package in tests/acme_codec, installed into a fresh environment: found by its names, and missed by its names."""

import io
import shutil
import site
import subprocess
import sys
import sysconfig
import textwrap
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

PACKAGE = Path(__file__).parent / "acme_codec"
PAGE = Path(__file__).parents[1] / "docs" / "writing-a-codec.md"

COMMON = """
    import sys
    import torch
    import torch.distributed.checkpoint as dcp
    import streamxf
    from streamxf import keys
    from torch.distributed.checkpoint.api import CheckpointException

    KEY = streamxf.Key(bytes(range(32)))
    PATH = sys.argv[1]
    WEIGHT = torch.arange(100_000, dtype=torch.float32).to(torch.bfloat16).reshape(100, -1)

    def load(registry=None):
        state = {"weight": torch.zeros_like(WEIGHT)}
        dcp.load(state, storage_reader=streamxf.FileSystemReader(PATH, registry, keys=KEY))
        return state["weight"]

    def refused(location):
        try:
            streamxf.keys.KeyRing([location])
        except streamxf.errors.ParameterError as error:
            return str(error)
        raise SystemExit("nothing was refused")

    def refusal(registry=None):
        try:
            load(registry)
        except CheckpointException as error:  # derives from BaseException only
            return str(error)
        raise SystemExit("nothing was refused")
"""

SAVE = """
    from acme_codec import Delta

    chain = [Delta(stride=2), streamxf.ZStandard(), streamxf.Encrypt(KEY)]
    dcp.save({"weight": WEIGHT}, storage_writer=streamxf.FileSystemWriter(PATH, _extensions=chain))
    writer = streamxf.attach(dcp.FileSystemWriter(f"{PATH}/attached"), [Delta(stride=2)])
    dcp.save({"weight": WEIGHT}, storage_writer=writer)
    print(streamxf.FileSystemReader(PATH, keys=KEY).read_metadata().storage_meta.modules)
"""

LOAD = """
    def imported():
        return sorted(name for name in sys.modules if name.startswith("acme"))

    refused = refusal(streamxf.Registry(allow=["other.codec"]))
    assert "CodecNotAllowedError" in refused and "'acme.delta'" in refused and "acme-codec==1.0.0" in refused, refused
    assert not imported(), imported()

    assert torch.equal(load(), WEIGHT)
    assert imported() == ["acme_codec", "acme_codec.delta"], imported()
    assert torch.equal(load(streamxf.Registry(allow=["acme.delta"])), WEIGHT)

    assert "acme.trap" in streamxf.CodecRegistry().names()
    try:
        streamxf.CodecRegistry().find("acme.trap")
    except streamxf.errors.UnknownCodecError as error:
        assert "the trap was imported" in str(error), error
    else:
        raise SystemExit("the trap is not armed")
"""

MISS = """
    print(refusal())
"""

MISS_ATTACHED = """
    PATH += "/attached"
    for reader in (streamxf.FileSystemReader(PATH), streamxf.attach(dcp.FileSystemReader(PATH))):
        try:
            dcp.load({"weight": torch.zeros_like(WEIGHT)}, storage_reader=reader)
        except CheckpointException as error:
            print(error)
"""


KEY_PROVIDER = """
    def imported():
        return sorted(name for name in sys.modules if name.startswith("acme"))

    keys.write_key(f"{PATH}/training", KEY)
    keys.write_key(f"{PATH}/inference", streamxf.Key.generate())
    assert not imported(), imported()
    assert "acme-folder" in str(refused("acme-nothing:x"))
    assert not imported(), imported()

    writer = streamxf.FileSystemWriter(f"{PATH}/step", _extensions=[streamxf.Encrypt(f"acme-folder:{PATH}/training")])
    dcp.save({"weight": WEIGHT}, storage_writer=writer)
    assert "acme_codec.folder" in imported(), imported()

    def load(where):
        state = {"weight": torch.zeros_like(WEIGHT)}
        dcp.load(state, storage_reader=streamxf.FileSystemReader(f"{PATH}/step", keys=where))
        return state["weight"]

    assert torch.equal(load(f"acme-folder:{PATH}/training"), WEIGHT)
    assert torch.equal(load([KEY, f"acme-folder:{PATH}/training"]), WEIGHT)
    for where, words in (
        (f"acme-folder:{PATH}/inference", "KeyMissingError"),
        (KEY, "(acme-folder)"),
    ):
        try:
            load(where)
        except CheckpointException as error:
            assert words in str(error), error
        else:
            raise SystemExit("it was opened by another key")
"""

MISS_KEY_PROVIDER = """
    print(refused("acme-folder:x"))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's folder, with a second entry point whose module must not be imported."""
    folder = tmp_path_factory.mktemp("package") / "acme_codec"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis"))
    project = folder / "pyproject.toml"
    text = project.read_text()
    point = '"acme.delta" = "acme_codec.delta:Delta"\n'
    assert point in text
    project.write_text(text.replace(point, point + '"acme.trap" = "acme_codec.trap:Trap"\n'))
    (folder / "src/acme_codec/trap.py").write_text("raise RuntimeError('the trap was imported')\n")
    return folder


@pytest.fixture(scope="module")
def python(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that has the package, and sees what is installed beside these tests."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    scheme = {"base": str(environment), "platbase": str(environment)}
    folder = Path(sysconfig.get_path("purelib", "venv", scheme))
    # addsitedir and not a plain path, so that editable installs count too
    lines = (f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (folder / "beside.pth").write_text("".join(lines))
    python = environment / "bin" / "python"
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", "--quiet", "--ignore-installed", *offline, package)
    return python


@pytest.fixture(scope="module")
def checkpoint(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    assert "'acme.delta=acme-codec==1.0.0'" in script(python, SAVE, path)
    return path


def test_it_is_found_by_its_name_and_nothing_else_is_imported(python: Path, checkpoint: Path) -> None:
    script(python, LOAD, checkpoint)


def test_where_it_is_missing_the_error_says_what_to_install(checkpoint: Path) -> None:
    message = script_here(MISS, checkpoint)
    assert "UnknownCodecError" in message
    wanted = (
        "codec 'acme.delta' was provided by the package acme-codec==1.0.0, which is not installed here in a version "
        "that reads it; install it if you trust it"
    )
    assert wanted in message


def test_so_it_is_where_a_writer_was_attached(checkpoint: Path) -> None:
    assert script_here(MISS_ATTACHED, checkpoint).count("was provided by the package acme-codec==1.0.0") == 2


def test_its_key_provider_is_found_by_its_place(python: Path, tmp_path: Path) -> None:
    script(python, KEY_PROVIDER, tmp_path)


def test_where_the_key_provider_is_missing_the_error_lists_those_at_hand(tmp_path: Path) -> None:
    message = script_here(MISS_KEY_PROVIDER, tmp_path)
    assert "begins with none of file, env, aws-kms" in message


def test_its_own_tests_pass(python: Path, package: Path) -> None:
    report = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    assert "passed" in report
    assert "skipped" not in report


def script(python: Path, text: str, path: Path) -> str:
    """Run a script after the common beginning."""
    return run(python, "-c", textwrap.dedent(COMMON) + textwrap.dedent(text), path, cwd=path)


def script_here(text: str, path: Path) -> str:
    """The same in this process, whose environment has no such package."""
    with redirect_stdout(io.StringIO()) as printed, mock.patch.object(sys, "argv", ["-c", str(path)]):
        exec(textwrap.dedent(COMMON) + textwrap.dedent(text), {"__name__": "__main__"})
    return printed.getvalue()


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
