"""`verify` over a storage that is slow, or fails in ways of its own: reads side by side, and everything is told."""

import errno
import io
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Checksum, FloatZip
from streamxf.errors import ForeignError
from streamxf.storage.local import LocalStorage
from tests.altered import flip
from tests.dcp.helpers import KEY, data_files, full_chain, save
from tests.failing import fails_with
from tests.storage.stores import Ranges, web_server

from .remote import CONCURRENT, PROTOCOL, Meeting, Remote, StoreError, url_of

FILES = 4


@pytest.fixture(params=["none", "checksum", "full"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A checkpoint of several files, and the key that opens it."""
    chains: dict[str, list[Any]] = {"none": [], "checksum": [FloatZip(), Checksum()], "full": full_chain()}
    state = {f"w{number}": torch.randn(300, 301 + number) for number in range(8)} | {"o": ["an object"]}
    save(state, tmp_path, chains[request.param], thread_count=FILES, block_size=1 << 16)
    assert len(data_files(tmp_path)) == FILES
    return tmp_path, KEY if request.param == "full" else None


def test_the_report_is_that_of_a_local_folder(saved: tuple[Path, Any]) -> None:
    folder, key = saved
    for keys in {key, None}:
        local, remote = streamxf.verify(folder, keys=keys), streamxf.verify(url_of(folder), keys=keys)
        assert remote.ok
        assert (remote.files, remote.items, remote.blocks) == (local.files, local.items, local.blocks)
        assert remote.bytes_read == local.bytes_read == sum(file.stat().st_size for file in folder.iterdir())
        assert remote.unchecked == local.unchecked


def test_a_listing_that_is_older_than_the_checkpoint_is_no_damage(
    saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mounts remember it: sshfs (3.7.3) for 20 s, NFS for up to 60."""
    folder, _ = saved
    names, before = LocalStorage.names, LocalStorage(folder).names()
    save({"w": torch.ones(9)}, folder, "zstd")  # type: ignore[arg-type]

    def listed(self: LocalStorage, known: Any = ()) -> dict[str, int | None]:
        return before | {name: size for name, size in names(self).items() if name in known}

    monkeypatch.setattr(LocalStorage, "names", listed)
    assert streamxf.verify(folder).ok
    data_files(folder)[0].unlink()
    assert not streamxf.verify(folder).ok


def test_damages_stand_in_the_order_of_files(saved: tuple[Path, Any]) -> None:
    folder, key = saved
    for file in data_files(folder):
        flip(file, mask=4)
    local, remote = streamxf.verify(folder, keys=key), streamxf.verify(url_of(folder), keys=key)
    assert not remote.ok
    assert remote.damaged == local.damaged
    assert {damage.file for damage in remote.damaged} == {file.name for file in data_files(folder)}


def test_several_files_are_read_at_the_same_time(saved: tuple[Path, Any]) -> None:
    """A read of each file waits for reads of three others."""
    folder, key = saved
    url = url_of(folder).replace(PROTOCOL, CONCURRENT)
    Remote.before = Meeting(FILES)
    assert streamxf.verify(url, keys=key).ok


def test_nothing_is_fetched_again_and_again(saved: tuple[Path, Any]) -> None:
    """Of each item its end comes before its blocks, and fsspec fetches a stretch anew for each step back."""
    folder, key = saved
    assert streamxf.verify(url_of(folder), keys=key).ok
    fetched: Counter[str] = Counter()
    for name, start, end in Remote.read:
        fetched[name] += end - start
    for file in data_files(folder):
        assert fetched[file.name] <= 4 * file.stat().st_size, file.name


# -- errors that are not Python's ------------------------------------------------------------------


def fail(name: str, start: int, end: int) -> None:
    if name.endswith(".distcp"):
        raise StoreError("SlowDown")


def test_files_that_the_storage_does_not_give(saved: tuple[Path, Any]) -> None:
    folder, key = saved
    url = url_of(folder)
    Remote.before = fail
    report = streamxf.verify(url, keys=key)
    assert {damage.file for damage in report.unread} == {file.name for file in data_files(folder)}
    assert {damage.item for damage in report.unread} > {f"w{number}" for number in range(8)} - {None}
    assert {damage.error for damage in report.unread} == {"ForeignError"}
    assert not report.damaged
    assert all("StoreError: SlowDown" in damage.message for damage in report.unread)


@pytest.mark.parametrize("error", [StoreError("InternalError"), OSError(errno.EIO, "InternalError, to s3fs")])
def test_one_stretch_that_cannot_be_read(saved: tuple[Path, Any], error: Exception) -> None:
    folder, key = saved
    url = url_of(folder)
    bad = data_files(folder)[1]
    middle = bad.stat().st_size // 2

    def fail_in_the_middle(name: str, start: int, end: int) -> None:
        if name == bad.name and start <= middle < end:
            raise error

    Remote.before = fail_in_the_middle
    report = streamxf.verify(url, keys=key)
    assert not report.damaged
    assert {damage.file for damage in report.unread} == {bad.name}
    assert all(damage.item and "InternalError" in damage.message for damage in report.unread)


class Longer(Ranges):
    """Answers with other parts than those that were asked for."""

    changed = staticmethod(lambda data: data + b"more")

    def send_head(self) -> Any:
        answer = super().send_head()
        return io.BytesIO(self.changed(answer.read())) if "Range" in self.headers and ".distcp" in self.path else answer

    def send_header(self, name: str, value: str) -> None:
        if name == "Content-Length" and "Range" in self.headers and ".distcp" in self.path:
            value = str(len(self.changed(bytes(int(value)))))
        super().send_header(name, value)


class Shorter(Longer):
    changed = staticmethod(lambda data: data[: len(data) // 2])


@pytest.mark.parametrize("kind", [Longer, Shorter])
def test_a_server_that_answers_with_other_parts(
    saved: tuple[Path, Any], kind: type[Longer], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = saved
    monkeypatch.setattr("streamxf.storage.fetch._PAUSE", 0.001)
    with web_server(folder, kind) as url:
        report = streamxf.verify(url, keys=key)
        assert not report.damaged
        assert {damage.file for damage in report.unread} == {file.name for file in data_files(folder)}
        rest = streamxf.load_intact(url, keys=key)
        assert not rest.damaged
        assert {entry.item for entry in rest.unread} == {"o", *(f"w{number}" for number in range(8))}
    file = data_files(folder)[0]
    file.write_bytes(file.read_bytes()[:-1])
    with web_server(folder) as url:
        assert {damage.file for damage in streamxf.verify(url, keys=key).damaged} == {file.name}


def test_a_folder_that_cannot_be_listed(saved: tuple[Path, Any]) -> None:
    folder, key = saved
    url = url_of(folder)
    Remote.before = fails_with(StoreError, "ExpiredToken")
    with pytest.raises(ForeignError, match="StoreError: ExpiredToken") as caught:
        streamxf.verify(url, keys=key)
    assert str(folder) in str(caught.value)


def test_an_interrupt_stops_all_threads(saved: tuple[Path, Any]) -> None:
    folder, key = saved
    url = url_of(folder).replace(PROTOCOL, CONCURRENT)
    names, interrupted = set[str](), threading.Event()

    def interrupt(name: str, start: int, end: int) -> None:
        names.update({name} if name.endswith(".distcp") else ())
        if len(names) > 1 and not interrupted.is_set():  # one in this thread, and one in another
            interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    Remote.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        streamxf.verify(url, keys=key)
    left = [thread for thread in threading.enumerate() if thread.name.startswith("streamxf-file")]
    assert not any(map(threading.Thread.is_alive, left))  # one may be about to start, and finds nothing to do
    Remote.before = lambda name, start, end: None
    assert streamxf.verify(url, keys=key).ok
