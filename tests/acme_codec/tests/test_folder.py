import os
import pickle
from pathlib import Path

import pytest
from acme_codec.folder import FolderKey

import streamxf
from streamxf.errors import AuthenticationError, KeyFileError, KeyMissingError, WrongKeyError
from streamxf.keys import write_key

DATA_KEY, DEK_ID, DIGEST = bytes(range(32)), bytes(32), bytes(range(100, 132))


@pytest.fixture
def key(tmp_path: Path) -> FolderKey:
    write_key(tmp_path / "training", streamxf.Key.generate())
    return FolderKey(str(tmp_path / "training"))


def test_there_and_back(key: FolderKey) -> None:
    assert key.unwrap(key.wrap(DATA_KEY, DEK_ID), DEK_ID) == DATA_KEY
    file = streamxf.encode(b"data", [streamxf.Encrypt(f"acme-folder:{key.path}")])
    assert streamxf.decode(file, keys=key) == b"data"
    with pytest.raises(KeyMissingError, match=key.id):
        streamxf.decode(file, keys=streamxf.Key.generate())


def test_it_vouches_for_its_own_contents(key: FolderKey) -> None:
    voucher = key.vouch(DIGEST)
    key.check_voucher(voucher, DIGEST)
    for wrong, digest in ((voucher, bytes(32)), (key.wrap(DIGEST, DIGEST), DIGEST), (voucher[:-1], DIGEST)):
        with pytest.raises(AuthenticationError, match=key.id):
            key.check_voucher(wrong, digest)


@pytest.mark.parametrize("size", [0, 11, 12, 27, 28])
def test_what_does_not_open(key: FolderKey, size: int) -> None:
    wrapped = key.wrap(DATA_KEY, DEK_ID)
    with pytest.raises(WrongKeyError):
        key.unwrap(wrapped, bytes([1]) * 32)
    with pytest.raises(WrongKeyError):
        key.unwrap(wrapped[:size], DEK_ID)


def test_it_holds_no_key(key: FolderKey) -> None:
    again = pickle.loads(pickle.dumps(key))
    assert again.unwrap(key.wrap(DATA_KEY, DEK_ID), DEK_ID) == DATA_KEY
    os.unlink(key.path)
    with pytest.raises(KeyFileError):
        again.wrap(DATA_KEY, DEK_ID)


def test_the_name_says_which_key_it_is(key: FolderKey) -> None:
    assert FolderKey("/elsewhere/training").id == key.id
    assert FolderKey("/elsewhere/inference").id != key.id
