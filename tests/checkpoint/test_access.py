"""The Access of a job: what its chain says about keys, signers and plaintext."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint._extension import ExtensionRegistry
from torch.distributed.checkpoint.filesystem import FileSystemWriter as WriterOfTorch

from streamxf import Checksum, Encrypt, Key, PrivateKey, Registry, SigningKey, ZStandard
from streamxf.chain import Chain
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.dcp.writer import FileSystemWriter
from streamxf.errors import KeyMissingError, ParameterError, PolicyError
from streamxf.keys import KeyRing
from streamxf.keys import ring as rings
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.stream.plain import ChainFiles
from tests.dcp.helpers import refused

KEY, OTHER = Key(bytes(range(32))), Key(bytes(range(4, 36)))
PAIR = PrivateKey(bytes(range(1, 33)))
SIGNER, STRANGER = SigningKey(bytes(range(2, 34))), SigningKey(bytes(range(3, 35)))
PUBLIC_ONLY = Chain([Encrypt(PAIR.public, signer=SIGNER)])


def saved(folder: Path, chain: object) -> Storage:
    dcp_save({"weight": torch.arange(9.0)}, storage_writer=FileSystemWriter(folder, chain=chain), no_dist=True)
    return open_storage(folder)


def saved_by_torch(folder: Path) -> Storage:
    dcp_save({"weight": torch.arange(9.0)}, storage_writer=WriterOfTorch(folder), no_dist=True)
    return open_storage(folder)


def test_a_job_that_only_encrypts_gets_no_plaintext(tmp_path: Path):
    access = Access.for_chain(PUBLIC_ONLY)
    assert not len(access.keys)
    for storage in (saved(tmp_path / "plain", [ZStandard()]), saved_by_torch(tmp_path / "stock")):
        for listing in (False, True):
            with refused(PolicyError, "require=None", "plaintext=True"):
                Checkpoint.at(storage, access, listing=listing)
    with refused(KeyMissingError, "keys given: none"):
        Checkpoint.at(saved(tmp_path / "encrypted", PUBLIC_ONLY), access)


def test_the_way_out_is_another_access(tmp_path: Path):
    access = replace(Access.for_chain(Chain([Encrypt(KEY)])), refuses_plaintext=False, require=None)
    for storage in (saved(tmp_path / "plain", []), saved_by_torch(tmp_path / "stock")):
        with Checkpoint.at(storage, access) as checkpoint:
            assert checkpoint["weight"].read()[8] == 8
    with Checkpoint.at(saved(tmp_path / "encrypted", [Encrypt(KEY)]), access) as checkpoint:
        assert checkpoint.authenticated
        assert checkpoint["weight"].read()[8] == 8


def test_a_chain_without_encrypt_refuses_nothing(tmp_path: Path):
    access = Access.for_chain(Chain([Checksum()]))
    assert (access.require, access.refuses_plaintext, access.trust) == (None, False, ())
    with Checkpoint.at(saved_by_torch(tmp_path), access) as checkpoint:
        assert checkpoint["weight"].read()[8] == 8


def test_the_keys_are_those_of_the_chain_that_read():
    assert [*Chain([Encrypt([KEY, PAIR.public])]).ring()] == [KEY]
    assert [*Chain([Encrypt([KEY, PAIR.public])]).ring(OTHER)] == [OTHER]
    assert not len(PUBLIC_ONLY.ring())
    assert not len(Chain([Checksum()]).ring())


def test_trust_comes_from_the_signer_unless_it_is_given():
    for chain in (PUBLIC_ONLY, Chain([Encrypt([KEY, PAIR.public], signer=SIGNER)])):
        for keys in (None, KEY, KeyRing(KEY)):
            assert Access.for_chain(chain, keys).trust == (SIGNER.verify_key,)
            assert Access.for_chain(chain, keys, trust=STRANGER.verify_key).trust == (STRANGER.verify_key,)
        ring = KeyRing(KEY, trust=STRANGER.verify_key)
        assert Access.for_chain(chain, ring).keys is ring
        assert Access.for_chain(chain, ring).trust == (STRANGER.verify_key,)
        with refused(ParameterError, "pass trust="):
            Access.for_chain(chain, ring, trust=SIGNER.verify_key)
    assert Access.for_chain(Chain([Encrypt(KEY)])).trust == ()


@pytest.mark.parametrize("allowed", [False, True])
def test_an_unsigned_checkpoint_takes_leave(tmp_path: Path, allowed: bool):
    storage = saved(tmp_path, [Encrypt(KEY)])
    access = Access.for_chain(Chain([Encrypt(KEY, signer=SIGNER)]), allow_unsigned=allowed)
    if allowed:
        Checkpoint.at(storage, access).close()
        return
    with refused(PolicyError, "not signed"):
        Checkpoint.at(storage, access)


def test_keys_are_looked_up_once(monkeypatch: pytest.MonkeyPatch):
    """A key file may ask for a passphrase."""
    asked = []

    def counted(key: object) -> object:
        asked.append(key)
        return as_provider(key)

    as_provider = rings.as_provider
    monkeypatch.setattr(rings, "as_provider", counted)
    monkeypatch.setenv("ACCESS_KEY", bytes(range(32)).hex())
    files = ChainFiles("zstd+encrypt", keys="env:ACCESS_KEY")
    assert (files.chain.encryption.key_ids, [*files.keys]) == ((KEY.id,), [KEY])
    assert asked.count("env:ACCESS_KEY") == 1


def test_a_registry_brings_its_keys_and_is_asked_for_trust_itself():
    registry = Registry(keys=KEY)
    access = Access.of(codecs=registry)
    assert [*access.keys] == [KEY]
    assert access.codecs is registry.codecs
    assert access.require == "published"
    with pytest.raises(ParameterError, match="keys= was given, and the registry has keys"):
        Access.of(KEY, codecs=registry)
    with pytest.raises(ParameterError, match="pass trust="):  # and is not forgotten
        Access.of(trust=SIGNER.verify_key, codecs=registry)
    with pytest.raises(ParameterError, match="not ExtensionRegistry"):
        Access.of(codecs=ExtensionRegistry())
