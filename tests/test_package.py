"""The package is built with its kernel where there is a compiler, and without it elsewhere."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILER = os.environ.get("CC", "cc")
KERNEL = "streamxf/codecs/floatzip/_kernel.abi3.so"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked: what most machines without a wheel are given."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("source")
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.so", "build", "*.egg-info", "site", "images")
    shutil.copytree(ROOT, copy, ignore=ignored)
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    (archive,) = folder.glob("streamxf-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (unpacked,) = (path.parent for path in folder.glob("streamxf-*/pyproject.toml"))
    return unpacked


def wheel(source: Path, target: Path, compiler: str) -> Path:
    """What pip has the backend build, without pip's three processes."""
    build = f"import setuptools.build_meta as backend; backend.build_wheel({str(target)!r})"
    environment = {**os.environ, "CC": compiler}
    subprocess.run([sys.executable, "-c", build], cwd=source, env=environment, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


def implementation(installed: Path) -> str:
    """What encodes and decodes a block in a process that imports the package from a folder."""
    code = (
        "import streamxf; from streamxf.codecs.floatzip import kernel\n"
        "data = bytes(range(256)) * 100\n"
        "assert streamxf.decode(streamxf.encode(data, 'floatzip')) == data\n"
        "print(streamxf.__file__, kernel.implementation())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "STREAMXF_KERNEL"}
    environment |= {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environment, cwd=installed, check=True, capture_output=True, text=True)
    file, found = ran.stdout.split()
    assert Path(file).is_relative_to(installed)
    return found


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C compiler")
def test_one_wheel_for_all_versions_of_python(source: Path, tmp_path: Path) -> None:
    built = wheel(source, tmp_path, COMPILER)
    assert "-cp311-abi3-" in built.name
    with zipfile.ZipFile(built) as file:
        names = file.namelist()
        file.extractall(tmp_path / "installed")
    assert KERNEL in names
    assert {"streamxf/py.typed", "streamxf/codecs/floatzip/_kernel.pyi"} <= set(names)
    assert any(name.endswith(".data/data/share/man/man1/streamxf.1") for name in names)
    assert not [name for name in names if name.endswith(".c")]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"streamxf", "streamxf_autoload.py"}
    assert implementation(tmp_path / "installed") == "compiled"


def test_without_a_compiler(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source", ignore=shutil.ignore_patterns("build"))
    built = wheel(tmp_path / "source", tmp_path, "/bin/false")
    with zipfile.ZipFile(built) as file:
        assert KERNEL not in file.namelist()
        file.extractall(tmp_path / "installed")
    assert implementation(tmp_path / "installed") == "numpy"


@pytest.mark.parametrize(
    ("value", "said"), [("fast", "must be compiled or numpy"), ("compiled", "the kernel cannot be used")]
)
def test_a_choice_that_cannot_be_met_is_refused(value: str, said: str) -> None:
    code = "import sys; sys.modules['streamxf.codecs.floatzip._kernel'] = None; import streamxf; streamxf.FloatZip"
    environment = {**os.environ, "STREAMXF_KERNEL": value}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert said in ran.stderr
