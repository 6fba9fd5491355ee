"""Everything that streamxf does with a checkpoint or a file from a stranger, each as a call with a path."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.cli.__main__ import main
from tests.dcp.helpers import unwrapped

Tool = Callable[[Path, Path], Any]  # from what is looked at, and a folder that may be written to, which is empty


class InternalError(AssertionError):
    """The command line takes an error for one of streamxf's own."""


def load(path: Path, scratch: Path) -> None:
    """Into tensors that are none of those that the checkpoint has, and objects."""
    if not (path / ".metadata").exists():
        return  # DCP itself says so, by a FileNotFoundError inside of its own
    target = {"w": torch.zeros(6), "v": torch.zeros(0), "o": None}
    reader = streamxf.FileSystemReader(path)
    try:
        dcp.load(target, storage_reader=reader, planner=dcp.DefaultLoadPlanner(allow_partial_load=True), no_dist=True)
    except CheckpointException as error:
        cause = unwrapped(error)
        if isinstance(cause, ValueError) and "Size mismatch" in str(cause):
            return
        raise cause from None


def round_trip(path: Path, scratch: Path) -> None:
    """Through pack, and back."""
    streamxf.pack(path, scratch / "packed", "zstd")
    streamxf.unpack(scratch / "packed", scratch / f"out{path.suffix}")


def command(*arguments: Any) -> Tool:
    """A command; {path} and {target} stand for what it is given."""

    def run(path: Path, scratch: Path) -> None:
        given = [str(word).format(path=path, target=scratch / "target") for word in arguments]
        said = scratch / "said"
        kept = os.dup(2)
        with said.open("wb") as stderr:
            os.dup2(stderr.fileno(), 2)
        try:
            main(given)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        if "error of streamxf's own" in (text := said.read_text(errors="replace")):
            raise InternalError(text[:2000])

    return run


OF_ANY: dict[str, Tool] = {
    "inspect": lambda path, _: streamxf.inspect(path).as_dict(items=True),
    "diff": lambda path, _: str(streamxf.diff(path, path)),
    "$ inspect --items": command("inspect", "{path}", "--items"),
    "$ inspect --tree --depth 2": command("inspect", "{path}", "--tree", "--depth", 2),
    "$ inspect --items --tree --json": command("inspect", "{path}", "--items", "--tree", "--json"),
    "$ inspect --html": command("inspect", "{path}", "--html", "{target}.html"),
    "$ diff": command("diff", "{path}", "{path}"),
    "$ diff --json": command("diff", "{path}", "{path}", "--json"),
}
OF_CHECKPOINTS: dict[str, Tool] = {
    "load": load,
    "verify": lambda path, _: str(streamxf.verify(path)),
    "salvage": lambda path, _: str(streamxf.load_intact(path)),
    "salvage, partial": lambda path, _: str(streamxf.load_intact(path, partial=True)),
    "salvage, into": lambda path, scratch: streamxf.load_intact(path, {"w": torch.zeros(6), "o": None}),
    "salvage, without metadata": lambda path, _: str(streamxf.load_intact(path, without_metadata=True)),
    "transcode": lambda path, scratch: streamxf.transcode(path, scratch / "target", "zstd"),
    "clean": lambda path, _: streamxf.clean(path, dry_run=True),
    "unsafe_globals": lambda path, _: streamxf.unsafe_globals(path),
    "recipients": lambda path, _: streamxf.recipients(path),
    "unpack to .pt": lambda path, scratch: streamxf.unpack(path, scratch / "out.pt"),
    "unpack to .safetensors": lambda path, scratch: streamxf.unpack(path, scratch / "a.safetensors", skip_objects=True),
    "unpack to a folder": lambda path, scratch: streamxf.unpack(path, scratch / "out", skip_objects=True),
    "$ verify": command("verify", "{path}"),
    "$ verify --json": command("verify", "{path}", "--json"),
    "$ salvage": command("salvage", "{path}", "{target}"),
    "$ salvage --json": command("salvage", "{path}", "{target}", "--json"),
}
OF_FILES: dict[str, Tool] = {"pack, unpack": round_trip}


def tools_for(path: Path) -> dict[str, Tool]:
    """Those that take what is there."""
    return OF_ANY | (OF_CHECKPOINTS if path.is_dir() and [*path.glob("*.distcp")] else OF_FILES)
