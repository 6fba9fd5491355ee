"""What ``streamxf demo`` shows of one set of weights."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch.distributed.checkpoint import filesystem as stock
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard

import streamxf
from streamxf.cli import show
from streamxf.cli.timing import Side, State, Timing, measure
from streamxf.format.items import TensorItem
from streamxf.keys.file import write_key
from streamxf.wording import size_text

_BIT = 3


def demonstrate(dtype: str, state: State, folder: Path, runs: int, quiet: bool) -> dict[str, Any]:
    """Save, measure, compare and damage; returns what is printed with --json."""
    key = streamxf.Key.generate()
    chain = [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(key)]
    writers = [
        Side("stock DCP", stock.FileSystemWriter, stock.FileSystemReader),
        Side("stock + zstd", partial(stock.FileSystemWriter, _extensions=[StockZStandard()]), stock.FileSystemReader),
        Side(
            str(streamxf.Chain(chain)),
            partial(streamxf.FileSystemWriter, _extensions=chain),
            partial(streamxf.FileSystemReader, keys=key),
        ),
    ]
    with show.progress(f"Saving and loading {dtype}", quiet) as bar:
        timings = measure(state, writers, folder, runs, progress=bar)
    write_key(folder / "demo.key", key)
    save_file(state, folder / "model.safetensors")
    path = folder / str(len(writers) - 1)
    compared = in_second_process(folder / "model.safetensors", path, folder / "demo.key")
    flipped = flip_one_bit(path, key)
    correct = all(timing.correct for timing in timings)
    if not quiet:
        _print(dtype, timings, compared, flipped)
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
        item = max(checkpoint.items.values(), key=lambda item: item.stored_bytes)
    assert isinstance(item, TensorItem)
    place = item.chunks[0].place
    byte = place.at + place.size // 2
    with (path / place.file).open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << _BIT]))
    damaged = streamxf.verify(path, key).damaged
    found = [(one.file, one.item) for one in damaged] == [(place.file, item.name)]
    message = "; ".join(map(str, damaged))
    return {"file": place.file, "item": item.name, "byte": byte, "bit": _BIT, "found": found, "message": message}


def _print(dtype: str, timings: list[Timing], compared: dict[str, Any], flipped: dict[str, Any]) -> None:
    out = show.console()
    numbers = ("stored", "of raw", "save", "load")
    table = show.table(f"{dtype}, {size_text(timings[0].raw_bytes)}", *numbers, right=numbers)
    for one in timings:
        cells = size_text(one.stored_bytes), f"{one.stored_bytes / one.raw_bytes:.3f}"
        show.row(table, one.side, *cells, f"{one.save_seconds:.3f} s", f"{one.load_seconds:.3f} s")
    out.print(table)
    correct = all(timing.correct for timing in timings)
    show.report(f"{_verdict(correct)}: every load of every writer gave the saved tensors back", correct)
    same = compared["same"]
    text = f"{_verdict(same)}: a second process found {compared['tensors']} tensors equal bit for bit"
    show.report("\n".join(filter(None, [text, compared["failure"]])), same)
    found = flipped["found"]
    text = f"{_verdict(found)}: bit {_BIT} of byte {flipped['byte']:,} was flipped in {flipped['file']}; verify found"
    show.report(f"{text}\n{flipped['message'] or 'nothing'}", found)


def _verdict(good: bool) -> str:
    return "ok" if good else "FAIL"
