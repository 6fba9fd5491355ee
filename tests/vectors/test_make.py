"""make.py makes what is missing, and changes nothing that is there."""

from __future__ import annotations

import json
from pathlib import Path

import make
from described import SUBJECTS, V1, vectors


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_all_vectors_can_be_made_again() -> None:
    """But for their files, of which some are drawn at random."""
    for subject in SUBJECTS:
        made = {vector.name: vector.described() for vector in make.vectors(subject)}
        kept = {
            name: {key: value for key, value in entry.items() if key not in ("file", "files")}
            for name, entry in vectors(subject).items()
        }
        assert made.keys() == kept.keys()
        for name, entry in made.items():
            assert json.loads(json.dumps(entry)) == kept[name]


def test_what_is_there_stays_and_what_is_missing_is_made(tmp_path: Path) -> None:
    for name, data in contents(V1).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    before = contents(tmp_path)
    described = tmp_path / "container.json"
    entries = json.loads(described.read_text())
    described.write_text(json.dumps(entries[1:]))
    make.main(tmp_path)
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"container.json"}
    assert json.loads(described.read_text()) == [*entries[1:], entries[0]]
