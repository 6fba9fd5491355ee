"""``verify`` of folders with several checkpoints and files: a Trainer's, Lightning's, a whole run."""

import errno
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import streamxf
from streamxf.errors import NoCheckpointError, PolicyError, UnknownCodecError
from streamxf.formats.opening import open_source, parts_of
from streamxf.keys import Key
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import StorageEntry
from tests.altered import flip
from tests.saved_by import FOLDERS, MODEL, dcp, lightning_with_fsdp, torchtitan, trainer, trainer_with_fsdp
from tests.storage.stores import MemoryStorage

FILES = {"checkpoint-12": 4, "fsdp/checkpoint-12": 4, "step-6": 2, "step-10": 1, "last.ckpt": 1}


@pytest.mark.parametrize(("name", "files"), FILES.items())
def test_each_is_verified_whole(tmp_path: Path, name: str, files: int):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    FOLDERS[name](path)
    report = streamxf.verify(path)
    assert report.ok
    assert report.files == files
    assert not [text for text in report.unchecked if "no checksums" not in text]


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state_0.pth"])
def test_damage_beside_the_model_is_found(tmp_path: Path, name: str):
    trainer(tmp_path / "checkpoint-12")
    flip(tmp_path / "checkpoint-12" / name)
    report = streamxf.verify(tmp_path / "checkpoint-12")
    assert {damage.file for damage in report.damaged} == {name}


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state_0.pth", "last.ckpt", "training_args.bin", "log.sxf"])
def test_a_file_that_was_emptied_is_damaged(tmp_path: Path, name: str):
    trainer(tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-12" / name).write_bytes(b"")
    for path in (tmp_path / "checkpoint-12", tmp_path / "checkpoint-12" / name):
        (damage,) = streamxf.verify(path).damaged
        assert damage.file == name
        assert "is empty" in damage.message


def test_a_stream_that_lost_its_beginning_is_damaged_and_a_strangers_file_is_not(tmp_path: Path):
    trainer(tmp_path / "checkpoint-12")
    for name in ("of another.pt", "of another.sxf"):
        (tmp_path / "checkpoint-12" / name).write_bytes(b"\x89 neither as one nor as another")
    report = streamxf.verify(tmp_path / "checkpoint-12")
    assert [damage.file for damage in report.damaged] == ["of another.sxf"]
    assert [text for text in report.unchecked if text.startswith("of another.pt: the file is not a checkpoint")]


def test_files_that_went_through_a_chain_are_verified(tmp_path: Path):
    """As `streamxf.open` writes them, under the suffix that the documentation gives them."""
    with streamxf.CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            with streamxf.open(f"{manager.begin(step)}/state.pt.sxf", "wb", chain="checksum") as file:
                file.write(bytes(1000))
            manager.commit(step)
    assert streamxf.verify(tmp_path / "step-2").files == 1
    assert streamxf.verify(tmp_path).files == 2
    flip(tmp_path / "step-2" / "state.pt.sxf")
    (damage,) = streamxf.verify(tmp_path).damaged
    assert damage.file == "step-2/state.pt.sxf"


def test_a_codec_that_one_of_them_needs_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, chain in (("step-1", "zstd"), ("step-2", "lz4"), ("step-3", "zstd")):
        with streamxf.open(tmp_path / f"{name}.sxf", "wb", chain=chain) as file:
            file.write(bytes(range(250)) * 8)
    monkeypatch.setitem(sys.modules, "streamxf.codecs.lz4", None)
    report = streamxf.verify(tmp_path)
    assert (report.ok, report.files) == (True, 2)
    assert [text for text in report.unchecked if text.startswith("step-2.sxf: codec 'streamxf.lz4'")]
    flip(tmp_path / "step-3.sxf")
    assert [damage.file for damage in streamxf.verify(tmp_path).damaged] == ["step-3.sxf"]
    for name in ("step-1.sxf", "step-3.sxf"):
        (tmp_path / name).unlink()
    with pytest.raises(UnknownCodecError, match=r"lz4"):
        streamxf.verify(tmp_path)


def test_damage_is_named_by_its_path_in_the_folder(tmp_path: Path):
    trainer_with_fsdp(tmp_path / "run" / "checkpoint-12")
    (file,) = (tmp_path / "run" / "checkpoint-12" / "optimizer_0").glob("*.distcp")
    flip(file)
    flip(tmp_path / "run" / "checkpoint-12" / "scheduler.pt")
    report = streamxf.verify(tmp_path / "run")
    wanted = {f"checkpoint-12/optimizer_0/{file.name}", "checkpoint-12/scheduler.pt"}
    assert {damage.file for damage in report.damaged} == wanted
    assert len(report.save_ids) == 2


def test_a_run_is_verified_checkpoint_by_checkpoint(tmp_path: Path):
    torchtitan(tmp_path / "step-5")
    lightning_with_fsdp(tmp_path / "step-6")
    assert parts_of(open_storage(tmp_path)) == ["step-5", "step-6", "step-6/meta.pt"]
    assert len(streamxf.verify(tmp_path).save_ids) == 2


def test_with_keys_what_can_be_encrypted_has_to_be(tmp_path: Path):
    """And the rest, which cannot, is listed."""
    key, path = Key.generate(), tmp_path / "checkpoint-12"
    trainer_with_fsdp(path)
    with pytest.raises(PolicyError):
        streamxf.verify(path, keys=key)
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        dcp({name: MODEL}, path / name, chain="zstd+encrypt", keys=key)
    report = streamxf.verify(path, keys=key)
    assert report.ok
    assert report.unchecked == ("who wrote rng_state_0.pth, scheduler.pt, which cannot be encrypted",)


def test_what_is_read_from_one_checkpoint_says_where_they_are(tmp_path: Path):
    trainer_with_fsdp(tmp_path / "checkpoint-12")
    for what in (streamxf.inspect, lambda path: streamxf.diff(path, path)):
        with pytest.raises(NoCheckpointError, match="4 checkpoints in it: optimizer_0, pytorch_model_fsdp_0, rng_"):
            what(tmp_path / "checkpoint-12")


def test_a_part_that_cannot_be_opened_is_damage(tmp_path: Path):
    trainer(tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-12" / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-12" / "optimizer.pt").symlink_to("nowhere")
    (damage,) = streamxf.verify(tmp_path / "checkpoint-12").damaged
    assert (damage.file, damage.error) == ("optimizer.pt", "FileNotFoundError")


@pytest.mark.timeout(60)
def test_links_to_folders_are_named_and_not_followed(tmp_path: Path):
    """Each of these leads to all of them."""
    torchtitan(tmp_path / "step-5")
    for number in range(300):
        (tmp_path / f"link{number}").symlink_to(".")
    report = streamxf.verify(tmp_path)
    assert len(report.save_ids) == 1
    assert len([text for text in report.unchecked if "a link to a folder" in text]) == 300
    assert "link7: a link to a folder, which is not followed" in report.unchecked
    with pytest.raises(NoCheckpointError, match="has 1 checkpoint in it: step-5"):
        open_source(open_storage(tmp_path))


def test_a_link_beside_the_files_of_a_checkpoint_is_named(tmp_path: Path):
    torchtitan(tmp_path / "step-5")
    (tmp_path / "step-5" / "more").symlink_to(tmp_path)
    report = streamxf.verify(tmp_path / "step-5")
    assert len(report.save_ids) == 1
    assert "more: a link to a folder, which is not followed" in report.unchecked


def test_a_folder_of_links_alone_holds_no_checkpoint(tmp_path: Path):
    torchtitan(tmp_path / "step-5")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(tmp_path / "step-5")
    with pytest.raises(NoCheckpointError, match="best: a link to a folder, which is not followed"):
        streamxf.verify(tmp_path / "run")
    with pytest.raises(NoCheckpointError, match=r"links to folders are not followed \(.*/run/best\)"):
        open_source(open_storage(tmp_path / "run"))
    assert streamxf.verify(tmp_path / "run" / "best").ok


class _Refusing(MemoryStorage):
    """A storage that does not list one of its folders."""

    refused = "/"
    error: Exception = PermissionError(errno.EACCES, "it is not yours")

    def entries(self, path: str = "") -> Iterable[StorageEntry]:
        if self.name == self.refused or self.refused in path.split("/"):
            raise self.error
        return super().entries(path)


@pytest.mark.parametrize("error", [_Refusing.error, RuntimeError("the server is out")])
@pytest.mark.parametrize("refused", ["step-1", "step-3"])
def test_a_folder_that_cannot_be_listed_hides_no_damage(refused: str, error: Exception) -> None:
    run = _Refusing("run")
    with streamxf.CheckpointManager(run) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"step": step})
    data = next(key for key in run.files if "step-2" in key and key.endswith(".distcp"))
    run.files[data] = run.files[data][0][:-1], 9
    _Refusing.refused, _Refusing.error = refused, error
    try:
        report = streamxf.verify(run)
    finally:
        _Refusing.refused = "/"
    assert {(each.file or "").split("/")[0] for each in report.damaged} == {"step-2"}
    assert {each.file for each in report.unread} == {refused}
    assert report.files == 2
