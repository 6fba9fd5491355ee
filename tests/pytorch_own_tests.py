"""PyTorch's own tests of DCP, with a chain that `STREAMXF_CHAIN` installs and nothing else changed.

    python tests/pytorch_own_tests.py CHECKOUT [--chain CHAIN ...] [--match TEXT]

CHECKOUT is a folder with PyTorch's sources, of the release that is installed. The tests run without a chain first, and
then with each of CHAIN. What passes without and does not with one is printed, and is the exit status. Needs pytest and
expecttest, streamxf installed as a package, and on a machine of few cores half an hour.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import streamxf

CHAINS = ["floatzip", "floatzip+checksum+encrypt", "zstd"]
TESTS = Path("test", "distributed", "checkpoint")
SECONDS = 1200  # for one file
# Most tests ask for GPUs and need none: they run on gloo, too. Those which do need one fail without a chain as well.
FOR_GPUS = re.compile(r"^ *@(skip_if_lt_x_gpu\(\w+\)|requires_(nccl|accelerator_dist_backend)\(.*\))\n", re.MULTILINE)
# Each rank would import torch for each test, which takes most of the time.
FORKED = """
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase

def forked(self):
    self._start_processes(torch.multiprocessing.get_context("fork").Process)

MultiProcessTestCase._spawn_processes = forked
"""


def outcomes(file: Path, chain: str | None, key: streamxf.Key) -> dict[str, str]:
    """What became of the tests in a file: their names, and passed, failed or skipped."""
    variables = {"STREAMXF_KEY": key.reveal().hex(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    variables["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = "90"  # seconds, for a test that hangs without a chain as well
    if chain is not None:
        variables |= {"STREAMXF_CHAIN": chain, "STREAMXF_KEYS": "env:STREAMXF_KEY" if "encrypt" in chain else ""}
    report = file.with_suffix(".xml")
    report.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file.name],
        cwd=file.parent,
        env={**os.environ, **variables},
        stdout=file.with_suffix(f".{chain}.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{file.name}, chain {chain}: not done after {SECONDS} s", flush=True)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not report.exists():
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        state = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{file.name}::{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"] = state
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--chain", action="append", help=f"by default {', '.join(CHAINS)}")
    parser.add_argument("--match", default="", help="only files with this in their names")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it has started ends, too
    folder = Path(tempfile.mkdtemp(prefix="pytorch-tests-"))
    shutil.copytree(asked.checkout / TESTS, folder, dirs_exist_ok=True)
    (folder / "conftest.py").write_text(FORKED)
    files = sorted(file for file in folder.rglob("test_*.py") if asked.match in file.name)
    key = streamxf.Key.generate()
    print(f"{len(files)} files; logs in {folder}", flush=True)
    worse = []
    totals: dict[str | None, Counter[str]] = {}
    for file in files:
        file.write_text(FOR_GPUS.sub("", file.read_text()))
        plain = outcomes(file, None, key)
        totals.setdefault(None, Counter()).update(plain.values())
        for chain in asked.chain or CHAINS:
            found = outcomes(file, chain, key)
            totals.setdefault(chain, Counter()).update(found.values())
            lost = [name for name, state in plain.items() if state == "passed" and found.get(name) != "passed"]
            worse += [f"{name}: {found.get(name, 'not run')} with {chain}" for name in lost]
        print(f"{file.name}: {dict(Counter(plain.values()))} without a chain; {len(worse)} worse so far", flush=True)
    for chain, counted in totals.items():
        print(f"{chain or 'no chain'}: {dict(counted)}")
    print("\n".join(worse) or "Whatever passes without a chain passes with each of them.")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
