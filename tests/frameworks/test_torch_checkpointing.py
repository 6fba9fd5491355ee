"""docs/examples/torch_checkpointing_fsdp2.py, killed, damaged and resumed; and what a chain's storage holds."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf.errors import BlockError, ChainError, ContainerError, KeyMissingError, PolicyError
from tests.altered import flip
from tests.dcp.helpers import KEY, OTHER_KEY, assert_same

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_managed, two_ranks

package = pytest.importorskip("torch_checkpointing")
filesystem = pytest.importorskip("torch_checkpointing.storage.filesystem")

from streamxf.integrations.torch_checkpointing import ChainStorageConfig  # noqa: E402 - needs torch_checkpointing

CHAIN = "floatzip+checksum+encrypt"
LOCAL = filesystem.LocalFileSystemStorageConfig(use_direct_io=False)


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    folder = assert_managed(tmp_path, two_ranks(), [EXAMPLES / "torch_checkpointing_fsdp2.py"])
    files = [path for step in (9, 12) for path in folder.glob(f"step-{step}/files/*.pt")]
    assert len(files) == 8, "2 saves of 2 items by 2 ranks"
    assert all(streamxf.verify(path).ok for path in files)


@pytest.mark.slow
def test_damaged_and_resumed(tmp_path: Path) -> None:
    assert_falls_back(tmp_path, two_ranks(EXAMPLES / "torch_checkpointing_fsdp2.py"), "files/*.pt")


def state() -> dict[str, Any]:
    return {"model": {"w": torch.arange(3_000_000.0), "half": torch.ones(7, dtype=torch.bfloat16)}, "step": 7}


def manager(storage: Any, save: Any = None) -> Any:
    config = package.CheckpointManager.Config
    return config(save=save or package.SyncCheckpointSaverConfig(), storage_config=storage).build()


def load(storage: Any, folder: Path) -> Any:
    model = {"w": torch.zeros(3_000_000), "half": torch.zeros(7, dtype=torch.bfloat16)}
    return manager(storage).load(str(folder), into={"model": model, "step": 0})


def test_saved_and_loaded(tmp_path: Path) -> None:
    storage = ChainStorageConfig(CHAIN, keys=KEY)
    manager(storage).save(str(tmp_path / "saved"), state())
    assert_same(load(storage, tmp_path / "saved"), state())
    for path in (tmp_path / "saved").iterdir():
        assert streamxf.verify(path, keys=KEY).ok
    for other in ChainStorageConfig(CHAIN, keys=OTHER_KEY), ChainStorageConfig("zstd"):
        with pytest.raises(KeyMissingError):
            load(other, tmp_path / "saved")


@pytest.mark.parametrize("at", [0, 0.3, 0.99, 1, None])
def test_the_error_says_which_file_is_damaged(at: float | None, tmp_path: Path) -> None:
    """torch_checkpointing reads into memory that it then closes, and no view of it may be left."""
    manager(ChainStorageConfig()).save(str(tmp_path / "saved"), state())
    path = tmp_path / "saved" / "model_0.pt"
    if at is None:
        path.write_bytes(b"")
    else:
        flip(path, max(0, int(at * path.stat().st_size) - 1))
    with pytest.raises(ContainerError) as caught:
        load(ChainStorageConfig(), tmp_path / "saved")
    assert caught.value.file == str(path)


def test_saved_by_a_process_of_its_own(tmp_path: Path) -> None:
    staging = pytest.importorskip("torch_checkpointing.staging").CheckpointStagerConfig(
        use_async_staging=False, use_non_blocking_copy=False, use_pinned_memory=False, use_shared_memory=True
    )
    storage = ChainStorageConfig(CHAIN, keys=KEY)
    saver = manager(
        storage, pytest.importorskip("torch_checkpointing.config").AsyncCheckpointSaverConfig(staging_config=staging)
    )
    try:
        saver.save(str(tmp_path / "saved"), state()).result(timeout=300)
    finally:
        saver.close()
    assert_same(load(storage, tmp_path / "saved"), state())


def test_its_own_checkpoints_load_without_keys(tmp_path: Path) -> None:
    manager(LOCAL).save(str(tmp_path / "own"), state())
    assert_same(load(ChainStorageConfig(), tmp_path / "own"), state())
    with pytest.raises(PolicyError, match="the chain in use encrypts"):
        load(ChainStorageConfig(CHAIN, keys=KEY), tmp_path / "own")


@pytest.mark.parametrize("own", [False, True])
def test_a_chain_that_encrypts_loads_no_plaintext(own: bool, tmp_path: Path) -> None:
    private, signer = streamxf.PrivateKey.generate(), streamxf.SigningKey.generate()
    public = ChainStorageConfig([streamxf.Encrypt(private.public, signer=signer)])
    manager(LOCAL if own else ChainStorageConfig()).save(str(tmp_path / "plain"), state())
    manager(public).save(str(tmp_path / "encrypted"), state())
    for storage in ChainStorageConfig([streamxf.Encrypt(KEY)]), public:
        with pytest.raises(PolicyError, match="the chain in use encrypts"):
            load(storage, tmp_path / "plain")
        with pytest.raises(KeyMissingError):
            load(storage, tmp_path / "encrypted")


def test_the_keys_of_the_chain_load(tmp_path: Path) -> None:
    storage = ChainStorageConfig([streamxf.Encrypt(KEY)])
    manager(storage).save(str(tmp_path / "saved"), state())
    assert_same(load(storage, tmp_path / "saved"), state())


class Planted:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_a_planted_pickle_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    """torch_checkpointing unpickles without restrictions."""
    mark, storage = tmp_path / "mark", ChainStorageConfig(CHAIN, keys=KEY)
    manager(storage).save(str(tmp_path / "saved"), state())
    torch.save(Planted(mark), tmp_path / "saved" / "step_0.pt", pickle_module=pickle)
    with pytest.raises(PolicyError):
        load(storage, tmp_path / "saved")
    assert not mark.exists()
    torch.load(tmp_path / "saved" / "step_0.pt", weights_only=False)
    assert mark.exists(), "the trap works"


def test_files_of_a_storage(tmp_path: Path) -> None:
    """The interface by which its resharder, its exports and callbacks read and write."""
    storage = ChainStorageConfig(CHAIN, keys=KEY, storage=LOCAL).create_storage()
    storage.mkdir(tmp_path / "a" / "b")
    data = bytes(range(256)) * 20_000
    storage.write(tmp_path / "a" / "b" / "data", data)
    assert storage.getsize(tmp_path / "a" / "b" / "data") == len(data)
    with storage.stream_read(tmp_path / "a" / "b" / "data") as file:
        assert file.seek(3_000_000) == 3_000_000
        assert file.read(16) == data[3_000_000:3_000_016]
    with pytest.raises(ZeroDivisionError), storage.stream_write(tmp_path / "a" / "b" / "half") as file:
        file.write(data)
        1 / 0  # noqa: B018
    with pytest.raises((ContainerError, BlockError)):
        storage.read(tmp_path / "a" / "b" / "half")
    storage.rename(tmp_path / "a" / "b", tmp_path / "c", is_directory=True)
    assert storage.read(tmp_path / "c" / "data") == data
    assert sorted(storage.ls(tmp_path / "c")) == ["data", "half"]
    assert storage.glob(str(tmp_path / "c" / "d*")) == [str(tmp_path / "c" / "data")]
    assert storage.remap_path(tmp_path) == str(tmp_path)
    storage.delete(tmp_path / "c" / "data")
    assert not storage.exists(tmp_path / "c" / "data")
    with pytest.raises(FileNotFoundError):
        storage.read(tmp_path / "c" / "data")
    storage.rmdir(tmp_path / "c")
    assert not storage.isdir(tmp_path / "c")


def test_wrong_arguments() -> None:
    with pytest.raises(ChainError):
        ChainStorageConfig("encrypt+zstd", keys=KEY)
