"""What the rows attack loads intact, and with CRCs computed again: refusals are due to the faults alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from streamxf import Checksum, Encrypt, ZStandard
from tests.dcp.helpers import KEY, full_chain
from tests.forge import split_metadata, take_container_apart

from .targets import Checkpoint, PlainFile

TEXT = bytes(200_000)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("writer", ["own", "attached"])
def test_checkpoints(tmp_path: Path, writer: str, keyed: bool) -> None:
    state = {"w": torch.arange(50_000.0), "obj": "text"}
    target = Checkpoint(tmp_path / "checkpoint", state, writer=writer, keyed=keyed)
    assert target.load_whole() == target.load_metadata() == target.load_data() == target.right
    for container in target.containers():
        assert container.mended(container.intact) == container.intact
        assert take_container_apart(container.intact).container() == container.intact
        assert container.load(container.intact) == target.right
    if writer == "own":
        assert target.with_metadata(split_metadata(target.metadata).pack()) == target.right


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("chain", [(), [ZStandard(), Checksum()], [Encrypt(KEY)], full_chain()], ids=range(4))
def test_plain_files(chain: Any, pipe: bool) -> None:
    file = PlainFile(TEXT, chain, pipe=pipe)
    container = file.container()
    assert file.parts.pack() == file.file
    assert container.mended(container.intact) == container.intact
    assert container.load(container.intact) == file.load(file.file) == TEXT
    assert file.with_wrapped(file.wrapped) == file.file
