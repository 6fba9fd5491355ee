"""Raw tensors: bare, aligned, with a CRC for each MiB, and mapped into memory."""

import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, ZStandard, errors
from streamxf.chain import Chain
from streamxf.format.bare import CRC_BYTES, MAX_BARE, PIECE, PieceCrcs, pieces_of, raw_descriptor
from streamxf.format.index import File, Index
from streamxf.format.items import ITEMSIZES, Chunk, Place, TensorItem
from tests import reference_decoder
from tests.altered import flip
from tests.dcp import helpers
from tests.dcp.shards import rows, save_as_ranks, save_shards
from tests.reference_codecs import Refused
from tests.reference_keys import Reader

BIG = 3 * PIECE + 100  # elements of one byte, in four pieces


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        "weight": torch.randn(7, 5, generator=generator),
        "big": torch.randint(0, 255, (BIG,), dtype=torch.uint8, generator=generator),
        "rows": torch.randn(1024, 512, generator=generator),
        "half": torch.randn(33, generator=generator).to(torch.bfloat16),
        "turned": torch.arange(12).reshape(3, 4).t(),
        "steps": torch.arange(20)[::3],
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
        "nested": {"list": [torch.arange(6), 3], "text": "ünïcode"},
        "step": 17,
    }


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw"
    helpers.save(state(), path, "raw")  # type: ignore[arg-type]
    return path


def test_a_load_and_slices_give_what_was_saved(raw: Path) -> None:
    helpers.assert_same(helpers.load(state(), raw, None), state())
    with streamxf.Checkpoint(raw) as checkpoint:
        helpers.assert_same(checkpoint["rows"][100:900:7, 3], state()["rows"][100:900:7, 3])
        helpers.assert_same(checkpoint["big"][PIECE - 5 : PIECE + 5], state()["big"][PIECE - 5 : PIECE + 5])
        assert checkpoint["step"].read() == 17


def test_tensors_are_bare_and_aligned(raw: Path) -> None:
    [file] = helpers.data_files(raw)
    data = file.read_bytes()
    for name, item in helpers.index_of(raw).items.items():
        [place] = item.places
        assert place.crcs is not None
        assert len(place.crcs) == CRC_BYTES * pieces_of(place.size)
        if not isinstance(item, TensorItem) or not place.size:
            continue
        wanted = {**state(), "nested.list.0": state()["nested"]["list"][0]}[name]
        assert data[place.at : place.at + place.size] == bytes(helpers.raw_bytes(wanted).numpy())
        assert place.at % (4096 if place.size >= PIECE else 64) == 0


@pytest.mark.parametrize("dtype", sorted(ITEMSIZES))
def test_every_dtype(tmp_path: Path, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    elements = torch.arange(64, dtype=torch.uint8) % 2
    tensor = elements.view(getattr(torch, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about complex32
        helpers.save({"t": tensor}, tmp_path, "raw")  # type: ignore[arg-type]
        with streamxf.Checkpoint(tmp_path) as checkpoint:
            helpers.assert_same(checkpoint["t"].mmap(), tensor)
            helpers.assert_same(checkpoint["t"].read(), tensor)


def test_framed_tensors_and_objects_are_as_torch_saves_them(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about quantized tensors
        quantized = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, torch.qint8)
        helpers.save({"q": quantized, "o": {1, 2}}, tmp_path, "raw")  # type: ignore[arg-type]
    [file] = helpers.data_files(tmp_path)
    for item in helpers.index_of(tmp_path).items.values():
        place = item.places[0]
        assert file.read_bytes()[place.at : place.at + 4] == b"PK\x03\x04"
    told = pickle.loads((tmp_path / ".metadata").read_bytes()).storage_data.values()
    assert [info.transform_descriptors for info in told] == [None, None]
    assert streamxf.verify(tmp_path).ok
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        assert checkpoint["o"].read() == {1, 2}
        with pytest.raises(errors.UnsupportedError):
            checkpoint["q"].mmap()  # type: ignore[union-attr]


# -- maps ------------------------------------------------------------------------------------------


def test_numpy_gets_a_read_only_memmap(raw: Path) -> None:
    with streamxf.Checkpoint(raw, framework="numpy") as checkpoint:
        found: Any = checkpoint["rows"].mmap()
        assert type(found) is np.memmap
        assert found.dtype == np.float32
        none: Any = checkpoint["none"].mmap()
        scalar: Any = checkpoint["scalar"].mmap()
    assert not found.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1
    assert np.array_equal(found, state()["rows"].numpy())  # after the checkpoint was closed, too
    assert none.shape == (0, 3)
    assert not none.flags.writeable
    assert scalar.shape == ()
    assert float(scalar) == 2.5


def test_a_torch_tensor_is_a_private_map(raw: Path) -> None:
    [file] = helpers.data_files(raw)
    before = file.read_bytes()
    with streamxf.Checkpoint(raw) as checkpoint:
        for name in ("rows", "half", "scalar", "none", "turned"):
            found: Any = checkpoint[name].mmap()
            helpers.assert_same(found, state()[name])
            found.zero_()
            assert not found.any()
        helpers.assert_same(checkpoint["rows"].mmap(), state()["rows"])  # another map has its own memory
        helpers.assert_same(checkpoint["rows"].read(), state()["rows"])
    assert file.read_bytes() == before


def test_shards_are_mapped_one_by_one(tmp_path: Path) -> None:
    whole = torch.arange(40.0).reshape(10, 4)
    save_shards(tmp_path, [{"w": rows(whole, rank, 3)} for rank in range(3)], lambda: "raw")  # type: ignore[arg-type, return-value]
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        handle: Any = checkpoint["w"]
        with pytest.raises(errors.UnsupportedError, match=r"3 chunks.*\.chunks\[0\]\.mmap"):
            handle.mmap()
        helpers.assert_same(torch.cat([chunk.mmap() for chunk in handle.chunks]), whole)
        assert [chunk.offset for chunk in handle.chunks] == [(0, 0), (4, 0), (8, 0)]
        assert pickle.loads(pickle.dumps(handle.chunks)) == checkpoint.stored["w"].chunks  # type: ignore[union-attr]
        helpers.assert_same(handle[3:9, 1], whole[3:9, 1])


def test_what_cannot_be_mapped_says_why(tmp_path: Path) -> None:
    for name, chain, words in (("zip", [ZStandard()], "zstd"), ("stock", [], "torch.save's frame")):
        helpers.save({"t": torch.ones(3)}, tmp_path / name, chain)  # type: ignore[arg-type]
        with (
            streamxf.Checkpoint(tmp_path / name) as checkpoint,
            pytest.raises(errors.UnsupportedError, match=words) as caught,
        ):
            checkpoint["t"].mmap()  # type: ignore[union-attr]
        assert "raw" in str(caught.value)


def test_remote_files_are_not_mapped() -> None:
    pytest.importorskip("fsspec")
    url = "memory://raw-remote"
    with streamxf.CheckpointWriter(url, "raw", overwrite=True) as writer:
        writer["t"] = torch.ones(3)
    with streamxf.Checkpoint(url) as checkpoint:
        helpers.assert_same(checkpoint["t"].read(), torch.ones(3))
        with pytest.raises(errors.UnsupportedError, match="local"):
            checkpoint["t"].mmap()  # type: ignore[union-attr]


def test_elements_between_their_places_are_not_mapped(raw: Path) -> None:
    """Writers align them; a processor may end a process that uses others as if they were."""

    def shift(index: Any) -> None:
        index["items"]["half"]["chunks"][0]["at"] += 1

    helpers.rewrite_index(raw, shift)
    for framework in ("torch", "numpy"):
        with (
            streamxf.Checkpoint(raw, framework=framework) as checkpoint,
            helpers.refused(errors.UnsupportedError, "half", "aligned"),
        ):
            checkpoint["half"].mmap()  # type: ignore[union-attr]


def test_a_file_that_was_cut_is_not_mapped(raw: Path) -> None:
    [file] = helpers.data_files(raw)
    file.write_bytes(file.read_bytes()[:-1])
    with streamxf.Checkpoint(raw) as checkpoint, pytest.raises(errors.ContainerError, match="truncated"):
        checkpoint["weight"].mmap()  # type: ignore[union-attr]


def test_a_file_that_is_cut_while_it_is_mapped(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [file] = helpers.data_files(raw)
    memmap = np.memmap

    def cut_before(*arguments: Any) -> Any:
        os.truncate(file, 100)
        return memmap(*arguments)

    monkeypatch.setattr(np, "memmap", cut_before)
    with streamxf.Checkpoint(raw) as checkpoint, pytest.raises(errors.ContainerError, match="truncated just now"):
        checkpoint["weight"].mmap()  # type: ignore[union-attr]


def test_keys_refuse_what_is_not_encrypted(raw: Path) -> None:
    with helpers.refused(errors.PolicyError, "not encrypted"):
        helpers.load(state(), raw, helpers.KEY)
    with pytest.raises(errors.PolicyError):
        streamxf.Checkpoint(raw, keys=helpers.KEY)


# -- damage ----------------------------------------------------------------------------------------


def flip_in(path: Path, name: str, at: int) -> None:
    flip(*helpers.data_files(path), helpers.index_of(path).items[name].places[0].at + at)


def test_a_flipped_bit_shows_wherever_its_mib_is_read(raw: Path) -> None:
    flip_in(raw, "big", 2 * PIECE + 9)
    with helpers.refused(errors.BlockError, "CRC", "block 2", "big"):
        helpers.load(state(), raw, None)
    with streamxf.Checkpoint(raw) as checkpoint:
        with pytest.raises(errors.BlockError, match="CRC"):
            checkpoint["big"][2 * PIECE + 5 : 2 * PIECE + 7]
        helpers.assert_same(checkpoint["big"][: 2 * PIECE], state()["big"][: 2 * PIECE])
        helpers.assert_same(checkpoint["big"][3 * PIECE :], state()["big"][3 * PIECE :])
        mapped: Any = checkpoint["big"].mmap()
    assert int((mapped != state()["big"]).sum()) == 1
    report = streamxf.verify(raw)
    assert [(damage.item, damage.block) for damage in report.damaged] == [("big", 2)]


@pytest.mark.parametrize("name", ["step", "nested.text", "weight", "scalar"])
def test_objects_and_small_tensors_have_crcs_too(raw: Path, name: str) -> None:
    flip_in(raw, name, 0)
    with helpers.refused(errors.BlockError, "CRC", name):
        helpers.load(state(), raw, None)
    assert {damage.item for damage in streamxf.verify(raw).damaged} == {name}


def test_an_empty_chain_is_compared_as_well(tmp_path: Path) -> None:
    helpers.save(state(), tmp_path, [])
    helpers.assert_same(helpers.load(state(), tmp_path, None), state())
    flip_in(tmp_path, "weight", 700)
    with helpers.refused(errors.BlockError, "CRC", "weight"):
        helpers.load(state(), tmp_path, None)


def test_swapped_raw_tensors_show(tmp_path: Path) -> None:
    """They have no headers; their CRCs differ unless they are the same."""
    helpers.save({"a": torch.zeros(16), "b": torch.ones(16)}, tmp_path, "raw")  # type: ignore[arg-type]
    places = [item.places[0] for item in helpers.index_of(tmp_path).items.values()]
    [file] = helpers.data_files(tmp_path)
    data = bytearray(file.read_bytes())
    first, second = (data[place.at : place.at + place.size] for place in places)
    for place, content in zip(places, (second, first), strict=True):
        data[place.at : place.at + place.size] = content
    file.write_bytes(data)
    with helpers.refused(errors.BlockError, "CRC"):
        helpers.load({"a": torch.zeros(16), "b": torch.zeros(16)}, tmp_path, None)


def test_salvage_saves_the_rest(raw: Path, tmp_path: Path) -> None:
    flip_in(raw, "weight", 4)
    found = streamxf.load_intact(raw)
    assert [damage.item for damage in found.damaged] == ["weight"]
    helpers.assert_same(found.state_dict["rows"], state()["rows"])
    done = streamxf.salvage(raw, tmp_path / "saved")
    assert done
    assert "rows" in streamxf.Checkpoint(tmp_path / "saved")


@pytest.mark.parametrize("rest", [{}, {"step": 1}])
def test_without_metadata_nobody_knows_what_it_holds(tmp_path: Path, rest: dict[str, Any]) -> None:
    helpers.save({"w": torch.ones(20), **rest}, tmp_path, "raw")  # type: ignore[arg-type]
    (tmp_path / ".metadata").unlink()
    with pytest.raises(errors.MetadataError, match=r"raw, do not say what they are"):
        streamxf.load_intact(tmp_path, without_metadata=True)


LONG: dict[str, Callable[[str], str]] = {
    "right": lambda text: text,
    "second": lambda text: text[:8] + "00000000" + text[16:],
    "exchanged": lambda text: text[8:16] + text[:8] + text[16:],
    "too few": lambda text: text[:8],
    "too many": lambda text: text + text[:8],
    "none": lambda text: "",
}


@pytest.mark.parametrize("change", LONG)
def test_the_reference_decoder_agrees_on_several_mib(tmp_path: Path, change: str) -> None:
    """Which are too long for tests/vectors."""
    tensor = state()["big"]
    helpers.save({"big": tensor}, tmp_path, "raw")  # type: ignore[arg-type]

    def alter(index: Any) -> None:
        [chunk] = index["items"]["big"]["chunks"]
        chunk["crc32c"] = LONG[change](chunk["crc32c"])

    helpers.rewrite_index(tmp_path, alter)
    if change == "right":
        assert reference_decoder.load(tmp_path, Reader())["big"].data == bytes(tensor.numpy())  # type: ignore[union-attr]
        helpers.assert_same(helpers.load({"big": tensor}, tmp_path, None)["big"], tensor)
        return
    with pytest.raises(Refused, match=r"B2|M16"):
        reference_decoder.load(tmp_path, Reader())
    with helpers.refused(errors.BlockError if change in ("second", "exchanged") else errors.MetadataError):
        helpers.load({"big": tensor}, tmp_path, None)


# -- other readers and tools -------------------------------------------------------------------------


def test_stock_torch_loads_it_with_our_registry(raw: Path) -> None:
    reader = dcp.FileSystemReader(raw, _extension_registry=streamxf.Registry())
    helpers.assert_same(helpers.load_with(state(), reader), state())
    with helpers.refused(Exception, "streamxf.raw"):
        helpers.load_with(state(), dcp.FileSystemReader(raw))


def test_installed_readers_load_it(raw: Path, tmp_path: Path) -> None:
    with streamxf.install("raw"):
        dcp.save(state(), checkpoint_id=tmp_path / "installed")
        target = helpers.blank(state())
        dcp.load(target, checkpoint_id=tmp_path / "installed")
    helpers.assert_same(target, state())
    item = helpers.index_of(tmp_path / "installed").items["weight"]
    assert isinstance(item, TensorItem)
    assert item.chunks[0].raw


def test_attached_readers_load_it(raw: Path) -> None:
    helpers.assert_same(helpers.load_with(state(), streamxf.attach(dcp.FileSystemReader(raw))), state())
    with helpers.refused(errors.PolicyError, "not encrypted"):
        helpers.load_with({"weight": state()["weight"]}, streamxf.attach(dcp.FileSystemReader(raw), keys=helpers.KEY))


def test_the_pickle_says_what_stock_readers_are_not_given(raw: Path) -> None:
    content = pickle.loads((raw / ".metadata").read_bytes())
    found = {key.fqn: info.transform_descriptors for key, info in content.storage_data.items()}
    assert found["weight"] == ["streamxf.raw/1?dtype=float32&shape=7.5"]
    assert found["scalar"] == ["streamxf.raw/1?dtype=float32"]
    assert found["none"] == ["streamxf.raw/1?dtype=float32&shape=0.3"]
    assert found["step"] == ["streamxf.value/1"]


@pytest.mark.parametrize(
    "text",
    [
        *("streamxf.raw/1", "streamxf.raw/1?dtype=nothing", "streamxf.raw/1?dtype=float32&shape="),
        *("streamxf.raw/1?dtype=float32&shape=3.", "streamxf.raw/2?dtype=float32&shape=3"),
        *("streamxf.raw/1?dtype=float32&shape=3#level=1", "streamxf.raw/1?dtype=float32&shape=3.x"),
        *("streamxf.raw/1?dtype=float32&other=1", f"streamxf.raw/1?dtype=float32&shape={'.'.join('1' * 65)}"),
    ],
)
def test_other_descriptors_are_refused(text: str) -> None:
    with pytest.raises(errors.DescriptorError):
        streamxf.Registry().from_descriptor_list([text])


def test_stock_torch_notices_other_sizes(raw: Path) -> None:
    import io

    [extension] = streamxf.Registry().from_descriptor_list([raw_descriptor("float32", (3,))])
    with pytest.raises(errors.IdentityError, match="other bytes"):
        extension.transform_from(io.BytesIO(bytes(11)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("chain", ["", "zstd", "floatzip+checksum"])
def test_transcode_to_raw_and_from_it(raw: Path, tmp_path: Path, chain: str) -> None:
    streamxf.transcode(raw, tmp_path / "other", chain)
    helpers.assert_same(helpers.load(state(), tmp_path / "other", None), state())
    streamxf.transcode(tmp_path / "other", tmp_path / "back", "raw", file_size=2**20)
    helpers.assert_same(helpers.load(state(), tmp_path / "back", None), state())
    assert streamxf.verify(tmp_path / "back").ok
    assert streamxf.diff(raw, tmp_path / "back").same
    with streamxf.Checkpoint(tmp_path / "back") as checkpoint:
        helpers.assert_same(checkpoint["rows"].mmap(), state()["rows"])


def test_damage_does_not_go_into_a_copy(raw: Path, tmp_path: Path) -> None:
    flip_in(raw, "big", PIECE + 1)
    with pytest.raises(errors.BlockError, match="CRC"):
        streamxf.transcode(raw, tmp_path / "copy", "zstd")
    with pytest.raises(errors.BlockError, match="CRC"):
        streamxf.transcode(raw, tmp_path / "copy", "zstd", block_size=1 << 16)


def test_pack_and_inspect(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(6.0)}, tmp_path / "model.pt")
    streamxf.pack(tmp_path / "model.pt", tmp_path / "packed", "raw")
    with streamxf.Checkpoint(tmp_path / "packed") as checkpoint:
        helpers.assert_same(checkpoint["w"].mmap(), torch.arange(6.0))
    chains = streamxf.inspect(tmp_path / "packed").as_dict()["by_chain"]
    assert "raw" in {each["chain"] for each in chains}


def test_each_rank_writes_and_maps(tmp_path: Path) -> None:
    wanted = save_as_ranks(2, tmp_path, lambda: "raw")  # type: ignore[arg-type, return-value]
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        for name, tensor in wanted.items():
            helpers.assert_same(checkpoint[name].mmap(), tensor)


def test_a_writer_without_dcp(tmp_path: Path) -> None:
    with streamxf.CheckpointWriter(tmp_path, "raw") as writer:
        writer["a"] = np.arange(5, dtype=np.float64)[::-1]
        writer["b"] = [1, 2]
        writer.add("c", iter([b"ab", b"cdefgh"]), dtype="float32", shape=[2])
    with streamxf.Checkpoint(tmp_path, framework="numpy") as checkpoint:
        assert checkpoint["a"].mmap().tolist() == [4, 3, 2, 1, 0]
        assert bytes(checkpoint["c"].mmap().data) == b"abcdefgh"
        assert checkpoint["b"].read() == [1, 2]


# -- the chain ---------------------------------------------------------------------------------------


def test_raw_is_a_chain_of_its_own() -> None:
    chain = Chain.parse(" raw ")
    assert chain.raw
    assert not len(chain)
    assert str(chain) == "raw"
    assert chain.renew().raw
    assert not Chain.parse("").raw
    for text in ("raw+zstd", "zstd+raw"):
        with pytest.raises(errors.ChainError, match="own"):
            Chain.parse(text)
    with pytest.raises(errors.ChainError, match="own"):
        Chain([Checksum()], raw=True)
    with pytest.raises(errors.ChainError, match="own"):
        streamxf.CheckpointWriter("nowhere", "raw+encrypt", recipients=helpers.KEY)
    with pytest.raises(errors.ParameterError):
        streamxf.CheckpointWriter("nowhere", "raw", recipients=helpers.KEY)


def test_what_has_no_tensors_is_not_raw(tmp_path: Path) -> None:
    with pytest.raises(errors.ChainError, match="raw"):
        streamxf.encode(b"data", "raw")
    with pytest.raises(errors.ChainError, match="raw"), streamxf.open(tmp_path / "file", "wb", chain="raw") as file:
        file.write(b"data")
    with pytest.raises(errors.UnsupportedError, match="raw"):
        streamxf.attach(dcp.FileSystemWriter(tmp_path), Chain.parse("raw"))


@pytest.mark.parametrize("sizes", [[], [1], [PIECE], [PIECE, 1], [5, PIECE - 5, 3], [3 * PIECE + 7], [7] * 20])
def test_crcs_do_not_depend_on_how_the_bytes_come(sizes: list[int]) -> None:
    import crc32c

    data = bytes(np.random.default_rng(1).integers(0, 255, sum(sizes), np.uint8))
    crcs, at = PieceCrcs(), 0
    for size in sizes:
        crcs.add(memoryview(data)[at : at + size])
        at += size
    wanted = [crc32c.crc32c(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
    assert crcs.finish() == b"".join(crc.to_bytes(4, "little") for crc in wanted)


HUGE = 2**40  # bytes of one shard, whose CRCs take all of a part of an index


def test_what_the_index_cannot_hold_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """By its plan, or when it comes: no part of an index has room for so many CRCs."""
    allowed = f"{MAX_BARE:,} can be stored raw; nothing of it was written"
    for planned in (True, False):
        path = tmp_path / str(planned)
        with helpers.refused(errors.MetadataError, "a shard has 1,099,511,627,776 bytes", allowed):
            if planned:
                state = {"small": torch.ones(3), "huge": torch.zeros(1, dtype=torch.uint8).expand(HUGE)}
                dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain="raw"))
            else:
                with streamxf.CheckpointWriter(path, chain="raw") as writer:
                    writer["huge"] = np.broadcast_to(np.zeros(1, np.uint8), HUGE)
        assert not path.exists() or not any(map(Path.is_file, path.iterdir()))


def test_the_largest_shard_has_room_in_a_part() -> None:
    files, crcs = {"a": File(2 * MAX_BARE, bytes(16))}, bytes(CRC_BYTES * pieces_of(MAX_BARE))
    chunk = Chunk((0,), (MAX_BARE,), Place("a", 0, MAX_BARE, (), crcs=crcs), False)
    item = TensorItem("n" * 4096, "uint8", (MAX_BARE,), (chunk,), ("path" * 1000,))
    root, parts = Index("0" * 32, None, (), ((),), files, {item.name: item}).pack()
    found = Index.parse(memoryview(root), lambda at, size: parts[at : at + size], len(parts))
    assert found.items[item.name] == item
