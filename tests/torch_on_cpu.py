"""Completes a torch that was installed without what it depends on, so that it runs on the CPU.

On Linux PyPI's builds are for CUDA and link some ten of its libraries, gigabytes that no test calls. The runtime
library is installed, because torch calls it when it is loaded. For the others stand-ins are made in torch's folder; any
function of theirs says what it is and ends the process.
"""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

_CUDA = re.compile(r"(nvidia-|cuda-|triton)")
_RUNTIME = re.compile(r"nvidia-cuda-runtime")
_OTHERS = re.compile("_|Py")  # how symbols begin that no library of CUDA has, and Python's


def requirements() -> list[str]:
    """What torch depends on, of CUDA the runtime alone."""
    asked = [text for text in metadata.requires("torch") or () if "extra ==" not in text]
    found = [text for text in asked if not _CUDA.match(text) or _RUNTIME.match(text)]
    for text in asked:
        if text.startswith("cuda-toolkit"):  # whose versions are CUDA's
            found.append(f"nvidia-cuda-runtime{re.search(r'==[0-9]+[.][0-9]+', text)[0]}.*")
    return found


def printed(*command: object) -> str:
    return subprocess.run([*map(str, command)], stdout=subprocess.PIPE, check=True).stdout.decode()


def make_stand_ins(folder: Path) -> list[str]:
    """Make what the libraries in torch's folder link and do not find; returns the names."""
    files = sorted(folder.glob("*.so*"))
    shown = printed("ldd", *files) if files else ""  # on macOS nothing is missing
    missing = sorted({match[1] for match in re.finditer(r"^\s*(\S+) => not found", shown, re.MULTILINE)})
    if not missing:
        return []
    found = re.findall(r"=> (/\S+)", shown)
    defined = {*_symbols("--defined-only", *files, *{*found})}
    wanted = {name for name in _symbols("--undefined-only", *files) if not _OTHERS.match(name)}
    source = "#include <stdio.h>\n#include <stdlib.h>\n" + "".join(
        f'void {name}(void) {{ fputs("{name} is a stand-in\\n", stderr); abort(); }}\n'
        for name in sorted(wanted - defined)
    )
    # In a library of their own, which the others link: a symbol without a version may not be in the one that is asked.
    _link(folder / "libstand_ins.so", source)
    for name in missing:
        _link(folder / name, "", f"-L{folder}", "-Wl,--no-as-needed", "-lstand_ins", "-Wl,-rpath,$ORIGIN")
    return missing


def _symbols(*arguments: object) -> list[str]:
    return re.findall(r" \S (\w+)(?:@\S*)?$", printed("nm", "-D", *arguments), re.MULTILINE)


def _link(file: Path, source: str, *options: str) -> None:
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", *options]
    subprocess.run([*command, f"-Wl,-soname,{file.name}", "-o", str(file)], input=source.encode(), check=True)


def main() -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *requirements()], check=True)
    folder = Path(str(metadata.distribution("torch").locate_file("torch"))) / "lib"
    print("stand-ins:", *make_stand_ins(folder))


if __name__ == "__main__":
    main()
