"""Makes the files in v1. A file that is there is never made again: later versions must read these very bytes.

``PYTHONPATH=tests python tests/vectors/make.py FOLDER`` makes what the folder lacks. In an empty one that shows how
such files come about. What streamxf wrote, and what HPKE wrapped, differs from run to run, because some of it is
drawn at random; what the files hold does not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from recipes import chains, codecs, encryption, framing, items, metadata, recipients, written
from recipes.vector import Vector

SUBJECTS = {
    "plain": (written, framing, chains, codecs, encryption, recipients),
    "item": (items,),
    "metadata": (metadata,),
}


def vectors(folder: str) -> list[Vector]:
    """What a folder has to hold."""
    return [vector for subject in SUBJECTS[folder] for vector in subject.vectors()]


def main(root: Path) -> None:
    for name in SUBJECTS:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for vector in vectors(name):
            file, described = folder / f"{vector.name}.bin", folder / f"{vector.name}.json"
            if not file.exists():
                file.write_bytes(vector.make())
            if not described.exists():
                described.write_text(json.dumps(vector.described(file.read_bytes()), indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
