"""What a checkpoint says of the files that it was packed from, forged: nothing lands outside of the target, and little
never becomes much.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save as dcp_save

from streamxf.errors import MetadataError
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.packed import PackManifest
from streamxf.tools.convert.unpack import unpack

Forge = Callable[[dict[str, Any]], Any]

WEIGHTS = "model.safetensors"
TENSOR = torch.arange(6.0).reshape(2, 3)


def forged(source: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pack makes of `source`, but for what it keeps."""
    honest = PackManifest.to_plain

    def forging(manifest: PackManifest) -> Any:
        kept = honest(manifest)
        made = forge(kept)
        return kept if made is None else made

    with monkeypatch.context() as patch:
        patch.setattr(PackManifest, "to_plain", forging)
        pack(source, source.parent / "packed", "zstd")
    return source.parent / "packed"


def put(**changes: Any) -> Forge:
    return lambda kept: kept.update(changes)


def file_named(name: str) -> Forge:
    return lambda kept: kept["files"].update({name: NOTHING})


def placed(*changes: tuple[int, Any]) -> Forge:
    """Another name, start, dtype, shape or order of the tensor."""

    def forge(kept: dict[str, Any]) -> None:
        for at, value in changes:
            kept["files"][WEIGHTS][0][0][at] = value

    return forge


def in_many_files(kept: dict[str, Any]) -> None:
    kept["files"] |= {f"{number}.safetensors": kept["files"][WEIGHTS] for number in range(1000)}


def twice_in_a_file(kept: dict[str, Any]) -> None:
    kept["files"][WEIGHTS][0] *= 2


NOTHING = [[], []]
OUT = "outside of the folder"
ELSEWHERE = "do not fit where they were"
FORGED: dict[str, tuple[Forge, str]] = {
    "up": (file_named("../evil"), OUT),
    "from the root": (file_named("/tmp/evil"), OUT),
    "up from below": (file_named("a/../../evil"), OUT),
    "with a zero": (file_named("a\0b"), OUT),
    "no text": (file_named("a\ud800"), OUT),
    "a backslash": (file_named("..\\evil"), OUT),
    "the folder itself": (file_named(""), OUT),
    "below a file": (file_named(f"{WEIGHTS}/a"), OUT),
    "a tensor in a thousand files": (in_many_files, "in two places"),
    "a tensor twice in a file": (twice_in_a_file, "in two places"),
    "no files": (put(files={}), "were not in the files"),
    "later": (placed((1, 10**9)), ELSEWHERE),
    "before the file": (placed((1, -1)), "not what pack stores"),
    "another dtype": (placed((2, "int32")), "another dtype or shape"),
    "another shape": (placed((3, [3, 2])), "another dtype or shape"),
    "another tensor": (placed((0, "v")), "were not in the files"),
    "more dimensions": (placed((4, [0, 1, 2])), "not what pack stores"),
    "a dimension twice": (placed((4, [0, 0])), "not what pack stores"),
    "another format": (put(format="DCP"), "does not describe"),
    "a file": (put(format="TORCH", files={}), "does not describe"),
    "no such format": (put(format="ZIP"), "not what pack stores"),
    "another version": (put(version=2), "version 2"),
    "no table": (lambda kept: 5, "not what pack stores"),
    "left out, but no text": (put(left_out=[5]), "not what pack stores"),
    "nothing left out": (put(left_out=None), "not what pack stores"),
    "a tensor object": (lambda kept: TENSOR, "holds a tensor"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    forge, words = FORGED[case]
    (tmp_path / "hub").mkdir()
    save_file({"w": TENSOR}, tmp_path / "hub" / WEIGHTS)
    packed = forged(tmp_path / "hub", forge, monkeypatch)
    with pytest.raises(MetadataError, match=words):
        unpack(packed, tmp_path / "deep" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "packed"]


def test_names_that_steer_terminals_or_climb_folders(tmp_path: Path) -> None:
    state = {"\x1b[31m": TENSOR + 1, "..": TENSOR + 3, "a/../b": TENSOR + 4}
    dcp_save(state, storage_writer=StockWriter(tmp_path / "stock"), no_dist=True)
    target = os.path.join(tmp_path, os.fsdecode(b"\xff.pt"))
    done = unpack(tmp_path / "stock", target)
    assert "\udcff" not in str(done)
    found = torch.load(target)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    save_file({"w": TENSOR}, tmp_path / WEIGHTS)
    pack(tmp_path / WEIGHTS, tmp_path / "packed")
    return tmp_path / "packed"


def test_a_draft_of_somebody_else_is_not_used(tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He could have put links into it, which lead to what only this user may write."""
    (tmp_path / "victim").write_text("precious")
    content = tmp_path / ".out.safetensors.part" / "content"
    content.mkdir(parents=True)
    (content / "out.safetensors").symlink_to(tmp_path / "victim")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(FileExistsError, match="another user's"):
            unpack(packed, tmp_path / "out.safetensors")
    (tmp_path / ".linked.safetensors.part").symlink_to(content.parent)
    with pytest.raises(FileExistsError, match="a link"):
        unpack(packed, tmp_path / "linked.safetensors")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "out.safetensors").exists()


def test_nobody_may_read_what_replaces_something_private(tmp_path: Path, packed: Path) -> None:
    seen: list[int] = []

    class Looking:
        """Looks as soon as something is written."""

        def expect(self, count: int) -> None:
            pass

        def advance(self, count: int) -> None:
            seen.append((tmp_path / ".hub.part").stat().st_mode & 0o777)

    (tmp_path / "hub").mkdir(mode=0o700)
    save_file({"w": TENSOR + 1}, tmp_path / "hub" / WEIGHTS)
    (tmp_path / "hub" / WEIGHTS).chmod(0o600)
    unpack(packed, tmp_path / "hub", format="huggingface", overwrite=True, progress=Looking())
    assert set(seen) == {0o700}
    assert (tmp_path / "hub").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "hub" / WEIGHTS).stat().st_mode & 0o777 == 0o600
    assert torch.equal(load_file(tmp_path / "hub" / WEIGHTS)["w"], TENSOR)


def test_files_of_another_call_that_stopped_are_not_put_in_place(tmp_path: Path, packed: Path) -> None:
    content = tmp_path / ".hub.part" / "content"
    content.mkdir(parents=True)
    (content / "model-00001-of-00002.safetensors").write_bytes(b"secret")
    unpack(packed, tmp_path / "hub", format="huggingface")
    assert os.listdir(tmp_path / "hub") == [WEIGHTS]
