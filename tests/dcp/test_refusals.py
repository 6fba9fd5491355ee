"""What cannot work, or is weaker than the caller asked for, is refused, and the error says why and what would help."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import streamxf
from streamxf import Checksum, Encrypt, ZStandard, errors

from .helpers import KEY, OTHER_KEY, Xor, assert_same, load, load_with, refused, rewrite_index, save, since

# -- extensions that do not fit -------------------------------------------------------------------


@pytest.mark.parametrize(
    "extensions",
    [
        [Xor(), ZStandard()],
        [ZStandard(), Xor()],
        [TorchZStandard(), Checksum(), Encrypt(KEY)],
        [Checksum(), TorchZStandard(), Encrypt(KEY)],
        [Checksum(), Encrypt(KEY), TorchZStandard()],
    ],
)
def test_foreign_beside_codecs_in_the_stock_writer(
    checkpoint: Path, state: dict[str, Any], extensions: list[Any]
) -> None:
    with refused(errors.UnsupportedError, "beside streamxf codecs", "streamxf.FileSystemWriter"):
        dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint, _extensions=extensions))
    assert not (checkpoint / ".metadata").exists()


@pytest.mark.parametrize("foreign", [Xor(), TorchZStandard()])
def test_foreign_after_a_codec(checkpoint: Path, foreign: Any) -> None:
    for make in (
        lambda: streamxf.FileSystemWriter(checkpoint, _extensions=[ZStandard(), foreign, Checksum()]),
        lambda: streamxf.attach(dcp.FileSystemWriter(checkpoint), [ZStandard(), foreign]),
    ):
        with refused(errors.ChainError, type(foreign).__name__, "before the first codec"):
            make()


def test_a_chain_that_breaks_the_rules_of_order(checkpoint: Path, state: dict[str, Any]) -> None:
    wrong = [Encrypt(KEY), ZStandard()]
    with refused(errors.ChainError, "put it before Encrypt"):
        streamxf.FileSystemWriter(checkpoint, _extensions=wrong)
    with refused(errors.ChainError, "put it before Encrypt"):
        dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint, _extensions=wrong))


def test_something_that_is_no_extension(checkpoint: Path) -> None:
    with refused(errors.UnsupportedError, "neither a streamxf codec nor"):
        streamxf.FileSystemWriter(checkpoint, _extensions=["zstd"])


# -- safetensors ---------------------------------------------------------------------------------


@pytest.fixture
def safetensors() -> Any:
    """The format by its name in torch."""
    if not hasattr(filesystem, "SerializationFormat"):
        pytest.skip("torch 2.7 writes no safetensors files")
    return filesystem.SerializationFormat.SAFETENSORS


def test_safetensors_in_the_own_writers(checkpoint: Path, safetensors: Any) -> None:
    for make in (streamxf.FileSystemWriter, streamxf.FsspecWriter):
        with refused(errors.UnsupportedError, "SAFETENSORS", "past the extensions"):
            make(str(checkpoint), serialization_format=safetensors)


def test_safetensors_in_the_stock_writer(checkpoint: Path, safetensors: Any) -> None:
    # one thread: with more, torch's writer loses the errors of all but one
    writer = dcp.FileSystemWriter(checkpoint, _extensions=[ZStandard()], serialization_format=safetensors)
    with refused(errors.UnsupportedError, "SAFETENSORS", "corrupt"):
        dcp.save({"w": torch.ones(3)}, storage_writer=writer)
    assert not (checkpoint / ".metadata").exists()


def test_safetensors_in_a_writer_that_is_attached_to(checkpoint: Path, safetensors: Any) -> None:
    stock = dcp.FileSystemWriter(checkpoint, serialization_format=safetensors)
    with refused(errors.UnsupportedError, "safetensors files"):
        streamxf.attach(stock, [ZStandard()])


@since("2.8", "has them under private names")
def test_hugging_face_writers_and_readers(checkpoint: Path) -> None:
    from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

    class Theirs(HuggingFaceStorageWriter):
        """A subclass under another name."""

    for target in (HuggingFaceStorageWriter(str(checkpoint)), Theirs(str(checkpoint))):
        with refused(errors.UnsupportedError, "safetensors files"):
            streamxf.attach(target, [ZStandard()])
    with refused(errors.UnsupportedError, "safetensors files"):
        streamxf.attach(HuggingFaceStorageReader(str(checkpoint)))


def test_attach_says_what_it_takes(checkpoint: Path) -> None:
    with refused(errors.UnsupportedError, "streamxf's own"):
        streamxf.attach(streamxf.FileSystemWriter(checkpoint), [ZStandard()])
    with refused(errors.UnsupportedError, "streamxf's own"):
        streamxf.attach(streamxf.FileSystemReader(checkpoint), keys=KEY)
    with refused(errors.UnsupportedError, "does not derive"):
        streamxf.attach(object(), [ZStandard()])
    with refused(errors.ParameterError, "extensions="):
        streamxf.attach(dcp.FileSystemWriter(checkpoint), keys=KEY)
    with refused(errors.ParameterError, "codecs=, keys= and require="):
        streamxf.attach(dcp.FileSystemReader(checkpoint), [ZStandard()])


# -- keys ----------------------------------------------------------------------------------------


def stock_save(state: dict[str, Any], path: Path, extensions: list[Any] | None) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, _extensions=extensions, sync_files=False))


def test_another_key(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    with refused(errors.KeyMissingError, KEY.id, OTHER_KEY.id):
        load(state, checkpoint, OTHER_KEY)
    with refused(errors.KeyMissingError, KEY.id, OTHER_KEY.id):
        registry = streamxf.Registry(keys=OTHER_KEY)
        load_with(state, dcp.FileSystemReader(checkpoint, _extension_registry=registry))
    assert_same(load(state, checkpoint, [OTHER_KEY, KEY]), state)


def test_a_key_that_is_no_key(checkpoint: Path) -> None:
    with refused(errors.ParameterError, "32 bytes"):
        streamxf.FileSystemReader(checkpoint, keys=b"short")


# -- what a reader with keys refuses, and the word that relaxes it -------------------------------


def test_require_needs_keys_and_a_known_word(checkpoint: Path) -> None:
    for make in (
        lambda **options: streamxf.FileSystemReader(checkpoint, **options),
        lambda **options: streamxf.FsspecReader(str(checkpoint), **options),
        lambda **options: streamxf.attach(dcp.FileSystemReader(checkpoint), **options),
    ):
        with refused(errors.ParameterError, "needs keys"):
            make(require="bound")
        with refused(errors.ParameterError, "'published', 'bound', 'encrypted'"):
            make(keys=KEY, require="anything")


def test_an_attached_reader_cannot_require_what_it_cannot_see(checkpoint: Path) -> None:
    with refused(errors.ParameterError, "does not see the index", "require='bound'"):
        streamxf.attach(dcp.FileSystemReader(checkpoint), keys=KEY, require="published")


# -- checkpoints that are not whole --------------------------------------------------------------


@since("2.9", "refuses it itself")
def test_a_shard_without_the_others_is_not_published(tmp_path: Path) -> None:
    """Loaded elsewhere, it would leave the rest of the tensor as it was, and nobody would notice."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        half = distribute_tensor(
            torch.ones(8, 6), init_device_mesh("cpu", (2,)), [Shard(0)], src_data_rank=None
        )  # of which this is rank 0, and nobody is rank 1
        with refused(errors.UnsupportedError, "incomplete", "no_dist=False", "use_collectives=False"):
            dcp.save({"w": half}, storage_writer=streamxf.FileSystemWriter(tmp_path), no_dist=True)
    finally:
        dist.destroy_process_group()
    assert not (tmp_path / ".metadata").exists()


# -- codecs that nobody has ----------------------------------------------------------------------


def test_an_unknown_codec_is_named_with_its_package(checkpoint: Path, state: dict[str, Any]) -> None:
    class Shuffle(Checksum):
        name = "acme.shuffle"

    save(state, checkpoint, [ZStandard(), Shuffle()])
    with refused(errors.UnknownCodecError, "acme.shuffle", "does not say which package"):
        load(state, checkpoint, None)
    rewrite_index(checkpoint, lambda index: index.update(modules=["acme.shuffle=acme-codecs==2.1", "nonsense"]))
    with refused(errors.UnknownCodecError, "acme.shuffle", "acme-codecs==2.1"):
        load(state, checkpoint, None)
    with refused(errors.UnknownCodecError, "acme.shuffle"):
        load_with(state, dcp.FileSystemReader(checkpoint, _extension_registry=streamxf.Registry()))


def test_a_version_that_nobody_has(checkpoint: Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=streamxf.attach(dcp.FileSystemWriter(checkpoint), [ZStandard()]))
    reader = dcp.FileSystemReader(checkpoint, _extension_registry=streamxf.Registry())
    metadata = reader.read_metadata()
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["streamxf.zstd/2"]
    reader.read_metadata = lambda *args, **kwargs: metadata  # type: ignore[method-assign]
    with refused(errors.UnknownCodecError, "version 2"):
        load_with(state, reader)


def test_urls_are_for_other_classes(checkpoint: Path) -> None:
    """torch's own classes make folders of them: ``s3:/bucket/x``."""
    for url in ("s3://bucket/x", "file:///bucket/x", "simplecache::s3://bucket/x"):
        for cls in (streamxf.FileSystemWriter, streamxf.FileSystemReader):
            other = cls.__name__.replace("FileSystem", "Fsspec")
            with pytest.raises(errors.ParameterError, match=f"'{url}' is a URL.* streamxf.{other}"):
                cls(url)
            made = cls(checkpoint)
            with pytest.raises(errors.ParameterError, match=other):
                made.reset(url)
            made.reset(str(checkpoint / "a:b"))
            assert made.path == checkpoint / "a:b"
