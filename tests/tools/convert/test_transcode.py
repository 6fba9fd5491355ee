"""A checkpoint through another chain holds the same, and whatever goes wrong leaves what was there."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import FileSystemReader as StockReader
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard

import streamxf
from streamxf import errors
from streamxf.chain import Chain
from streamxf.keys import Key, KeyRing, PrivateKey, SigningKey
from streamxf.tools.convert.pack import transcode
from tests.altered import flip
from tests.dcp.shards import rows, save_shards
from tests.progress.recorder import Meanwhile, Recorder
from tests.tools.convert.states import CHAINS, NESTED, assert_same, assert_whole, data_files, loaded, trained

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

KEY = Key(bytes(range(32)))
OTHER = Key(bytes(range(1, 33)))


def save(state: dict[str, Any], path: Path | str, kind: str) -> None:
    writer: Any
    if kind == "stock":
        writer = StockWriter(path, sync_files=False)
    elif kind == "stock zstd":
        writer = StockWriter(path, sync_files=False, _extensions=[StockZStandard()])
    else:
        chain = [streamxf.Encrypt(KEY)] if kind == "encrypted" else kind
        extensions = Chain.of(chain)
        writer = streamxf.FileSystemWriter(path, sync_files=False, _extensions=extensions)
    dcp_save(state, storage_writer=writer)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save(trained(), tmp_path / "source", "floatzip")
    return tmp_path / "source"


@settings(settings.get_profile("disk"))
@given(
    NESTED,
    st.sampled_from(["stock", "stock zstd", "", "zstd+checksum", "encrypted"]),
    st.sampled_from(CHAINS),
    st.sampled_from([1, 5000, 2**28]),
    st.sampled_from([2**16, 2**20]),
)
def test_what_loads_is_the_same(state, kind, chain, file_size, block_size):
    keys = KEY if kind == "encrypted" else None
    to = OTHER if "encrypt" in chain else None
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        save(state, source, kind)
        done = transcode(source, target, chain, keys=keys, recipients=to, file_size=file_size, block_size=block_size)
        assert_same(loaded(target, to), loaded(source, keys))
        assert_same(loaded(target, to), state)
        assert_whole(target, to)
        assert done.items == len(streamxf.FileSystemReader(target, keys=to).read_metadata().storage_data)
        assert done.files == len(data_files(target))
        assert not list(target.glob("*.slip*"))
        if not chain:
            assert_same(loaded(target, stock=True), state)


def test_blocks_of_any_sizes_fit_together(tmp_path, source):
    small, large = tmp_path / "small", tmp_path / "large"
    transcode(source, small, "zstd", block_size=2**16)
    transcode(small, large, "floatzip", block_size=2**22)
    transcode(large, tmp_path / "again", "", block_size=2**16)
    assert_same(loaded(tmp_path / "again"), trained())


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collectives", [True, False])
def test_shards_stay_shards(tmp_path, collectives, in_place):
    whole = torch.arange(60_000.0).reshape(600, 100)
    states = [{"w": rows(whole, rank, 3), f"own{rank}": torch.ones(5) * rank, f"n{rank}": rank} for rank in range(3)]
    source, target = tmp_path / "source", tmp_path / "target"
    save_shards(source, states, lambda: [streamxf.ZStandard()], use_collectives=collectives)
    before = [path.name for path in source.glob("*.metadata")]
    done = transcode(source, None if in_place else target, "floatzip+checksum", in_place=in_place, file_size=1000)
    made = source if in_place else target
    assert sorted(path.name for path in made.glob("*.metadata")) == sorted(before)
    assert len(done.save_ids) == (1 if collectives else 3)
    assert_whole(made, expect_save_id=done.save_ids)
    if collectives:
        assert torch.equal(loaded(made)["w"], whole)
    else:
        for rank in range(3):
            reader = streamxf.FileSystemReader(made)
            metadata = reader.read_metadata(rank=rank)
            assert [tuple(chunk.offsets) for chunk in metadata.state_dict_metadata["w"].chunks] == [(200 * rank, 0)]


def test_in_place_leaves_nothing_of_the_old_one(source):
    old = data_files(source)
    done = transcode(source, chain="zstd", in_place=True)
    assert not set(old) & set(data_files(source))
    assert sorted(path.name for path in source.iterdir()) == sorted([".metadata", *data_files(source)])
    assert_same(loaded(source), trained())
    assert_whole(source, expect_save_id=done.save_ids)


def test_in_place_never_replaces_what_somebody_saved_meanwhile(source):
    newer = {"newer": torch.ones(3)}

    with pytest.raises((errors.MetadataError, errors.StreamxfError)):
        transcode(source, chain="zstd", in_place=True, progress=Meanwhile(lambda: save(newer, source, "zstd")))
    assert_same(loaded(source), newer)


def test_progress_is_told_what_it_was_told_to_expect(tmp_path, source):
    told = Recorder()
    transcode(source, tmp_path / "target", "zstd", progress=told)
    assert told.expected == told.done > 12 * 200 * 300 * 2


# -- keys --------------------------------------------------------------------------------------------


def test_each_recipient_opens_the_copy(tmp_path, source):
    private, signer = PrivateKey.generate(), SigningKey.generate()
    transcode(source, tmp_path / "target", "zstd+encrypt", recipients=[KEY, private.public], signer=signer)
    assert_same(loaded(tmp_path / "target", KEY), trained())
    ring = KeyRing(private, trust=signer.verify_key)
    assert_same(loaded(tmp_path / "target", ring), trained())


def test_who_reads_and_who_signed_is_said(tmp_path, source):
    signer, other = SigningKey.generate(), Key(bytes(range(7, 39)))
    clear = transcode(source, tmp_path / "clear", "floatzip", signer=signer)
    assert f"\nchain floatzip, signed by {signer.id}\n" in str(clear)
    sealed = transcode(source, tmp_path / "sealed", "zstd+encrypt", recipients=[KEY, other], signer=signer)
    assert f"\nchain {sealed.chain} under key {KEY.id}, {other.id}, signed by {signer.id}\n" in str(sealed)
    assert "\nchain floatzip\n" in str(transcode(source, tmp_path / "copy", "floatzip"))


def test_what_was_encrypted_is_not_written_in_the_clear_by_default(tmp_path, source):
    encrypted = tmp_path / "encrypted"
    transcode(source, encrypted, recipients=KEY)
    assert_whole(encrypted, KEY)
    with pytest.raises(errors.ParameterError, match="does not encrypt"):
        transcode(encrypted, tmp_path / "clear", keys=KEY)
    assert not (tmp_path / "clear").exists()
    transcode(encrypted, tmp_path / "clear", "floatzip", keys=KEY)
    assert_same(loaded(tmp_path / "clear"), trained())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"chain": "zstd+encrypt"}, errors.KeyMissingError),
        ({"chain": "zstd", "recipients": KEY}, errors.ParameterError),
        ({"chain": [streamxf.ZStandard()], "recipients": KEY}, errors.ParameterError),
        ({"signer": "file:nowhere"}, errors.KeyFileError),
        ({"in_place": True}, errors.ParameterError),
        ({"target": None}, errors.ParameterError),
        ({"file_size": 0}, errors.ParameterError),
        ({"keys": KEY, "chain": ""}, errors.StreamxfError),
    ],
)
def test_arguments_that_cannot_work_together(tmp_path, source, options, error):
    with pytest.raises(error):
        transcode(source, **{"target": tmp_path / "target", **options})
    assert not list((tmp_path / "target").glob("*"))
    assert_same(loaded(source), trained())


# -- what is there already ---------------------------------------------------------------------------


def test_a_checkpoint_in_the_target_stays_unless_it_may_go(tmp_path, source):
    save({"other": torch.ones(3)}, tmp_path / "target", "zstd")
    with pytest.raises(FileExistsError):
        transcode(source, tmp_path / "target", "zstd")
    assert_same(loaded(tmp_path / "target"), {"other": torch.ones(3)})
    transcode(source, tmp_path / "target", "zstd", overwrite=True)
    assert_same(loaded(tmp_path / "target"), trained())


def test_the_source_is_no_target(source):
    for target in (source / ".", streamxf.open_storage(source), f"file://{source}"):
        with pytest.raises(errors.ParameterError, match="in_place"):
            transcode(source, target, "zstd", overwrite=True)


def test_a_file_is_no_target(tmp_path, source):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NotADirectoryError):
        transcode(source, tmp_path / "file", "zstd", overwrite=True)
    assert (tmp_path / "file").read_text() == "precious"


# -- damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [False, True])
def test_damage_in_the_source_is_found_and_nothing_published(tmp_path, source, in_place):
    file = source / data_files(source)[0]
    flip(file)
    target = source if in_place else tmp_path / "target"
    before = (source / ".metadata").read_bytes()
    with pytest.raises(errors.BlockError) as raised:
        transcode(source, None if in_place else target, "zstd", in_place=in_place)
    assert raised.value.file == str(file)
    assert raised.value.item is not None
    assert (source / ".metadata").read_bytes() == before
    assert in_place or not list(target.glob("*"))
    assert data_files(source) == [file.name]


def test_what_torch_never_looks_at_is_looked_at_when_it_is_lost(tmp_path):
    state = {"w": torch.randn(1000, 1000)}
    save(state, tmp_path / "stock", "stock")
    file = tmp_path / "stock" / data_files(tmp_path / "stock")[0]
    flip(file)
    target = {"w": torch.empty(1000, 1000)}
    dcp_load(target, storage_reader=StockReader(tmp_path / "stock"))  # and finds nothing
    with pytest.raises(errors.ChecksumError, match="CRC-32") as raised:
        transcode(tmp_path / "stock", tmp_path / "target", "zstd")
    assert raised.value.item == "w"


def test_a_file_that_was_cut_is_found(tmp_path, source):
    file = source / data_files(source)[0]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(errors.ContainerError):
        transcode(source, tmp_path / "target", "zstd")


def test_half_a_checkpoint_is_none(tmp_path, source):
    (source / ".metadata").unlink()
    with pytest.raises(errors.MetadataError):
        transcode(source, tmp_path / "target", "zstd")
    shutil.rmtree(source)
    with pytest.raises((errors.MetadataError, FileNotFoundError)):
        transcode(source, tmp_path / "target", "zstd")


def test_damage_in_what_torch_compressed_is_found(tmp_path):
    save({"w": torch.randn(500, 500)}, tmp_path / "stock", "stock zstd")
    file = tmp_path / "stock" / data_files(tmp_path / "stock")[0]
    flip(file)  # in what zstd could not make smaller, so that it decodes
    with pytest.raises(errors.ChecksumError, match="CRC-32") as raised:
        transcode(tmp_path / "stock", tmp_path / "target", "zstd")
    assert raised.value.item == "w"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(errors.ContainerError):
        transcode(tmp_path / "stock", tmp_path / "target", "zstd")


@pytest.mark.parametrize("writer", ["stock", "stock zstd"])
def test_a_view_without_elements_may_begin_beyond_the_end(tmp_path, writer):
    state = {"w": torch.empty(0).as_strided((0,), (1,), 10**6), "v": torch.ones(3)}
    save(state, tmp_path / "stock", writer)
    transcode(tmp_path / "stock", tmp_path / "target", "zstd")
    assert_same(loaded(tmp_path / "target"), {"w": torch.empty(0), "v": torch.ones(3)})
