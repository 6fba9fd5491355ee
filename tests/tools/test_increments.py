"""What each tool makes of an increment, and of a checkpoint whose files others share."""

import ast
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, Key, SigningKey
from streamxf.checkpoint.memory import SaveMemory
from streamxf.errors import PolicyError, StreamxfError, UnsupportedError
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.record import Taken
from streamxf.manager.retention import Retention
from streamxf.storage.opening import open_storage
from streamxf.tools.rekey.rekey import stock
from tests.altered import flip
from tests.checkpoint.test_differences import chained, place_of, put
from tests.dcp.helpers import raw_bytes

KEY, OTHER = Key(bytes(range(32))), Key(bytes(range(1, 33)))
SIGNER = SigningKey.generate()
KINDS: dict[str, list[Any]] = {
    "plain": [FloatZip()],
    "encrypted": [FloatZip(), Checksum(), Encrypt(KEY)],
    "encrypted and signed": [FloatZip(), Encrypt(KEY, signer=SIGNER)],
}
TERMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "encrypted": {"keys": KEY},
    "encrypted and signed": {"keys": KEY, "trust": [SIGNER.verify_key]},
}


def state_at(step: int) -> dict[str, Any]:
    frozen = torch.randn(40_000, generator=torch.Generator().manual_seed(1))
    return {"frozen": frozen, "moving": torch.arange(5000.0) + step, "step": step}


def saved(run: Path, kind: str, **how: Any) -> Path:
    """A base and an increment, whose path it returns."""
    memory = SaveMemory()
    for step in (1, 2):
        base = run / "step-1" if step == 2 else None
        how = {"chain": KINDS[kind], "sync_files": False, **how}
        writer = streamxf.FileSystemWriter(run / f"step-{step}", base=base, memory=memory, **how)
        dcp.save(state_at(step), storage_writer=writer)
    assert writer.report is not None
    assert writer.report.unchanged == 1
    return run / "step-2"


def assert_holds(path: Path, step: int = 2, **terms: Any) -> None:
    state: dict[str, Any] = {"frozen": torch.zeros(40_000), "moving": torch.zeros(5000), "step": None}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(path, **terms))
    wanted = state_at(step)
    assert state["step"] == step
    assert all(torch.equal(state[name], wanted[name]) for name in ("frozen", "moving"))
    assert streamxf.verify(path, **terms).ok


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.distcp")}


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_slices_objects_and_raw_blocks_are_read(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind)
    with streamxf.Checkpoint(path, **TERMS[kind]) as checkpoint:
        wanted = state_at(2)
        assert torch.equal(torch.as_tensor(checkpoint["frozen"][17:30_000:3]), wanted["frozen"][17:30_000:3])
        assert torch.equal(torch.as_tensor(checkpoint["moving"][4000:]), wanted["moving"][4000:])
        assert checkpoint["step"].read() == 2
    assert "2 data files" in str(streamxf.verify(path, **TERMS[kind]))
    assert "shares with step-1" in str(streamxf.inspect(path, keys=TERMS[kind].get("keys")))


@kinds
def test_tools_that_copy_make_whole_checkpoints(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind)
    how = {"recipients": OTHER} if kind != "plain" else {}
    signed = {"signer": SIGNER} if "signed" in kind else {}
    streamxf.transcode(path, tmp_path / "copy", **how, **signed, **TERMS[kind])
    found, written = streamxf.salvage(path, tmp_path / "saved", **how, **signed, **TERMS[kind])
    assert written is not None
    assert not found.damaged
    shutil.rmtree(tmp_path / "step-1")
    shutil.rmtree(path)
    terms = TERMS[kind] | ({"keys": OTHER} if kind != "plain" else {})
    for name in ("copy", "saved"):
        assert_holds(tmp_path / name, **terms)
        with streamxf.Checkpoint(tmp_path / name, **terms) as checkpoint:
            assert checkpoint.metadata[0].index.bases is None  # type: ignore[union-attr]


@kinds
def test_tools_that_change_metadata_leave_the_data_that_others_share(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind, stock=False)
    before, base = contents(path), contents(tmp_path / "step-1")
    terms = dict(TERMS[kind])
    if kind != "plain":
        signed = {"signer": SIGNER} if "signed" in kind else {}
        streamxf.rekey(
            path, recipients=OTHER, keys=KEY, **signed, **{name: terms[name] for name in terms if name == "trust"}
        )
        terms["keys"] = OTHER
        with pytest.raises(Exception, match="key"):
            streamxf.Checkpoint(path, keys=KEY)["step"].read()
    assert_holds(path, **terms)
    rename = {"signer": SIGNER} if "signed" in kind else {}
    assert streamxf.rename(path, {"frozen": "cold"}, **rename, **terms) == {"frozen": "cold"}
    with streamxf.Checkpoint(path, **terms) as checkpoint:
        assert torch.equal(torch.as_tensor(checkpoint["cold"].read()), state_at(2)["frozen"])
        assert len(checkpoint.metadata[0].index.bases) == 1  # type: ignore[union-attr,arg-type]
    streamxf.rename(path, {"cold": "frozen"}, **rename, **terms)
    if kind == "plain":
        streamxf.sign(path, signer=SIGNER)
        terms["trust"] = [SIGNER.verify_key]
    assert_holds(path, **terms)
    assert_holds(tmp_path / "step-1", 1, **TERMS[kind])
    assert (contents(path), contents(tmp_path / "step-1")) == (before, base)
    assert all(file.stat().st_nlink == 2 for file in (tmp_path / "step-1").glob("*.distcp"))


def test_torchs_own_readers_read_an_increment_where_they_read_others(tmp_path: Path) -> None:
    for kind, keys in (("plain", None), ("encrypted", KEY)):
        path = saved(tmp_path / kind, kind)
        state = state_at(0)
        registry = streamxf.Registry(keys=keys)
        dcp.load(state, storage_reader=dcp.FileSystemReader(path, _extension_registry=registry))  # type: ignore[call-arg]
        assert torch.equal(state["frozen"], state_at(2)["frozen"])
        assert torch.equal(state["moving"], state_at(2)["moving"])


def test_diff_finds_what_changed(tmp_path: Path) -> None:
    path = saved(tmp_path, "encrypted")
    report = str(streamxf.diff(tmp_path / "step-1", path, keys=KEY))
    assert "moving" in report
    assert "frozen" not in report


def test_clean_removes_what_no_metadata_names_and_nothing_else(tmp_path: Path) -> None:
    path = saved(tmp_path, "plain")
    other = saved(tmp_path / "other", "plain")
    for file in (tmp_path / "other" / "step-1").glob("*.distcp"):
        (path / file.name).hardlink_to(file)
    report = streamxf.clean(path)
    assert len(report.removed) == 1
    assert_holds(path)
    assert_holds(other)
    assert_holds(tmp_path / "other" / "step-1", 1)


def test_an_item_that_is_damaged_in_the_base_is_lost_in_both_and_no_other(tmp_path: Path) -> None:
    path = saved(tmp_path, "plain")
    with streamxf.Checkpoint(path) as checkpoint:
        (place,) = checkpoint.stored["frozen"].places
    flip(path / place.file, place.at + place.size // 2)
    for folder in (path, tmp_path / "step-1"):
        found = streamxf.load_intact(folder)
        assert [each.item for each in found.damaged] == ["frozen"]
        assert "moving" in found.loaded


def test_without_metadata_nothing_that_may_be_of_another_save_is_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, "plain")
    own = {file.name.split("_")[-1].removesuffix(".distcp") for file in path.glob("*.distcp")}
    (path / ".metadata").unlink()
    with pytest.raises(PolicyError, match="mixture"):
        streamxf.load_intact(path, without_metadata=True)
    found = streamxf.load_intact(path, without_metadata=[*own])
    assert "frozen" in found.loaded
    assert "moving" in [each.item for each in found.damaged], "it is there twice"


def test_what_checkpoints_of_a_run_share_counts_once(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=5) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_at(step))
    files = {file.stat().st_ino: file.stat().st_size for file in tmp_path.glob("step-*/*")}
    records = streamxf.list_checkpoints(tmp_path)
    assert [record.bytes for record in records] == [
        sum(file.stat().st_size for file in (tmp_path / record.name).iterdir()) for record in records
    ]
    taken = Taken(records)
    assert taken.bytes == sum(files.values()) < sum(record.bytes or 0 for record in records)
    planned = streamxf.forget(tmp_path, 1, dry_run=True)
    first, second, third = records
    for record in (first, second):
        taken.drop(record)
    assert taken.bytes == third.bytes, "what it shares has to stay"
    shared = {
        file.stat().st_ino: file.stat().st_size for file in (tmp_path / "step-3").glob("*") if file.stat().st_nlink > 1
    }
    assert (planned.bytes, planned.shared_bytes) == (sum(files.values()) - taken.bytes, sum(shared.values()))
    assert streamxf.forget(tmp_path, 2, dry_run=True).shared_bytes == planned.shared_bytes, "of one as of two"
    assert "shared by others, and kept: " in str(planned)
    for most, names in ((sum(files.values()), 3), (sum(files.values()) - 1, 2)):
        assert len([*filter(None, Retention(max_bytes=most).decide(records).values())]) == names
    assert streamxf.forget(tmp_path, 1).bytes == planned.bytes
    assert sum(file.stat().st_size for file in tmp_path.glob("step-*/*")) == third.bytes
    assert_holds(tmp_path / "step-3", 3)


def test_files_that_were_copied_and_not_linked_count_each(tmp_path: Path) -> None:
    saved(tmp_path / "run", "plain")
    shutil.copytree(tmp_path / "run", tmp_path / "restored")
    records = streamxf.list_checkpoints(tmp_path / "restored")
    assert Taken(records).bytes == sum(file.stat().st_size for file in (tmp_path / "restored").glob("step-*/*"))


def test_a_file_that_has_two_names_is_not_written_to(tmp_path: Path) -> None:
    """Whatever name a save would give it."""
    path = saved(tmp_path, "plain")
    (shared,) = (file for file in path.glob("*.distcp") if file.stat().st_nlink > 1)
    before = shared.read_bytes()
    with pytest.raises(FileExistsError, match="another name"), open_storage(path).create(shared.name):
        pass
    with open_storage(path / shared.name).replacing() as file:
        file.write(b"another")
    assert (shared.read_bytes(), shared.stat().st_nlink) == (b"another", 1)
    assert (tmp_path / "step-1" / shared.name).read_bytes() == before


PACKAGE = Path(streamxf.__file__).parent
WRITES = {  # in place; the first creates files, and empties none that has another name
    "storage/files.py": {"_open_new", "replacing", "_link"},  # the second of what is no regular file
    "storage/lock.py": {"_lock_file", "_opened", "try_lock_file"},  # to lock
    "keys/file.py": {"write_key"},
    "cli/run.py": {"_open_closed", "_discard"},  # the null device
    "cli/follow.py": {"_tell"},  # a follower's notes, of which no save makes any
    "publishing/folder.py": {"begin"},
    "stream/plain.py": {"write", "encode"},  # `streamxf.open`, which replaces
}


def test_nothing_else_opens_files_for_change() -> None:
    """Checkpoints share data files: who changed one in place would change others."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if any(_writes(node) for node in ast.walk(function)):
                found.setdefault(str(path.relative_to(PACKAGE)), set()).add(function.name)
    assert found == WRITES


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
        return node.attr in ("O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND", "truncate", "ftruncate", "pwrite")
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("write_bytes", "write_text") or (
        name == "open"
        and isinstance(node.func, ast.Name)
        and any(
            isinstance(each, ast.Constant) and isinstance(each.value, str) and {*each.value} & {*"wa+x"}
            for each in node.args[1:2]
        )
    )


def test_tools_and_what_is_stored_as_differences(tmp_path: Path) -> None:
    states = chained(tmp_path)
    summary = streamxf.inspect(tmp_path / "2")
    assert [note for note in summary.notes if note.startswith("Stored as differences from other saves")]
    with pytest.raises(UnsupportedError, match="transcode"):
        stock(tmp_path / "2")
    with ThreadPoolExecutor(2) as executor:
        assert streamxf.verify(tmp_path / "2", executor=executor).ok
        streamxf.transcode(tmp_path / "2", tmp_path / "whole", executor=executor)
    streamxf.pack(tmp_path / "2", tmp_path / "x.safetensors")
    streamxf.rename(tmp_path / "2", {"x": "y"})
    streamxf.sign(tmp_path / "2", signer=(signer := streamxf.SigningKey.generate()))
    for path, name, terms in [(tmp_path / "2", "y", {"trust": [signer.verify_key]}), (tmp_path / "whole", "x", {})]:
        with streamxf.Checkpoint(path, **terms) as checkpoint:
            assert torch.equal(raw_bytes(checkpoint[name].read()), raw_bytes(states[2]["x"]))
            assert bool(checkpoint[name].chunks[0].place.beneath) == (name == "y")
        assert streamxf.verify(path, **terms).ok
    assert stock(tmp_path / "whole") == ()
    (name, at, size) = place_of(tmp_path / "1").beneath[-1]
    put(tmp_path / "2" / name, at + size // 2, bytes(9))
    with streamxf.Checkpoint(tmp_path / "2", trust=[signer.verify_key]) as checkpoint:
        with pytest.raises(StreamxfError, match="damaged"):
            checkpoint["y"].read()
    with pytest.raises(StreamxfError):
        streamxf.sign(tmp_path / "1", signer=signer)


def test_without_metadata_no_version_of_what_changed_is_taken(tmp_path: Path) -> None:
    chained(tmp_path)
    (tmp_path / "2/.metadata").unlink()
    writers = [match[0] for file in (tmp_path / "2").iterdir() if (match := re.search(r"[0-9a-f]{32}", file.name))]
    found = streamxf.load_intact(tmp_path / "2", without_metadata=writers)
    assert (found.state_dict, [each.item for each in found.damaged]) == ({}, ["x"])
