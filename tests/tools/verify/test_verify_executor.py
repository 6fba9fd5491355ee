"""``verify(executor=)``: the report of one process, whatever the executor does, and keys that stay where they are."""

import multiprocessing
import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import streamxf
from streamxf import Checksum
from streamxf.checkpoint.metadata import Metadata
from streamxf.checkpoint.opening import ItemPart
from streamxf.errors import ParameterError, PolicyError
from streamxf.format.items import ObjectItem, Place
from streamxf.keys import PrivateKey
from streamxf.keys.file import write_key
from streamxf.keys.ring import format_key
from streamxf.storage.opening import open_storage
from streamxf.tools.verify import reading
from streamxf.tools.verify.reading import FileCheck, Verification
from streamxf.tools.verify.report import VerifyReport
from tests.altered import flip
from tests.dcp.helpers import KEY, data_files, full_chain, save
from tests.progress.recorder import Recorder
from tests.saved_by import FOLDERS
from tests.tools.executors import Altering, Backwards, Elsewhere, Losing, Unpicklable
from tests.tools.verify.remote import url_of

BLOCK = 1 << 16
STATE = {f"w{number:02}": torch.randn(200, 300) for number in range(12)} | {"step": torch.tensor(3), "lr": {"a": 0.1}}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TASK_BYTES", 2**17)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "plain", [Checksum()], block_size=BLOCK, thread_count=2)
    return tmp_path / "plain"


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "encrypted", full_chain(), block_size=BLOCK, thread_count=2)
    return tmp_path / "encrypted"


def same(report: VerifyReport) -> VerifyReport:
    return replace(report, seconds=0.0)


# -- the same report ---------------------------------------------------------------------------------------------


def scatter(path: Path) -> None:
    """Flip bits in blocks, tables and headers of both files."""
    for file in data_files(path):
        for part in range(1, 12):
            flip(file, file.stat().st_size * part // 12)


def cut(path: Path) -> None:
    file = data_files(path)[0]
    os.truncate(file, file.stat().st_size * 2 // 3)


def append(path: Path) -> None:
    with data_files(path)[0].open("ab") as file:
        file.write(bytes(100))


def lose(path: Path) -> None:
    data_files(path)[1].unlink()


def lose_metadata(path: Path) -> None:
    (path / ".metadata").unlink()
    flip(data_files(path)[0])


def block_access(path: Path) -> None:
    data_files(path)[0].unlink()
    data_files(path)[0].with_suffix(".x").mkdir()
    (path / "other").symlink_to("/dev/null")


DAMAGE: list[Callable[[Path], None]] = [lambda path: None, scatter, cut, append, lose, lose_metadata, block_access]


@pytest.mark.parametrize("damage", DAMAGE, ids=["none", *(each.__name__ for each in DAMAGE[1:])])
@pytest.mark.parametrize("kind", ["threads", "processes", "elsewhere", "backwards", "losing"])
def test_the_report_is_that_of_one_process(
    encrypted: Path, processes: Executor, kind: str, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(encrypted)
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    alone = streamxf.verify(encrypted, keys=KEY)
    executor = {"processes": processes, "elsewhere": Elsewhere(), "backwards": Backwards()}.get(kind)
    executor = executor or (ThreadPoolExecutor(3) if kind == "threads" else Losing(lambda number: number % 3 == 1))
    keys = KEY if kind in ("threads", "processes") else "env:SOME_KEY"
    report = streamxf.verify(encrypted, keys=keys, executor=executor)
    assert bool(report.finished_here) == (kind == "losing")
    assert same(replace(report, finished_here="")) == same(alone)
    if kind == "losing":
        assert f"finished in this process: {report.finished_here}" in str(report)
    if kind in ("elsewhere", "backwards") and damage is not lose_metadata:
        assert len(executor.sent) > len(data_files(encrypted))  # type: ignore[attr-defined]
    if kind == "threads":
        executor.shutdown()


@pytest.mark.parametrize("damaged", [False, True])
def test_without_keys(encrypted: Path, damaged: bool) -> None:
    if damaged:
        scatter(encrypted)
    assert same(streamxf.verify(encrypted, executor=Elsewhere())) == same(streamxf.verify(encrypted))


def test_damage_of_a_file_is_capped_as_in_one_process(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.tools.verify.report.MAX_DAMAGED", 3)
    scatter(plain)
    report = streamxf.verify(plain, executor=Backwards())
    assert report.unlisted > 0
    assert same(report) == same(streamxf.verify(plain))


@pytest.mark.parametrize("name", FOLDERS)
def test_of_all_formats(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    FOLDERS[name](path)
    executor = Elsewhere()
    assert same(streamxf.verify(path, executor=executor)) == same(streamxf.verify(path))
    assert executor.sent
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.suffix in (".pt", ".pth", ".safetensors", ".distcp", ".ckpt"):
            flip(file)
    alone = streamxf.verify(path)
    assert not alone.ok
    assert same(streamxf.verify(path, executor=Elsewhere())) == same(alone)


def test_a_path_is_that_of_the_caller(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plain.parent)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.chdir, ("/",)) as pool:
        report = streamxf.verify("plain", executor=pool)
    assert same(report) == same(streamxf.verify("plain"))
    assert pickle.loads(pickle.dumps(open_storage("plain"))).label() == "plain"


def test_a_url_and_its_options_are_sent(encrypted: Path, tmp_path: Path) -> None:
    write_key(tmp_path / "key", KEY)
    url = url_of(encrypted)
    alone = streamxf.verify(url, keys=KEY, storage_options={"tag": "a"})
    report = streamxf.verify(url, keys=tmp_path / "key", storage_options={"tag": "a"}, executor=Elsewhere())
    assert alone.ok
    assert same(report) == same(alone)
    storage = pickle.loads(pickle.dumps(open_storage(url, {"tag": "a"})))
    assert (storage.label(), storage.filesystem.storage_options) == (url, {"tag": "a"})


def test_how_much_is_read_is_bounded_by_what_is_stored(plain: Path) -> None:
    """However large the metadata says that the items are."""
    items = [ItemPart(ObjectItem(str(at), Place("f", at * 2**50, 2**50, ()))) for at in range(10_000)]
    access = streamxf.Checkpoint(plain).access
    check = FileCheck(Verification(open_storage(plain), access, None), "f", 0, Metadata("", None, {}, None), items)
    for held in (0, 1000, 2**17, 2**20, 2**27):
        runs = [*check._runs(held)]
        assert len(runs) <= held // 2**17 + 1
        assert [run.begin for run in runs] == [0, *(run.end for run in runs[:-1])]
        assert [run.last for run in runs] == [False] * (len(runs) - 1) + [True]
        assert sum(run.held for run in runs) <= held


# -- what the executor loses -------------------------------------------------------------------------------------


def test_checks_that_a_worker_invents_are_not_shown(plain: Path) -> None:
    """Their text would be a format."""
    invented = Counter({("item", "{0.__class__}"): 3})
    report = streamxf.verify(plain, executor=Altering(lambda found: replace(found, skipped=invented)))
    assert report.unchecked == ()


# -- keys --------------------------------------------------------------------------------------------------------


def test_a_key_in_a_registry_stays_here(encrypted: Path) -> None:
    executor = Elsewhere()
    with pytest.raises(ParameterError, match="key in memory"):
        streamxf.verify(encrypted, codecs=streamxf.Registry(keys=KEY), executor=executor)
    assert not executor.sent


def test_the_terms_of_a_signature_are_sent_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PrivateKey.generate()
    with pytest.warns(UserWarning, match="no signer"):
        save(STATE, tmp_path / "c", [Checksum(), streamxf.Encrypt(reader.public)], block_size=BLOCK)
    monkeypatch.setenv("READER", format_key(reader))
    report = streamxf.verify(tmp_path / "c", keys="env:READER", allow_unsigned=True, executor=Elsewhere())
    assert report.ok
    assert not report.unchecked


# -- arguments ---------------------------------------------------------------------------------------------------


def test_codecs_that_cannot_be_sent_are_refused_by_name(plain: Path) -> None:
    registry = streamxf.CodecRegistry()
    registry.register(type("Local", (Checksum,), {"name": "local.codec"}))
    with pytest.raises(ParameterError, match=r"^codecs= cannot be sent"):
        streamxf.verify(plain, codecs=registry, executor=Elsewhere())
    with ThreadPoolExecutor(1) as threads:
        assert streamxf.verify(Unpicklable(str(plain)), codecs=registry, executor=threads).ok


# -- several checkpoints -----------------------------------------------------------------------------------------


def test_several_checkpoints_have_one_report(tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{number}" for number in range(3)]
    for path in paths:
        save(STATE, path, [Checksum()], block_size=BLOCK)
    (tmp_path / "notes.txt").write_text("nothing")
    (file,) = data_files(paths[1])
    flip(file)
    counts = Recorder()
    report = streamxf.verify([*paths, tmp_path / "notes.txt"], progress=counts)
    assert (report.files, len(report.save_ids), counts.done) == (3, 3, counts.expected)
    assert {damage.file for damage in report.damaged} == {str(file)}
    assert [text.partition(":")[0] for text in report.unchecked] == [str(tmp_path / "notes.txt")]
    assert same(streamxf.verify([*paths, tmp_path / "notes.txt"], executor=Backwards())) == same(report)
    with pytest.raises(ParameterError, match="empty"):
        streamxf.verify([])
    assert same(streamxf.verify(paths[:1])) == same(streamxf.verify(paths[0]))


def test_of_several_runs_each_checkpoint_has_its_path(tmp_path: Path) -> None:
    for run in ("a", "b"):
        save(STATE, tmp_path / run / "step-1", [Checksum()], block_size=BLOCK)
    (file,) = data_files(tmp_path / "b" / "step-1")
    flip(file)
    report = streamxf.verify([tmp_path / "a", tmp_path / "b"])
    assert {damage.file for damage in report.damaged} == {str(file)}
    assert report.files == 2


def test_one_that_is_missing_among_several_is_damage(plain: Path) -> None:
    report = streamxf.verify([plain, plain.parent / "gone"])
    assert [damage.error for damage in report.damaged] == ["FileNotFoundError"]


def test_with_keys_each_of_several_has_to_be_encrypted(plain: Path, encrypted: Path) -> None:
    for executor in (None, ThreadPoolExecutor(1)):
        with pytest.raises(PolicyError):
            streamxf.verify([encrypted, plain], keys=KEY, executor=executor)
        (plain.parent / "notes.txt").write_text("nothing")
        report = streamxf.verify([encrypted, plain.parent / "notes.txt"], keys=KEY, executor=executor)
        assert report.ok
        assert len(report.unchecked) == 1
