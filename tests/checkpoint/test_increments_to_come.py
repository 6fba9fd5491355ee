"""What this version says of incremental saves, which later ones write: their indexes are read, differences are not."""

from pathlib import Path

import pytest

import streamxf
from streamxf.errors import UnsupportedError
from streamxf.format.index import Index
from streamxf.format.trailer import slices
from tests.vectors.described import unpack, vectors


def test_the_index_of_an_increment_is_read(tmp_path: Path) -> None:
    unpack(vectors("checkpoint")["increment"], tmp_path)
    assert streamxf.verify(tmp_path).ok
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        index = checkpoint.metadata[0].index
        assert isinstance(index, Index)
        assert index.bases == (("ab" * 16, "step-1"),)
        assert checkpoint["weight"].read().shape == (4, 3)
        root, parts = index.pack()
    assert Index.parse(memoryview(root), slices(parts), len(parts), increment=True) == index


def test_a_difference_asks_for_an_upgrade_and_spoils_nothing_else(tmp_path: Path) -> None:
    unpack(vectors("checkpoint")["C17-difference"], tmp_path)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        assert checkpoint["weight"].chunks[0].place.beneath == 2
        with pytest.raises(UnsupportedError, match=r"difference to another save.*upgrade"):
            checkpoint["weight"].read()
        assert checkpoint["weight"][2:].shape == (2, 3)
        with pytest.raises(UnsupportedError, match=r"differences.*upgrade"):
            checkpoint.metadata[0].index.pack()  # type: ignore[union-attr]
