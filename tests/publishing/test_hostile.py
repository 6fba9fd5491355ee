"""Hints and versions that were forged, put back, or altered: each is told, and nothing changes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
import torch

import streamxf
from streamxf import errors
from streamxf.keys import Key, PrivateKey, SigningKey
from streamxf.publishing.version import HINT, Version
from tests.altered import flip
from tests.publishing.weights import Policy, assert_same, copies, publisher


class Followed:
    """A run with three versions, and a follower that has the second."""

    def __init__(self, run: Path, seed: int = 0, reads: Any = None, **how: Any) -> None:
        self.run, self.policy, self.into, self.how = run, Policy(seed), {}, how
        self.publisher = publisher(run, **how.copy())
        self.hints, self.versions = [], []
        self.follower = streamxf.Follower(run, self.into, **(reads or {}))
        for step in (1, 2, 3):
            self.policy.step()
            self.versions.append(self.publisher.publish(step, self.policy.tensors.items()))
            self.hints.append((run / HINT).read_bytes())
            if step == 2:
                self.follower.prepare().apply()
                self.second = copies(self.policy)

    def forge(self, version: Version, **other: Any) -> None:
        """After which a new publisher goes on: the one that is there takes this for another's."""
        (self.run / HINT).write_text(json.dumps(asdict(version) | other))
        with pytest.raises(errors.AbortedError, match=r"another publisher wrote version .*make a new Publisher"):
            self.publisher.publish(9, self.policy.tensors)
        self.publisher = publisher(self.run, **self.how)

    @contextmanager
    def refused(self, error: Any, match: str) -> Iterator[None]:
        """Now; and the next version is taken all the same."""
        yield
        with pytest.raises(error, match=match):
            self.follower.prepare()
        assert_same(self.into, self.second)
        self.publisher.publish(9, self.policy.tensors.items())
        self.follower.prepare().apply()
        assert_same(self.into, self.policy.tensors)


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "run")


def test_an_older_version_is_taken_only_if_that_is_allowed(followed: Followed):
    with followed.refused(errors.IdentityError, "published before"):
        (followed.run / HINT).write_bytes(followed.hints[0])
    (followed.run / HINT).write_bytes(followed.hints[1])
    allowing = streamxf.Follower(followed.run, followed.into, allow_older=True)
    allowing.prepare().apply()
    assert_same(followed.into, followed.second)
    (followed.run / HINT).write_bytes(followed.hints[0])
    allowing.prepare().apply()
    assert allowing.held.number == 1


@pytest.mark.parametrize(
    "other", [{"number": 9}, {"save_id": "f" * 32}, {"run": "f" * 32}, {"folder": "step-2"}, {"step": 7}]
)
def test_a_forged_hint_is_compared_with_the_metadata(followed: Followed, other: dict[str, Any]):
    with followed.refused(errors.IdentityError, "one of them was altered"):
        followed.forge(followed.versions[2], **other)


def test_a_hint_that_is_behind_is_no_reason_to_stop(followed: Followed):
    """As between the publication of a step that was published before, and its hint."""
    followed.publisher.publish(3, followed.policy.tensors.items())
    (followed.run / HINT).write_bytes(followed.hints[2])
    followed.follower.prepare().apply()
    assert followed.follower.held.number == 4


def test_the_version_of_another_run_is_refused(followed: Followed, tmp_path: Path):
    other = Followed(tmp_path / "other", 1)
    copytree(other.run / "step-3", followed.run / "step-30")
    with followed.refused(errors.IdentityError, f"of the run .*run_id='{other.versions[2].run}', and allow_older=True"):
        followed.forge(other.versions[2], folder="step-30")
        (followed.run / "step-30").rename(tmp_path / "kept")
        followed.publisher._coming(9)  # which takes the run of the newest there is
        (tmp_path / "kept").rename(followed.run / "step-30")
    with pytest.raises(errors.IdentityError, match="of the run"):
        streamxf.Follower(followed.run, {}, run_id="0" * 32).prepare()


def test_the_version_of_another_run_is_taken_by_its_id(tmp_path: Path):
    followed, other = Followed(tmp_path / "run"), Followed(tmp_path / "other", 1)
    followed.follower.prepare().apply()
    taking = streamxf.Follower(other.run, tmp_path / "into")
    taking.prepare().apply()
    taking.close()
    how = {"run_id": followed.versions[2].run, "allow_older": True}
    with streamxf.Follower(followed.run, tmp_path / "into", **how) as follower:
        follower.prepare().apply()
        assert follower.held == followed.versions[2]


def test_another_version_with_the_same_number_is_refused(tmp_path: Path):
    """As of two publishers where a place cannot tell."""
    policy, into, runs = Policy(), {}, [tmp_path / "run", tmp_path / "other"]
    publisher(runs[0]).publish(1, policy.tensors)
    copytree(*runs)
    follower = streamxf.Follower(runs[0], into)
    for number in (0, 1):
        publisher(runs[number]).publish(2 + number, policy.tensors)
        follower.prepare() and follower.prepare().apply()
    copytree(runs[1], runs[0], dirs_exist_ok=True)
    with pytest.raises(errors.IdentityError, match="two publishers"):
        follower.prepare()
    streamxf.Follower(runs[0], into, allow_older=True).prepare().apply()


def test_a_new_publisher_counts_on_though_the_newest_versions_are_damaged(tmp_path: Path):
    followed = Followed(tmp_path)
    followed.follower.prepare().apply()
    for step in (2, 3):
        (tmp_path / f"step-{step}/.metadata").write_bytes(b"damaged")
    assert publisher(tmp_path).publish(4, followed.policy.tensors).number == 4
    followed.follower.prepare().apply()
    assert followed.follower.held.number == 4


@pytest.mark.parametrize("folder", ["../elsewhere", "..", "", "a/b", 3, None, "a\0b", "a?b", "a#b", "%2e%2e", "\ud800"])
def test_a_hint_leads_to_a_folder_of_the_run_alone(followed: Followed, folder: Any):
    with followed.refused(errors.MetadataError, "malformed"):
        (followed.run / HINT).write_text(json.dumps(asdict(followed.versions[2]) | {"folder": folder}))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"[" * 4000, b'{"run": 1}'], ids=range(6))
def test_a_hint_that_is_none_is_told(followed: Followed, data: bytes):
    with followed.refused(errors.MetadataError, "cannot be read|malformed"):
        (followed.run / HINT).write_bytes(data)


def test_a_huge_hint_is_no_hint(followed: Followed):
    (followed.run / HINT).write_bytes(followed.hints[2] + b" " * 10**6)
    assert followed.follower.prepare() is None


def test_a_checkpoint_that_was_not_published_is_refused(followed: Followed):
    with followed.refused(errors.MetadataError, "not saved by a Publisher"):
        with streamxf.CheckpointWriter(followed.run / "step-50") as writer:
            writer["embed"] = torch.zeros(3000, 100)
        followed.forge(followed.versions[2], folder="step-50", save_id=writer.save_id)


def test_objects_are_no_weights(followed: Followed):
    with followed.refused(errors.UnsupportedError, "tensors alone"):
        extra = {"published": {"run": followed.versions[2].run, "number": 8, "step": 50}}
        with streamxf.CheckpointWriter(followed.run / "step-50", extra=extra) as writer:
            writer["lr"] = 0.1
        followed.forge(followed.versions[2], folder="step-50", save_id=writer.save_id, number=8, step=50)


@pytest.mark.parametrize("at", [-2000, 3000])
def test_damage_is_found_before_anything_changes(followed: Followed, at: int):
    with followed.refused(errors.StreamxfError, "step-3"):
        path = max((followed.run / "step-3").glob("*.distcp"), key=lambda each: each.stat().st_mtime_ns)
        for link in (followed.run / "step-3").glob("*.distcp"):
            data = link.read_bytes()
            link.unlink()
            link.write_bytes(data)
        flip(path, at)


def test_a_difference_is_read_alone_and_not_what_lies_beneath(tmp_path: Path):
    """All else of the version is damaged, which who begins with nothing finds."""
    followed = Followed(tmp_path)
    for each in [path for step in (1, 2) for path in (tmp_path / f"step-{step}").glob("*.distcp")]:
        if (path := tmp_path / "step-3" / each.name).exists():
            path.unlink()
            path.write_bytes(bytes(each.stat().st_size))
    followed.follower.prepare().apply()
    assert_same(followed.into, followed.policy.tensors)
    with pytest.raises(errors.StreamxfError):
        streamxf.Follower(tmp_path, {}).prepare()


def test_what_was_altered_in_memory_is_not_built_on(tmp_path: Path):
    followed = Followed(tmp_path)
    followed.into["embed"].view(torch.int16).view(-1)[1234] ^= 1
    followed.follower.prepare().apply()
    assert_same(followed.into, followed.policy.tensors)


@pytest.mark.parametrize("encrypts", [False, True])
def test_only_trusted_signers_and_keys_are_followed(tmp_path: Path, encrypts: bool):
    """Public keys of two replicas; then somebody else publishes, with the same public keys or without."""
    signer, other, replicas = SigningKey.generate(), SigningKey.generate(), [PrivateKey.generate() for _ in "ab"]
    how = {"chain": "floatzip+encrypt", "keys": [each.public for each in replicas]} if encrypts else {}
    for replica in replicas:
        reads = {"trust": signer.verify_key} | ({"keys": replica} if encrypts else {})
        followed = Followed(tmp_path / f"{replica.id}", reads=reads, signer=signer, **how)
        with followed.refused((errors.AuthenticationError, errors.PolicyError), "step-4"):
            forger = publisher(followed.run, signer=other, **how)
            followed.policy.step()
            forger.publish(4, followed.policy.tensors.items())
            followed.publisher = publisher(followed.run, signer=signer, **how.copy())
        if encrypts:
            with pytest.raises(errors.StreamxfError):
                streamxf.Follower(followed.run, {}).prepare()
            with pytest.raises(errors.StreamxfError):
                streamxf.Follower(followed.run, {}, keys=Key.generate()).prepare()
        again = publisher(followed.run, signer=signer, **how)
        assert again.publish(10, followed.policy.tensors.items()).number > followed.versions[2].number
        followed.follower.prepare().apply()


def test_an_altered_signature_or_index_is_found(tmp_path: Path):
    signer = SigningKey.generate()
    followed = Followed(tmp_path, signer=signer, reads={"trust": signer.verify_key})
    with followed.refused(errors.StreamxfError, "step-3/.metadata"):
        metadata = tmp_path / "step-3/.metadata"
        kept = tmp_path / "kept"
        copy(metadata, kept)
        flip(metadata, -100)
