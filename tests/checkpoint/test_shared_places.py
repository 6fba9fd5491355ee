"""Two items at one place of a data file: each is checked for itself, whichever was read before it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf import Checksum, Encrypt
from streamxf.errors import IdentityError, MetadataError
from tests.dcp.helpers import KEY, assert_same, refused, rewrite_index, rewrite_pickle, save

STATE = {"a": torch.arange(4.0), "b": torch.arange(4.0) + 10}


@pytest.mark.parametrize("chain", [[Checksum()], [Encrypt(KEY)]], ids=["plain", "encrypted"])
def test_an_item_whose_place_holds_another_is_refused_after_that_one_was_read(tmp_path: Path, chain: list[Any]) -> None:
    """In the metadata of an attached writer, which nothing vouches for."""
    dcp.save(dict(STATE), storage_writer=streamxf.attach(dcp.FileSystemWriter(tmp_path), chain))

    def point_b_at_a(metadata: Metadata) -> None:
        places = {index.fqn: index for index in metadata.storage_data}
        metadata.storage_data[places["b"]] = metadata.storage_data[places["a"]]

    rewrite_pickle(tmp_path, point_b_at_a)
    keyed: Any = {"keys": KEY, "require": "bound"} if isinstance(chain[0], Encrypt) else {}
    with streamxf.Checkpoint(tmp_path, **keyed) as checkpoint:
        for _ in range(2):
            assert_same(checkpoint["a"].read(), STATE["a"])
            with refused(IdentityError, "swapped"):
                checkpoint["b"].read()


def test_raw_tensors_at_one_place_have_their_own_shapes(tmp_path: Path) -> None:
    save({**STATE, "b": torch.ones(2, 2), "c": torch.ones(8, dtype=torch.int16)}, tmp_path, "raw")  # type: ignore[arg-type]

    def point_all_at_a(index: Any) -> None:
        for item in index["items"].values():
            chunk, place = item["chunks"][0], index["items"]["a"]["chunks"][0]
            chunk.update({name: place[name] for name in ("file", "at", "bytes", "crc32c")})

    rewrite_index(tmp_path, point_all_at_a)
    wanted = np.arange(4, dtype=np.float32)
    with streamxf.Checkpoint(tmp_path, framework="numpy") as checkpoint:
        assert np.array_equal(checkpoint["a"].read(), wanted)  # type: ignore[union-attr]
        for shape, dtype, name in (((2, 2), np.uint32, "b"), ((8,), np.int16, "c")):
            spoiled = np.full(shape, 9, dtype)
            del spoiled  # what has its size next is made of this memory
            found: Any = checkpoint[name].read()
            assert np.array_equal(found, wanted.view(found.dtype).reshape(shape))
    with pytest.raises(MetadataError, match="over another"):
        streamxf.sign(tmp_path, signer=streamxf.SigningKey.generate())
