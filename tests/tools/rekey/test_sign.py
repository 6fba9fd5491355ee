"""`sign`: a signature for a checkpoint that is there, whose data stays as it is."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Checksum, Encrypt, Key, SigningKey, ZStandard
from streamxf.errors import BlockError, ParameterError, PolicyError, StreamxfError
from streamxf.keys import KeyRing
from tests.altered import flip
from tests.dcp.helpers import assert_same, load, refused, save
from tests.dcp.shards import save_as_ranks

KEY = Key(bytes(range(32)))
SIGNER, OTHER, STRANGER = (SigningKey(bytes(range(first, first + 32))) for first in (32, 33, 34))
HYBRID = SigningKey(bytes(range(35, 67)), kind="ed25519+mldsa65")
CHAINS: dict[str, Any] = {
    "raw": (lambda: []),
    "zstd": (lambda: [ZStandard()]),
    "checksum": (lambda: [Checksum()]),
    "encrypted": (lambda: [ZStandard(), Encrypt(KEY)]),
}


@pytest.fixture
def state() -> dict[str, Any]:
    return {"weight": torch.arange(6000.0).reshape(60, 100), "small": torch.ones(3), "step": 7, "names": ["a", "b"]}


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


@pytest.mark.parametrize("chain", CHAINS)
def test_it_is_signed_and_no_data_changes(tmp_path: Path, state: dict[str, Any], chain: str) -> None:
    path, keys = tmp_path / "c", KEY if chain == "encrypted" else None
    save(state, path, CHAINS[chain]())
    before = contents(path)
    assert streamxf.sign(path, keys=keys, signer=SIGNER) == (".metadata",)
    after = contents(path)
    assert {name for name in before if before[name] != after[name]} == {".metadata"}
    assert after.keys() == before.keys()
    for signer in (SIGNER, OTHER):
        ring = KeyRing(keys, trust=signer.verify_key)
        if signer is SIGNER:
            assert_same(load(state, path, ring), state)
        else:
            with refused(PolicyError, SIGNER.id):
                load(state, path, ring)
    streamxf.sign(path, keys=keys, trust=SIGNER.verify_key, signer=OTHER)
    for signer in (SIGNER, OTHER):
        ring = KeyRing(keys, trust=signer.verify_key)
        assert_same(load(state, path, ring), state)


def test_both_halves_of_the_hybrid_kind_are_needed(tmp_path: Path, state: dict[str, Any]) -> None:
    save(state, tmp_path, [Checksum()])
    streamxf.sign(tmp_path, signer=HYBRID)
    assert_same(load(state, tmp_path, KeyRing(None, trust=HYBRID.verify_key)), state)
    with refused(PolicyError, HYBRID.id):
        load(state, tmp_path, KeyRing(None, trust=SIGNER.verify_key))


def test_four_sign_and_not_five(tmp_path: Path, state: dict[str, Any]) -> None:
    save(state, tmp_path, [])
    for signer in (SIGNER, OTHER, STRANGER, HYBRID, SIGNER):
        streamxf.sign(tmp_path, signer=signer)
    before = contents(tmp_path)
    with pytest.raises(ParameterError, match="4 signatures"):
        streamxf.sign(tmp_path, signer=SigningKey.generate())
    assert contents(tmp_path) == before
    for signer in (SIGNER, OTHER, STRANGER, HYBRID):
        assert_same(load(state, tmp_path, KeyRing(None, trust=signer.verify_key)), state)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("signed", [False, True])
def test_damaged_data_is_not_signed(tmp_path: Path, state: dict[str, Any], chain: str, signed: bool) -> None:
    path, keys = tmp_path / "c", KEY if chain == "encrypted" else None
    save(state, path, CHAINS[chain]())
    if signed:
        streamxf.sign(path, keys=keys, signer=SIGNER)
    (data,) = path.glob("*.distcp")
    flip(data)
    before = contents(path)
    with pytest.raises((BlockError, StreamxfError)):
        streamxf.sign(path, keys=keys, signer=OTHER)
    assert contents(path) == before


def test_what_a_stranger_signed_is_not_signed_by_who_trusts_another(tmp_path: Path, state: dict[str, Any]) -> None:
    save(state, tmp_path, [])
    for wanted in (None, STRANGER):
        if wanted is not None:
            streamxf.sign(tmp_path, signer=wanted)
        before = contents(tmp_path)
        with pytest.raises(PolicyError):
            streamxf.sign(tmp_path, trust=SIGNER.verify_key, signer=OTHER)
        assert contents(tmp_path) == before


def test_a_copy_is_signed_for_itself(tmp_path: Path, state: dict[str, Any]) -> None:
    save(state, tmp_path / "first", [ZStandard()])
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    ring = KeyRing(None, trust=SIGNER.verify_key)
    assert streamxf.sign(tmp_path / "copy", signer=SIGNER) == (".metadata",)
    with refused(PolicyError, "not signed"):
        load(state, tmp_path / "first", ring)
    assert_same(load(state, (tmp_path / "copy").rename(tmp_path / "elsewhere"), ring), state)


def test_metadata_of_each_rank_is_signed(tmp_path: Path) -> None:
    saved = save_as_ranks(3, tmp_path / "c", lambda: [ZStandard()], use_collectives=False)
    written = streamxf.sign(tmp_path / "c", signer=SIGNER)
    assert sorted(written) == [f"__{rank}.metadata" for rank in range(3)]
    own = {name: value for name, value in saved.items() if name.startswith("rank.0")}
    assert_same(load(own, tmp_path / "c", KeyRing(None, trust=SIGNER.verify_key)), own)


def test_tools_keep_who_signed_or_refuse(tmp_path: Path, state: dict[str, Any]) -> None:
    path = tmp_path / "c"
    save(state, path, [ZStandard()])
    streamxf.sign(path, signer=SIGNER)
    shutil.copytree(path, tmp_path / "d")
    streamxf.rename(tmp_path / "d", {"step": "steps"}, trust=SIGNER.verify_key, signer=OTHER)
    trust = KeyRing(None, trust=OTHER.verify_key)
    with streamxf.Checkpoint(tmp_path / "d", keys=trust) as found:
        assert "steps" in found
    with pytest.raises(PolicyError):
        streamxf.Checkpoint(tmp_path / "d", keys=KeyRing(None, trust=SIGNER.verify_key))
