"""make.py makes what is missing, and changes nothing that is there."""

from __future__ import annotations

import json
from pathlib import Path

import make
from reference_decoder import decode_plain_file

V1 = Path(__file__).parent / "v1"


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_empty_folder_is_filled_with_files_that_are_described_alike(tmp_path):
    make.main(tmp_path)
    made, kept = contents(tmp_path), contents(V1)
    assert made.keys() == kept.keys()
    for name, data in made.items():
        if name.endswith(".json"):
            # some keys are wrapped at random, and a pickle depends on Python and torch
            drawn = {"file_sha256": None, "pickle": None}
            old, new = ({**json.loads(text), **drawn} for text in (kept[name], data))
            if name.startswith("metadata"):
                old, new = ({**described, "holds": None} for described in (old, new))
            assert new == old
    assert decode_plain_file(made["plain/none.bin"]).payload == decode_plain_file(kept["plain/none.bin"]).payload


def test_what_is_there_stays(tmp_path):
    make.main(tmp_path)
    file, described = tmp_path / "plain" / "none.bin", tmp_path / "plain" / "zstd.json"
    file.write_bytes(b"other bytes")
    described.write_text("{}")
    before = contents(tmp_path)
    (tmp_path / "plain" / "lz4.json").unlink()
    make.main(tmp_path)
    after = contents(tmp_path)
    assert after == before
