"""What is finished when a conversion stops is kept, if it is surely of the same one; and what one of several
conversions to one folder has published stays, whatever becomes of the others.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import AbortedError, ContainerError, NoCheckpointError, NoSpaceError, ReplacedError, StreamxfError
from streamxf.formats.opening import open_source
from streamxf.keys import Key, KeyRing, PrivateKey
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.tools.convert.pack import pack, transcode
from streamxf.wording import many
from tests.altered import flip
from tests.failing import fails_with
from tests.progress.recorder import Meanwhile, Stop, stop
from tests.tools.convert.states import assert_same, assert_whole, data_files, loaded, trained

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

KEY = Key(bytes(range(32)))
FILE_SIZE = 400_000


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def stop_midway(source: Path, target: Path, chain: str = "zstd", **options: Any) -> None:
    with pytest.raises(Stop) as raised:
        transcode(source, target, chain, file_size=FILE_SIZE, progress=Meanwhile(stop, 2_000_000), **options)
    assert "repeat it to resume" in raised.value.__notes__[-1]


def inodes(path: Path) -> dict[str, int]:
    return {name: (path / name).stat().st_ino for name in data_files(path)}


def test_finished_files_are_kept_as_they_are(source, target):
    stop_midway(source, target)
    kept = inodes(target)
    assert len(kept) >= 3
    assert sorted(f"{name}.slip" for name in kept) == sorted(path.name for path in target.glob("*.slip"))
    assert not (target / ".metadata").exists()
    done = transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert (done.kept_files, done.discarded_files) == (len(kept), 0)
    assert kept.items() <= inodes(target).items()
    assert sorted(path.name for path in target.iterdir()) == sorted([".metadata", *data_files(target)])
    assert_same(loaded(target), trained())
    assert_whole(target)


def test_stopped_again_and_again_it_gets_there(source, target):
    for _ in range(20):
        try:
            done = transcode(source, target, "zstd", file_size=FILE_SIZE, progress=Meanwhile(stop, 500_000))
            break
        except Stop:
            continue
    assert done.kept_files
    assert_same(loaded(target), trained())


@pytest.mark.parametrize(
    "options",
    [{"chain": "lz4"}, {"chain": "zstd:level=7"}, {"file_size": FILE_SIZE + 1}, {"block_size": 2**17}],
    ids=lambda options: str(*options),
)
def test_another_call_begins_anew(source, target, options):
    stop_midway(source, target)
    old = data_files(target)
    done = transcode(source, target, **{"chain": "zstd", "file_size": FILE_SIZE, **options})
    assert (done.kept_files, done.discarded_files) == (0, len(old))
    assert "started over" in str(done)
    assert not set(old) & set(data_files(target))
    assert_same(loaded(target), trained())


def test_another_source_begins_anew(source, target):
    stop_midway(source, target)
    state = {**trained(), "step": 8}
    dcp_save(state, storage_writer=streamxf.FileSystemWriter(source, sync_files=False))
    assert transcode(source, target, "zstd", file_size=FILE_SIZE).kept_files == 0
    assert_same(loaded(target), state)


@pytest.mark.parametrize("harm", ["cut", "gone", "slip cut", "slip altered", "slip gone", "slip a pipe"])
def test_what_is_not_whole_is_written_again(source, target, harm):
    stop_midway(source, target)
    names = data_files(target)
    slip, file = target / f"{names[0]}.slip", target / names[0]
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif harm == "gone":
        file.unlink()
    elif harm == "slip cut":
        slip.write_bytes(slip.read_bytes()[:-1])
    elif harm == "slip altered":
        flip(slip, -100)
    else:
        slip.unlink()
        if harm == "slip a pipe":
            os.mkfifo(slip)  # who opened it would wait for ever
    done = transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert done.kept_files == len(names) - 1
    assert_same(loaded(target), trained())
    assert_whole(target)


def test_a_finished_file_that_was_altered_is_found_out(source, target):
    """It is not read again before it is published, and what is published has its digest from when it was written."""
    stop_midway(source, target)
    file = target / data_files(target)[0]
    flip(file)
    assert transcode(source, target, "zstd", file_size=FILE_SIZE).kept_files
    with pytest.raises(StreamxfError):
        assert_whole(target)


# -- keys --------------------------------------------------------------------------------------------


def test_with_a_key_it_goes_on(source, target):
    stop_midway(source, target, "zstd+encrypt", recipients=KEY)
    assert transcode(source, target, "zstd+encrypt", recipients=KEY, file_size=FILE_SIZE).kept_files
    assert_same(loaded(target, KEY), trained())
    assert_whole(target, KEY)


def test_with_public_keys_alone_it_begins_anew(tmp_path, source):
    """Anybody could have written what is there."""
    target, private = tmp_path / "target", PrivateKey.generate()
    ring = KeyRing(private.public, allow_unsigned=True)
    stop_midway(source, target, "zstd+encrypt", recipients=ring)
    done = transcode(source, target, "zstd+encrypt", recipients=ring, file_size=FILE_SIZE)
    assert (done.kept_files, done.discarded_files > 0) == (0, True)
    assert_same(loaded(target, KeyRing(private, allow_unsigned=True)), trained())


def test_slips_without_a_mac_are_of_no_use_where_there_is_a_key(source, target, monkeypatch):
    """Somebody who has no key makes files and slips for a copy that is to be encrypted."""
    monkeypatch.setattr("streamxf.checkpoint.resumable._job_id", lambda *_: "0" * 32)
    stop_midway(source, target, "zstd")
    done = transcode(source, target, "zstd+encrypt", recipients=KEY, file_size=FILE_SIZE)
    assert done.kept_files == 0
    assert_same(loaded(target, KEY), trained())


def test_a_slip_passes_for_no_metadata(source, target):
    stop_midway(source, target)
    slip = next(target.glob("*.slip"))
    for name in (".metadata", "__0.metadata", "__2147483647.metadata"):
        shutil.copy(slip, target / name)
        with pytest.raises(StreamxfError):
            Checkpoint(target)
        (target / name).unlink()


# -- what is left ------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Path], object]] = {
    "verify": lambda path: streamxf.verify(path),
    "clean": lambda path: streamxf.clean(path),
    "recipients": lambda path: streamxf.recipients(path),
    "open": lambda path: open_source(open_storage(path)),
    "transcode": lambda path: transcode(path, path.parent / "copy"),
}


@pytest.mark.parametrize("call", CALLS)
def test_whoever_reads_what_is_not_finished_is_told_what_it_is(source, target, call):
    stop_midway(source, target)
    before = sorted(path.name for path in target.iterdir())
    count = len(data_files(target))
    with pytest.raises(
        NoCheckpointError, match=rf"interrupted, or is at work\. Finished so far: {count} data files?\. Repeat it"
    ):
        CALLS[call](target)
    assert sorted(path.name for path in target.iterdir()) == before


def test_a_load_of_what_is_not_finished_is_told_what_it_is(source, target):
    stop_midway(source, target)
    with pytest.raises(CheckpointException, match="interrupted, or is at work"):
        dcp_load({"step": 0}, storage_reader=streamxf.FileSystemReader(target))
    assert transcode(source, target, "zstd", file_size=FILE_SIZE).kept_files


def test_what_is_not_finished_in_place_of_a_checkpoint_is_named(source):
    with pytest.raises(Stop):
        transcode(source, chain="zstd", in_place=True, file_size=FILE_SIZE, progress=Meanwhile(stop, 2_000_000))
    report = streamxf.verify(source)
    said = f"interrupted: {len(list(source.glob('*.slip')))} of the data files left over"
    assert report.ok
    assert said in str(report)
    assert said in str(streamxf.clean(source, dry_run=True))
    assert "interrupted" not in str(streamxf.clean(source))
    assert "interrupted" not in str(streamxf.verify(source))


def test_clean_and_the_next_save_remove_what_is_left(tmp_path, source, target):
    stop_midway(source, target)
    (target / f"{data_files(target)[0]}.slip.01234567.tmp").write_bytes(b"a draft")
    shutil.copytree(target, tmp_path / "other")
    dcp_save({"a": torch.ones(3)}, storage_writer=streamxf.FileSystemWriter(target, sync_files=False))
    assert len(list(target.iterdir())) == 2
    dcp_save({"a": torch.ones(3)}, storage_writer=streamxf.FileSystemWriter(tmp_path / "x", sync_files=False))
    for path in (tmp_path / "x").iterdir():
        shutil.copy(path, tmp_path / "other")
    assert streamxf.clean(tmp_path / "other").removed
    assert len(list((tmp_path / "other").iterdir())) == 2


def test_in_place_the_old_one_loads_until_the_new_one_does(source):
    with pytest.raises(Stop):
        transcode(source, chain="zstd", in_place=True, file_size=FILE_SIZE, progress=Meanwhile(stop, 2_000_000))
    assert_same(loaded(source), trained())
    done = transcode(source, chain="zstd", in_place=True, file_size=FILE_SIZE)
    assert done.kept_files
    assert_same(loaded(source), trained())
    assert sorted(path.name for path in source.iterdir()) == sorted([".metadata", *data_files(source)])


@pytest.mark.parametrize("convert", [transcode, pack])
def test_a_copy_that_surely_does_not_fit_is_not_begun(tmp_path, source, monkeypatch, convert):
    monkeypatch.setattr("streamxf.storage.abilities.Volume.of", lambda _: _Full())
    monkeypatch.setattr("streamxf.tools.convert.conversion._write_all", lambda *_: pytest.fail("it began"))
    if convert is pack:
        source = tmp_path / "model.safetensors"
        save_file({"w": torch.randn(1 << 20).bfloat16()}, source)
    with pytest.raises(NoSpaceError):
        convert(source, tmp_path / "target", "checksum")
    assert not (tmp_path / "target").exists()


def test_a_copy_that_may_fit_once_it_is_compressed_is_begun(tmp_path, monkeypatch):
    save_file({"w": torch.zeros(1 << 20)}, tmp_path / "zeros.safetensors")
    monkeypatch.setattr("streamxf.storage.abilities.Volume.of", lambda _: _Full())
    assert pack(tmp_path / "zeros.safetensors", tmp_path / "target", "zstd").stored_bytes < 2**20


class _Full:
    free = 1000
    plain = True


def test_one_that_fails_by_a_full_disk_resumes_later(source, target, monkeypatch):
    written = []
    real = LocalStorage.put

    def full(*arguments: Any, **options: Any) -> None:
        written.append(arguments)
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put", full)
        with pytest.raises(OSError, match="No space left") as raised:
            transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert f"the disk of {target} is too full for this save. Make room" in "".join(raised.value.__notes__)
    assert len(data_files(target)) == 3
    assert transcode(source, target, "zstd", file_size=FILE_SIZE).kept_files == 3
    assert_same(loaded(target), trained())


# -- conversions to one folder at the same time ----------------------------------------------------------------------


def only_whole(path: Path) -> None:
    """The folder holds one checkpoint, all of it, and nothing else that cannot be cleaned up."""
    streamxf.clean(path)
    assert_same(loaded(path), trained())
    only_named(path)


def only_named(path: Path) -> None:
    assert_whole(path)
    assert sorted(file.name for file in path.iterdir()) == sorted([".metadata", *data_files(path)])


@pytest.mark.parametrize("stopped", [True, False], ids=["of one that stopped", "of the first, which is at work"])
@pytest.mark.parametrize("in_place", [False, True])
def test_two_that_go_on_from_the_same_files(tmp_path, source, in_place, stopped):
    """The first to publish has them; the second must not remove them when it fails."""
    places = (source,) if in_place else (source, tmp_path / "target")
    options: dict[str, Any] = {"chain": "zstd", "in_place": in_place}
    if stopped:
        with pytest.raises(Stop):
            transcode(*places, **options, file_size=FILE_SIZE, progress=Meanwhile(stop, 2_000_000))

    def other() -> None:
        assert transcode(*places, **options, file_size=FILE_SIZE).kept_files

    with pytest.raises((AbortedError, ReplacedError) if in_place else AbortedError):
        meanwhile = Meanwhile(other, *([] if stopped else [2_000_000]))
        transcode(*places, **options, file_size=FILE_SIZE, progress=meanwhile)
    only_whole(places[-1])


@pytest.mark.parametrize("at", [2_000_000, None])
def test_who_loses_is_told_of_the_files_that_are_left(source, target, at):
    """The first to publish removes those that were finished then."""

    def other() -> None:
        transcode(source, target, "lz4", overwrite=True, file_size=FILE_SIZE)

    with pytest.raises((AbortedError, FileExistsError)) as caught:
        transcode(source, target, "zstd", file_size=FILE_SIZE, progress=Meanwhile(other, *([at] if at else [])))
    left = sum(name.endswith(".distcp") for name in streamxf.clean(target, dry_run=True).removed)
    said = [note for note in getattr(caught.value, "__notes__", []) if "repeat it to resume" in note]
    assert [note.partition(" left")[0] for note in said] == ([many(left, "finished data file")] if left else [])
    only_whole(target)


def test_one_that_cannot_be_published_goes_on_later(source, target, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("streamxf.checkpoint.resumable.publish", fails_with(OSError, 28, "No space left on device"))
        with pytest.raises(OSError, match="No space left") as raised:
            transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert "repeat it to resume" in raised.value.__notes__[-1]
    done = transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert done.kept_files == done.files
    only_whole(target)


def test_one_that_began_before_the_target_was_there_does_not_replace_it(tmp_path, source):
    """Without `overwrite`, whatever was published first."""
    weights = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(300, 300)}, weights)

    def other() -> None:
        transcode(source, tmp_path / "target", "lz4")

    with pytest.raises(AbortedError, match="not published"):
        pack(weights, tmp_path / "target", progress=Meanwhile(other))
    only_whole(tmp_path / "target")


# -- sources that do not stay as they are ------------------------------------------------------------


def test_a_file_that_is_replaced_while_it_is_packed_is_not_published(tmp_path):
    """By one of the same size, with the time of the old one, as programs that copy files do."""
    weights = tmp_path / "a.safetensors"

    def written(value: float) -> None:
        before = weights.stat() if weights.exists() else None
        save_file({f"w{number}": torch.full((300, 300), value) for number in range(20)}, weights)
        if before is not None:
            os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))

    written(1.0)
    change = Meanwhile(lambda: written(2.0), 2_000_000)
    with pytest.raises(ContainerError, match="changed while it was read"):
        pack(weights, tmp_path / "target", "zstd", file_size=FILE_SIZE, progress=change)
    assert not (tmp_path / "target" / ".metadata").exists()
    assert not pack(weights, tmp_path / "target", "zstd", file_size=FILE_SIZE).kept_files
    found = loaded(tmp_path / "target")
    assert all(torch.equal(found[f"w{number}"], torch.full((300, 300), 2.0)) for number in range(20))
    only_named(tmp_path / "target")


def test_a_stock_checkpoint_that_is_saved_again_while_it_is_copied_is_not_published(tmp_path):
    def saved(value: float) -> None:
        state = {f"w{number}": torch.full((300, 300), value) for number in range(20)}
        dcp_save(state, storage_writer=StockWriter(tmp_path / "stock", sync_files=False))

    saved(1.0)
    change = Meanwhile(lambda: saved(2.0), 2_000_000)
    with pytest.raises(ContainerError, match="changed while it was read"):
        transcode(tmp_path / "stock", tmp_path / "target", "lz4", file_size=FILE_SIZE, progress=change)
    assert not (tmp_path / "target" / ".metadata").exists()
