"""Recipients of files that `streamxf.open` wrote: another beginning, the same container, and all of it in one step."""

from pathlib import Path
from typing import Any

import crc32c
import fsspec
import pytest

import streamxf
from streamxf import Encrypt, Key, PrivateKey, SigningKey, ZStandard, errors
from streamxf.format.header import header_size
from streamxf.format.limits import HEADER_FIXED_BYTES
from streamxf.format.plain import PREFIX_START_BYTES, SEAL_END_BYTES, pack_prefix, parse_prefix, prefix_size, seal_size
from streamxf.keys import KeyRing
from streamxf.tools.rekey import holders
from tests.altered import flip

OLD, NEW, OTHER = (Key(bytes(range(start, start + 32))) for start in (0, 1, 2))
DATA = bytes(range(256)) * 20_000


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


def parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Prefix, container and seal."""
    start, stop = prefix_size(data[:PREFIX_START_BYTES]), len(data) - seal_size(data[-SEAL_END_BYTES:])
    return data[:start], data[start:stop], data[stop:]


def container(path: Path) -> bytes:
    return parts(path.read_bytes())[1]


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_for_another_key_and_for_no_one_else(file: Path) -> None:
    before = container(file)
    assert streamxf.rekey(file, keys=OLD, recipients=NEW) == ("data.sxf",)
    assert read(file, NEW) == DATA
    with pytest.raises(errors.KeyMissingError):
        read(file, OLD)
    assert container(file) == before
    assert file.stat().st_mode & 0o777 == 0o640
    assert names(file) == ["data.sxf"]


def test_who_may_read(file: Path) -> None:
    assert [one.id for one in streamxf.recipients(file).whole] == [OLD.id]
    assert not streamxf.recipients(file).authenticated
    assert streamxf.add_recipient(file, keys=OLD, recipients=NEW) == ("data.sxf",)
    found = streamxf.recipients(file, keys=NEW)
    assert ([one.id for one in found.whole], found.authenticated, found.save_ids) == ([OLD.id, NEW.id], True, ())
    assert read(file, OLD) == read(file, NEW) == DATA
    streamxf.remove_recipient(file, keys=NEW, recipient=OLD.id)
    assert [one.id for one in streamxf.recipients(file).whole] == [NEW.id]
    with pytest.raises(errors.ParameterError, match="last recipient"):
        streamxf.remove_recipient(file, keys=NEW, recipient=NEW)


def test_more_recipients_than_the_beginning_had_room_for(file: Path) -> None:
    many = [Key(bytes(range(number, number + 32))) for number in range(16)]
    streamxf.rekey(file, keys=OLD, recipients=many)
    assert all(read(file, key) == DATA for key in many)
    streamxf.rekey(file, keys=many[3], recipients=NEW)
    assert read(file, NEW) == DATA


def test_readers_that_require_a_signature(tmp_path: Path, file: Path) -> None:
    private, signer, other = PrivateKey.generate(), SigningKey.generate(), SigningKey.generate()
    signed = tmp_path / "signed.sxf"
    with streamxf.open(signed, "wb", chain=[ZStandard(), Encrypt(OLD, signer=signer)]) as out:
        out.write(DATA)
    with pytest.raises(errors.PolicyError, match=r"not verified.*will require a signature"):
        streamxf.rekey(signed, keys=OLD, recipients=private.public)
    streamxf.add_recipient(signed, keys=OLD, recipients=private.public, trust=signer.verify_key)
    assert read(signed, KeyRing([private], trust=signer.verify_key)) == DATA
    streamxf.rekey(signed, keys=OLD, recipients=private.public, signer=other)
    assert read(signed, KeyRing([private], trust=other.verify_key)) == DATA
    assert read(signed, KeyRing([private], trust=signer.verify_key)) == DATA, "signatures by others stay"
    for trust in (None, SigningKey.generate().verify_key):
        with pytest.raises(errors.PolicyError):
            read(signed, KeyRing([private], trust=trust))
    before = file.read_bytes()
    with pytest.raises(errors.UnsupportedError, match="no digests"):
        streamxf.rekey(file, keys=OLD, recipients=private.public, signer=signer)
    assert file.read_bytes() == before


def test_what_anyone_can_have_written_is_not_given_to_readers_who_believe(tmp_path: Path) -> None:
    private = PrivateKey.generate()
    path = tmp_path / "forged.sxf"
    with pytest.warns(UserWarning, match="readers cannot tell who wrote this"):
        path.write_bytes(streamxf.encode(DATA, [Encrypt(private.public)]))
    with pytest.raises(errors.PolicyError, match="take it for authentic"):
        streamxf.rekey(path, keys=private, recipients=NEW, allow_unsigned=True)
    streamxf.rekey(path, keys=private, recipients=NEW, allow_unsigned=True, vouch=True)
    assert read(path, NEW) == DATA


def test_a_key_that_does_not_open_it(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(errors.KeyMissingError):
        streamxf.rekey(file, keys=OTHER, recipients=NEW)
    assert file.read_bytes() == before
    assert names(file) == ["data.sxf"]


def test_parts_of_another_file(file: Path) -> None:
    data = file.read_bytes()
    mine, theirs = parts(data), parts(streamxf.encode(b"something else", [ZStandard(), Encrypt(OLD)]))
    for taken in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2)):
        mixed = b"".join(theirs[number] if number in taken else mine[number] for number in range(3))
        file.write_bytes(mixed)
        with pytest.raises((errors.AuthenticationError, errors.ContainerError)):
            streamxf.rekey(file, keys=OLD, recipients=NEW)
        assert file.read_bytes() == mixed


def test_a_seal_of_the_header_that_was_altered(file: Path) -> None:
    """The vouchers are for the header before it, so nothing else would notice until the file is read."""
    prefix, middle, seal = parts(file.read_bytes())
    size = header_size(middle[:HEADER_FIXED_BYTES])
    header = middle[: size - 36] + bytes(32)
    file.write_bytes(prefix + header + crc32c.crc32c(header).to_bytes(4, "little") + middle[size:] + seal)
    with pytest.raises(errors.AuthenticationError, match="seal"):
        streamxf.rekey(file, keys=OLD, recipients=NEW)


def test_a_list_that_was_altered(file: Path) -> None:
    """Without a key it is shown; with one it is found out."""
    prefix, middle, seal = parts(file.read_bytes())
    file.write_bytes(pack_prefix(f"{parse_prefix(prefix)[0]}&w=acme:{'0' * 16}:AAAA") + middle + seal)
    assert len(streamxf.recipients(file).whole) == 2
    for action in (
        lambda: streamxf.recipients(file, keys=OLD),
        lambda: streamxf.rekey(file, keys=OLD, recipients=NEW),
        lambda: streamxf.remove_recipient(file, keys=OLD, recipient="0" * 16),
    ):
        with pytest.raises(errors.AuthenticationError, match="list of recipients"):
            action()


@pytest.mark.parametrize("part", ["prefix", "header", "table", "footer", "seal"])
def test_a_file_that_is_damaged_around_its_blocks(file: Path, part: str) -> None:
    prefix, middle, _ = parts(file.read_bytes())
    end = len(prefix) + len(middle)
    position = {"prefix": 20, "header": len(prefix) + 60, "table": end - 22, "footer": end - 15, "seal": end + 10}[part]
    flip(file, position)
    data = file.read_bytes()
    for action in (lambda: streamxf.rekey(file, keys=OLD, recipients=NEW), lambda: streamxf.recipients(file)):
        with pytest.raises(errors.ContainerError):
            action()
    assert file.read_bytes() == data


def test_a_failure_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    write_all = holders.write_all
    calls = []

    def full(target: Any, data: Any) -> None:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        write_all(target, data)

    monkeypatch.setattr(holders, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        streamxf.rekey(file, keys=OLD, recipients=NEW)
    assert file.read_bytes() == before
    assert names(file) == ["data.sxf"]


@pytest.mark.parametrize("late", ["before it is read again", "while it is copied"])
def test_a_file_that_was_replaced_meanwhile(file: Path, late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = streamxf.encode(b"newer", [Encrypt(OLD)])

    def replace(*_: Any) -> None:
        draft = file.with_name("draft")
        draft.write_bytes(other)
        draft.replace(file)

    if late == "before it is read again":
        original = holders.PlainFile.replace
        monkeypatch.setattr(holders.PlainFile, "replace", lambda *given: [replace(), original(*given)])
    else:
        write_all = holders.write_all
        monkeypatch.setattr(holders, "write_all", lambda *given: [replace(), write_all(*given)])
    with pytest.raises(errors.ContainerError, match="replaced meanwhile"):
        streamxf.rekey(file, keys=OLD, recipients=NEW)
    assert file.read_bytes() == other
    assert names(file) == ["data.sxf"]


def test_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    streamxf.rekey(link, keys=OLD, recipients=NEW)
    assert link.is_symlink()
    assert read(file, NEW) == DATA


def test_what_cannot_be_changed(file: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.sxf"
    bare.write_bytes(streamxf.encode(DATA))
    with pytest.raises(errors.PolicyError, match="not encrypted"):
        streamxf.rekey(bare, keys=OLD, recipients=NEW)
    with pytest.raises(errors.ParameterError, match="is not a save"):
        streamxf.rekey(file, keys=OLD, recipients=NEW, expect_save_id="0" * 32)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/rekeyed.sxf", file.read_bytes())
    try:
        with pytest.raises(errors.UnsupportedError, match="local file"):
            streamxf.rekey("memory://rekeyed.sxf", keys=OLD, recipients=NEW)
    finally:
        memory.rm("/rekeyed.sxf")


def test_a_url_of_a_local_file(file: Path) -> None:
    assert streamxf.rekey(f"file://{file}", keys=OLD, recipients=NEW) == ("data.sxf",)
    assert read(file, NEW) == DATA
