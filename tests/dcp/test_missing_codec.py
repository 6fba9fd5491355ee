"""A checkpoint whose codec is not installed here: that is said once, whatever the number of items, and what can be
checked without the codec is.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, ZStandard, errors, load_intact, verify
from streamxf.keys import write_key
from streamxf.tools.diff.diff import diff
from streamxf.tools.salvage.salvage import salvage
from tests.altered import flip
from tests.cli.command import Run

from .helpers import KEY, Xor, data_files, registry, rewrite_index, rewrite_pickle, save

MANY = 60
STATE: dict[str, Any] = {f"w{number}": torch.arange(400.0) + number for number in range(MANY)} | {"step": 7}
NEEDS = "'toy.xor' was provided by the package toy-codecs==2.1"


def saved(path: Path, chain: list[Any] | None = None) -> Path:
    """A checkpoint that needs the extension toy.xor, which only the writer had."""
    save(dict(STATE), path, [Xor(), ZStandard(), Checksum()] if chain is None else chain)

    rewrite_index(path, lambda index: index.update(modules=["toy.xor=toy-codecs==2.1"]))
    return path


def test_verify_names_the_package_once_and_compares_all_the_same(tmp_path: Path) -> None:
    path = saved(tmp_path / "a")
    with pytest.raises(errors.UnknownCodecError) as caught:
        verify(path)
    text = str(caught.value)
    assert text.count("toy.xor") == 1
    assert NEEDS in text
    assert f"{MANY + 1} items cannot be decoded" in text
    assert f"the CRCs of {MANY + 1} blocks were compared all the same, and match" in text
    assert verify(path, codecs=registry()).ok


@pytest.mark.parametrize("at", [1 / 3, 1 / 2, 2 / 3, 0.99])
def test_damage_is_found_without_it(at: float, tmp_path: Path) -> None:
    path = saved(tmp_path / "a")
    (file,) = data_files(path)
    flip(file, int(file.stat().st_size * at))
    report = verify(path)
    assert len(report.damaged) == 1
    (sentence,) = (text for text in report.unchecked if NEEDS in text)
    assert f"{MANY} items" in sentence or f"{MANY + 1} items" in sentence  # the header may be what is damaged
    assert "UnknownCodecError" not in str(report)


def test_a_chain_that_is_not_the_stored_one_is_damage(tmp_path: Path) -> None:
    """As after a flip in the descriptors of metadata that has no digest: no codec has such a name."""
    path = tmp_path / "a"
    writer = streamxf.attach(dcp.FileSystemWriter(path, sync_files=False), [ZStandard()])
    dcp.save(dict(STATE), storage_writer=writer)

    def rename(metadata: Any) -> None:
        for index, place in metadata.storage_data.items():
            if index.fqn == "w3":
                place.transform_descriptors = ["streamxf.zsud/1"]

    rewrite_pickle(path, rename)
    (damage,) = verify(path).damaged
    assert (damage.item, damage.error) == ("w3", "IdentityError")
    found = load_intact(path)
    assert found.lost == ("w3",)
    assert len(found.loaded) == MANY


def test_what_needs_a_key_is_not_checked_without_one_anyway(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", [Xor(), ZStandard(), Encrypt(KEY)])
    report = verify(path)
    assert report.ok
    assert any(f"{MANY + 1} encrypted items" in text for text in report.unchecked)
    with pytest.raises(errors.UnknownCodecError, match=r"toy\.xor"):
        verify(path, keys=KEY)


def test_salvage_names_it_once_and_writes_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path / "a")
    for call in (
        lambda: load_intact(path),
        lambda: load_intact(path, {"w1": torch.zeros(400)}),
        lambda: salvage(path, tmp_path / "b"),
    ):
        with pytest.raises(errors.UnknownCodecError) as caught:
            call()
        assert str(caught.value).count("toy.xor") == 1
        assert NEEDS in str(caught.value)
    assert not (tmp_path / "b").exists()
    assert len(load_intact(path, codecs=registry()).loaded) == MANY + 1
    flip(path / ".metadata", -1)
    with pytest.raises(errors.UnknownCodecError, match=r"toy\.xor"):
        load_intact(path, without_metadata=True)


def test_diff_names_it_once(tmp_path: Path) -> None:
    save(dict(STATE) | {"more": 1}, tmp_path / "b", [ZStandard()])
    with pytest.raises(errors.UnknownCodecError, match=r"toy\.xor"):
        diff(tmp_path / "b", saved(tmp_path / "a"))


def test_on_the_command_line_it_is_one_line(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path / "a")
    write_key(tmp_path / "key", KEY)
    encrypted = saved(tmp_path / "c", [Xor(), Encrypt(KEY)])
    for command in (
        ["verify", path],
        ["salvage", path, tmp_path / "b"],
        ["verify", encrypted, "--key", f"file:{tmp_path / 'key'}"],
    ):
        (line,) = run.exits(2, *command, out="").err.splitlines()
        assert NEEDS in line
        assert run(*command, "--json").json["error"]["type"] == "UnknownCodecError"
