"""What records the variables of tracebacks finds no key in streamxf's frames; and no text has the password of a URL."""

import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf import keys
from streamxf.checkpoint.pickled import pickled
from streamxf.dcp.metadata import StoredMetadata
from streamxf.errors import ContainerError, StreamxfError, redacted
from streamxf.format.index import Index
from streamxf.wording import printable

KEY = "5a" * 32
URL = "sftp://user:pass%40word@host:22/run"
SHOWN = "sftp://user:***@host:22/run"


def frames(error: BaseException | None) -> Iterator[dict[str, Any]]:
    """The variables of all frames of streamxf's, of an error and those that it came from."""
    while error is not None:
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            if "/streamxf/" in trace.tb_frame.f_code.co_filename.replace("/tests/", "//"):
                yield trace.tb_frame.f_locals
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def of_mode(path: Path) -> Any:
    return keys.read_key(write(path, KEY, 0o644))


def of_two_lines(path: Path) -> Any:
    return keys.read_key(write(path, f"{KEY}\n{KEY}\n"))


def damaged(path: Path) -> Any:
    return keys.read_key(write(path, f"streamxf-secret:aeskw:0123456789abcdef:{KEY}"))


def by_location(path: Path) -> Any:
    return streamxf.Encrypt(f"file:{write(path, f'{KEY} {KEY}')}")


def of_a_variable(path: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_KEY", f"{KEY}{KEY}")
        return streamxf.Encrypt("env:SOME_KEY")


def protected(path: Path) -> Any:
    return keys.read_key(write(path, KEY), passphrase=KEY)


def written(path: Path) -> Any:
    key = keys.read_key(write(path, KEY))
    keys.write_key(path, key)


@pytest.mark.parametrize(
    "refused",
    [of_mode, of_two_lines, damaged, by_location, of_a_variable, protected, written],
    ids=lambda refused: refused.__name__,
)
def test_the_frames_of_a_refused_key_hold_nothing_of_it(tmp_path: Path, refused: Callable[[Path], Any]) -> None:
    with pytest.raises(StreamxfError) as caught:
        refused(tmp_path / "a.key")
    found = list(frames(caught.value))
    assert found
    for variables in found:
        assert KEY not in repr(variables)
        assert bytes.fromhex(KEY) not in [value for value in variables.values() if isinstance(value, bytes)]
    assert KEY not in "".join(
        traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
    ).replace(f"KEY = {KEY!r}", "")


def test_metadata_that_cannot_be_used_can_be_shown() -> None:
    """As tracebacks with variables do."""
    assert repr(StoredMetadata.of(ContainerError("broken"))) == "<metadata that cannot be used: broken>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, SHOWN),
        ("no URL: a@b", "no URL: a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("sftp://user@host/a:b@c", "sftp://user@host/a:b@c"),
        (f"simplecache::{URL} and {URL}", f"simplecache::{SHOWN} and {SHOWN}"),
        ("sftp://:secret@host/x", "sftp://:***@host/x"),
    ],
)
def test_passwords_are_left_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert printable(text) == shown
    assert shown in str(StreamxfError(text))
    assert shown in str(StreamxfError("message", file=text))


def test_a_password_is_not_in_metadata(tmp_path: Path) -> None:
    index = Index("0" * 32, None, (), (), {}, {})
    made = pickle.loads(pickled(index, {}, URL))
    assert made.storage_meta is not None
    assert made.storage_meta.checkpoint_id == SHOWN
    dcp.save({"w": torch.ones(2)}, storage_writer=streamxf.FileSystemWriter(tmp_path, chain="zstd"), no_dist=True)
    content = pickle.loads((tmp_path / ".metadata").read_bytes())
    assert isinstance(content, Metadata)
    assert content.storage_meta is not None
    assert str(content.storage_meta.checkpoint_id) == str(tmp_path)
