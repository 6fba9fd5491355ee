"""The command ``python -m release.check``: what stands in the way of a release of this commit, a line for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from release.build import DIST, ROOT, SUMS, git
from streamxf.version import __version__


def hindrances() -> Iterator[str]:
    """What is not ready, and what to do."""
    tag = os.environ.get("RELEASE_TAG")
    if tag is not None and tag != f"v{__version__}":
        yield f"the tag is {tag}, and the version {__version__}: tag v{__version__}, or change streamxf/version.py"
    if changed := git("status", "--porcelain"):
        yield f"{len(changed.splitlines())} files are not committed: commit them, or remove them"
    if f"v{__version__}" in git("tag").split() and git("rev-list", "-1", f"v{__version__}") != git("rev-parse", "HEAD"):
        yield f"version {__version__} has been released: raise it in streamxf/version.py"
    changes = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no heading `## [{__version__}] - DATE`: give the one of what is unreleased that name"
    for page in ("README.md", "docs/index.md"):
        text = " ".join((ROOT / page).read_text().split())
        if "othing has been released yet" in text:
            yield f"{page} says that nothing has been released yet: show `pip install streamxf` there"
    yield from _packages()
    yield from _figures()


def _packages() -> Iterator[str]:
    if not (DIST / SUMS).exists():
        yield "dist/ has no packages: run `make dist`"
        return
    listed = dict(reversed(line.split("  ")) for line in (DIST / SUMS).read_text().splitlines())
    for name in listed.keys() | {path.name for path in DIST.iterdir()} - {SUMS}:
        path = DIST / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != listed.get(name):
            yield f"dist/{name} is not as {SUMS} has it: run `make dist`"
        elif not name.startswith(f"streamxf-{__version__}"):
            yield f"dist/{name} is of another version: run `make dist`"
        elif name.endswith(".tar.gz") and (other := _other_files(path)):
            yield f"dist/{name} is of another commit, as {other} shows: run `make dist`"
    if not any("manylinux" in name for name in listed):
        yield "dist/ has no manylinux wheel: run `make dist` on x86-64 Linux with glibc"


def _other_files(archive: Path) -> str:
    """A file of a source distribution that the commit has otherwise; or ""."""
    with tarfile.open(archive) as file:
        for member in filter(tarfile.TarInfo.isfile, file):
            own = ROOT / member.name.partition("/")[2]
            content = file.extractfile(member)
            made = "egg-info" in member.name or own.name in ("PKG-INFO", "setup.cfg")
            if not made and content is not None and (not own.exists() or own.read_bytes() != content.read()):
                return str(own.relative_to(ROOT))
    return ""


def _figures() -> Iterator[str]:
    published = json.loads((ROOT / "docs" / "benchmarks" / "results.json").read_text())
    for machine, results in published.items():
        commits = {name: content["machine"]["commit"].partition("-")[0] for name, content in results.items()}
        old = [name for name, commit in commits.items() if git("diff", "--name-only", commit, "HEAD", "--", "streamxf")]
        if old:
            yield f"figures of {machine} are of an older streamxf: `make bench ARGS='{' '.join(old)}'`, bench-publish"


def main() -> int:
    found = list(hindrances())
    print("\n".join(f"- {each}" for each in found) or f"streamxf {__version__} is ready")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
