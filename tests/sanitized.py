"""``make sanitize``: FloatZip's kernel, built with AddressSanitizer and UndefinedBehaviorSanitizer, through its tests
and what fuzzing has kept.

The process that tests is a child, since AddressSanitizer must be loaded before everything else. There this module is a
plugin of pytest, which puts the sanitized kernel in the place of the one that was installed.
"""

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

NAME = "streamxf.codecs.floatzip._kernel"
VARIABLE = "STREAMXF_SANITIZED_KERNEL"
TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "streamxf" / "codecs" / "floatzip" / "_kernel.c"
FLAGS = (
    "-std=c11 -O1 -g -shared -fPIC -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Werror "
    "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer "
    # versions for several machines are chosen before AddressSanitizer is ready
    "-DPy_LIMITED_API=0x030B0000 -DSTREAMXF_NO_CLONES"
)


def main(arguments: list[str]) -> int:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "_kernel.abi3.so"
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run([*compiler, *FLAGS.split(), include, str(SOURCE), "-o", str(built), "-lm"], check=True)
        # libstdc++ as well: AddressSanitizer looks for its functions when it starts, and only torch would load it
        libraries = [_library(compiler, name) for name in ("libasan.so", "libstdc++.so")]
        environment = {
            **os.environ,
            VARIABLE: str(built),
            "LD_PRELOAD": " ".join(libraries),
            # Python frees little at its end
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            # each object in memory of its own, which is watched
            "PYTHONMALLOC": "malloc",
        }
        # These give the kernel memory of just the size; what the codec gives it is larger, and hides a byte too many.
        paths = [
            f"codecs/test_{name}.py" for name in ("floatzip_kernel", "floatzip_fixed", "floatzip_frames", "differences")
        ]
        paths.append("fuzz/test_fuzz_corpus.py")
        options = ["-q", "--capture=sys", "-p", "tests.sanitized", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *(str(TESTS / path) for path in paths)]
        command += ["-k", "not numpy and (floatzip or codecs or differences)"]
        return subprocess.run([*command, *arguments], env=environment, cwd=TESTS.parent, check=False).returncode


def _library(compiler: list[str], name: str) -> str:
    """The compiler's own copy of a library."""
    found = subprocess.run([*compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"{shlex.join(compiler)} has no {name}: install it, or name another compiler with CC=...")
    return path


def _load(path: str) -> None:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
if VARIABLE in os.environ:
    _load(os.environ[VARIABLE])
