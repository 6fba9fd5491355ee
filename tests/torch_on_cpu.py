"""Completes a torch that was installed without what it depends on, so that it runs on the CPU.

On Linux PyPI's builds are for CUDA and link some ten of its libraries, gigabytes that no test here calls. The runtime
library is installed, because torch calls it when it is loaded. The others are empty files of the same names; torch then
has to be imported with TORCH_USE_RTLD_GLOBAL=1, which looks a function up when it is first called.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

_CUDA = re.compile(r"(nvidia-|cuda-|triton)")
_RUNTIME = re.compile(r"nvidia-cuda-runtime")


def requirements() -> list[str]:
    """What torch depends on, of CUDA the runtime alone."""
    asked = [text for text in metadata.requires("torch") or () if "extra ==" not in text]
    found = [text for text in asked if not _CUDA.match(text) or _RUNTIME.match(text)]
    for text in asked:
        if text.startswith("cuda-toolkit"):  # whose versions are CUDA's
            found.append(f"nvidia-cuda-runtime{re.search(r'==[0-9]+[.][0-9]+', text)[0]}.*")
    return found


def missing_libraries(folder: Path) -> list[str]:
    """The names of the libraries that torch's own ones link, and that are not found."""
    files = sorted(folder.glob("*.so*"))
    if not files:  # macOS, where nothing is missing
        return []
    shown = subprocess.run(["ldd", *files], capture_output=True, text=True, check=True).stdout
    return sorted({match[1] for match in re.finditer(r"^\s*(\S+) => not found", shown, re.MULTILINE)})


def main() -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *requirements()], check=True)
    folder = Path(metadata.distribution("torch").locate_file("torch/lib"))
    for name in missing_libraries(folder):
        command = [os.environ.get("CC", "cc"), "-shared", "-x", "c", os.devnull, f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", folder / name], check=True)
        print("empty:", name)


if __name__ == "__main__":
    main()
