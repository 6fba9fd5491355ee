"""The index of an incremental save that another program wrote."""

from pathlib import Path

import streamxf
from streamxf.format.index import Index
from streamxf.format.sections import slices
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
