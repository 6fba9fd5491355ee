"""What a checkpoint says of the files that it was packed from, forged: nothing lands outside of the target, and little
never becomes much.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save as dcp_save

from streamxf.convert.origin import Origin
from streamxf.convert.pack import pack
from streamxf.convert.unpack import unpack
from streamxf.errors import MetadataError

Forge = Callable[[dict[str, Any]], Any]

WEIGHTS = "model.safetensors"
TENSOR = torch.arange(6.0).reshape(2, 3)


def forged(source: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pack makes of `source`, but for what it keeps."""
    honest = Origin.to_plain

    def forging(origin: Origin) -> Any:
        kept = honest(origin)
        made = forge(kept)
        return kept if made is None else made

    with monkeypatch.context() as patch:
        patch.setattr(Origin, "to_plain", forging)
        pack(source, source.parent / "packed", "zstd")
    return source.parent / "packed"


def file_named(name: str) -> Forge:
    def forge(kept: dict[str, Any]) -> None:
        kept["files"][name] = b"[core]"

    return forge


def put(**changes: Any) -> Forge:
    def forge(kept: dict[str, Any]) -> None:
        kept.update(changes)

    return forge


def header(data: bytes) -> Forge:
    return put(heads={WEIGHTS: len(data).to_bytes(8, "little") + data})


def header_of(name: str, dtype: str, shape: list[int], size: int) -> Forge:
    return header(json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode())


def many_times(kept: dict[str, Any]) -> None:
    kept["heads"] = {f"{number}.safetensors": kept["heads"][WEIGHTS] for number in range(1000)}


def many_empty_ones(kept: dict[str, Any]) -> None:
    text = json.dumps({"__metadata__": {"": "x" * 2**20}}).encode()
    one = len(text).to_bytes(8, "little") + text
    kept["heads"] |= {f"{number}.safetensors": one for number in range(1024)}


def one_file_everywhere(kept: dict[str, Any]) -> None:
    kept["files"] = dict.fromkeys(map(str, range(100)), bytes(2**20))


FOLDERS: dict[str, tuple[Forge, str]] = {
    "up": (file_named("../evil"), "does not belong into the folder"),
    "from the root": (file_named("/tmp/evil"), "does not belong into the folder"),
    "a hook": (file_named(".git/config"), "does not belong into the folder"),
    "with a zero": (file_named("a\0b"), "does not belong into the folder"),
    "in a stream": (file_named("a:b"), "does not belong into the folder"),
    "no text": (file_named("a\ud800"), "does not belong into the folder"),
    "twice": (file_named(WEIGHTS), "twice"),
    "a tensor in a thousand files": (many_times, "in two of the files"),
    "a thousand long headers": (many_empty_ones, "more bytes"),
    "one file a hundred times": (one_file_everywhere, "more bytes"),
    "no header": (put(heads={}), "were not in the files"),
    "a header of tables": (header(b"{" + b'"":{},' * 10**5 + b'"":{}}'), "tables than tensors explain"),
    "a deep header": (header(b'{"' + b" " * 10**6 + b'":' + b"[" * 50_000), "deeper"),
    "a header of another length": (put(heads={WEIGHTS: b"12345678{}"}), "the format allows"),
    "another dtype": (header_of("w", "I32", [2, 3], 24), "another dtype or shape"),
    "another shape": (header_of("w", "F32", [3, 2], 24), "another dtype or shape"),
    "another tensor": (header_of("v", "F32", [2, 3], 24), "does not fit the tensors"),
    "another format": (put(format="DCP"), "not what pack stores"),
    "another version": (put(version=2), "version 2"),
    "sizes without end": (put(left_out={"a": float("inf")}), "not what pack stores"),
    "no table": (lambda kept: 5, "not what pack stores"),
    "a tensor": (lambda kept: TENSOR, "holds a tensor"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_forged_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    forge, words = FOLDERS[case]
    (tmp_path / "hub").mkdir()
    save_file({"w": TENSOR}, tmp_path / "hub" / WEIGHTS)
    packed = forged(tmp_path / "hub", forge, monkeypatch)
    with pytest.raises(MetadataError, match=words):
        unpack(packed, tmp_path / "deep" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "packed"]


def of_file(forge: Forge) -> Forge:
    return lambda kept: forge(kept["pickled"]["model.pt"])


def shared_tables(kept: dict[str, Any]) -> None:
    value: Any = ["a"]
    for _ in range(40):
        value = [value, value]
    kept["skeleton"] = {"a": value, "b": "b"}


def inside_itself(kept: dict[str, Any]) -> None:
    kept["skeleton"]["again"] = kept["skeleton"]


def left_out(kept: dict[str, Any]) -> None:
    del kept["skeleton"]["a"], kept["views"]["a"]


def far_apart(kept: dict[str, Any]) -> None:
    kept["views"] = {"a": [0, 0, [3, 1], False, False], "b": [0, 2**40, [3, 1], False, False]}
    kept["storages"] = [2**43]


def viewed(*view: Any) -> Forge:
    return of_file(lambda kept: kept["views"].update(a=list(view)))


FILES: dict[str, tuple[Forge, str]] = {
    "tables that share their parts": (of_file(shared_tables), "a table in two places"),
    "a table in itself": (of_file(inside_itself), "a table in two places"),
    "a name twice": (of_file(lambda kept: kept["skeleton"].update(c="a")), "stand once"),
    "a number for a name": (of_file(lambda kept: kept["skeleton"].update(a=1)), "stand once"),
    "a name that is not there": (of_file(lambda kept: kept["skeleton"].update(a="z")), "not here"),
    "a name left out": (of_file(left_out), "were not in the files"),
    "far apart": (of_file(far_apart), "so far apart"),
    "beyond its storage": (viewed(0, 1, [3, 1], False, False), "does not lie in its storage"),
    "backwards": (viewed(0, 5, [-3, -1], False, False), "does not lie in its storage"),
    "no such storage": (viewed(7, 0, [3, 1], False, False), "does not lie in its storage"),
    "too few strides": (viewed(0, 0, [1], False, False), "does not lie in its storage"),
    "endless strides": (viewed(0, 0, [2**80, 1], False, False), "does not lie in its storage"),
    "a view without storage": (of_file(lambda kept: kept["views"].update(a=[])), "not what pack stores"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_forged_torch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    forge, words = FILES[case]
    torch.save({"a": TENSOR, "b": TENSOR + 1}, tmp_path / "model.pt")
    packed = forged(tmp_path / "model.pt", forge, monkeypatch)
    with pytest.raises(MetadataError, match=words):
        unpack(packed, tmp_path / "out.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "packed"]


def test_names_that_are_no_texts(tmp_path: Path) -> None:
    state = {"\ud800": TENSOR, "\x1b[31m": TENSOR + 1, "": TENSOR + 2, "..": TENSOR + 3, "a/../b": TENSOR + 4}
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
        with pytest.raises(FileExistsError, match="somebody else's"):
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
