"""Commands that may not read or write, and commands on a disk that is full: one line, its exit code, nothing lost."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import save

import streamxf
from tests.altered import flip
from tests.cli import several
from tests.cli.command import Done, Run
from tests.cli.world import build, fingerprint

FILLED = """
mount -t tmpfs -o size=2m none full
cp -r plain encrypted small.sxf full
dd if=/dev/zero of=full/rest bs=4k 2>&1 | true
"""
READ_ONLY = "mount --bind plain full && mount -o remount,ro,bind full"
SMALL = "mount -t tmpfs -o size=256k none full"
UNMOUNTED = "umount -l full 2>&1 | true\n"


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    root = Path(mkdtemp(prefix="streamxf-world-"))
    build(root)
    (root / "full").mkdir()
    (root / "read only").mkdir()
    shutil.copytree(root / "plain", root / "read only" / "plain")
    yield root
    subprocess.run(["chmod", "-R", "u+rwX", str(root)], check=True)
    shutil.rmtree(root)


Runs = Callable[..., list[Done]]


@contextmanager
def several_in(world: Path, *before: str) -> Iterator[Runs]:
    """Runs commands, after one of a shell, in a process that is started by `before`."""
    start = [*before, sys.executable, several.__file__]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=world) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def run_all(commands: Iterable[str], script: str = ":") -> list[Done]:
            words = [[word for word in command.split("  ") if word] for command in commands]
            print(json.dumps([script, words]), file=asks, flush=True)
            return [Done(*one) for one in json.loads(answers.readline())]

        yield run_all


@pytest.fixture(scope="module")
def without_rights(world: Path) -> Iterator[Runs]:
    """Root's rights are taken away."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv, which takes root's rights away")
    drop = "-dac_override,-dac_read_search"
    before = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"] if os.geteuid() == 0 else []
    with several_in(world, *before) as run_all:
        yield run_all


@pytest.fixture(scope="module")
def mounting(world: Path) -> Iterator[Runs]:
    """What the shell's command mounts is there for this process alone, until the next."""
    try:
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no tmpfs can be mounted for one process alone")
    with several_in(world, "unshare", "-rm") as run_all:
        yield lambda commands, script: run_all(commands, UNMOUNTED + script)


def check(command: str, done: Done, code: int, says: str) -> None:
    assert "Traceback" not in done.err, done.err
    assert "streamxf's own" not in done.err, done.err
    lines = done.err.splitlines()
    assert len(lines) == 1, (command, done)
    assert says in lines[0], (command, lines)
    assert done.code == code, (command, done)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_may_not_be_read_is_told_from_damage(world: Path, without_rights: Runs, damaged: bool):
    path = world / f"closed {damaged}"
    state = {name: torch.ones(1000) for name in "abc"}
    save(state, storage_writer=streamxf.FileSystemWriter(path, thread_count=3))
    file, other, _ = sorted(path.glob("*.distcp"))
    file.chmod(0)
    if damaged:
        flip(other)
    commands = [f"verify  {path}", f"inspect  {path}  --values", f"salvage  {path}  {path} new"]
    commands += [f"verify  {path}  --json", f"inspect  {path}  --values  --json", f"salvage  {path}  {path} 2  --json"]
    for number, done in enumerate(without_rights(commands)):
        assert done.code == (1 if damaged else 2), done
        facts = done.json.get("flagged", done.json) if number >= 3 else None
        if facts is None:
            lines = [line for line in done.out.splitlines() if "NOT READ" in line]
            assert [bool(re.search("DAMAGED in|damage in 1|, 1 damaged", line)) for line in lines] == [damaged]
        else:
            assert facts["unread"]
            assert bool(facts["unreadable" if number == 4 else "damaged"]) == damaged


@pytest.mark.parametrize("name", [".metadata", "*.distcp"])
def test_what_may_not_be_read_has_its_whole_path(world: Path, without_rights: Runs, name: str):
    run = world / f"run {name[-3:]}"
    with streamxf.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, {"w": torch.ones(10)})
    (file,) = (run / "step-2").glob(name)
    file.chmod(0)
    commands = [f"latest  {run}", f"list  {run}", *(f"{each}  {run}/step-2" for each in ("inspect", "verify"))]
    commands += [f"diff  {run}/step-2  {run}/step-1", f"unpack  {run}/step-2  {run}/w.safetensors"]
    for command, done in zip(commands, without_rights(commands), strict=True):
        if name == ".metadata" or command.split()[0] not in ("list", "inspect"):
            assert f"{file}" in done.out + done.err, (command, done)


def test_what_a_disk_cannot_read_has_its_path(world: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    with streamxf.CheckpointManager(world / "failing") as manager:
        manager.save(1, {"w": torch.ones(10)})
    monkeypatch.chdir(world)
    read, bad = os.preadv, ""

    def fail(descriptor: int, *given: Any) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, *given)

    monkeypatch.setattr(os, "preadv", fail)
    of_both = ["latest failing", "unpack plain new.st", "diff plain stock", "transcode plain new --chain zstd"]
    commands = {
        ".metadata": [*of_both, "inspect plain", "recipients encrypted", "salvage plain new"],
        ".distcp": [*of_both, "salvage plain new", "pack stock new --chain zstd"],
        ".pt": ["inspect good.pt", "pack good.pt new --chain zstd", "diff good.pt plain"],
        ".safetensors": ["inspect good.safetensors", "pack good.safetensors new", "verify good.safetensors"],
    }
    for bad in commands:
        for command in commands[bad]:
            done, name = run(*command.split()), Path(command.split()[1]).stem
            assert done.code, (command, done)
            assert re.search(rf"{name}\S*{re.escape(bad)}", done.out + done.err), (command, done)


def test_without_permission(world: Path, without_rights: Runs):
    unreadable = ["locked", "locked file", "none.key", "good.safetensors", "good.pt"]
    commands = [
        *("inspect  locked", "verify  locked", "clean  locked  --yes", "recipients  locked"),
        *("rekey  locked  --key  file:right.key  --recipient  file:wrong.key", "salvage  locked  new"),
        *("diff  locked  plain", "unpack  locked  new.safetensors", "transcode  locked  new  --chain  zstd"),
        *("inspect  good.safetensors", "inspect  good.pt", "pack  good.safetensors  new  --chain  zstd"),
        *("pack  good.pt  new  --chain  zstd", "verify  encrypted  --key  file:none.key"),
        *("diff  locked file  plain  --key  file:right.key", "pack  stock  read only/new  --chain  zstd"),
        *("unpack  plain  read only/new.safetensors", "transcode  plain  read only/new  --chain  zstd"),
        *("transcode  read only/plain  --in-place  --chain  zstd", "salvage  plain  read only/new"),
        *("keygen  read only/new.key", "inspect  plain  --html  read only/page.html"),
    ]
    whole = fingerprint(world)
    for name in unreadable:
        path = world / name
        for file in [*path.iterdir(), path] if path.is_dir() else [path]:
            file.chmod(0)
    (world / "read only").chmod(0o555)
    (world / "read only" / "plain").chmod(0o555)
    try:
        found = without_rights(commands)
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", str(world)], check=True)
        (world / "none.key").chmod(0o600)
    for command, done in zip(commands, found, strict=True):
        check(command, done, 2, "ermission denied")
        if "read only" in command:
            assert "check permissions of it and its folders, or run this as their owner" in done.err
    assert fingerprint(world) == whole


def test_on_a_full_disk(world: Path, mounting: Runs):
    commands = [
        *("pack  good.safetensors  full/a  --chain  checksum", "pack  good.pt  full/b  --chain  checksum"),
        *("pack  stock  full/c  --chain  checksum", "unpack  plain  full/d.safetensors", "unpack  plain  full/e.pt"),
        *("transcode  plain  full/f  --chain  checksum", "salvage  plain  full/g  --chain  checksum"),
    ]
    whole = fingerprint(world)
    for command, done in zip(commands, mounting(commands, SMALL), strict=True):
        check(command, done, 1, "disk is too full")
    assert fingerprint(world) == whole


def test_in_place_and_small_files_on_a_full_disk(world: Path, mounting: Runs):
    with streamxf.open(world / "small.sxf", "wb", chain="encrypt", keys=f"file:{world / 'right.key'}") as file:
        file.write(bytes(100_000))
    keys = "--key  file:right.key"
    commands = {
        "rename  full/plain  layers.*=l.*": "full/plain/.metadata: ",
        f"rekey  full/encrypted  {keys}  --recipient  file:wrong.key": "full/encrypted/.metadata: ",
        f"rekey  full/small.sxf  {keys}  --recipient  file:wrong.key": f"{world}/full/small.sxf: ",
        f"recipients  full/encrypted  {keys}  --add  file:wrong.key": "full/encrypted/.metadata: ",
        "inspect  plain  --html  full/page.html": f"{world}/full/page.html: ",
        "keygen  full/new.key  --kind  hybrid": "the key file cannot be written: ",
    }
    whole = fingerprint(world)
    for command, done in zip(commands, mounting(commands, FILLED), strict=True):
        check(
            command,
            done,
            2 if "keygen" in command else 1,
            f"{commands[command]}No space left on device; the disk is too full. ",
        )
        assert done.err.count("Make room (`streamxf forget` removes") == 1
    assert fingerprint(world) == whole


def test_on_a_file_system_that_is_mounted_read_only(world: Path, mounting: Runs):
    shutil.copytree(world / "encrypted", world / "plain" / "encrypted")
    shutil.copy(world / "good.pt", world / "plain" / "good.pt")
    commands = [
        *("rename  full  layers.*=l.*", "rekey  full/encrypted  --key  file:right.key  --recipient  file:wrong.key"),
        *("inspect  plain  --html  full/page.html", "pack  good.pt  full/new  --chain  checksum"),
        *("transcode  full  --in-place  --chain  checksum", "unpack  plain  full/new.pt", "salvage  plain  full/new"),
        "keygen  full/new.key",
    ]
    try:
        found = mounting(commands, READ_ONLY)
    finally:
        shutil.rmtree(world / "plain" / "encrypted")
        (world / "plain" / "good.pt").unlink()
    for command, done in zip(commands, found, strict=True):
        check(command, done, 2, "its file system is mounted read-only: have it mounted for writing")
        assert "Read-only file system; " in done.err
        assert "could not be removed" not in done.err


def test_what_cannot_be_removed_from_a_file_system_that_is_mounted_read_only(world: Path, mounting: Runs):
    leftovers = [f"__{rank}_0_{'a' * 32}.distcp" for rank in range(2)]
    for step in range(3):
        shutil.copytree(world / "encrypted", world / "plain" / "run" / f"step-{step}")
    for name in leftovers:
        (world / "plain" / name).touch()
    commands = ["forget  full/run  --key  file:right.key  --keep  last=1  --yes", "clean  full  --min-age  0  --yes"]
    try:
        forgot, cleaned = mounting(commands, READ_ONLY)
    finally:
        shutil.rmtree(world / "plain" / "run")
        for name in leftovers:
            (world / "plain" / name).unlink()
    why = "Read-only file system; its file system is mounted read-only: have it mounted for writing"
    assert f"\nnot removed: step-0, step-1: .metadata: {why}\nkept: step-2: " in forgot.out
    assert f"\nnot removed: {leftovers[0]}, {leftovers[1]}: {why}\n" in cleaned.out
    assert (forgot.code, cleaned.code, forgot.err, cleaned.err) == (1, 1, "", "")
