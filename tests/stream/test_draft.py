"""Where a file that `streamxf.open` writes ends up."""

import errno
import io
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest

import streamxf
from streamxf.chain import DEFAULT_CHAIN
from streamxf.errors import ContainerError, ParameterError
from streamxf.storage.files import Draft, replacing
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.stores import creating
from tests.failing import fails_with
from tests.samples import KEY, data_of, encode


def write(path: str | Path) -> None:
    with streamxf.open(path, "wb") as file:
        file.write(b"data")


def read(path: Path) -> bytes | None:
    with streamxf.open(path) as file:
        return file.read()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert read(target) == b"data"
    assert [*target.parent.iterdir()] == [target]


def test_permissions_of_a_file_that_is_replaced_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_named_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(path)
        assert streamxf.decode(os.read(end, 65536)) == b"data"
    finally:
        os.close(end)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_relative_path_is_meant_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with streamxf.open("file", "wb") as file:
        monkeypatch.chdir(tmp_path / "elsewhere")
        file.write(b"data")
    assert read(tmp_path / "file") == b"data"


def test_keys_without_encryption_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="the chain does not encrypt"):
        streamxf.open(tmp_path / "file", "wb", keys=KEY)
    with pytest.raises(ParameterError, match="the chain does not encrypt"):
        streamxf.encode(b"data", "zstd", keys=KEY)
    assert [*tmp_path.iterdir()] == []


def test_a_stream_that_is_dropped_says_so() -> None:
    file = streamxf.open(io.BytesIO(), "wb")
    file.write(b"data")
    with pytest.warns(ResourceWarning, match="without close"):
        del file


def test_the_wrong_direction() -> None:
    with streamxf.open(io.BytesIO(), "wb") as writer, pytest.raises(io.UnsupportedOperation):
        writer.read()
    with streamxf.open(io.BytesIO(streamxf.encode(b"data"))) as reader, pytest.raises(io.UnsupportedOperation):
        reader.write(b"data")


def test_what_closing_finds_is_raised_before_anything_is_replaced(tmp_path: Path) -> None:
    """As network file systems have it, whose writes fail late."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    draft = replacing(str(path))
    assert isinstance(draft, Draft)
    draft.file.write(b"new")
    raw = draft._raw

    class Full:
        def close(self) -> None:
            raw.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    draft._raw = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        draft.__exit__(None, None, None)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_is_refused_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(encode(data_of(100))[:-1])
    with pytest.raises(ContainerError) as caught:
        streamxf.open(path, keys=KEY)
    assert caught.value.__traceback__ is not None  # whose frames keep the file
    assert str(path) not in {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}


def test_a_file_whose_first_bytes_cannot_be_written_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No space left"):
        streamxf.open("/dev/full", "wb")
    monkeypatch.setattr("streamxf.stream.plain.write_all", fails_with(OSError, errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(OSError, match="Input/output error"):
        streamxf.open(tmp_path / "file", "wb")
    assert [*tmp_path.iterdir()] == []


def test_a_url_has_the_whole_file_or_none() -> None:
    files = fsspec.filesystem("memory")
    url = "memory://drafts/weights.sxf"
    file = streamxf.open(url, "wb")
    file.write(b"data")
    assert not files.exists(url)
    file.close()
    with streamxf.open(url) as reader:
        assert reader.seekable()
        assert reader.read() == b"data"
    with pytest.raises(ZeroDivisionError), streamxf.open(url, "wb") as file:
        file.write(b"more")
        raise ZeroDivisionError
    assert streamxf.decode(files.cat_file(url)) == b"data"
    with pytest.raises(FileNotFoundError):
        streamxf.open("memory://drafts/nothing")


def test_files_at_urls_know_nothing_of_each_other() -> None:
    """Transactions of fsspec are those of a whole file system, whoever writes there."""
    storage = open_storage(f"memory://{uuid4().hex}")
    one, two = (streamxf.open(storage.child(name), "wb") for name in ("one", "two"))
    one.write(b"1" * 3_000_000)
    two.write(b"2" * 3_000_000)
    storage.put("beside", b"data")
    assert storage.names().keys() == {"beside", *(name for name in storage.names() if name.endswith(".tmp"))}
    one.close()
    assert streamxf.open(storage.child("one")).read() == b"1" * 3_000_000
    assert not storage.exists("two")
    two.abort()
    assert storage.names().keys() == {"beside", "one"}


def test_a_file_that_was_not_written_to_its_end_replaces_none() -> None:
    url = f"memory://{uuid4().hex}/file"
    storage = open_storage(url)
    assert isinstance(storage, RemoteStorage)
    with streamxf.open(url, "wb") as file:
        file.write(b"old")
    for writing in (storage.replacing, partial(creating, storage.filesystem, f"{storage.path}.other")):
        with pytest.raises(ZeroDivisionError), writing() as raw:
            raw.write(b"new")
            raise ZeroDivisionError
    assert storage.parent()[0].names().keys() == {"file"}
    with streamxf.open(url) as file:
        assert file.read() == b"old"


def test_storage_options_reach_fsspec(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with pytest.raises(FileNotFoundError), streamxf.open(f"file://{path}", "wb") as file:
        file.write(b"data")
    path.parent.mkdir()
    with streamxf.open(f"file://{path}", "wb") as file:
        file.write(b"data")
    assert read(path) == b"data"
    options = {"path": f"/{path.parent.parent.name}", "target_protocol": "memory"}
    with streamxf.open("dir://two", "wb", storage_options=options) as file:
        file.write(b"data")
    assert read(f"memory://{path.parent.parent.name}/two") == b"data"  # type: ignore[arg-type]
    for mode in ("rb", "wb"):
        with pytest.raises(ParameterError, match="cannot be used"):
            streamxf.open("nothing://file", mode)  # type: ignore[call-overload]
    with pytest.raises(FileNotFoundError), streamxf.open("memory://drafts/one", "wb", storage_options={}) as file:
        raise FileNotFoundError
    with streamxf.open("memory://drafts/one", "wb") as file:  # what failed before left no transaction open
        file.write(b"data")
    assert fsspec.filesystem("memory").exists("memory://drafts/one")


def test_a_draft_that_cannot_be_removed_is_named_by_what_ended_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def fail(path: str, **how: Any) -> None:
        if str(path).endswith(".tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **how)

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(ZeroDivisionError) as caught, streamxf.open(tmp_path / "file", "wb") as file:
        file.write(b"data")
        raise ZeroDivisionError
    assert [".tmp could not be removed: OSError" in note for note in caught.value.__notes__] == [True]


def test_files_of_one_store_are_written_at_the_same_time() -> None:
    files = fsspec.filesystem("memory")
    urls = [f"memory://together/{name}" for name in ("one", "two", "three")]
    for url in urls:
        files.pipe_file(url, b"as it was")
    one, two, three = (streamxf.open(url, "wb") for url in urls)
    for file in (one, two, three):
        file.write(b"data")
    one.close()
    assert [files.cat_file(url) for url in urls[1:]] == [b"as it was"] * 2
    two.abort()
    assert [files.cat_file(url) for url in urls[1:]] == [b"as it was"] * 2
    three.write(b" and more")
    three.close()
    assert streamxf.decode(files.cat_file(urls[0])) == b"data"
    assert files.cat_file(urls[1]) == b"as it was"
    assert streamxf.decode(files.cat_file(urls[2])) == b"data and more"
    assert not files._intrans


def test_the_chain_by_default_is_the_same_everywhere() -> None:
    data = np.random.default_rng(0).standard_normal(100_000, np.float32).tobytes()
    assert streamxf.encode(data, DEFAULT_CHAIN)[:100] != streamxf.encode(data, "zstd")[:100]
    for stored in (streamxf.encode(data), streamxf.encode(data, DEFAULT_CHAIN)):
        assert b"streamxf.floatzip" in stored[:200]
        assert streamxf.decode(stored) == data
