"""make.py makes what is missing, and changes nothing that is there."""

import json
from pathlib import Path

import pytest

from tests.vectors import make
from tests.vectors.described import V1, vectors


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def kinds(files: object) -> list[str]:
    """A checkpoint's files; those that streamxf saved have names of their own each time."""
    return sorted(name.rpartition(".")[2] for name in files) if isinstance(files, dict) else ["bin"]


@pytest.mark.parametrize("subject", make.SUBJECTS)
def test_each_vector_can_be_made(subject: str) -> None:
    for name, entry in vectors(subject).items():
        assert kinds(make.made(subject, entry["made"])) == kinds(entry.get("files")), name


@pytest.mark.parametrize("again", [False, True])
def test_what_is_there_stays_and_what_is_missing_is_made(again: bool, tmp_path: Path) -> None:
    for name, data in contents(V1).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    before = contents(tmp_path)
    described = tmp_path / "checkpoint.json"
    entries = json.loads(described.read_text())
    [lost] = [entry for entry in entries if entry["name"] == "run-usual"]
    whole = dict(lost)
    if again:
        lost["files"] = {".metadata": {"base64": ""}}
    else:
        del lost["files"]
    described.write_text(json.dumps(entries))
    make.main(tmp_path, ["run-usual"] if again else [])
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]}
    assert changed <= {"checkpoint.json"}
    assert json.loads(described.read_text()) == [whole if entry is lost else entry for entry in entries]
