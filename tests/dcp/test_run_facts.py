"""What a writer is told of the run goes into the metadata of all ranks, is vouched for, and stays there."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import streamxf
from streamxf import Encrypt, FloatZip, PrivateKey, SigningKey
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import Metadata, read_metadata
from streamxf.checkpoint.notes import Note
from streamxf.errors import AuthenticationError, DescriptorError, KeyMissingError, MetadataError
from streamxf.format.run import RunFacts
from streamxf.storage.opening import open_storage
from streamxf.tools.convert.pack import pack, transcode
from streamxf.tools.convert.unpack import unpack
from streamxf.tools.inspect.inspect import inspect
from streamxf.tools.salvage.salvage import salvage
from tests.forge import split_metadata

from .helpers import KEY, OTHER_KEY, assert_same, error_of, index_of, load, rewritten, save, sections_of

STATE = {"weight": torch.arange(6.0), "step": 7}
FACTS = RunFacts("0f" * 16, "step-7", 7, 1_700_000_000.123, {"last": 3, "steps": [1, 2]}, {"loss": 0.25})
SIGNER, STRANGER, PRIVATE = SigningKey.generate(), SigningKey.generate(), PrivateKey.generate()


def saved(path: Path, chain: list[Any] | None = None, **options: Any) -> Path:
    writer = streamxf.FileSystemWriter(path, chain=[FloatZip()] if chain is None else chain)
    writer.run_facts = FACTS
    dcp.save(STATE, storage_writer=writer, **options)
    return path


def metadata_of(path: Path, access: Access | None = None) -> Metadata:
    return read_metadata(open_storage(path), ".metadata", access or Access(), listing=True)


# -- saves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "keys"), [([], None), ([FloatZip()], None), ([Encrypt(KEY)], KEY)], ids=["bare", "floatzip", "encrypted"]
)
def test_a_save_says_what_run_it_belongs_to(tmp_path: Path, chain: list[Any], keys: Any) -> None:
    saved(tmp_path, chain)
    assert index_of(tmp_path).run == FACTS
    assert_same(load({"weight": torch.zeros(6), "step": 0}, tmp_path, keys), STATE)


def test_a_usual_save_belongs_to_none(tmp_path: Path) -> None:
    save(STATE, tmp_path)
    assert index_of(tmp_path).run is None


def test_a_copy_of_the_writer_in_another_process_says_it_too(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    writer.run_facts = FACTS
    dcp.save(STATE, storage_writer=pickle.loads(pickle.dumps(writer)))
    assert index_of(tmp_path).run == FACTS


def test_a_listing_without_keys_refuses_a_wrapped_key_of_no_form(tmp_path: Path) -> None:
    saved(tmp_path, [Encrypt(KEY)])
    sections = sections_of(tmp_path)[1]
    (tmp_path / ".metadata").write_bytes(rewritten(sections, keys=bytes(sections.keys).replace(b"&w=", b"&v=", 1)))
    with pytest.raises(DescriptorError, match="wrapped data key"):
        metadata_of(tmp_path)


def test_metadata_of_a_rank_does_not_say_it(tmp_path: Path) -> None:
    saved(tmp_path, use_collectives=False)
    assert index_of(tmp_path, "__0.metadata").run is None


def test_facts_that_readers_would_refuse_are_not_published(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    writer.run_facts = RunFacts("0f" * 16, "a/b", 7, 0)
    error = error_of(lambda: dcp.save(STATE, storage_writer=writer))
    assert isinstance(error, MetadataError)
    assert not (tmp_path / ".metadata").exists()


# -- who vouches -------------------------------------------------------------------------------------------------------


def test_a_signature_is_checked_without_a_key_that_opens(tmp_path: Path) -> None:
    saved(tmp_path, [Encrypt(PRIVATE.public, signer=SIGNER)])
    found = metadata_of(tmp_path)
    assert found.signed_by([STRANGER.verify_key, SIGNER.verify_key])
    assert not found.signed_by([STRANGER.verify_key])
    assert not found.signed_by([])


@pytest.mark.parametrize("chain", [[FloatZip()], [Encrypt(KEY)]], ids=["floatzip", "encrypted"])
def test_without_a_signature_no_one_signed(tmp_path: Path, chain: list[Any]) -> None:
    assert not metadata_of(saved(tmp_path, chain)).signed_by([SIGNER.verify_key])


def test_an_altered_run_is_not_signed(tmp_path: Path) -> None:
    saved(tmp_path, [Encrypt(PRIVATE.public, signer=SIGNER)])
    parts = split_metadata((tmp_path / ".metadata").read_bytes())
    assert isinstance(parts.index, dict)
    parts.index["run"]["metrics"]["loss"] = "0" * 16
    (tmp_path / ".metadata").write_bytes(parts.change(index=parts.index).pack())
    found = metadata_of(tmp_path)
    assert found.index is not None
    assert found.index.run != FACTS
    with pytest.raises(AuthenticationError):
        found.signed_by([SIGNER.verify_key])
    with pytest.raises(AuthenticationError):
        metadata_of(tmp_path, Access.of(PRIVATE, trust=SIGNER.verify_key))


# -- what tools make of it ---------------------------------------------------------------------------------------------


def test_transcode_keeps_it(tmp_path: Path) -> None:
    source = saved(tmp_path / "step-7")
    transcode(source, tmp_path / "copy", "zstd+encrypt", recipients=KEY)
    transcode(source, in_place=True, chain="zstd")
    assert index_of(tmp_path / "copy").run == index_of(source).run == FACTS


def test_transcode_has_none_of_a_checkpoint_without(tmp_path: Path) -> None:
    dcp.save(STATE, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"))
    transcode(tmp_path / "stock", tmp_path / "copy")
    assert index_of(tmp_path / "copy").run is None


def test_rekey_keeps_it_and_who_vouches(tmp_path: Path) -> None:
    saved(tmp_path, [Encrypt(KEY, signer=SIGNER)])
    streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY)
    found = metadata_of(tmp_path, Access.of(OTHER_KEY, trust=SIGNER.verify_key))
    assert found.index is not None
    assert found.index.run == FACTS
    assert found.signed_by([SIGNER.verify_key])
    with pytest.raises(KeyMissingError):
        metadata_of(tmp_path, Access.of(KEY))


def test_salvage_keeps_it(tmp_path: Path) -> None:
    source = saved(tmp_path / "step-7", [])
    data = next(source.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    salvaged, converted = salvage(source, tmp_path / "copy")
    assert converted is not None
    assert salvaged.damaged
    assert index_of(tmp_path / "copy").run == FACTS


def test_salvage_without_metadata_knows_no_run(tmp_path: Path) -> None:
    source = saved(tmp_path / "step-7")
    (source / ".metadata").unlink()
    salvage(source, tmp_path / "copy", without_metadata=True)
    assert index_of(tmp_path / "copy").run is None


def test_pack_of_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    pack(saved(tmp_path / "step-7"), tmp_path / "copy", "zstd")
    assert index_of(tmp_path / "copy").run == FACTS


def test_a_commit_record_is_packed_and_unpacked_like_any_file(tmp_path: Path) -> None:
    def contents(path: Path) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in path.iterdir()}

    folder = tmp_path / "step-7"
    folder.mkdir()
    save_file({"weight": torch.ones(3)}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text("{}")
    files = [{"path": path.name, "size": path.stat().st_size} for path in folder.iterdir()]
    record = Note.seal({"save_id": "0" * 32, "run": FACTS.to_json(), "files": files}, Encrypt(KEY))
    (folder / ".streamxf-commit").write_bytes(record)
    pack(folder, tmp_path / "packed")
    assert index_of(tmp_path / "packed").run is None
    assert unpack(tmp_path / "packed", tmp_path / "back").restored
    assert contents(tmp_path / "back") == contents(folder)


def test_inspect_reads_a_checkpoint_with_a_run(tmp_path: Path) -> None:
    assert inspect(saved(tmp_path, [Encrypt(KEY)])).total.items == 2
