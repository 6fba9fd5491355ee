"""`verify` of other than DCP's: files of `streamxf.open`, torch.save and safetensors, and folders of these."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch._C import PyTorchFileReader

import streamxf
from streamxf import Key, errors
from tests.altered import flip, flipped, without_crcs
from tests.progress.recorder import Recorder
from tests.sealing import container, zstd
from tests.sealing import plain as plain_of

KEY = Key(bytes(range(32)))
OTHER = Key(bytes(range(1, 33)))
DATA = bytes(range(256)) * 1200  # five blocks
SMALL = {"block_size": 2**16}
TENSORS = {"a": torch.arange(1000.0), "b": {"c": torch.ones(50, 3), "d": torch.arange(9)}, "step": 7}


def plain(path: Path, **options: Any) -> Path:
    with streamxf.open(path, "wb", **(SMALL | options)) as file:
        file.write(DATA)
    return path


# -- what streamxf.open wrote ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", ["", "zstd", "zstd+checksum+encrypt"])
def test_a_whole_one(tmp_path: Path, chain: str) -> None:
    keys = KEY if "encrypt" in chain else None
    path = plain(tmp_path / "data.sxf", chain=chain, keys=keys)
    counter = Recorder()
    report = streamxf.verify(path, keys=keys, progress=counter)
    assert report.ok
    assert not report.unchecked
    assert (report.files, report.blocks, report.bytes_read) == (1, 5, path.stat().st_size)
    assert counter.done == counter.expected == path.stat().st_size


def test_without_a_key_it_says_what_was_not_checked(tmp_path: Path) -> None:
    path = plain(tmp_path / "data.sxf", chain="zstd+encrypt", keys=KEY)
    report = streamxf.verify(path)
    assert report.ok
    assert "need a key" in " ".join(report.unchecked)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("with_key", [False, True])
def test_every_flipped_byte_is_found(tmp_path: Path, keyed: bool, with_key: bool) -> None:
    path = tmp_path / "data.sxf"
    keys = KEY if keyed and with_key else None
    path.write_bytes(
        streamxf.encode(b"some bytes" * 20, "checksum+encrypt" if keyed else "checksum", keys=KEY if keyed else None)
    )
    whole = path.read_bytes()
    assert streamxf.verify(path, keys=keys).ok
    for position in range(len(whole)):
        path.write_bytes(flipped(whole, position))
        if position < 8 and keys is not None:  # for all that is known, it was never encrypted
            with pytest.raises(errors.StreamxfError):
                streamxf.verify(path, keys=keys)
        else:
            assert not streamxf.verify(path, keys=keys).ok, position


def test_damage_is_named_by_its_block_and_all_of_it(tmp_path: Path) -> None:
    path = plain(tmp_path / "data.sxf", chain="checksum")
    for block in (1, 3):
        flip(path, 200 + block * 2**16)
    report = streamxf.verify(path)
    assert [damage.block for damage in report.damaged] == [1, 3]
    assert report.blocks == 5
    assert {damage.file for damage in report.damaged} == {"data.sxf"}
    assert "salvage" not in str(report)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:300]])
def test_cut_or_continued(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = plain(tmp_path / "data.sxf")
    path.write_bytes(change(path.read_bytes()))
    assert not streamxf.verify(path).ok


def test_keys_that_do_not_fit(tmp_path: Path) -> None:
    encrypted = plain(tmp_path / "encrypted.sxf", chain="zstd+encrypt", keys=KEY)
    with pytest.raises(errors.KeyMissingError):
        streamxf.verify(encrypted, keys=OTHER)
    with pytest.raises(errors.PolicyError, match="not encrypted"):
        streamxf.verify(plain(tmp_path / "plain.sxf"), keys=KEY)


def test_what_somebody_altered_on_purpose_needs_the_key(tmp_path: Path) -> None:
    """The prefix and the header of another file of the same key: each is whole."""
    one, other = (plain(tmp_path / name, chain="encrypt", keys=KEY).read_bytes() for name in "ab")
    start = one.index(b"\xd3SXF")
    path = tmp_path / "mixed"
    path.write_bytes(one[:start] + other[other.index(b"\xd3SXF") :])
    assert streamxf.verify(path).ok
    (damage,) = streamxf.verify(path, keys=KEY).damaged
    assert damage.error == errors.AuthenticationError.__name__


def test_a_codec_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plain(tmp_path / "data.sxf", chain="lz4")
    monkeypatch.setitem(sys.modules, "streamxf.codecs.lz4", None)
    with pytest.raises(errors.UnknownCodecError, match="CRCs of 5 blocks were compared"):
        streamxf.verify(path)
    flip(path, path.stat().st_size // 2, 16)
    report = streamxf.verify(path)
    assert not report.ok
    assert "streamxf.lz4" in " ".join(report.unchecked)


def test_at_a_url(tmp_path: Path) -> None:
    path = plain(tmp_path / "data.sxf", chain="zstd+encrypt", keys=KEY)
    url = f"file://{path}"
    assert streamxf.verify(url, keys=KEY).ok
    flip(path, path.stat().st_size // 2, 16)
    assert not streamxf.verify(url, keys=KEY).ok


def test_what_only_checkpoints_have(tmp_path: Path) -> None:
    path = plain(tmp_path / "data.sxf", chain="zstd+encrypt", keys=KEY)
    for options in ({"require": "encrypted"}, {"expect_save_id": "0" * 32}):
        with pytest.raises(errors.ParameterError, match="for checkpoints of DCP"):
            streamxf.verify(path, keys=KEY, **options)  # type: ignore[arg-type]


# -- torch.save ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch_file(tmp_path: Path) -> Path:
    torch.save(TENSORS, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_torch_a_whole_one(torch_file: Path) -> None:
    report = streamxf.verify(torch_file)
    assert (report.ok, report.unchecked, report.items) == (True, (), 4)


def test_torch_a_flipped_bit_is_named_by_its_tensor(torch_file: Path) -> None:
    position = torch_file.read_bytes().index(torch.arange(1000.0).numpy().tobytes()) + 1234
    flip(torch_file, position, 16)
    (damage,) = streamxf.verify(torch_file).damaged
    assert (damage.item, damage.error) == ("a", "ChecksumError")


def test_torch_every_flipped_byte_is_found_or_does_no_harm(torch_file: Path) -> None:
    whole = torch_file.read_bytes()
    expected = torch.load(torch_file, weights_only=True)
    found = 0
    for position in range(4, len(whole), 7):
        torch_file.write_bytes(flipped(whole, position))
        try:
            ok = streamxf.verify(torch_file).ok
        except errors.StreamxfError:
            ok = False
        found += not ok
        if ok:
            loaded = torch.load(torch_file, weights_only=True)
            assert torch.equal(loaded["a"], expected["a"])
            assert torch.equal(loaded["b"]["c"], expected["b"]["c"])
            assert loaded["step"] == 7
        torch_file.write_bytes(whole)
    assert found > 500


@pytest.mark.parametrize("bit", [1, 16])
def test_torch_what_a_flipped_bit_of_the_directory_keeps_from_loading_is_found(torch_file: Path, bit: int) -> None:
    """Torch checks parts of it that Python's own reader does not, such as the numbers of disks."""
    whole = torch_file.read_bytes()
    missed = []
    for position in range(whole.index(b"PK\1\2"), len(whole)):
        torch_file.write_bytes(flipped(whole, position, bit))
        try:
            missed += [position] * streamxf.verify(torch_file).ok
        except errors.StreamxfError:
            """It is found."""
    for position in missed:
        torch_file.write_bytes(flipped(whole, position, bit))
        assert torch.load(torch_file, weights_only=True)["step"] == 7, position
        PyTorchFileReader(str(torch_file)).get_record_offset("data/0")


def test_torch_cut(torch_file: Path) -> None:
    torch_file.write_bytes(torch_file.read_bytes()[:-1])
    assert not streamxf.verify(torch_file).ok


def test_torch_without_checksums(tmp_path: Path) -> None:
    with without_crcs():
        torch.save({"a": torch.ones(9)}, tmp_path / "model.pt")
    report = streamxf.verify(tmp_path / "model.pt")
    assert report.ok
    assert "saved without checksums" in " ".join(report.unchecked)


class Own:
    """What ``weights_only`` does not take."""


@pytest.mark.parametrize("value", [Own(), [1, 2, 3]], ids=["a class", "a list"])
def test_torch_what_is_no_state_dict_has_its_checksums_compared_all_the_same(tmp_path: Path, value: object) -> None:
    path = tmp_path / "model.pt"
    torch.save(value, path)
    report = streamxf.verify(path)
    assert report.ok
    assert "what the pickle makes" in " ".join(report.unchecked)
    flip(path, path.read_bytes().index(b"\x80\x02") + 2, 16)
    assert not streamxf.verify(path).ok


def test_torch_the_old_form_has_no_checksums(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"a": torch.ones(9), "o": Own()}, path, _use_new_zipfile_serialization=False)
    report = streamxf.verify(path)
    assert (report.ok, report.items, report.bytes_read) == (True, 2, path.stat().st_size)
    assert report.unchecked == ("the bytes of all records: they were saved without checksums",)
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:-60], whole + b"\0", whole[:-44] + b"\x08" + whole[-43:]):
        path.write_bytes(data)
        (damage,) = streamxf.verify(path).damaged
        assert "not an intact file of torch.save" in str(damage)


# -- safetensors, and folders ----------------------------------------------------------------------------------------


def test_safetensors_have_no_checksums(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000), "b": torch.ones(3)}, path)
    counter = Recorder()
    report = streamxf.verify(path, progress=counter)
    assert (report.ok, report.items, report.bytes_read) == (True, 2, path.stat().st_size)
    assert report.unchecked == ("the bytes of 2 tensors, since .safetensors files have no checksums",)
    assert counter.done == counter.expected == path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert not streamxf.verify(path).ok
    with pytest.raises(errors.PolicyError, match="not encrypted"):
        streamxf.verify(path, keys=KEY)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    save_file({"a": torch.zeros(100)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(100)}, tmp_path / "model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_hugging_face_folder_shard_by_shard(shards: Path) -> None:
    report = streamxf.verify(shards)
    assert (report.ok, report.files, report.items) == (True, 2, 2)
    assert report.unchecked == ("the bytes of 2 tensors, since .safetensors files have no checksums",)
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (shards / name).write_bytes((shards / name).read_bytes()[:-1])
    assert [damage.file for damage in streamxf.verify(shards).damaged] == ["model-1.safetensors", "model-2.safetensors"]
    (shards / "model-2.safetensors").unlink()
    assert [damage.file for damage in streamxf.verify(shards).damaged] == ["model-1.safetensors", "model-2.safetensors"]


def test_an_index_that_is_damaged_or_does_not_fit(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text.replace('"b"', '"c"'))
    assert [damage.file for damage in streamxf.verify(shards).damaged] == [index.name]
    index.write_text(text[:-5])
    report = streamxf.verify(shards)
    assert [damage.file for damage in report.damaged] == [index.name]
    assert report.files == 2, "the shards are checked all the same"


def test_bin_shards(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(100)}, tmp_path / "pytorch_model.bin")
    assert streamxf.verify(tmp_path).ok
    path = tmp_path / "pytorch_model.bin"
    flip(path, path.read_bytes().index(torch.ones(100).numpy().tobytes()), 16)
    assert [damage.item for damage in streamxf.verify(tmp_path).damaged] == ["a"]


@pytest.mark.parametrize("sizes", [(100, 10), (2**16, 9)], ids=["the first", "the last"])
def test_a_block_that_decodes_to_less_than_belongs_there(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """With every CRC right; what is verified is decoded into no memory that would show it."""
    path = tmp_path / "short.sxf"
    made = container(["streamxf.zstd/1"], [zstd(bytes(size)) for size in sizes], 2**16 + 10)
    path.write_bytes(plain_of(made).pack())
    (damage,) = streamxf.verify(path).damaged
    assert "bytes where" in str(damage)
