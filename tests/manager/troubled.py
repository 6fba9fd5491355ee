"""Saves a run, or uses one in a process or on a machine that lacks something; says as JSON what came of it.

A process of its own, since it sets limits that last, and must not have imported what the saving process had.
"""

import errno
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.manager.choice import suspects
from streamxf.storage.opening import open_storage
from tests.failing import fails_with

MANY = 60  # files; each has a tensor that is not read whole when it is opened
LARGE = 48 * 2**20  # elements
FRAMEWORK = """
import torch

class Scaled(torch.Tensor):
    "A whole subclass, as torchao's are."
    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes"], {"scale": self.scale}

    @staticmethod
    def __tensor_unflatten__(inner, facts, size, stride):
        return Scaled(inner["codes"], facts["scale"])

    def __reduce_ex__(self, protocol):
        return Scaled, (self.codes, self.scale)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return Scaled(args[0].codes, args[0].scale)
        if function is torch.ops.aten.copy_.default:
            args[0].codes.copy_(args[1].codes)
            args[0].scale = args[1].scale
            return args[0]
        plain = lambda each: each.codes * each.scale if isinstance(each, Scaled) else each
        return function(*map(plain, args), **(kwargs or {}))

torch.serialization.add_safe_globals([Scaled])
"""


class Thing:
    """An object whose own code runs when it is loaded."""

    trouble: Callable[[], object] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        if Thing.trouble is not None:
            Thing.trouble()
        vars(self).update(state)


class Words:
    """An object that reads a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.words = Path(state["path"]).read_text().split()


def state_at(what: str, step: int) -> dict[str, Any]:
    """A state dict of a step; blank for the step 0."""
    state: dict[str, Any] = {"step": step, "w": torch.full((1000,), float(step))}
    if what == "many files":
        return state | {f"t{number}": torch.full((40_000,), float(step + number)) for number in range(MANY)}
    if what == "a large tensor":
        return state | {"large": torch.full((LARGE,), float(step))}
    if what == "a class":
        try:
            from framework_of_somebody import Scaled  # type: ignore[import-not-found]
        except ImportError:
            return state | {"scaled": torch.zeros(8, 4)}
        return state | {"scaled": Scaled(torch.full((8, 4), step, dtype=torch.int8), 0.5)}
    if what == "a device":
        return state | {"pair": (torch.full((5,), float(step)), torch.ones(2))}
    thing = Thing()
    vars(thing)["number"] = step
    return state | {"thing": thing}


def save(run: Path, what: str) -> None:
    if what == "a device":
        torch.serialization.register_package(0, lambda storage: "cuda:3", lambda storage, location: None)
    more = {"single_file_per_rank": False, "thread_count": 1} if what == "many files" else {}
    with streamxf.CheckpointManager(run, chain="checksum", writer=more) as manager:
        for step in (1, 2):
            manager.save(step, state_at(what, step))


def resume(run: Path, what: str, blank: dict[str, Any] | None = None) -> str:
    state = blank or state_at(what, 0)
    with streamxf.CheckpointManager(run) as manager:
        step = manager.resume(state)
    assert state["step"] == step
    assert torch.equal(state["w"], torch.full((1000,), float(step or 0)))
    return f"step {step}"


def load_intact(path: Path) -> str:
    found = streamxf.load_intact(path)
    assert found.loaded, "nothing was loaded"
    refused = [f"refused {each.item}: {each.error}" for each in found.refused]
    return "; ".join([*refused, *(f"lost: {each}" for each in (*found.damaged, *found.unread))]) or "all"


def salvage(path: Path) -> str:
    with TemporaryDirectory(dir=path.parents[1]) as folder:
        found, written = streamxf.salvage(path, folder, "checksum")
    return "; ".join(f"lost: {each}" for each in (*found.damaged, *found.unread)) or ("all" if written else "nothing")


def diff(path: Path) -> str:
    found = streamxf.diff(path, path)
    return "same" if found.same else "; ".join(f"{name}: {text}" for name, text in found.incomparable.items())


def use(run: Path, what: str) -> dict[str, Callable[[], str]]:
    path, blank = run / "step-2", state_at(what, 0)
    return {
        "resume": lambda: resume(run, what, blank),
        "latest": lambda: Path(str(streamxf.latest(run, verify="whole"))).name,
        "verify": lambda: str(streamxf.verify(path)).splitlines()[0],
        "load_intact": lambda: load_intact(path),
        "salvage": lambda: salvage(path),
        "diff": lambda: diff(path),
    }


@contextmanager
def limited(which: int, more: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (more, before[1]))
    yield
    resource.setrlimit(which, before)


@contextmanager
def failing_disk(times: float) -> Iterator[None]:
    read, left = os.preadv, [times]

    def preadv(*args: Any) -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(*args)

    os.preadv = preadv  # type: ignore[assignment]
    yield
    os.preadv = read


@contextmanager
def trouble(kind: str) -> Iterator[None]:
    if kind == "few open files":
        with open(os.devnull) as free, limited(resource.RLIMIT_NOFILE, free.fileno() + 12):
            yield
    elif kind == "no open files":
        with open(os.devnull) as free, limited(resource.RLIMIT_NOFILE, free.fileno() + 1):
            yield
    elif kind == "little memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        with limited(resource.RLIMIT_AS, used + 4 * LARGE * 2 // 3):
            yield
    elif kind == "no threads":
        threading.stack_size(2**47)
        yield
        threading.stack_size(0)
    elif kind.startswith("bad sectors"):
        with failing_disk(1 if kind.endswith("once") else float("inf")):
            yield
    else:
        errors = {"its own code": ValueError("no"), "an import": ModuleNotFoundError("a_package"), "": None}
        error = errors.get(kind)
        Thing.trouble = None if error is None else fails_with(lambda: error)
        yield
        Thing.trouble = None


def told(call: Callable[[], str]) -> str:
    try:
        return call()
    except CheckpointException as failed:
        error: BaseException = next(iter(failed.failures.values()))[0]
    except Exception as raised:
        error = raised
    number = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
    return f"raised {number or type(error).__name__}"


def main(action: str, run: Path, what: str, *kinds: str) -> None:
    torch.serialization.add_safe_globals([Thing])
    if action != "use":
        print({"save": save, "resume": resume}[action](run, what))
        return
    found: dict[str, dict[str, str]] = {}
    for kind in kinds:
        found[kind] = {}
        for name, call in use(run, what).items():
            with trouble(kind):
                found[kind][name] = told(call)
            assert not suspects(open_storage(run)), f"{name} left a note of damage"
        found[kind]["afterwards"] = told(lambda: resume(run, what))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
