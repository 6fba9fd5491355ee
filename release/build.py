"""The command ``python -m release.build``: sdist and wheel of the last commit into dist/, with their SHA-256 sums.

Built again from the same commit, with the same compiler and the packages of constraints.txt, they are the same bytes:
times are that of the commit, names are sorted, and no path of the machine is in them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SUMS = "SHA256SUMS"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build(target: Path) -> None:
    """Build both from a fresh copy of the last commit; what is not committed is not in them."""
    if changed := git("status", "--porcelain"):
        print(f"not in what is built, since it is not committed:\n{changed}", file=sys.stderr)
    epoch = int(git("show", "-s", "--format=%ct", "HEAD"))
    os.umask(0o022)
    tools = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    settings = {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC", "PATH": tools}
    settings["CC"] = os.environ.get("CC", "cc")
    settings["LDSHARED"] = f"{settings['CC']} -shared"  # Python's own has the path of its libraries on this machine
    with TemporaryDirectory(prefix="streamxf-dist-") as name:
        folder = Path(name)
        copied = folder / "copy"
        copied.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(copied, filter="data")
        source = made_by("build_sdist", copied, folder / "sdist", settings)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        settled = settle(source, target / source.name, epoch)
        with tarfile.open(settled) as file:
            file.extractall(folder, filter="data")
        # from the source distribution, as where there is no wheel
        (unpacked,) = (path.parent for path in folder.glob("streamxf-*/setup.py"))
        wheel = made_by("build_wheel", unpacked, folder / "wheel", settings)
        if not any(wheel.parent.glob("*abi3*.whl")):
            raise SystemExit("the wheel has no compiled kernel: a C compiler and Python's headers are needed")
        run("auditwheel", "repair", "--wheel-dir", str(target), str(wheel), env=settings)
    files = sorted(path for path in target.iterdir())
    for name in filter(None, map(search_path, target.glob("*.whl"))):
        raise SystemExit(f"{name} has a path of this machine, where libraries would be looked for first")
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (target / SUMS).write_text("".join(sums))


def search_path(wheel: Path) -> str:
    """A library in a wheel that has a path of its own to look for others in; or ""."""
    from elftools.elf.elffile import ELFFile  # auditwheel's

    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            dynamic = ELFFile(archive.open(name)).get_section_by_name(".dynamic") if name.endswith(".so") else None
            if any(tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH") for tag in (dynamic.iter_tags() if dynamic else ())):
                return name
    return ""


def made_by(step: str, tree: Path, target: Path, settings: dict[str, str]) -> Path:
    """What the build backend makes of a tree, in this environment."""
    target.mkdir()
    code = f"import setuptools.build_meta as backend; backend.{step}({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tree, env=settings, check=True, stdout=subprocess.DEVNULL)
    (made,) = target.iterdir()
    return made


def settle(archive: Path, target: Path, epoch: int) -> Path:
    """Copy a source distribution with sorted names, and with the time, the owner and the rights of nobody's machine."""
    with tarfile.open(archive) as old, io.BytesIO() as plain:
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member in sorted(old, key=lambda each: each.name):
                own = tarfile.TarInfo(member.name)
                own.type, own.size, own.mtime = member.type, member.size, epoch
                own.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                new.addfile(own, old.extractfile(member) if member.isfile() else None)
        target.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))
    return target


def run(module: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, env=env)


def main() -> None:
    build(DIST)
    packages = sorted(str(path) for path in DIST.iterdir() if path.name != SUMS)
    run("twine", "check", "--strict", *packages)
    run("check_wheel_contents", *(path for path in packages if path.endswith(".whl")))
    print((DIST / SUMS).read_text(), end="")


if __name__ == "__main__":
    main()
