"""DCP checkpoints: what their metadata tells, ranks put together, and tensors that only torch can decode."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp.helpers import KEY, Xor, assert_same, save, small_state
from dcp.shards import Shard, rows, save_shards

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, PrivateKey, SigningKey, ZStandard
from streamxf.errors import MetadataError, PolicyError
from streamxf.formats import dcp_item
from streamxf.formats.contents import Format, Part
from streamxf.formats.opening import contents_of, open_source
from streamxf.formats.source import Box, Source, boxes_of

from .samples import noise

MIB = 2**20


def whole(source: Source, name: str) -> torch.Tensor:
    entry = source.contents.entries[name]
    (found,) = source.read([Box(entry, (0,) * len(entry.shape), entry.shape)])
    return found


# -- contents --------------------------------------------------------------------------------------


def test_what_metadata_tells(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save(small_state(), path, [FloatZip(), Checksum()])
    contents = contents_of(path)
    assert contents.format is Format.STREAMXF
    assert list(contents.entries) == [
        "weight", "half", "nested.list.0", "nested.list.1", "nested.text", "nested.raw", "nested.none", "step",
    ]  # fmt: skip
    half = contents.entries["half"]
    assert (half.dtype, half.shape, half.raw_bytes) == ("bfloat16", (33,), 66)
    (part,) = half.parts
    (file,) = path.glob("*.distcp")
    assert part == Part((0,), (33,), file.name, part.start, part.stored_bytes, ("streamxf.floatzip/1", part.chain[1]))
    assert file.read_bytes()[part.start :].startswith(b"\xd3SXF")
    text = contents.entries["nested.text"]
    assert (text.is_tensor, text.raw_bytes, text.parts[0].offsets) == (False, None, ())
    assert sum(entry.stored_bytes for entry in contents.entries.values()) == file.stat().st_size
    assert contents.packages.keys() >= {"streamxf", "torch"}
    assert len(contents.save_ids) == 1
    assert (contents.key_ids, contents.signers, contents.notes) == ((), (), ())


def test_stock(tmp_path: Path) -> None:
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False))
    contents = contents_of(tmp_path)
    assert contents.format is Format.DCP
    assert (contents.packages, contents.save_ids) == ({}, ())
    assert contents.entries["weight"].parts[0].chain == ()
    assert contents.notes == ("Its metadata names no versions, and nothing shows whether it was damaged or altered.",)


def test_who_can_read_and_who_signed(tmp_path: Path) -> None:
    reader, signer = PrivateKey(bytes(range(64, 96))), SigningKey(bytes(range(115, 147)))
    save(small_state(), tmp_path, [Encrypt([KEY, reader.public], signer=signer)])
    contents = contents_of(tmp_path)
    assert contents.key_ids == (f"{KEY.kind}:{KEY.id}", f"{reader.kind}:{reader.id}")
    assert contents.signers == (signer.id,)
    assert "nobody has vouched" in contents.notes[0]
    assert contents.notes[1:] == ("The signatures were not checked.",)
    assert contents_of(tmp_path, keys=reader, trust=signer.verify_key).entries == contents.entries


def test_keys_of_an_attached_writer(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[ZStandard(), Encrypt(KEY)])
    dcp.save(small_state(), storage_writer=writer)
    contents = contents_of(tmp_path)
    assert contents.key_ids == (f"{KEY.kind}:{KEY.id}",)
    assert contents.format is Format.STREAMXF
    with open_source(tmp_path, keys=KEY, require="encrypted") as source:
        assert_same(whole(source, "weight"), small_state()["weight"])


def test_files_that_are_missing_and_files_beside(tmp_path: Path) -> None:
    save(small_state(), tmp_path, [])
    (file,) = tmp_path.glob("*.distcp")
    file.rename(tmp_path / "__0_0.distcp")
    contents = contents_of(tmp_path)
    assert file.name not in contents.files
    assert contents.notes == (
        f"1 data file that the metadata names, such as {file.name}, is not there.",
        "1 file of other saves, such as __0_0.distcp, lies beside it; `streamxf clean` removes what is left over.",
    )
    with open_source(tmp_path) as source, pytest.raises(MetadataError, match="missing from the checkpoint"):
        whole(source, "weight")


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
        with open_source(path) as source:
            for name in ("ordered.a", "bytes", "pair"):
                wanted = 1 if name == "ordered.a" else state[name]
                assert source.load_object(source.contents.entries[name]) == wanted
            with pytest.raises(PolicyError, match="PosixPath"):
                source.load_object(source.contents.entries["unsafe"])
            assert source.paths["ordered.a"] == ("ordered", "a")


# -- ranks -----------------------------------------------------------------------------------------


def test_shards_of_several_ranks(tmp_path: Path) -> None:
    tensor = noise(torch.float32, 7, 4)
    save_shards(tmp_path, [{"t": rows(tensor, rank, 3)} | ({"step": 5} if not rank else {}) for rank in range(3)])
    contents = contents_of(tmp_path)
    assert [part.offsets for part in contents.entries["t"].parts] == [(0, 0), (3, 0), (6, 0)]
    with open_source(tmp_path) as source:
        assert_same(whole(source, "t"), tensor)
        assert source.load_object(contents.entries["step"]) == 5


def ranks(path: Path, states: list[dict[str, Any]]) -> list[str]:
    return save_shards(path, states, lambda: [ZStandard()], use_collectives=False)


def test_ranks_with_metadata_of_their_own(tmp_path: Path) -> None:
    """Shards of one tensor become one; what ranks have under one name and is not the same stays apart."""
    tensor, own = noise(torch.float32, 7, 4), [noise(torch.int16, 5) for _ in range(3)]
    states = [{"t": rows(tensor, rank, 3), "own": own[rank], "step": rank, f"only.{rank}": rank} for rank in range(3)]
    ids = ranks(tmp_path, states)
    with open_source(tmp_path) as source:
        contents = source.contents
        assert contents == contents_of(tmp_path)
        assert sorted(contents.save_ids) == sorted(ids)
        assert len(contents.entries["t"].parts) == 3
        assert_same(whole(source, "t"), tensor)
        for rank, name in enumerate(("", " (rank 1)", " (rank 2)")):
            assert_same(whole(source, f"own{name}"), own[rank])
            assert source.load_object(contents.entries[f"step{name}"]) == rank
            assert source.load_object(contents.entries[f"only.{rank}"]) == rank
    assert contents.notes == (
        "It was saved without collectives: 3 ranks with metadata of their own.",
        "4 items of a name that lower ranks use, too: the rank stands behind these names.",
    )


def test_copies_of_shards(tmp_path: Path) -> None:
    """As hybrid sharding has them: ranks 0 and 2 one shard, 1 and 3 the other."""
    tensor = noise(torch.float32, 6, 4)
    ranks(tmp_path, [{"t": rows(tensor, rank % 2, 2)} for rank in range(4)])
    with open_source(tmp_path) as source:
        assert list(source.contents.entries) == ["t", "t (rank 2)"]
        for name in ("t", "t (rank 2)"):
            assert_same(whole(source, name), tensor)


def test_ranks_that_disagree_about_a_shape(tmp_path: Path) -> None:
    tensors = [noise(torch.float32, 6, 4), noise(torch.float32, 6, 5)]
    ranks(tmp_path, [{"t": tensor} for tensor in tensors])
    with open_source(tmp_path) as source:
        assert_same([whole(source, name) for name in ("t", "t (rank 1)")], tensors)


def test_a_rank_is_missing(tmp_path: Path) -> None:
    tensor = noise(torch.float32, 6, 4)
    ranks(tmp_path, [{"t": rows(tensor, rank, 3)} for rank in range(3)])
    (tmp_path / "__1.metadata").unlink()
    with open_source(tmp_path) as source:
        entry = source.contents.entries["t"]
        first, last = source.read([Box(entry, (0, 0), (2, 4)), Box(entry, (4, 1), (2, 3))])
        assert_same([first, last], [tensor[:2], tensor[4:, 1:]])
        with pytest.raises(MetadataError, match="no rank that is here") as caught:
            list(source.read([Box(entry, (1, 0), (2, 4))]))
        assert caught.value.item == "t"


def test_a_tensor_cut_both_ways(tmp_path: Path) -> None:
    tensor = noise(torch.int64, 300, 200)
    cuts = {(0, 0): (100, 50), (0, 50): (100, 150), (100, 0): (200, 50), (100, 50): (200, 150)}
    shards = [Shard(tensor[a : a + m, b : b + n].clone(), (a, b), (300, 200)) for (a, b), (m, n) in cuts.items()]
    save_shards(tmp_path, [{"t": shard} for shard in shards], lambda: [ZStandard()])
    with open_source(tmp_path) as source:
        entry = source.contents.entries["t"]
        found = [part.reshape(-1) for part in source.read(boxes_of(entry, 8, 9_000))]
        assert_same(torch.cat(found).reshape(300, 200), tensor)
        (found_part,) = source.read([Box(entry, (90, 40), (30, 20))])
        assert_same(found_part, tensor[90:120, 40:60])


# -- tensors that are decoded whole ----------------------------------------------------------------


class Decoding:
    """Counts what is decoded whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        decode = dcp_item._decoded

        def counting(stream: Any, size: int, stored: int) -> torch.Tensor:
            self.sizes.append(size)
            return decode(stream, size, stored)

        monkeypatch.setattr(dcp_item, "_decoded", counting)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    return Decoding(monkeypatch)


def test_what_only_torch_can_decode_is_decoded_once(tmp_path: Path, decoding: Decoding) -> None:
    conjugate = noise(torch.complex64, 200, 300).conj()
    state = {"a": conjugate, "b": noise(torch.float32, 200, 200)}
    for chain in ([], [ZStandard()]):
        decoding.sizes.clear()
        path = tmp_path / str(len(chain))
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=False, _extensions=chain))
        with open_source(path) as source:
            for name, itemsize in (("a", 8), ("b", 4)):
                entry = source.contents.entries[name]
                found = [part.reshape(-1) for part in source.read(boxes_of(entry, itemsize, 50_000))]
                assert len(found) > 2
                assert_same(torch.cat(found).reshape(entry.shape), state[name])
        assert len(decoding.sizes) == 1


def test_nothing_out_of_proportion_is_decoded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": torch.zeros(2000, 3000, dtype=torch.complex64).conj()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[ZStandard()]))
    with open_source(tmp_path) as source:
        assert_same(whole(source, "a"), state["a"])
    monkeypatch.setattr("streamxf.proportion.FREE", MIB)
    with open_source(tmp_path, max_expansion=100_000) as source:
        assert_same(whole(source, "a"), state["a"])
    with open_source(tmp_path) as source, pytest.raises(PolicyError, match="out of proportion") as caught:
        whole(source, "a")
    assert caught.value.item == "a"


def test_the_usual_is_not(tmp_path: Path, decoding: Decoding) -> None:
    state = {"a": noise(torch.float32, 300, 400), "turned": noise(torch.float32, 300, 400).t()}
    for number, writer in enumerate((streamxf.FileSystemWriter, dcp.FileSystemWriter)):
        for chain in ([], [ZStandard()]):
            path = tmp_path / f"{number}{len(chain)}"
            dcp.save(state, storage_writer=writer(path, sync_files=False, _extensions=chain))
            with open_source(path) as source:
                assert_same({name: whole(source, name) for name in state}, state)
    assert not decoding.sizes


def test_a_foreign_extension(tmp_path: Path) -> None:
    from torch.distributed.checkpoint._extension import ZStandard as TorchsOwn

    pytest.importorskip("pyzstd", reason="torch's own extension needs it") if not TorchsOwn.is_available() else None
    state = {"a": noise(torch.float32, 300, 400)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[TorchsOwn()]))
    with open_source(tmp_path) as source:
        entry = source.contents.entries["a"]
        assert entry.parts[0].chain == ("stream.zstd/1",)
        found = [part.reshape(-1) for part in source.read(boxes_of(entry, 4, 50_000))]
        assert_same(torch.cat(found).reshape(300, 400), state["a"])


def test_an_unknown_extension(tmp_path: Path) -> None:
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(tmp_path, sync_files=False, _extensions=[Xor()]))
    assert contents_of(tmp_path).entries["weight"].parts[0].chain == (Xor().get_descriptor(),)
    with open_source(tmp_path) as source, pytest.raises(streamxf.StreamxfError, match=r"toy\.xor"):
        whole(source, "weight")
