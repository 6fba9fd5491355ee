"""Seeds: checkpoints and notes of the test vectors that hold, and can be read without a key or with `samples.KEY`."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

from tests.samples import KEY

_V1 = Path(__file__).parents[1] / "vectors" / "v1"
_KEYS = ([], [{"kind": "aeskw", "secret": KEY.reveal().hex()}])


def checkpoints() -> Iterator[dict[str, bytes]]:
    """The files of each, by name."""
    for entry in json.loads((_V1 / "checkpoint.json").read_text()):
        if "holds" in entry and entry.get("keys", []) in _KEYS:
            yield {name: _bytes_of(file) for name, file in entry["files"].items()}


def notes() -> Iterator[bytes]:
    """Those that hold, likewise."""
    for entry in json.loads((_V1 / "note.json").read_text()):
        if "holds" in entry and entry.get("keys", []) in _KEYS:
            yield _bytes_of(entry["file"])


def _bytes_of(file: dict[str, str]) -> bytes:
    return base64.b64decode(file["base64"]) if "base64" in file else (_V1 / file["path"]).read_bytes()
