"""What `streamxf.rekey` and its kin believe, and what they make others believe: no more than a key has shown."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf import Encrypt
from streamxf.errors import AuthenticationError, KeyMissingError, MetadataError, PolicyError, ReplacedMeanwhile
from streamxf.format.sections import pack
from streamxf.keys import KeyRing
from streamxf.keys.envelope import Entry, Envelope, Vouchers
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.tools.rekey.holders import MetadataFile
from streamxf.tools.rekey.recipients import Recipients
from tests.dcp.helpers import assert_same, load, refused, save, sections_of
from tests.dcp.shards import save_as_ranks
from tests.failing import fails_with
from tests.keys.sealed import Service
from tests.tools.rekey.rekeying import KEY, OTHER_KEY, SIGNER, STRANGER, envelopes, forge, lines, reforge, untouched
from tests.tools.rekey.rekeying import SHORT as PRIVATE
from tests.traced import memory_below


@pytest.fixture
def local(checkpoint: Path) -> Path:
    """Two ranks' own metadata."""
    save_as_ranks(2, checkpoint, lambda: [Encrypt(KEY)], items=1, use_collectives=False)
    return checkpoint


# -- a file that only says that it is done -------------------------------------------------------------


def test_a_file_that_claims_the_new_recipients_is_not_passed_over(local: Path) -> None:
    """Else whoever put it there brings the old one back afterwards, under the old key."""
    (envelope,) = envelopes(local, "__1.metadata")
    fake = replace(envelope, recipients=(Entry(PRIVATE.kind, PRIVATE.public.id, b"x" * 80),))
    forge(local, [str(fake)], lines(local, "__1.metadata")[1], "__1.metadata")
    forged = (local / "__1.metadata").read_bytes()
    for new in (PRIVATE.public, [PRIVATE.public]):
        untouched(
            lambda new=new: streamxf.rekey(local, keys=KEY, recipients=new, allow_unsigned=True),
            local,
            KeyMissingError,
            "no key shows that",
            "__1.metadata",
        )
    for new in (PRIVATE, OTHER_KEY):
        with pytest.raises(streamxf.StreamxfError):
            streamxf.rekey(local, keys=KEY, recipients=new, allow_unsigned=True, vouch=True)
    assert (local / "__1.metadata").read_bytes() == forged


# -- who signed ------------------------------------------------------------------------------------------


def test_a_signer_is_verified_only_by_his_verify_key(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=SIGNER)])
    for found in (streamxf.recipients(checkpoint), streamxf.recipients(checkpoint, keys=KEY)):
        assert (found.signers, found.verified) == ((SIGNER.id,), ())
        assert f"claims to be signed by {SIGNER.id}" in str(found).splitlines()
    found = streamxf.recipients(checkpoint, keys=KEY, trust=[STRANGER.verify_key, SIGNER.verify_key])
    assert (found.signers, found.verified) == ((SIGNER.id,), (SIGNER.id,))
    assert f"signed by {SIGNER.id}" in str(found).splitlines()


def test_a_signature_of_zeros_is_reported_as_a_claim(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=STRANGER)])
    reforge(checkpoint, lambda envelope: envelope, signatures=(Entry("ed25519", SIGNER.id, bytes(64)),))
    found = streamxf.recipients(checkpoint, keys=KEY)
    assert found.authenticated
    assert found.verified == ()
    assert f"claims to be signed by {SIGNER.id}" in str(found).splitlines()
    with pytest.raises(streamxf.StreamxfError):
        streamxf.recipients(checkpoint, keys=KEY, trust=SIGNER.verify_key)


def test_a_signer_counts_only_if_all_signatures_in_that_name_were_verified(
    checkpoint: Path, state: dict[str, Any]
) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=SIGNER)])
    keys = MetadataFile(open_storage(checkpoint), ".metadata").keys
    good, bad = ((keys, verified, "") for verified in ([SIGNER.id], []))
    assert Recipients.of([good, good], True).verified == (SIGNER.id,)
    assert Recipients.of([good, bad], True).verified == ()


@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_a_signature_that_nobody_verified_moves_nothing_to_private_keys(
    checkpoint: Path, state: dict[str, Any], change: Any
) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=SIGNER)])
    untouched(
        lambda: change(checkpoint, keys=KEY, recipients=PRIVATE.public),
        checkpoint,
        PolicyError,
        "not verified",
        "(trust)",
    )
    change(checkpoint, keys=KEY, recipients=PRIVATE.public, trust=SIGNER.verify_key)
    assert_same(load(state, checkpoint, PRIVATE, trust=SIGNER.verify_key), state)


@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_a_signature_of_zeros_moves_nothing_to_private_keys(
    checkpoint: Path, state: dict[str, Any], change: Any
) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=STRANGER)])
    reforge(checkpoint, lambda envelope: envelope, signatures=(Entry("ed25519", SIGNER.id, bytes(64)),))
    untouched(lambda: change(checkpoint, keys=KEY, recipients=PRIVATE.public), checkpoint, PolicyError)
    with pytest.raises(streamxf.StreamxfError):
        change(checkpoint, keys=KEY, recipients=PRIVATE.public, trust=SIGNER.verify_key)
    change(checkpoint, keys=KEY, recipients=PRIVATE.public, signer=STRANGER)
    assert_same(load(state, checkpoint, PRIVATE, trust=STRANGER.verify_key), state)


# -- who wrote it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("signer", [None, SIGNER], ids=["unsigned", "signed again"])
@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_what_anyone_can_have_written_does_not_become_authentic_for_a_key(
    checkpoint: Path, state: dict[str, Any], change: Any, signer: Any
) -> None:
    save(state, checkpoint, [Encrypt(PRIVATE.public, signer=STRANGER if signer is not None else None)])
    options: dict[str, Any] = {"allow_unsigned": True, "signer": signer}
    untouched(
        lambda: change(checkpoint, keys=PRIVATE, recipients=KEY, **options), checkpoint, PolicyError, "(vouch)", KEY.id
    )
    both = [PRIVATE, OTHER_KEY]  # it is not wrapped for the second one
    untouched(
        lambda: change(checkpoint, keys=both, recipients=KEY, **options), checkpoint, PolicyError, "(vouch)", KEY.id
    )
    change(checkpoint, keys=PRIVATE, recipients=KEY, vouch=True, **options)
    assert_same(load(state, checkpoint, KEY), state)


def test_vouchers_that_nobody_checked_are_no_reason_to_vouch(checkpoint: Path, state: dict[str, Any]) -> None:
    """A name in the list, and bytes beside it, are what anyone can write who has the public key."""
    save(state, checkpoint, [Encrypt(PRIVATE.public)])
    _, sections = sections_of(checkpoint)
    (envelope,) = envelopes(checkpoint)
    data_key = KeyRing(PRIVATE).unwrap(str(envelope))
    both = str(Envelope(envelope.dek_id, (*envelope.recipients, Entry(KEY.kind, KEY.id, b"x" * 40))))
    made = Vouchers.make(sections.digest, both, data_key, [], kept=(Entry(KEY.kind, KEY.id, b"x" * 32),))
    forge(checkpoint, [both], str(made))
    options: dict[str, Any] = {"allow_unsigned": True}
    for new in (OTHER_KEY, [KEY, OTHER_KEY]):
        for change in (streamxf.rekey, streamxf.add_recipient):
            untouched(
                lambda new=new, change=change: change(checkpoint, keys=PRIVATE, recipients=new, **options),
                checkpoint,
                PolicyError,
                "(vouch)",
                OTHER_KEY.id,
            )
    # it stays as it is, and what it is shows where it is read
    streamxf.rekey(checkpoint, keys=PRIVATE, recipients=[PRIVATE.public, KEY], **options)
    with refused(AuthenticationError, KEY.id):
        load(state, checkpoint, KEY)


def test_what_a_key_opens_needs_no_word_of_its_own(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt([KEY, PRIVATE.public])])
    streamxf.add_recipient(checkpoint, keys=[PRIVATE, KEY], recipients=OTHER_KEY, allow_unsigned=True)
    assert_same(load(state, checkpoint, OTHER_KEY), state)


def test_a_trusted_signature_needs_no_word_of_its_own(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt(PRIVATE.public, signer=SIGNER)])
    streamxf.rekey(checkpoint, keys=PRIVATE, recipients=KEY, trust=SIGNER.verify_key)
    assert_same(load(state, checkpoint, KEY), state)


def test_a_service_that_does_not_answer_shows_nothing(checkpoint: Path, state: dict[str, Any]) -> None:
    keys = [Service.down(), PRIVATE]
    save(state, checkpoint, [Encrypt([keys[0], PRIVATE.public])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was passed over
        untouched(
            lambda: streamxf.add_recipient(checkpoint, keys=keys, recipients=OTHER_KEY, allow_unsigned=True),
            checkpoint,
            PolicyError,
            "(vouch)",
        )


# -- files that nobody vouched for -------------------------------------------------------------------------


def test_metadata_files_are_in_memory_one_at_a_time(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    _, sections = sections_of(checkpoint)
    (checkpoint / ".metadata").unlink()  # beside which no metadata of ranks may stand
    for number in range(24):
        data = pack(b"", b"", os.urandom(4 << 20), bytes(sections.keys))
        (checkpoint / f"__{number}.metadata").write_bytes(data)
    with memory_below(4 * 4 << 20, above=4 << 20):
        assert [one.id for one in streamxf.recipients(checkpoint).whole] == [KEY.id]
        with refused(AuthenticationError, "__0.metadata"):
            streamxf.recipients(checkpoint, keys=KEY)
        with refused(AuthenticationError, "__0.metadata"):
            streamxf.rekey(checkpoint, keys=KEY, recipients=OTHER_KEY)


def test_metadata_that_was_replaced_before_it_is_read_again_is_left_alone(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MetadataFile.replace
    other = (local / "__1.metadata").read_bytes()

    def late(self: MetadataFile, packed: bytes) -> None:
        (local / self.name).write_bytes(other)
        put(self, packed)

    monkeypatch.setattr(MetadataFile, "replace", late)
    with refused(MetadataError, "replaced meanwhile", "__0.metadata"):
        streamxf.rekey(local, keys=KEY, recipients=OTHER_KEY)
    assert (local / "__0.metadata").read_bytes() == other


def test_metadata_that_the_store_says_was_replaced_is_left_alone(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (local / "__0.metadata").read_bytes()
    monkeypatch.setattr(LocalStorage, "put", fails_with(ReplacedMeanwhile))
    with refused(MetadataError, "replaced meanwhile", "__0.metadata"):
        streamxf.rekey(local, keys=KEY, recipients=OTHER_KEY)
    assert (local / "__0.metadata").read_bytes() == before


def test_data_keys_are_unwrapped_once_though_files_are_read_twice(checkpoint: Path) -> None:
    service = Service()
    save_as_ranks(2, checkpoint, lambda: [Encrypt(service)], items=1, use_collectives=False)
    streamxf.rekey(checkpoint, keys=service, recipients=OTHER_KEY)
    assert len(service.asked) == len(set(service.asked)) == 4  # two data keys, and two vouchers
