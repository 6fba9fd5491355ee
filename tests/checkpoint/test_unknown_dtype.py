"""A dtype that is not known here spoils its item, and nothing else; its bytes are handed out."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import UnsupportedError
from tests.dcp.helpers import error_of
from tests.vectors.described import unpack, vectors
from tests.vectors.recipes.data import payload


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [
        *(("dtype-unknown", "float6_e3m2fn:8", 6), ("dtype-unknown-raw", "int256x2:128", 96)),
        *(("dtype-quantized", "quint8", 6), ("dtype-quantized-raw", "uint4", 6)),
    ],
)
def test_its_bytes_are_handed_out(tmp_path: Path, name: str, dtype: str, size: int) -> None:
    unpack(vectors("checkpoint")[name], tmp_path)
    assert streamxf.verify(tmp_path).ok
    assert dtype in str(streamxf.inspect(tmp_path).dtypes)
    for framework in ("numpy", "torch"):
        with streamxf.Checkpoint(tmp_path, framework=framework) as checkpoint:
            handle = checkpoint["weight"]
            assert handle.dtype == dtype
            assert handle.chunks[0].bytes() == payload(size)
            with pytest.raises(UnsupportedError, match=dtype):
                handle.read()
    target = {"weight": torch.zeros(2, 3, dtype=torch.uint8)}
    error = error_of(lambda: dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path)))
    assert type(error) is UnsupportedError  # which is not damage


def test_it_is_copied_but_not_for_torch(tmp_path: Path) -> None:
    source = unpack(vectors("checkpoint")["dtype-unknown-raw"], tmp_path / "source")
    with pytest.raises(UnsupportedError, match="a newer torch may have it"):
        streamxf.transcode(source, tmp_path / "copy", "zstd")
