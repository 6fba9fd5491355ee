"""``python -m benchmarks.structure``: the figures of docs/design.md about the source, as Markdown.

What is counted: lines; the files and functions of streamxf that a save and a load of three items enter; the frames
between `write_data` and the point where a block is handed to a worker; and what the layers forbid.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, Key, ZStandard, engine

PACKAGE = Path(streamxf.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
KEY = Key(bytes(range(32)))


def main() -> None:
    """Print the table."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    trees = {_module(path): ast.parse(path.read_text()) for path in SOURCES}
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    with TemporaryDirectory() as folder:
        _save(Path(folder, "warm"))
        _load(Path(folder, "warm"))
        saved = entered(lambda: _save(Path(folder, "checkpoint")))
        loaded = entered(lambda: _load(Path(folder, "checkpoint")))
        frames = frames_to_worker(lambda: _save(Path(folder, "again")))
    rows = {
        "lines; files": f"{sum(len(path.read_text().splitlines()) for path in SOURCES):,}; {len(SOURCES)}",
        "files entered by a save of three items; functions": f"{len({file for file, _ in saved})}; {len(saved)}",
        "files entered by a load of them; functions": f"{len({file for file, _ in loaded})}; {len(loaded)}",
        "frames from write_data to a worker's queue": str(frames),
        "private names imported from other modules": str(sum(1 for tree in trees.values() for _ in _private(tree))),
        "class names that are defined twice": ", ".join(sorted(k for k, n in classes.items() if n > 1)) or "0",
        "import circles": _circle({name: set(_imports(tree, trees.keys())) for name, tree in trees.items()}),
    }
    print("| what | |\n| --- | --- |")
    for label, value in rows.items():
        print(f"| {label} | {value} |")


# -- what runs -------------------------------------------------------------------------------------


def entered(action: Callable[[], object]) -> set[tuple[str, str]]:
    """The files and functions of streamxf that are entered, in all threads that begin meanwhile, too."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            found.add((code.co_filename, code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def frames_to_worker(action: Callable[[], object]) -> int:
    """The most frames of streamxf between `write_data` and a worker's queue, both included."""
    counts: list[int] = []
    submit = engine.Engine.submit

    def counted(self: engine.Engine, job: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        count = 1  # this stands for `submit`
        while frame is not None:
            count += frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}")
            if frame.f_code.co_name == "write_data":
                counts.append(count)
                break
            frame = frame.f_back
        return submit(self, job)

    engine.Engine.submit = counted  # type: ignore[method-assign]
    try:
        action()
    finally:
        engine.Engine.submit = submit  # type: ignore[method-assign]
    return max(counts)


def _save(path: Path) -> None:
    state = {"weight": torch.randn(600, 1000), "bias": torch.zeros(100), "step": 3}
    writer = streamxf.FileSystemWriter(path, chain=[ZStandard(), Checksum(), Encrypt(KEY)])
    dcp.save(state, storage_writer=writer)


def _load(path: Path) -> None:
    state = {"weight": torch.empty(600, 1000), "bias": torch.empty(100), "step": 0}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(path, keys=KEY))


# -- what the source says --------------------------------------------------------------------------


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _private(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamxf"):
            yield from (alias.name for alias in node.names if alias.name[0] == "_" and alias.name[:2] != "__")


def _imports(node: ast.AST, known: Set[str]) -> Iterator[str]:
    """The modules among `known` that are imported when a module is, not those that its functions import."""
    if isinstance(node, ast.ImportFrom) and node.module in known:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in known else node.module
    lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in () if lazy or for_types else ast.iter_child_nodes(node):
        yield from _imports(child, known)


def _circle(graph: dict[str, set[str]]) -> str:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " < ".join(error.args[1])
    return "0"


if __name__ == "__main__":
    main()
