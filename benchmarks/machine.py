"""What figures depend on: the machine, its load, and the versions of what was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyperf

PACKAGES = ["streamxf", "torch", "numpy", "zstandard", "cryptography", "crc32c", "zipnn", "blosc2", "safetensors"]
_ROOT = Path(__file__).parent.parent
_WANTED = ("cpu_model_name", "cpu_config", "load_avg_1min", "runnable_threads")


def machine() -> dict[str, Any]:
    """Facts about the machine and the process, to be stored with every result; ask before measuring, for the load.

    ``cpus`` are the usable ones, ``memory_gib`` is what is built in, ``commit`` is None outside of a checkout. What
    pyperf finds out about processor and load is among them where the system tells.
    """
    found = pyperf.Run([1.0], collect_metadata=True).get_metadata()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "avx512": " avx512f" in _cpuinfo(),
        "system": f"{platform.system()} {platform.machine()}",
        "python_version": platform.python_version(),
        **{name: found[name] for name in _WANTED if name in found},
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def machine_name(facts: dict[str, Any]) -> str:
    """What results are published under: the CPU's model and how many there are.

    Virtual machines often hide the generation (``AMD EPYC``), so AVX-512 is part of the name.
    """
    wide = " with AVX-512" if facts["avx512"] else ""
    model = facts.get("cpu_model_name", "processor unknown").replace("(R)", "").replace("(TM)", "")
    return f"{model}{wide}, {facts['cpus']} CPUs"


def describe(facts: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{machine_name(facts)}, {facts['memory_gib']} GiB of memory, {facts['system']}, "
        f"Python {facts['python_version']}, torch {facts['packages']['torch']}"
    )


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _commit() -> str | None:
    """The commit that was measured, with ``-dirty`` if files differ from it; None where git does not know."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    except FileNotFoundError:  # an unpacked source distribution, on a machine without git
        return None
    return done.stdout.strip() if done.returncode == 0 else None
