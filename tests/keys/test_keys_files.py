"""Key files: who may get at them, what may stand where one should be, and how they are written."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

import streamxf
from streamxf.errors import KeyFileError, KeyMissingError, ParameterError, WrongKeyError
from streamxf.keys import Key, KeyRing, PrivateKey, SigningKey, file, read_key, write_key
from streamxf.keys.ring import format_key, parse_key
from tests.failing import fails_with
from tests.polling import at_once

KEY = Key(bytes(range(107, 139)))
PAIR = PrivateKey(bytes(range(112, 144)))
SIGNER = SigningKey(bytes(range(115, 147)))
SECRETS = [KEY, PAIR, PrivateKey(bytes(range(112, 144)), "hpke-x25519"), SIGNER]
PUBLIC = [PAIR.public, SIGNER.verify_key]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def put(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SECRETS + PUBLIC, ids=repr)
def test_there_and_back(key, tmp_path):
    path = tmp_path / "key"
    write_key(path, key)
    assert read_key(path) == read_key(str(path)) == key
    assert path.read_text() == format_key(key) + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == (0o644 if key in PUBLIC else 0o600)


def test_under_a_passphrase(tmp_path):
    path = tmp_path / "key"
    write_key(path, PAIR, "correct horse")
    assert read_key(path, "correct horse") == PAIR
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(WrongKeyError):
        read_key(path, "wrong horse")
    with pytest.raises(KeyMissingError, match="passphrase="):
        read_key(path)
    with pytest.raises(KeyMissingError, match="passphrase="):
        KeyRing.of(f"file:{path}")


def test_locations(tmp_path):
    path = put(tmp_path / "key", f"# ours\n{KEY.reveal().hex()}\n")
    assert tuple(KeyRing.of(f"file:{path}")) == (KEY,)
    encoded = streamxf.encode(b"data", [streamxf.Encrypt([f"file:{path}"])])
    assert streamxf.decode(encoded, keys=f"file:{path}") == b"data"
    for key, use in ((SIGNER, "signer="), (SIGNER.verify_key, "trust=")):
        other = tmp_path / use
        write_key(other, key)
        with pytest.raises(ParameterError, match=f"{key.id}, which opens nothing; pass it as {use}"):
            KeyRing.of(f"file:{other}")
    with pytest.raises(KeyFileError):
        KeyRing.of("file:")


def test_a_location_may_pin_the_id(tmp_path):
    other = PrivateKey.generate().public
    write_key(tmp_path / "team.pub", PAIR.public)
    assert tuple(KeyRing(f"file:{tmp_path}/team.pub#{PAIR.public.id}")) == (PAIR.public,)
    with pytest.raises(KeyFileError, match=f"holds the key {PAIR.public.id}, and the location requires {other.id}"):
        KeyRing(f"file:{tmp_path}/team.pub#{other.id}")


def test_symbolic_links_are_followed_as_kubernetes_makes_them(tmp_path):
    (tmp_path / "..2026").mkdir()
    put(tmp_path / "..2026" / "key", format_key(KEY), 0o400)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "key").symlink_to("..data/key")
    assert read_key(tmp_path / "key") == KEY


# -- who may get at it -----------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("owner", ["root", "us", "another"])
def test_every_mode_of_a_secret_file(owner, tmp_path, monkeypatch):
    me = 0 if owner == "root" else 1234
    monkeypatch.setattr(os, "geteuid", lambda: me)
    path = put(tmp_path / "key", format_key(KEY))
    os.chown(path, {"root": 0, "us": 1234, "another": 1235}[owner], 0)
    for mode in range(0o1000):
        path.chmod(mode)
        fine = owner != "another" and not mode & 0o027 and not (owner == "us" and mode & 0o040)
        if fine:
            assert read_key(path) == KEY, oct(mode)
            continue
        with pytest.raises(KeyFileError) as caught:
            read_key(path)
        if owner == "another":
            assert "belongs to user 1235" in str(caught.value)
        else:
            assert f"chmod 600 '{path}'" in str(caught.value)
            assert f"{mode:04o}" in str(caught.value)


@as_root
def test_a_file_of_root_whose_group_we_are_in(tmp_path, monkeypatch):
    """As Kubernetes mounts secrets for a pod with an fsGroup."""
    path = put(tmp_path / "key", format_key(KEY), 0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert read_key(path) == KEY


def test_a_secret_file_that_others_can_read(tmp_path):
    for mode in (0o644, 0o604, 0o660, 0o602, 0o620, 0o601):
        path = put(tmp_path / "key", format_key(KEY), mode)
        with pytest.raises(KeyFileError, match=f"{mode:04o}.*chmod 600"):
            read_key(path)


@pytest.mark.parametrize("content", ["6b" * 32, "streamxf-protected:x", "not a key at all", "streamxf-secret:"])
def test_what_is_not_known_to_be_public_is_taken_for_secret(content, tmp_path):
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_key(put(tmp_path / "key", content, 0o644))


@pytest.mark.parametrize("key", PUBLIC, ids=repr)
def test_every_mode_of_a_public_file(key, tmp_path):
    path = put(tmp_path / "key", format_key(key))
    for mode in range(0o400, 0o1000) if os.geteuid() else range(0o1000):
        path.chmod(mode)
        if mode & 0o022:
            with pytest.raises(KeyFileError, match="chmod 644"):
                read_key(path)
        else:
            assert read_key(path) == key


def test_mode_and_content_are_of_the_same_file(tmp_path, monkeypatch):
    """Another file that takes the name after the first one was opened is not looked at."""
    path = put(tmp_path / "key", format_key(KEY))
    other = put(tmp_path / "other", format_key(PAIR), 0o644)
    opened = os.open

    def open_and_swap(*arguments, **keywords):
        descriptor = opened(*arguments, **keywords)
        if arguments[0] == str(path):
            os.replace(other, path)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_swap)
    assert read_key(path) == KEY
    monkeypatch.undo()
    with pytest.raises(KeyFileError):
        read_key(path)


# -- what may stand there --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"# nothing\n", b"\xff" * 32, format_key(KEY).encode() + b"\0", format_key(KEY).encode("utf-16")),
        *(b"\xef\xbb\xbf" + format_key(KEY).encode(), format_key(KEY).encode() * 2, b"6b" * 31, b"#" * (2**16 + 1)),
        format_key(KEY).encode() + b"\n" * 2**16,
    ],
    ids=range(10),
)
def test_files_that_hold_no_key(content, tmp_path):
    path = put(tmp_path / "key", content)
    with pytest.raises(KeyFileError) as caught:
        read_key(path)
    assert str(path) in str(caught.value)
    assert caught.value.__context__ is None or isinstance(caught.value.__context__, ParameterError)


def test_blanks_that_count_for_nothing(tmp_path):
    """Spaces, tabs and carriage returns around the line; in a comment, any."""
    line = format_key(KEY)
    assert parse_key(f" \t{line}\r\n") == KEY
    assert read_key(put(tmp_path / "key", f"# für später\u00a0\n\n \t{line} \t\r\n")) == KEY


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\ufeff"], ids=ascii)
def test_other_blanks(blank, tmp_path):
    for text in (f"{blank}{format_key(KEY)}", f"{format_key(KEY)}{blank}"):
        with pytest.raises(ParameterError):
            parse_key(text)
        with pytest.raises(KeyFileError):
            read_key(put(tmp_path / "key", text))


def test_text_in_another_encoding(tmp_path):
    with pytest.raises(KeyFileError, match="not text in UTF-8"):
        read_key(put(tmp_path / "key", f"# für später\n{format_key(KEY)}\n".encode("latin-1")))


def test_the_largest_file(tmp_path):
    line = format_key(KEY).encode()
    assert read_key(put(tmp_path / "key", line + b"\n" * (2**16 - len(line)))) == KEY


def test_things_that_are_no_files(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # opening one to read waits for a writer, unless it is told not to
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nothing")
    for name in ("folder", "pipe"):
        with pytest.raises(KeyFileError, match="regular file"):
            read_key(tmp_path / name)
    for name in ("loop", "broken", "missing", "missing/key", "x" * 300, "nul\0"):
        with pytest.raises(KeyFileError, match="cannot be opened"):
            read_key(tmp_path / name)
    with pytest.raises(KeyFileError, match="regular file"):
        read_key("/dev/zero")


def test_a_read_that_fails(tmp_path, monkeypatch):
    path = put(tmp_path / "key", format_key(KEY))
    monkeypatch.setattr(os, "fdopen", fails_with(OSError, errno.EIO, "Input/output error"))
    with pytest.raises(KeyFileError, match="cannot be read: Input/output error"):
        read_key(path)


# -- writing ---------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path):
    path = put(tmp_path / "key", "what was there")
    (tmp_path / "link").symlink_to("elsewhere")
    for place in (path, tmp_path / "link", tmp_path):
        with pytest.raises(KeyFileError, match="never overwritten"):
            write_key(place, KEY)
    assert path.read_text() == "what was there"
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(KeyFileError, match="folder"):
        write_key(tmp_path / "missing" / "key", KEY)


@pytest.mark.parametrize("mask", [0, 0o077, 0o777])
def test_a_secret_file_is_never_open_to_others(mask, tmp_path, monkeypatch):
    modes = []
    opened = os.fdopen

    def look(descriptor, *arguments, **keywords):
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return opened(descriptor, *arguments, **keywords)

    os.umask(mask)
    monkeypatch.setattr(os, "fdopen", look)
    write_key(tmp_path / "key", KEY)
    assert modes == [0o600 & ~mask]


@pytest.mark.parametrize("operation", ["fsync", "fdopen"])
def test_a_write_that_fails_leaves_nothing(operation, tmp_path, monkeypatch):
    monkeypatch.setattr(os, operation, fails_with(OSError, errno.ENOSPC, "No space left on device"))
    with pytest.raises(KeyFileError, match="cannot be written: No space left"):
        write_key(tmp_path / "key", KEY)
    assert list(tmp_path.iterdir()) == []


def test_file_and_folder_are_synced(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def note(descriptor):
        assert read_key(tmp_path / "key") == KEY, "not in a buffer of this process"
        synced.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", note)
        write_key(tmp_path / "key", KEY)
    assert synced == [stat.S_IFREG, stat.S_IFDIR]
    monkeypatch.chdir(tmp_path)
    write_key("beside", KEY)
    assert read_key("beside") == KEY


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fails_with(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_key(tmp_path / "key", KEY)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_written(tmp_path):
    for key, passphrase in ((PAIR.public, "x"), (KEY, ""), (b"k" * 32, None), (None, None)):
        with pytest.raises(ParameterError):
            write_key(tmp_path / "key", key, passphrase)
    assert list(tmp_path.iterdir()) == []


def test_of_many_writers_one_wins(tmp_path):
    outcomes: list[str] = []
    gate = threading.Barrier(8)

    def write(number: int) -> None:
        gate.wait(60)
        try:
            write_key(tmp_path / "key", Key(bytes(range(number, number + 32))))
            outcomes.append(f"wrote {number}")
        except KeyFileError:
            outcomes.append("refused")

    at_once(write, range(8))
    assert outcomes.count("refused") == 7
    (winner,) = {int(outcome.removeprefix("wrote ")) for outcome in outcomes if outcome != "refused"}
    assert read_key(tmp_path / "key") == Key(bytes(range(winner, winner + 32)))


def test_descriptors_are_closed(tmp_path):
    path = put(tmp_path / "key", format_key(KEY))
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else pytest.skip("needs /proc")
    read_key(path)
    for mode in (0o644, 0o600):
        path.chmod(mode)
        with pytest.raises(KeyFileError):
            read_key(tmp_path)
    write_key(tmp_path / "new", KEY)
    assert set(os.listdir("/proc/self/fd")) <= before  # what earlier tests left open may be closed meanwhile
    assert file.read_location(str(path)) == KEY
