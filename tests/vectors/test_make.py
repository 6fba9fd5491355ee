"""make.py makes what is missing, and changes nothing that is there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.vectors import make
from tests.vectors.described import V1, vectors


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_recipes_describe_what_is_kept() -> None:
    """But for their files, of which some are drawn at random."""
    for subject in make.SUBJECTS:
        for vector in make.vectors(subject):
            kept = {key: value for key, value in vectors(subject)[vector.name].items() if key not in ("file", "files")}
            assert json.loads(json.dumps(vector.described())) == kept


def test_what_is_there_stays_and_what_is_missing_is_made(tmp_path: Path) -> None:
    for name, data in contents(V1).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    before = contents(tmp_path)
    described = tmp_path / "checkpoint.json"
    entries = json.loads(described.read_text())
    [lost] = [entry for entry in entries if entry["name"] == "run-usual"]
    entries.remove(lost)
    described.write_text(json.dumps(entries))
    make.main(tmp_path)
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"checkpoint.json"}
    assert json.loads(described.read_text()) == [*entries, lost]
