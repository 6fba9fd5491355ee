"""A process without any key that reads writes and signs a checkpoint for two recipients; either key reads it elsewhere.

The code is that of docs/security.md. The node's folder has what its process may have: a public key and a signing key.
"""

import os
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import PrivateKey, SigningKey
from streamxf.errors import AuthenticationError, KeyMissingError, PolicyError
from streamxf.keys import AwsKms, KeyRing, write_key
from streamxf.keys.envelope import DataKey, Envelope, Vouchers
from tests.cli import preloaded
from tests.code_blocks import blocks_of
from tests.keys.sealed import Forger, mac

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ARN = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
WEIGHT = torch.arange(1000.0)
TEAM = PrivateKey(bytes(range(116, 148)))
TRAINER = SigningKey(bytes(range(115, 147)))
STRANGER = SigningKey(bytes(range(120, 152)))


def titled(title: str) -> str:
    """The code of the one block of the page with this title."""
    (code,) = (block.code for block in blocks_of(PAGE.read_text()) if block.title == title)
    return code


class Place:
    """Where checkpoints are written and read: the key in KMS, a node's folder and an evaluator's."""

    def __init__(self, arn: str, folder: Path) -> None:
        self.arn = arn
        self.node = folder / "node"
        self.evaluator = folder / "evaluator"
        self.node.mkdir()
        self.evaluator.mkdir()
        write_key(self.node / "team.pub", TEAM.public)
        write_key(self.evaluator / "team.key", TEAM)
        write_key(self.evaluator / "trainer.pub", TRAINER.verify_key)

    def training_code(self, signer: SigningKey | None) -> str:
        """What the node runs, after it got its signing key."""
        code = titled("train.py").replace(ARN, self.arn)
        if signer is not None:
            write_key(self.node / "trainer.sign", signer)
            return code
        signing = ', signer="file:trainer.sign"'
        assert signing in code
        return code.replace(signing, "")


@pytest.fixture
def place(kms: Any, tmp_path: Path) -> Place:
    return Place(kms.new_key(), tmp_path)


def load(checkpoint: Path, keys: Any) -> torch.Tensor:
    state = {"weight": torch.zeros(1000)}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(checkpoint, keys=keys))
    return state["weight"]


def refusal(checkpoint: Path, keys: Any) -> BaseException:
    with pytest.raises(CheckpointException) as caught:
        load(checkpoint, keys)
    (error, _) = next(iter(caught.value.failures.values()))
    return error


def test_either_recipient_reads_what_the_node_signed(place: Place, monkeypatch: pytest.MonkeyPatch):
    done = preloaded.script(place.training_code(TRAINER), cwd=place.node)
    assert done.returncode == 0, done.stderr
    checkpoint = place.node / "step-100"
    (place.evaluator / "step-100").symlink_to(checkpoint)
    for location in ("file:team.key", f"aws-kms:{place.arn}"):
        monkeypatch.setattr(sys, "argv", ["evaluate.py", location])
        with chdir(place.evaluator):
            exec(titled("evaluate.py"), {"__name__": "__page__"})

    # the node has nothing that reads
    assert sorted(os.listdir(place.node)) == ["step-100", "team.pub", "trainer.sign"]
    for keys in (TEAM.public, [TEAM.public, streamxf.Key.generate()]):
        assert isinstance(refusal(checkpoint, keys), KeyMissingError)

    # a key that vouches needs no trust, and a private key does
    assert torch.equal(load(checkpoint, AwsKms(place.arn)), WEIGHT)
    assert isinstance(refusal(checkpoint, TEAM), PolicyError)
    assert isinstance(refusal(checkpoint, KeyRing([TEAM], trust=STRANGER.verify_key)), PolicyError)
    both = KeyRing([TEAM], trust=[STRANGER.verify_key, TRAINER.verify_key])
    assert torch.equal(load(checkpoint, both), WEIGHT)


@pytest.mark.parametrize("signer", [None, STRANGER], ids=["unsigned", "signed by a stranger"])
def test_without_a_trusted_signature_it_is_refused(signer: SigningKey | None, place: Place):
    with chdir(place.node):
        exec(place.training_code(signer), {"__name__": "__page__"})
    checkpoint = place.node / "step-100"
    for keys in ([TEAM], [AwsKms(place.arn)], [AwsKms(place.arn), TEAM]):
        assert isinstance(refusal(checkpoint, KeyRing(keys, trust=TRAINER.verify_key)), PolicyError)
    assert isinstance(refusal(checkpoint, TEAM), PolicyError)
    assert torch.equal(load(checkpoint, KeyRing([TEAM], allow_unsigned=True)), WEIGHT)


def test_a_signature_cannot_be_moved_to_another_checkpoint(place: Place, tmp_path: Path):
    """What someone with the public key can do: write a checkpoint, and put an existing signature beside it."""
    data_key = DataKey.draw()
    wrapped = str(Envelope.seal(data_key, [TEAM.public]))
    real = Vouchers.make(bytes(32), wrapped, data_key, [], TRAINER).signatures
    forger = Forger(data_key, wrapped, lambda digest: Vouchers(mac(data_key, digest, wrapped), (), real), signed=True)
    path = tmp_path / "forged"
    dcp.save({"weight": WEIGHT}, storage_writer=streamxf.FileSystemWriter(path, _extensions=[forger]))
    error = refusal(path, KeyRing([TEAM], trust=TRAINER.verify_key))
    assert isinstance(error, AuthenticationError), error
    assert "not for these contents" in str(error)
