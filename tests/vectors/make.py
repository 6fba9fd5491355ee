"""Makes the files in v1. A file that is there is never made again: later versions must read these very bytes.

``python -m tests.vectors.make tests/vectors/v1`` makes what the folder lacks. In an empty one that
shows how such files come about. What streamxf wrote, and what HPKE wrapped, differs from run to run, because some of it
is drawn at random; what the files hold does not.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from tests.vectors.recipes import (
    chains,
    checkpoints,
    codecs,
    containers,
    encryption,
    framing,
    keyfiles,
    notes,
    recipients,
    runs,
    saved,
    stock,
    written,
)
from tests.vectors.recipes.vector import Vector

MAX_INLINE = 4096  # bytes

SUBJECTS = {
    "plain": (written, framing, chains, codecs, encryption, recipients),
    "container": (containers,),
    "checkpoint": (checkpoints, saved, runs, stock),
    "note": (notes,),
    "key": (keyfiles,),
}


def vectors(subject: str) -> list[Vector]:
    """What a subject has."""
    return [vector for module in SUBJECTS[subject] for vector in module.vectors()]


def main(root: Path) -> None:
    for subject in SUBJECTS:
        described = root / f"{subject}.json"
        known = json.loads(described.read_text()) if described.exists() else []
        there = {entry["name"] for entry in known}
        known += [_made(root, subject, vector) for vector in vectors(subject) if vector.name not in there]
        root.mkdir(parents=True, exist_ok=True)
        described.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in known) + "\n]\n")


def _made(root: Path, subject: str, vector: Vector) -> dict[str, Any]:
    """The JSON of a vector, with its files: small ones in it, others beside it, each once."""
    entry = vector.described()
    files = vector.make()
    if subject == "checkpoint":
        entry["files"] = {name: _file(root, subject, vector.name, name, data) for name, data in files.items()}
    elif files:
        [data] = files.values()
        entry["file"] = _file(root, subject, vector.name, "bin", data)
    return entry


def _file(root: Path, subject: str, name: str, kind: str, data: bytes) -> dict[str, str]:
    if len(data) <= MAX_INLINE and not kind.endswith("distcp"):
        return {"base64": base64.b64encode(data).decode()}
    folder = root / subject
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return {"path": f"{subject}/{path.name}"}
    path = folder / f"{name}.{kind.rpartition('.')[2]}"
    for number in range(1, 10):
        path = path if not path.exists() else path.with_stem(f"{name}-{number}")
    path.write_bytes(data)
    return {"path": f"{subject}/{path.name}"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
