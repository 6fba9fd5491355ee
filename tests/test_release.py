"""What is built for a release depends on the commit alone, and what is not ready is told."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from release import build, check
from streamxf.version import __version__

NAMES = [f"streamxf-{__version__}/{name}" for name in ("setup.py", "a/b.py", "README.md")]


def archived(path: Path, names: list[str], **facts: int) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            for fact, value in facts.items():
                setattr(member, fact, value)
            file.addfile(member, io.BytesIO(name.encode()))
    return path


def test_a_source_distribution_has_nothing_of_the_machine(tmp_path: Path) -> None:
    one = archived(tmp_path / "one", NAMES, mtime=1, uid=0, mode=0o600)
    two = archived(tmp_path / "two", NAMES[::-1], mtime=2, uid=1000, mode=0o664)
    assert one.read_bytes() != two.read_bytes()
    assert build.settle(one, tmp_path / "1", 5).read_bytes() == build.settle(two, tmp_path / "2", 5).read_bytes()
    with tarfile.open(tmp_path / "1") as file:
        assert {name: file.extractfile(name).read().decode() for name in file.getnames()} == {n: n for n in NAMES}


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose release can be made."""
    (tmp_path / "docs/benchmarks").mkdir(parents=True)
    files = {name.partition("/")[2]: name for name in NAMES} | {
        "CHANGELOG.md": f"## [{__version__}] - 2026-12-01\n",
        "docs/index.md": "",
        "docs/benchmarks/results.json": "{}",
        ".gitignore": "dist",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "DIST", tmp_path / "dist")
    build.git("init", "-q")
    commit()
    (tmp_path / "dist").mkdir()
    (tmp_path / f"dist/streamxf-{__version__}-cp311-abi3-manylinux_2_17_x86_64.whl").write_text("wheel")
    archived(tmp_path / f"dist/streamxf-{__version__}.tar.gz", NAMES)
    add_sums(tmp_path / "dist")
    return tmp_path


def commit() -> None:
    build.git("add", "-A")
    build.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")


def add_sums(dist: Path) -> None:
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in dist.glob("streamxf-*"))
    (dist / build.SUMS).write_text("\n".join(sums))


def test_what_is_ready_hinders_nothing(ready: Path) -> None:
    assert [*check.hindrances()] == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("CHANGELOG.md", "## [Unreleased]", "CHANGELOG.md has no heading"),
        ("docs/index.md", "nothing has been\nreleased yet", "docs/index.md says that nothing"),
        ("README.md", "another", "is of another commit, as README.md shows"),
    ],
)
def test_a_file_that_is_not_ready(ready: Path, name: str, text: str, said: str) -> None:
    (ready / name).write_text(text)
    assert "not committed" in next(check.hindrances())
    commit()
    assert any(said in each for each in check.hindrances())


def test_packages_that_are_not_those_of_the_sums(ready: Path) -> None:
    (wheel,) = ready.glob("dist/*.whl")
    wheel.write_text("another")
    assert [*check.hindrances()] == [f"dist/{wheel.name} is not as SHA256SUMS has it: run `make dist`"]
    wheel.unlink()
    add_sums(ready / "dist")
    assert ["no manylinux wheel" in each for each in check.hindrances()] == [True]
    (ready / "dist" / build.SUMS).unlink()
    assert ["dist/ has no packages" in each for each in check.hindrances()] == [True]


def test_a_tag_of_another_version(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE_TAG", f"v{__version__}")
    assert [*check.hindrances()] == []
    monkeypatch.setenv("RELEASE_TAG", "v9")
    assert ["the tag is v9" in each for each in check.hindrances()] == [True]


def test_figures_of_an_older_library_and_a_version_that_is_out(ready: Path) -> None:
    old = build.git("rev-parse", "HEAD")
    results = {"A machine": {"times": {"machine": {"commit": old}}}}
    (ready / "docs/benchmarks/results.json").write_text(json.dumps(results))
    commit()
    assert [*check.hindrances()] == []
    build.git("tag", f"v{__version__}")
    (ready / "streamxf").mkdir()
    (ready / "streamxf/a.py").touch()
    commit()
    told = [*check.hindrances()]
    assert [each.partition(":")[0] for each in told] == [
        f"version {__version__} has been released",
        "figures of A machine are of an older streamxf",
    ]
