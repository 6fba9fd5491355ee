"""Recipients of files that `streamxf.open` wrote: another beginning, the same container, and all of it in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf import Encrypt, Key, KeyRing, PrivateKey, SigningKey, ZStandard
from streamxf.dcp.rekey import plain
from streamxf.errors import (
    AuthenticationError,
    ContainerError,
    KeyMissingError,
    ParameterError,
    PolicyError,
    UnsupportedError,
)

OLD, NEW, OTHER = (Key(bytes(range(start, start + 32))) for start in (0, 1, 2))
DATA = bytes(range(256)) * 20_000
CONTAINER = b"\xd3SXF"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.sxf"
    with streamxf.open(path, "wb", chain=[ZStandard(), Encrypt(OLD)]) as out:
        out.write(DATA)
    path.chmod(0o640)
    return path


def read(path: Path, keys: Any) -> bytes:
    with streamxf.open(path, keys=keys) as source:
        return source.read()


def container(path: Path) -> bytes:
    data = path.read_bytes()
    return data[data.index(CONTAINER) :]


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_for_another_key_and_for_nobody_else(file: Path) -> None:
    before = container(file)
    assert streamxf.rekey(file, OLD, NEW) == ("data.sxf",)
    assert read(file, NEW) == DATA
    with pytest.raises(KeyMissingError):
        read(file, OLD)
    assert container(file) == before
    assert file.stat().st_mode & 0o777 == 0o640
    assert names(file) == ["data.sxf"]


def test_who_may_read(file: Path) -> None:
    assert [one.id for one in streamxf.recipients(file).whole] == [OLD.id]
    assert not streamxf.recipients(file).authenticated
    assert streamxf.add_recipient(file, OLD, NEW) == ("data.sxf",)
    found = streamxf.recipients(file, NEW)
    assert ([one.id for one in found.whole], found.authenticated, found.save_ids) == ([OLD.id, NEW.id], True, ())
    assert read(file, OLD) == read(file, NEW) == DATA
    streamxf.remove_recipient(file, NEW, OLD.id)
    assert [one.id for one in streamxf.recipients(file).whole] == [NEW.id]
    with pytest.raises(ParameterError, match="last recipient"):
        streamxf.remove_recipient(file, NEW, NEW)


def test_more_recipients_than_the_beginning_had_room_for(file: Path) -> None:
    many = [Key(bytes(range(number, number + 32))) for number in range(16)]
    streamxf.rekey(file, OLD, many)
    assert all(read(file, key) == DATA for key in many)
    streamxf.rekey(file, many[3], NEW)
    assert read(file, NEW) == DATA


def test_readers_that_ask_for_a_signature(file: Path) -> None:
    private, signer = PrivateKey.generate(), SigningKey.generate()
    with pytest.raises(PolicyError, match="will ask for a signature"):
        streamxf.rekey(file, OLD, private.public)
    streamxf.rekey(file, OLD, private.public, signer=signer)
    assert read(file, KeyRing([private], trust=[signer.verify_key])) == DATA
    with pytest.raises(PolicyError):
        read(file, private)


def test_what_anybody_can_have_written_is_not_handed_to_readers_who_believe(tmp_path: Path) -> None:
    private = PrivateKey.generate()
    path = tmp_path / "forged.sxf"
    with pytest.warns(UserWarning, match="nothing will show who wrote this"):
        path.write_bytes(streamxf.encode(DATA, [Encrypt(private.public)]))
    with pytest.raises(PolicyError, match="take it for authentic"):
        streamxf.rekey(path, private, NEW, allow_unsigned=True)
    streamxf.rekey(path, private, NEW, allow_unsigned=True, vouch=True)
    assert read(path, NEW) == DATA


def test_a_key_that_does_not_open_it(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(KeyMissingError):
        streamxf.rekey(file, OTHER, NEW)
    assert file.read_bytes() == before
    assert names(file) == ["data.sxf"]


def test_keys_of_another_file_before_this_one(file: Path, tmp_path: Path) -> None:
    other = streamxf.encode(b"something else", [ZStandard(), Encrypt(OLD)])
    data = other[: other.index(CONTAINER)] + container(file)
    file.write_bytes(data)
    with pytest.raises(AuthenticationError, match="seal"):
        streamxf.rekey(file, OLD, NEW)
    assert file.read_bytes() == data


@pytest.mark.parametrize("position", [9, 100, 1100])
def test_a_damaged_beginning(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[min(position, data.index(CONTAINER) + 60)] ^= 1
    file.write_bytes(data)
    with pytest.raises(ContainerError):
        streamxf.rekey(file, OLD, NEW)
    assert file.read_bytes() == data


def test_a_failure_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    write_all = plain.write_all
    calls = []

    def full(target: Any, data: Any) -> None:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        write_all(target, data)

    monkeypatch.setattr(plain, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        streamxf.rekey(file, OLD, NEW)
    assert file.read_bytes() == before
    assert names(file) == ["data.sxf"]


def test_a_file_that_was_replaced_meanwhile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = streamxf.encode(b"newer", [Encrypt(OLD)])
    original = plain.PlainFile.replace

    def late(self: plain.PlainFile, name: str, old: bytes, new: bytes) -> None:
        file.write_bytes(other)
        original(self, name, old, new)

    monkeypatch.setattr(plain.PlainFile, "replace", late)
    with pytest.raises(ContainerError, match="replaced meanwhile"):
        streamxf.rekey(file, OLD, NEW)
    assert file.read_bytes() == other


def test_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    streamxf.rekey(link, OLD, NEW)
    assert link.is_symlink()
    assert read(file, NEW) == DATA


def test_what_cannot_be_changed(file: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.sxf"
    bare.write_bytes(streamxf.encode(DATA))
    with pytest.raises(PolicyError, match="not encrypted"):
        streamxf.rekey(bare, OLD, NEW)
    with pytest.raises(ParameterError, match="belongs to no save"):
        streamxf.rekey(file, OLD, NEW, expect_save_id="0" * 32)
    with pytest.raises(UnsupportedError, match="where it is a local file"):
        streamxf.rekey(f"file://{file}", OLD, NEW)
