"""What `print` shows of the reports of verify, salvage and clean: right in number, and short however much is wrong."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.storage import files
from streamxf.wording import listed, many, size_text
from tests.altered import flip
from tests.dcp.helpers import KEY, OTHER_KEY, data_files, full_chain, save

MANY = 500


def empty(file: Path) -> None:
    """A file of the same size, all of it zeros."""
    file.write_bytes(bytes(file.stat().st_size))


def local_save(path: Path, rank: int) -> None:
    """Metadata of one rank's own."""
    writer = streamxf.FileSystemWriter(path, _extensions=full_chain())
    dcp.save({f"of {rank}": torch.arange(10.0)}, storage_writer=writer, use_collectives=False)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    save({"w": torch.arange(1000.0)}, tmp_path / "one", full_chain())
    return tmp_path / "one"


@pytest.fixture
def several(tmp_path: Path) -> Path:
    save({f"w{i}": torch.arange(4.0) for i in range(MANY)}, tmp_path / "several", full_chain())
    return tmp_path / "several"


def test_numbers_and_their_nouns() -> None:
    assert [many(number, "file") for number in (0, 1, 2, 1000)] == ["0 files", "1 file", "2 files", "1,000 files"]
    sizes = [size_text(number) for number in (1, 36, 1536, 2**20, 3 * 2**40)]
    assert sizes == ["1 byte", "36 bytes", "1.5 KiB", "1.0 MiB", "3,072.0 GiB"]


def test_lists_come_to_an_end() -> None:
    assert listed("file", []) == []
    assert listed("file", ["a"]) == ["file: a"]
    assert len(listed("file", range(20))) == 20
    assert listed("file", range(21))[-1] == "file: 1 more"
    assert listed("file", range(30), 2000)[-1] == "file: 2,010 more"
    assert listed("long", ["x" * 1000, "x" * 1001, "\n" * 900])[1:] == [
        f"long: {'x' * 997}...",
        "long: " + r"\n" * 498 + r"\...",
    ]
    assert listed("file", ["a\nb\x1b[31m\udc80 ü"]) == ["file: a\\nb\\x1b[31m\\udc80 ü"]


def test_one_damage(one: Path) -> None:
    (file,) = data_files(one)
    flip(file, file.stat().st_size // 2)
    report = str(streamxf.verify(one, keys=KEY)).splitlines()
    assert report[0] == "DAMAGED in 1 place"
    assert report[1].startswith("1 data file, 1 item, 1 block, ")
    assert sum(line.startswith("damaged: ") for line in report) == 1
    assert report[-1].startswith("next: ")
    found = str(streamxf.load_intact(one, keys=KEY)).splitlines()
    assert found[0] == "0 items salvaged, 1 damaged, 0 missing"
    assert len(found) == 2


def test_five_hundred(several: Path) -> None:
    (file,) = data_files(several)
    empty(file)
    report = str(streamxf.verify(several, keys=KEY))
    assert "damaged: " in report
    assert " more\n" in report
    assert len(report.splitlines()) < 30
    found = str(streamxf.load_intact(several, keys=KEY))
    assert found.startswith(f"0 items salvaged, {MANY} damaged, 0 missing\n")
    assert f" and {MANY - 5} more: " in found
    assert len(found.splitlines()) == 2  # what went with one file


def test_what_was_not_checked_is_counted(one: Path, several: Path) -> None:
    assert str(streamxf.verify(one)).splitlines()[0] == (
        "OK: no damage found (2 checks skipped: the vouchers of .metadata, which need a key; seals, tags and content "
        "of 1 encrypted item, which need a key)"
    )
    assert f"content of {MANY} encrypted items, which need a key)" in str(streamxf.verify(several))


def test_leftovers(one: Path) -> None:
    for number in range(MANY):
        (one / f"__0_{number}_{'0' * 32}.distcp").write_bytes(b"left")
        (one / f"{number}.txt").write_bytes(b"mine")
    report = str(streamxf.verify(one, keys=KEY)).splitlines()
    assert not any(line.startswith("next: ") for line in report)
    assert report[-1] == f"left over: {MANY - 20} more"
    cleaned = str(streamxf.clean(one, keys=KEY, dry_run=True)).splitlines()
    assert cleaned[0] == f"would remove {MANY} files, 2.0 KiB"
    assert cleaned[1] == f"would remove: __0_0_{'0' * 32}.distcp"
    assert cleaned[21] == f"would remove: {MANY - 20} more"
    assert cleaned[-1] == f"left alone: {MANY - 20} more"
    assert len(cleaned) == 43
    for number in range(1, MANY):
        (one / f"__0_{number}_{'0' * 32}.distcp").unlink()
    assert str(streamxf.clean(one, keys=KEY)).startswith("removed 1 file, 4 bytes\n")


def test_metadata_of_single_ranks_is_not_all_there_was(tmp_path: Path) -> None:
    """A rank whose metadata is lost must not look like leftovers of a checkpoint that is whole."""
    folder = tmp_path / "local"
    local_save(folder, 0)
    (file,) = data_files(folder)
    stranger = file.name.replace("__0_", "__1_")
    shutil.copy(file, folder / stranger)
    report = streamxf.verify(folder, keys=KEY)
    assert report.ok
    assert report.leftovers == ()
    assert any("how many ranks there were" in sentence for sentence in report.unchecked)
    assert any(f"1 file of ranks that have no metadata here, such as {stranger}" in text for text in report.unchecked)
    assert streamxf.clean(folder, keys=KEY).kept == (stranger,)
    (save_id,) = report.save_ids
    again = streamxf.verify(folder, keys=KEY, expect_save_id=save_id)
    assert not any("how many ranks" in sentence for sentence in again.unchecked)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(streamxf.StreamxfError) as caught:
        streamxf.load_intact(path, **options)
    return str(caught.value)


def test_salvage_advises_what_can_help(one: Path) -> None:
    assert "without_metadata" not in refusal(one)
    assert "If that cannot be, .metadata is damaged" in refusal(one, keys=OTHER_KEY)
    assert "without_metadata" not in refusal(one, keys=KEY, expect_save_id="0" * 32)
    flip(one / ".metadata", (one / ".metadata").stat().st_size - 300)
    assert "--without-metadata" in refusal(one, keys=KEY)
    found = streamxf.load_intact(one, keys=KEY, without_metadata=True)
    assert f"damaged: {one / '.metadata'}: MetadataError: the digest" in str(found)


def test_salvage_of_files_that_do_not_say_what_they_hold(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(10.0)}, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"))
    (tmp_path / "stock" / ".metadata").unlink()
    for without in (False, True):
        assert "do not say what they hold" in refusal(tmp_path / "stock", without_metadata=without)


def test_who_may_not_read_is_not_told_to_restore(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of the tests may read any file, perhaps."""

    closed, real = "", files.open_regular

    def refuse(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).endswith(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **more)

    shutil.copytree(one, one.parent / "two")
    monkeypatch.setattr(files, "open_regular", refuse)
    for path in (one, [one, one.parent / "two"]):
        report = streamxf.verify(path, keys=KEY)
        assert not report.ok
        assert not report.damaged
        assert str(report).endswith("could not be read, and try again: nothing is known about that yet")
        assert str(report).startswith("NOT READ in ")
    with pytest.raises(PermissionError):
        streamxf.load_intact(one, keys=KEY)
    found = streamxf.load_intact(one, keys=KEY, without_metadata=True)
    assert {entry.error for entry in found.unread} == {"PermissionError"}
    closed = ".distcp"
    found = streamxf.load_intact(one, keys=KEY)
    assert not found.damaged
    assert found.lost == tuple({entry.item: 0 for entry in found.unread})
    assert "0 items salvaged, 0 damaged, 0 missing, " in str(found)


def test_what_nothing_describes_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only damage is: a container whose header is damaged, too."""
    chain = {"*": "floatzip+checksum", "head": "raw"}
    state = {"head": torch.ones(2000), "w": torch.arange(3000.0), "x": torch.arange(2000.0)}
    with streamxf.CheckpointManager(tmp_path, chain=chain) as manager:
        manager.save(1, state)
    path, real = tmp_path / "step-1", files.open_regular
    with streamxf.Checkpoint(path) as checkpoint:
        head, x = (checkpoint.stored[name].places[0] for name in ("head", "x"))
    words = f"{head.size:,} bytes of {head.file} in 1 place, which no container describes, so that it is unknown"

    def refuse(file: Any, *rest: Any, **more: Any) -> Any:
        if str(file).endswith(".metadata"):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *rest, **more)

    with monkeypatch.context() as closed:
        closed.setattr(files, "open_regular", refuse)
        report = streamxf.verify(path)
        assert (report.ok, report.damaged, [each.file for each in report.unread]) == (False, (), [".metadata"])
        assert any(text.startswith(words) for text in report.unchecked), report.unchecked
    (path / ".metadata").unlink()
    assert [each.file for each in streamxf.verify(path).damaged] == [".metadata"]
    lost = [each.message for each in streamxf.load_intact(path, without_metadata=True).damaged]
    assert any("are described by no container, since they were saved raw or" in text for text in lost), lost
    flip(path / x.file, x.at + 20)
    (damage,) = (each for each in streamxf.verify(path).damaged if each.file == x.file)
    assert damage.message.startswith(f"the header of the container at byte {x.at} is damaged")
