"""Files of names that others may have put there: only regular files are read, and only new ones written."""

import ast
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamxf
from streamxf.cli.__main__ import main
from streamxf.errors import MetadataError
from streamxf.formats.opening import contents_of, open_source
from streamxf.storage.files import NotRegular, create, open_regular, resolve_target
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.stream.plain import ChainFiles

# Where the name is the system's, the package's own, or was just made; and streamxf.open, which is given a file by name
# and may be given a pipe.
OPENS_BY_ITSELF = {"storage/files.py", "storage/abilities.py", "cli/run.py", "dcp/writer.py", "stream/plain.py"}
OPENS_BY_ITSELF |= {"tools/inspect/page/page.py", "__main__.py", "cli/demo.py"}


def test_nothing_else_opens_what_others_may_have_put_there() -> None:
    package = Path(streamxf.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            bare = isinstance(called, ast.Name) and called.id in ("open", "_builtin_open")
            if bare or (isinstance(called, ast.Attribute) and called.attr in ("read_bytes", "read_text")):
                found.add(str(path.relative_to(package)))
    assert found == OPENS_BY_ITSELF


def test_no_path_is_resolved_by_its_text() -> None:
    """`..` after a link leads elsewhere than it says; what is normalized there has no links any more."""
    package = Path(streamxf.__file__).parent
    texts = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    found = {name for name, text in texts.items() if "abspath(" in text or "normpath(" in text}
    assert found == {"formats/huggingface.py"}


@pytest.mark.timeout(60)
def test_a_plain_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", f"file://{tmp_path}/pipe"):
        with pytest.raises(MetadataError, match="not a regular file"), ChainFiles().read(path):
            """It is not opened."""


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """A pipe is not waited for."""
    path = tmp_path / "file"
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotRegular, match="not a regular file"):
        open_regular(path)
    assert len(os.listdir("/proc/self/fd")) == before
    (tmp_path / "data").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("data")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"


@pytest.mark.parametrize("inside", [True, False], ids=["behind a link of its folder", "by itself"])
def test_a_pipe_that_takes_a_files_place_is_not_waited_for(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and its opening."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a.bin")
    check = LocalStorage._check_regular

    def check_and_replace(self: LocalStorage, *names: str) -> list[str]:
        found = check(self, *names)
        os.unlink(path)
        os.mkfifo(path)
        return found

    monkeypatch.setattr(LocalStorage, "_check_regular", check_and_replace)
    with (
        pytest.raises(OSError, match="not a regular file"),
        open_storage(tmp_path).open("link") if inside else open_storage(path).open(),
    ):
        """It is not opened."""
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    for anew in (True, False):
        with pytest.raises(OSError, match="link"):
            create(tmp_path / "link", anew=anew)
    with pytest.raises(FileExistsError, match="dangling symbolic link"):
        resolve_target(tmp_path / "link")
    with pytest.raises(FileExistsError, match="dangling symbolic link"):
        streamxf.open(tmp_path / "link", "wb")
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").touch()
    with streamxf.open(tmp_path / "link", "wb") as file:
        file.write(b"abc")
    assert (tmp_path / "link").is_symlink()
    assert streamxf.decode((tmp_path / "elsewhere").read_bytes()) == b"abc"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("overwrite", [False, True])
def test_unpack_does_not_write_through_a_dangling_link(tmp_path: Path, model: Path, overwrite: bool) -> None:
    streamxf.pack(model, tmp_path / "packed")
    (tmp_path / "out").symlink_to("elsewhere")
    with pytest.raises(FileExistsError, match="dangling symbolic link"):
        streamxf.unpack(tmp_path / "packed", tmp_path / "out", overwrite=overwrite)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("how", ["streamxf.open", "the page"])
def test_a_draft_is_as_private_as_what_it_replaces(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """From the moment it is created."""
    path = tmp_path / "file"
    path.write_bytes(b"<!doctype html>" if how == "the page" else b"")
    path.chmod(0o600)
    modes = []
    real = os.open

    def opened(name: object, flags: int, mode: int = 0o777, **more: object) -> int:
        made = real(name, flags, mode, **more)  # type: ignore[arg-type]
        if str(name).endswith(".tmp"):
            modes.append(stat.S_IMODE(os.fstat(made).st_mode))
        return made

    monkeypatch.setattr(os, "open", opened)
    if how == "the page":
        assert main(["inspect", str(model), "--html", str(path)]) == 0
    else:
        with streamxf.open(path, "wb") as file:
            file.write(b"abc")
    assert modes == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_links_out_of_a_hugging_face_folder_are_named(tmp_path: Path) -> None:
    """Those of the hub's cache are as they should be."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--a--b" / "blobs").mkdir()
    blob = tmp_path / "models--a--b" / "blobs" / "0123"
    save_file({"w": torch.ones(3)}, blob)
    shard = snapshot / "model.safetensors"
    shard.symlink_to("../../blobs/0123")
    with open_source(open_storage(snapshot)) as source:
        assert contents_of(source).notes == ()
    assert not any("links" in text for text in streamxf.verify(snapshot).unchecked)
    stranger = tmp_path / "secret.safetensors"
    blob.rename(stranger)
    shard.unlink()
    shard.symlink_to(stranger)
    with open_source(open_storage(snapshot)) as source:
        (note,) = contents_of(source).notes
    assert note == f"Links lead out of the folder for 1 file: model.safetensors, which is {stranger}."
    assert note in streamxf.inspect(snapshot).notes
    text = f"whether files belong here that are links out of the folder: model.safetensors, which is {stranger}"
    assert text in streamxf.verify(snapshot).unchecked


def test_a_shard_that_is_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(MetadataError, match="not a regular file"):
        streamxf.inspect(tmp_path)


def test_a_file_is_opened_without_a_look_at_the_folders_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep it lies; and while the folder is held open, without opening that again."""
    folder = tmp_path / "a" / "b" / "c" / "d"
    folder.mkdir(parents=True)
    for number in range(10):
        (folder / str(number)).touch()
    calls: list[str] = []
    for name in ("stat", "lstat", "open"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name, **more: calls.append(name) or real(*a, **more))
    storage = open_storage(folder)
    for number in range(10):
        with storage.open(str(number)):
            """It is a regular file, by its descriptor."""
    assert calls == ["open"] * 20
    held = storage.hold()
    calls.clear()
    for number in range(10):
        with held.open(str(number)):
            """Likewise."""
    assert calls == ["open"] * 10
    held.let_go()
