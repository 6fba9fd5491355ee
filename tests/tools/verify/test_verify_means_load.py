"""`verify` and the readers agree: what verifies loads as it was saved, and what does not load is not called whole."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, errors
from streamxf.torchsave.objects import Objects
from tests.altered import flip, without_crcs
from tests.dcp.helpers import KEY, OTHER_KEY, error_of, full_chain, load, rewrite_index, rewrite_pickle, save
from tests.dcp.shards import save_as_ranks
from tests.hostile.targets import Checkpoint
from tests.tools.world import World


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(9)
    return {
        "w": torch.randn(70, 400, generator=generator),
        "turned": torch.randn(8, 5, generator=generator).t(),
        "nothing": torch.zeros(0, 3),
        "scalar": torch.tensor(3.0),
        "parameter": torch.nn.Parameter(torch.ones(4)),
        "o": "a small object",
    }


@pytest.mark.parametrize("chain", ["none", "floatzip", "full"])
def test_metadata_cut_to_what_torch_would_have_written(tmp_path: Path, chain: str) -> None:
    """Each container says that it was published with an index; where there are keys, no checkpoint is without one. With
    neither, nothing is left that torch's own writer would not have written.
    """
    world = World(tmp_path / "run", chain)
    world.metadata.write_bytes(world.metadata.read_bytes()[: world.pickled])
    error = error_of(lambda: load(world.state, world.folder, world.keys))
    report = streamxf.verify(world.folder, keys=world.keys)
    assert report.ok == (error is None) == (chain == "none")
    wanted = {"none": set(), "floatzip": set(world.state), "full": {None}}
    assert {damage.item for damage in report.damaged} == wanted[chain]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("writer", ["own", "attached"])
def test_alterations_whose_crcs_are_right(tmp_path: Path, writer: str, keyed: bool) -> None:
    """By an attacker who can make CRCs, but neither tags nor vouchers."""
    target = Checkpoint(tmp_path / "checkpoint", writer=writer, keyed=keyed)
    require: Any = "bound" if writer == "attached" and keyed else None
    for container in target.containers():
        start, stop = target.places[container.name]
        for position in range(0, stop - start, 5):
            made = bytearray(container.intact)
            made[position] ^= 0x21
            whole = target.data[:start] + container.mended(bytes(made)) + target.data[stop:]
            target.data_file.write_bytes(whole)
            report = streamxf.verify(target.folder, keys=target.keys, require=require)
            loads = error_of(target.load_data) is None
            assert loads or not report.ok, (container.name, position)
            if keyed:
                assert report.ok == (whole == target.data), (container.name, position)
    target.restore()


# -- altered on purpose, under tags that match -----------------------------------------------------


@pytest.mark.parametrize(("chain", "error"), [([Checksum()], "IdentityError"), ([], "MetadataError")])
def test_another_dtype_in_the_index(checkpoint: Path, chain: list[Any], error: str) -> None:
    """The blocks are all intact; what they hold is not what the index says."""
    save({"a": torch.zeros(5000), "b": torch.ones(5)}, checkpoint, chain)
    rewrite_index(checkpoint, lambda index: index["items"]["a"].update(dtype="int32"))
    report = streamxf.verify(checkpoint)
    assert [(damage.item, damage.error) for damage in report.damaged] == [("a", error)]


def test_another_dtype_in_a_pickle(checkpoint: Path) -> None:
    dcp.save({"a": torch.zeros(5000), "b": torch.ones(5)}, storage_writer=WRITERS["stock checksum"](checkpoint))

    def change(metadata: Any) -> None:
        metadata.state_dict_metadata["a"].properties.dtype = torch.int32

    rewrite_pickle(checkpoint, change)
    report = streamxf.verify(checkpoint)
    assert [(damage.item, damage.error) for damage in report.damaged] == [("a", "MetadataError")]


# -- what raises -----------------------------------------------------------------------------------


def test_what_keeps_it_from_looking(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.MetadataError, match="no checkpoint"):
        streamxf.verify(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(errors.NoCheckpointError, match="the file is not a checkpoint"):
        streamxf.verify(file)
    save({"w": torch.zeros(5)}, checkpoint)
    with pytest.raises(errors.KeyMissingError):
        streamxf.verify(checkpoint, keys=OTHER_KEY)
    with pytest.raises(errors.IdentityError):
        streamxf.verify(checkpoint, keys=KEY, expect_save_id="0" * 32)
    with pytest.raises(errors.ParameterError):
        streamxf.verify(checkpoint, keys=KEY, expect_save_id="no id")
    with pytest.raises(errors.ParameterError):
        streamxf.verify(checkpoint, require="published")
    save({"w": torch.zeros(5)}, tmp_path / "open", [Checksum()])
    with pytest.raises(errors.PolicyError, match="not encrypted"):
        streamxf.verify(tmp_path / "open", keys=KEY)


def test_no_key_that_opens_what_torch_wrote(checkpoint: Path) -> None:
    writer = dcp.FileSystemWriter(checkpoint, sync_files=False, _extensions=[Encrypt(KEY)])
    dcp.save({"w": torch.zeros(5)}, storage_writer=writer)
    with pytest.raises(errors.KeyMissingError):
        streamxf.verify(checkpoint, keys=OTHER_KEY, require="encrypted")
    assert streamxf.verify(checkpoint, keys=[OTHER_KEY, KEY], require="encrypted").ok


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("collectives", [True, False])
def test_several_ranks(checkpoint: Path, collectives: bool) -> None:
    save_as_ranks(3, checkpoint, full_chain, use_collectives=collectives)
    for keys in (KEY, None):
        report = streamxf.verify(checkpoint, keys=keys)
        assert report.ok
        assert (report.files, report.items) == (3, 9)
        assert len(report.save_ids) == (1 if collectives else 3)
    file = sorted(checkpoint.glob("*.distcp"))[1]
    flip(file, -1)
    for keys in (KEY, None):
        assert {damage.file for damage in streamxf.verify(checkpoint, keys=keys).damaged} == {file.name}


def test_damaged_metadata_of_one_rank(checkpoint: Path) -> None:
    save_as_ranks(2, checkpoint, lambda: [Checksum()], use_collectives=False)
    (checkpoint / "__1.metadata").write_bytes(b"nothing")
    report = streamxf.verify(checkpoint)
    assert [damage.file for damage in report.damaged] == ["__1.metadata"]
    assert (report.files, report.items) == (2, 6)


# -- other writers ---------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Path], Any]] = {
    "stock": lambda path: dcp.FileSystemWriter(path, sync_files=False),
    "stock zstd": lambda path: dcp.FileSystemWriter(path, sync_files=False, _extensions=[TorchZStandard()]),
    "stock checksum": lambda path: dcp.FileSystemWriter(path, sync_files=False, _extensions=[Checksum()]),
    "attached": lambda path: streamxf.attach(dcp.FileSystemWriter(path, sync_files=False), [FloatZip(), Checksum()]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_checkpoints_of_other_writers(checkpoint: Path, writer: str) -> None:
    values = {name: value for name, value in state().items() if name != "nothing"}
    dcp.save(values, storage_writer=WRITERS[writer](checkpoint))
    report = streamxf.verify(checkpoint)
    assert report.ok, report
    assert any("digest of the metadata" in sentence for sentence in report.unchecked)
    bound = not any("exchanged" in sentence for sentence in report.unchecked)
    assert bound == (writer == "attached")
    (file,) = checkpoint.glob("*.distcp")
    data = file.read_bytes()
    with streamxf.Checkpoint(checkpoint) as found:
        place = found.stored["w"].places[0]
    flip(file, place.at + place.size // 2)
    assert {damage.item for damage in streamxf.verify(checkpoint).damaged} == {"w"}
    for made in (data[:-1], data + b"x", b"", bytes(len(data))):
        file.write_bytes(made)
        assert not streamxf.verify(checkpoint).ok


def test_records_without_crc_are_said_to_be_unchecked(checkpoint: Path) -> None:
    with without_crcs():
        dcp.save({"w": torch.ones(50)}, storage_writer=WRITERS["stock"](checkpoint))
    report = streamxf.verify(checkpoint)
    assert report.ok
    assert any("without any checksum" in sentence for sentence in report.unchecked)


def test_records_of_something_else(tmp_path: Path) -> None:

    for data in (b"", b"PK", bytes(500)):
        with pytest.raises(errors.MetadataError, match="not as torch"):
            Objects.check_records(io.BytesIO(data), len(data))


# -- elsewhere -------------------------------------------------------------------------------------


def test_a_link_that_leads_out(checkpoint: Path, tmp_path: Path) -> None:
    """It is not followed, just as no reader does."""
    save(state(), checkpoint)
    (file,) = checkpoint.glob("*.distcp")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    report = streamxf.verify(checkpoint, keys=KEY)
    assert not report.ok
    assert report.bytes_read == (checkpoint / ".metadata").stat().st_size


@pytest.mark.parametrize("altered", ["number", "chain"])
def test_each_value_of_a_container_is_compared_with_it(tmp_path: Path, altered: str) -> None:
    save(dict(zip("abcd", range(4), strict=True)), tmp_path, [Checksum()])

    def alter(index: Any) -> None:
        index["chains"].append(["streamxf.lz4/1"])
        index["items"]["b"] |= {"number": 6} if altered == "number" else {"chain": 1}

    rewrite_index(tmp_path, alter)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        assert [checkpoint[name].read() for name in "acd"] == [0, 2, 3]  # type: ignore[call-arg]
        with pytest.raises(errors.IdentityError, match=r"swapped|altered"):
            checkpoint["b"].read()
    report = streamxf.verify(tmp_path)
    assert [damage.item for damage in report.damaged] == ["b"]
    assert report.items == 4
    with pytest.raises(errors.MetadataError, match="over another") as caught:
        streamxf.sign(tmp_path, signer=streamxf.SigningKey.generate())
    assert caught.value.item == "b"
