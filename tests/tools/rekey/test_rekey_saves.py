"""Whose data keys are handed on: those of the save that was named, and of no other checkpoint under the same key."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Encrypt
from streamxf.errors import IdentityError, ParameterError
from tests.dcp.helpers import index_of, save
from tests.dcp.shards import save_as_ranks
from tests.tools.rekey.rekeying import KEY, OTHER_KEY

CALLS: dict[str, Callable[..., Any]] = {
    "rekey": lambda path, **options: streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY, **options),
    "add": lambda path, **options: streamxf.add_recipient(path, keys=KEY, recipients=OTHER_KEY, **options),
    "remove": lambda path, **options: streamxf.remove_recipient(path, keys=KEY, recipient=OTHER_KEY.id, **options),
    "list": lambda path, **options: streamxf.recipients(path, keys=KEY, **options),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_metadata_of_another_checkpoint_is_refused(tmp_path: Path, call: Callable[..., Any]) -> None:
    """Who puts it there needs no key at all."""
    for name in "ab":
        save({"w": torch.ones(3)}, tmp_path / name, [Encrypt([KEY, OTHER_KEY])])
    expected = index_of(tmp_path / "a").save_id
    other = shutil.copy(tmp_path / "b" / ".metadata", tmp_path / "a" / ".metadata").read_bytes()
    with pytest.raises(IdentityError, match=f"{index_of(tmp_path / 'b').save_id}, and {expected}"):
        call(tmp_path / "a", expect_save_id=expected)
    assert (tmp_path / "a" / ".metadata").read_bytes() == other
    call(tmp_path / "b", expect_save_id=index_of(tmp_path / "b").save_id)


def test_ranks_have_an_id_each(tmp_path: Path) -> None:
    save_as_ranks(2, tmp_path, lambda: [Encrypt(KEY)], use_collectives=False)
    ids = streamxf.recipients(tmp_path, keys=KEY).save_ids
    assert len(set(ids)) == 2
    with pytest.raises(IdentityError):
        streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY, expect_save_id=ids[0])
    files = ("__0.metadata", "__1.metadata")
    assert streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY, expect_save_id=ids) == files


@pytest.mark.parametrize("wrong", ["", "A" * 32, [], [7], 7, b"a" * 32])
def test_what_is_no_id(tmp_path: Path, wrong: Any) -> None:
    save({"w": torch.ones(3)}, tmp_path, [Encrypt(KEY)])
    with pytest.raises(ParameterError, match="expect_save_id"):
        streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY, expect_save_id=wrong)
    with pytest.raises(ParameterError, match="needs keys"):
        streamxf.recipients(tmp_path, expect_save_id="0" * 32)
