"""The requirement "metadata that is there and cannot be used is an error": DCP takes an exception of ``read_metadata``
for a missing file, and would load older, rank-local metadata in its place.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Encrypt
from streamxf.checkpoint import metadata
from streamxf.errors import ForeignError, KeyServiceError, MetadataError, StreamxfError, is_damage
from tests.failing import fails_with
from tests.keys.sealed import Service

from .helpers import blank, error_of

STATE = {"w": torch.full((4,), 2.0)}
OLDER = {"w": torch.full((4,), 1.0)}
ERRORS = [TimeoutError, FileNotFoundError, RuntimeError, KeyError, MemoryError, KeyServiceError]


@pytest.fixture
def with_older(tmp_path: Path) -> Path:
    """A checkpoint in whose folder rank-local metadata of an older one stands, too."""
    path, older = tmp_path / "checkpoint", tmp_path / "older"
    for folder, state, together in ((older, OLDER, False), (path, STATE, True)):
        writer = streamxf.FileSystemWriter(folder, _extensions=[Encrypt(Service())], sync_files=False)
        dcp.save(state, storage_writer=writer, use_collectives=together)
    for file in older.iterdir():  # a save removes what is there, so it comes afterwards
        file.rename(path / file.name)
    assert {".metadata", "__0.metadata"} <= {file.name for file in path.iterdir()}
    return path


@pytest.mark.parametrize("kind", ERRORS)
def test_a_provider_that_fails_once_does_not_bring_older_metadata(with_older: Path, kind: type[Exception]) -> None:
    error, target = kind("no answer"), blank(STATE)
    found = error_of(
        lambda: dcp.load(target, storage_reader=streamxf.FileSystemReader(with_older, keys=Service(errors=[error])))
    )
    assert isinstance(found, KeyServiceError | MetadataError), repr(found)
    assert (kind is KeyServiceError) <= isinstance(found, KeyServiceError)
    assert ".metadata" in str(found)
    assert not torch.equal(target["w"], OLDER["w"])


@pytest.mark.parametrize("kind", ERRORS)
def test_whatever_is_raised_while_metadata_is_read_is_kept_with_its_cause(
    with_older: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = kind("no answer")
    monkeypatch.setattr(metadata.Trailer, "parse", fails_with(lambda: error))
    reader: Any = streamxf.FileSystemReader(with_older, keys=Service())
    found = reader.read_metadata()
    assert isinstance(found, dcp.Metadata)
    with pytest.raises((StreamxfError, OSError, MemoryError)) as caught:
        _ = found.state_dict_metadata
    assert str(with_older) in "".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
    made = MetadataError if kind is FileNotFoundError else ForeignError
    assert caught.value is error or (type(caught.value) is made and caught.value.__cause__ is error)
    assert is_damage(caught.value) == (kind is FileNotFoundError), "and who cannot read it does not take it for damaged"


def test_only_metadata_that_is_not_there_gives_way_to_a_ranks_own(with_older: Path) -> None:
    (with_older / ".metadata").unlink()
    target = blank(STATE)
    reader: Any = streamxf.FileSystemReader(with_older, keys=Service())
    with pytest.raises(FileNotFoundError):
        reader.read_metadata()
    dcp.load(target, storage_reader=streamxf.FileSystemReader(with_older, keys=Service()), no_dist=True)
    assert torch.equal(target["w"], OLDER["w"])
