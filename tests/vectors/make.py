"""Makes the files of vectors that the JSON in v1 describes, and has none of yet. From the first release on, a file that
is there is never made again: later versions must read these very bytes.

``python -m tests.vectors.make tests/vectors/v1`` makes what is missing, and says of each vector which profile it has;
before the release, names that follow are those of vectors to make again, or ``all``. What streamxf wrote, and what HPKE
wrapped, differs from run to run, because some of it is drawn at random; what the files hold does not.
"""

import base64
import json
import sys
from collections.abc import Collection
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests import forge, sealing
from tests.vectors.described import profile_of
from tests.vectors.recipes import data, low_order, world

MAX_INLINE = 4096  # bytes

SUBJECTS = ("plain", "container", "checkpoint", "note", "value")  # those with files; that of a key is in the JSON


@cache
def words(where: str) -> dict[str, Any]:
    """The words of a recipe: those of a module, and of one of its sections, MODULE.SECTION."""
    name, _, section = where.partition(".")
    module = import_module(f"tests.vectors.recipes.{name}")
    found = {
        word: value
        for source in (forge, sealing, data, low_order, world, module)
        for word, value in vars(source).items()
    }
    return found | (getattr(module, section)() if section else {})


def made(subject: str, recipe: str) -> bytes | dict[str, bytes]:
    """The file of a recipe, an expression after the place of its words; or those of a checkpoint, by name."""
    where, _, expression = recipe.partition(": ")
    found = eval(expression, dict(words(where)))
    match found:
        case world.World():
            return found.files()
        case forge.Parts():
            return found.container() if subject == "container" else found.pack()
        case forge.MetadataParts():
            return found.pack()
    assert isinstance(found, bytes | dict)
    return found


def main(root: Path, again: Collection[str] = ()) -> None:
    for subject in (*SUBJECTS, "key"):
        described = root / f"{subject}.json"
        entries = json.loads(described.read_text())
        for entry in entries:
            if entry["name"] in again or "all" in again:
                entry.pop("file", None), entry.pop("files", None)
        lacking = [entry for entry in entries if entry.keys().isdisjoint(("file", "files", "text"))]
        _drop_others(root, subject, entries)
        for entry in lacking:
            name, files = entry["name"], made(subject, entry["made"])
            if isinstance(files, bytes):
                entry["file"] = _file(root, subject, name, "bin", files)
            else:
                entry["files"] = {file: _file(root, subject, name, file, data) for file, data in files.items()}
        for entry in entries:
            entry["profile"] = profile_of(subject, entry)
        described.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


def _drop_others(root: Path, subject: str, entries: list[dict[str, Any]]) -> None:
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
