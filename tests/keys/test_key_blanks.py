"""Around a line of a key there may be spaces, tabs and carriage returns, and no other blanks; the text is UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamxf import Key, keys
from streamxf.errors import KeyFileError, ParameterError
from streamxf.keys.text import format_key, parse_key

LINE = format_key(Key(bytes(range(32))))
BLANKS = ["\u00a0", "\u2003", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\ufeff"]


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


def test_blanks_that_count_for_nothing(tmp_path: Path) -> None:
    assert parse_key(f" \t{LINE}\r\n").id == parse_key(LINE).id
    path = write(tmp_path / "a.key", f"# für später\u00a0\n\n \t{LINE} \t\r\n".encode())
    assert keys.read_key(path).id == parse_key(LINE).id


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_other_blanks(tmp_path: Path, blank: str) -> None:
    for text in (f"{blank}{LINE}", f"{LINE}{blank}"):
        with pytest.raises(ParameterError):
            parse_key(text)
        with pytest.raises(KeyFileError):
            keys.read_key(write(tmp_path / "a.key", text.encode()))


def test_text_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="not text in UTF-8"):
        keys.read_key(write(tmp_path / "a.key", f"# für später\n{LINE}\n".encode("latin-1")))
