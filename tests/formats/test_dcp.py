"""DCP checkpoints: what their metadata tells, ranks put together, and tensors that only torch can decode."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, PrivateKey, SigningKey, ZStandard
from streamxf.checkpoint.reading import Box
from streamxf.errors import MetadataError, PolicyError, UnsupportedError
from streamxf.format.items import ObjectItem
from streamxf.formats.contents import Format
from streamxf.formats.opening import contents_of
from tests.dcp.helpers import KEY, Xor, assert_same, save, small_state
from tests.dcp.shards import Shard, rows, save_shards

from .samples import contents_at, in_pieces, noise, open_at, read_boxes, tensor_item, whole

UNCHECKED = "The signatures were not checked, since no signer is trusted."

# -- contents --------------------------------------------------------------------------------------


def test_what_metadata_tells(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save(small_state(), path, [FloatZip(), Checksum()])
    contents = contents_at(path)
    assert contents.format is Format.STREAMXF
    assert list(contents.items) == [
        "half", "nested.list.0", "nested.list.1", "nested.none", "nested.raw", "nested.text", "step", "weight",
    ]  # fmt: skip
    half = contents.tensors["half"]
    assert (half.dtype, half.shape, half.size) == ("bfloat16", (33,), 66)
    (chunk,) = half.chunks
    (file,) = path.glob("*.distcp")
    assert (chunk.offset, chunk.shape, chunk.place.file) == ((0,), (33,), file.name)
    assert chunk.place.chain == ("streamxf.floatzip/1", "streamxf.checksum/1")
    assert file.read_bytes()[chunk.place.at :].startswith(b"\xd3SXF")
    assert isinstance(contents.items["nested.text"], ObjectItem)
    containers = {place.container: place.size for item in contents.items.values() for place in item.places}
    assert sum(containers.values()) == file.stat().st_size
    assert contents.packages.keys() >= {"streamxf", "torch"}
    assert len(contents.save_ids) == 1
    assert (contents.key_ids, contents.signers, contents.notes) == ((), (), ())


def test_stock(tmp_path: Path) -> None:
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False))
    contents = contents_at(tmp_path)
    assert contents.format is Format.DCP
    assert (contents.packages, contents.save_ids) == ({}, ())
    assert contents.items["weight"].places[0].chain == ()
    assert contents.notes == ("Its metadata names no versions, and nothing shows whether it was damaged or altered.",)


def test_who_can_read_and_who_signed(tmp_path: Path) -> None:
    reader, signer = PrivateKey(bytes(range(64, 96))), SigningKey(bytes(range(115, 147)))
    save(small_state(), tmp_path, [Encrypt([KEY, reader.public], signer=signer)])
    contents = contents_at(tmp_path)
    assert contents.key_ids == (f"{KEY.kind}:{KEY.id}", f"{reader.kind}:{reader.id}")
    assert contents.signers == (signer.id,)
    assert "not authenticated" in contents.notes[0]
    assert contents.notes[1:] == (UNCHECKED,)
    opened = contents_at(tmp_path, keys=reader, trust=signer.verify_key)
    assert (opened.items, opened.notes) == (contents.items, ())
    for nobody_trusted in ({"keys": KEY}, {"keys": reader, "allow_unsigned": True}):
        assert contents_at(tmp_path, **nobody_trusted).notes == (UNCHECKED,)


def test_signatures_are_checked_without_a_key(tmp_path: Path) -> None:
    signer = SigningKey(bytes(range(115, 147)))
    save(small_state(), tmp_path, [], signer=signer)
    assert contents_at(tmp_path).notes == (UNCHECKED,)
    assert contents_at(tmp_path, trust=signer.verify_key).notes == ()
    with pytest.raises(PolicyError, match="signed"):
        contents_at(tmp_path, trust=SigningKey.generate().verify_key)


def test_keys_of_an_attached_writer(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[ZStandard(), Encrypt(KEY)])
    dcp.save(small_state(), storage_writer=writer)
    contents = contents_at(tmp_path)
    assert contents.key_ids == (f"{KEY.kind}:{KEY.id}",)
    assert contents.format is Format.STREAMXF
    with open_at(tmp_path, keys=KEY, require="encrypted") as reader:
        assert_same(whole(reader, "weight"), small_state()["weight"])


def test_files_that_are_missing_and_files_beside(tmp_path: Path) -> None:
    save(small_state(), tmp_path, [])
    (file,) = tmp_path.glob("*.distcp")
    file.rename(tmp_path / "__0_0.distcp")
    (tmp_path / ".streamxf-commit").touch()  # it belongs to the checkpoint
    contents = contents_at(tmp_path)
    assert file.name not in contents.files
    assert contents.notes == (
        f"Missing: 1 file that the metadata names, such as {file.name}.",
        "Not part of it: 1 file of other saves, such as __0_0.distcp; `streamxf clean` removes leftovers.",
    )
    with open_at(tmp_path) as reader, pytest.raises(MetadataError, match="missing from the checkpoint"):
        whole(reader, "weight")


def test_objects(tmp_path: Path) -> None:
    state = {
        "ordered": OrderedDict(a=1),
        "bytes": b"\0",
        "pair": (1, 2),
        "unsafe": Path("a"),
        "tensor": noise(torch.int8, 3),
    }
    for chain in ([], [ZStandard()]):
        path = tmp_path / str(len(chain))
        with pytest.warns(UserWarning, match="PosixPath"):
            save(state, path, chain)
        with open_at(path) as reader:
            for name in ("ordered.a", "bytes", "pair"):
                wanted = 1 if name == "ordered.a" else state[name]
                assert reader.load_object(name) == wanted
            with pytest.raises(PolicyError, match="PosixPath"):
                reader.load_object("unsafe")
            assert reader.stored["ordered.a"].path == ("ordered", "a")


# -- ranks -----------------------------------------------------------------------------------------


def test_shards_of_several_ranks(tmp_path: Path) -> None:
    tensor = noise(torch.float32, 7, 4)
    save_shards(tmp_path, [{"t": rows(tensor, rank, 3)} | ({"step": 5} if not rank else {}) for rank in range(3)])
    contents = contents_at(tmp_path)
    assert [chunk.offset for chunk in contents.tensors["t"].chunks] == [(0, 0), (3, 0), (6, 0)]
    with open_at(tmp_path) as reader:
        assert_same(whole(reader, "t"), tensor)
        assert reader.load_object("step") == 5


def ranks(path: Path, states: list[dict[str, Any]]) -> list[str]:
    return save_shards(path, states, lambda: [ZStandard()], use_collectives=False)


def test_ranks_with_metadata_of_their_own(tmp_path: Path) -> None:
    """Shards of one tensor become one; what ranks have under one name and is not the same stays apart."""
    tensor, own = noise(torch.float32, 7, 4), [noise(torch.int16, 5) for _ in range(3)]
    states = [{"t": rows(tensor, rank, 3), "own": own[rank], "step": rank, f"only.{rank}": rank} for rank in range(3)]
    ids = ranks(tmp_path, states)
    with open_at(tmp_path) as reader:
        contents = contents_of(reader)
        assert contents == contents_at(tmp_path)
        assert sorted(contents.save_ids) == sorted(ids)
        assert len(contents.items["t"].places) == 3
        assert_same(whole(reader, "t"), tensor)
        for rank, name in enumerate(("", " (rank 1)", " (rank 2)")):
            assert_same(whole(reader, f"own{name}"), own[rank])
            assert reader.load_object(f"step{name}") == rank
            assert reader.load_object(f"only.{rank}") == rank
    assert contents.notes == (
        "It was saved without collectives: 3 ranks, each with its own metadata.",
        "4 items of a name that lower ranks use, too: the rank is appended to these names.",
    )


def test_copies_of_shards(tmp_path: Path) -> None:
    """As hybrid sharding has them: ranks 0 and 2 one shard, 1 and 3 the other."""
    tensor = noise(torch.float32, 6, 4)
    ranks(tmp_path, [{"t": rows(tensor, rank % 2, 2)} for rank in range(4)])
    with open_at(tmp_path) as reader:
        assert list(reader.stored) == ["t", "t (rank 2)"]
        for name in ("t", "t (rank 2)"):
            assert_same(whole(reader, name), tensor)


def test_ranks_that_disagree_about_a_shape(tmp_path: Path) -> None:
    tensors = [noise(torch.float32, 6, 4), noise(torch.float32, 6, 5)]
    ranks(tmp_path, [{"t": tensor} for tensor in tensors])
    with open_at(tmp_path) as reader:
        assert_same([whole(reader, name) for name in ("t", "t (rank 1)")], tensors)


def test_a_rank_is_missing(tmp_path: Path) -> None:
    tensor = noise(torch.float32, 6, 4)
    ranks(tmp_path, [{"t": rows(tensor, rank, 3)} for rank in range(3)])
    (tmp_path / "__1.metadata").unlink()
    with open_at(tmp_path) as reader:
        item = tensor_item(reader, "t")
        first, last = read_boxes(reader, [Box(item, (0, 0), (2, 4)), Box(item, (4, 1), (2, 3))])
        assert_same([first, last], [tensor[:2], tensor[4:, 1:]])
        with pytest.raises(MetadataError, match="not stored here") as caught:
            list(reader.read_boxes([Box(item, (1, 0), (2, 4))]))
        assert caught.value.item == "t"


def test_a_tensor_cut_both_ways(tmp_path: Path) -> None:
    tensor = noise(torch.int64, 300, 200)
    cuts = {(0, 0): (100, 50), (0, 50): (100, 150), (100, 0): (200, 50), (100, 50): (200, 150)}
    shards = [Shard(tensor[a : a + m, b : b + n].clone(), (a, b), (300, 200)) for (a, b), (m, n) in cuts.items()]
    save_shards(tmp_path, [{"t": shard} for shard in shards], lambda: [ZStandard()])
    with open_at(tmp_path) as reader:
        assert_same(in_pieces(reader, "t", 9_000), tensor)
        (found_part,) = read_boxes(reader, [Box(tensor_item(reader, "t"), (90, 40), (30, 20))])
        assert_same(found_part, tensor[90:120, 40:60])


# -- framed tensors --------------------------------------------------------------------------------


def test_what_only_torch_can_make_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    state = {"a": noise(torch.complex64, 200, 300).conj(), "b": noise(torch.float32, 200, 200)}
    for number, writer in enumerate((streamxf.FileSystemWriter, dcp.FileSystemWriter)):
        path = tmp_path / str(number)
        dcp.save(state, storage_writer=writer(path, sync_files=False, _extensions=[ZStandard()]))
        with open_at(path) as reader:
            assert_same(in_pieces(reader, "b", 50_000), state["b"])
            if not number:  # streamxf's writer stores a conjugate's elements
                assert_same(whole(reader, "a"), state["a"].resolve_conj())
                continue
            with pytest.raises(UnsupportedError, match="only torch and its class can make it") as caught:
                whole(reader, "a")
            assert caught.value.item == "a"


def test_other_orders_are_read_in_pieces(tmp_path: Path) -> None:
    state = {"a": noise(torch.float32, 300, 400), "turned": noise(torch.float32, 300, 400).t()}
    for number, writer in enumerate((streamxf.FileSystemWriter, dcp.FileSystemWriter)):
        for chain in ([], [ZStandard()]):
            path = tmp_path / f"{number}{len(chain)}"
            dcp.save(state, storage_writer=writer(path, sync_files=False, _extensions=chain))
            with open_at(path) as reader:
                assert_same({name: in_pieces(reader, name, 10_000) for name in state}, state)


def test_a_foreign_extension(tmp_path: Path) -> None:
    from torch.distributed.checkpoint._extension import ZStandard as TorchsOwn

    pytest.importorskip("pyzstd", reason="torch's own extension needs it") if not TorchsOwn.is_available() else None
    state = {"a": noise(torch.float32, 300, 400)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[TorchsOwn()]))
    with open_at(tmp_path) as reader:
        assert reader.stored["a"].places[0].chain == ("stream.zstd/1",)
        assert_same(in_pieces(reader, "a", 50_000), state["a"])


def test_an_unknown_extension(tmp_path: Path) -> None:
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[Xor()]))
    assert contents_at(tmp_path).items["weight"].places[0].chain == (Xor().get_descriptor(),)
    with open_at(tmp_path) as reader, pytest.raises(streamxf.StreamxfError, match=r"toy\.xor"):
        whole(reader, "weight")
