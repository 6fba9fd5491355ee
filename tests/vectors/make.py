"""Makes the files of vectors that the JSON in v1 describes, and has none of yet. From the first release on, a file that
is there is never made again: later versions must read these very bytes.

``python -m tests.vectors.make tests/vectors/v1`` makes what is missing; before the release, names that follow are those
of vectors to make again, or ``all``. What streamxf wrote, and what HPKE wrapped, differs from run to run, because some
of it is drawn at random; what the files hold does not.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Collection
from pathlib import Path

from tests.vectors.recipes import (
    chains,
    checkpoints,
    codecs,
    containers,
    encryption,
    framing,
    notes,
    recipients,
    runs,
    saved,
    stock,
    written,
)
from tests.vectors.recipes.vector import Made

MAX_INLINE = 4096  # bytes

SUBJECTS = {
    "plain": (written, framing, chains, codecs, encryption, recipients),
    "container": (containers,),
    "checkpoint": (checkpoints, saved, runs, stock),
    "note": (notes,),
}


def made(subject: str) -> Made:
    """The files of a subject's vectors."""
    found: Made = {}
    for module in SUBJECTS[subject]:
        more = module.vectors()
        assert not found.keys() & more.keys(), "a name stands for two vectors"
        found |= more
    return found


def main(root: Path, again: Collection[str] = ()) -> None:
    for subject in SUBJECTS:
        described = root / f"{subject}.json"
        entries = json.loads(described.read_text())
        for entry in entries:
            if entry["name"] in again or "all" in again:
                entry.pop("file", None), entry.pop("files", None)
        lacking = [entry for entry in entries if "file" not in entry and "files" not in entry]
        if not lacking:
            continue
        _drop_others(root, subject, entries)
        recipes = made(subject)
        for entry in lacking:
            files = recipes[entry["name"]]
            if isinstance(files, bytes):
                entry["file"] = _file(root, subject, entry["name"], "bin", files)
            else:
                named = files.items()
                entry["files"] = {name: _file(root, subject, entry["name"], name, data) for name, data in named}
        described.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


def _drop_others(root: Path, subject: str, entries: list[dict[str, dict[str, dict[str, str]]]]) -> None:
    """Remove files of which no entry speaks."""
    named = [file for entry in entries for file in (entry.get("file", {}), *entry.get("files", {}).values())]
    kept = {root / file["path"] for file in named if "path" in file}
    for path in {*(root / subject).glob("*")} - kept:
        path.unlink()


def _file(root: Path, subject: str, name: str, kind: str, data: bytes) -> dict[str, str]:
    """A file's JSON: small ones stand in it, others beside it, each once."""
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
    main(Path(sys.argv[1]), sys.argv[2:])
