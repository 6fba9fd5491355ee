"""What `streamxf.rekey` and its kin believe, and what they make others believe: no more than a key has shown."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf import Encrypt, Key, KeyProvider, KeyRing, PrivateKey, SigningKey
from streamxf.dcp import folder as folder_module
from streamxf.dcp.metadata.manifest import append_trailer, split
from streamxf.dcp.rekey import rekey as rekey_module
from streamxf.dcp.rekey.sealed import Sealed
from streamxf.descriptor import Descriptor
from streamxf.errors import KeyMissingError, KeyServiceError, MetadataError, PolicyError
from streamxf.keys.envelope import Envelope, Wrapped

from .helpers import KEY, OTHER_KEY, assert_same, load, index_of, refused, save
from .writers import save_as_ranks

PRIVATE = PrivateKey(bytes(range(2, 34)), "hpke-x25519")
SIGNER = SigningKey(bytes(range(4, 36)))
STRANGER = SigningKey(bytes(range(5, 37)))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def untouched(action: Callable[[], Any], path: Path, kind: type[BaseException], *words: str) -> None:
    before = contents(path)
    with refused(kind, *words):
        action()
    assert contents(path) == before


def resign(path: Path, signature: tuple[str, bytes] | Callable[[Envelope], tuple[str, bytes]]) -> None:
    """What somebody who can read may do: name any signer under a MAC that is right."""
    opened = Sealed.parse(".metadata", (path / ".metadata").read_bytes()).open(KeyRing([KEY]))
    made = {
        one: replace(one, signature=signature(one) if callable(signature) else signature) for one in opened.envelopes
    }
    (path / ".metadata").write_bytes(opened.changed(made))


@pytest.fixture
def local(checkpoint: Path) -> Path:
    """Two ranks' own metadata."""
    save_as_ranks(2, checkpoint, lambda: [Encrypt(KEY)], items=1, use_collectives=False)
    return checkpoint


@pytest.fixture
def unsigned(checkpoint: Path, state: dict[str, Any]) -> Path:
    """What anybody can write who has the public key."""
    save(state, checkpoint, [Encrypt(PRIVATE.public)])
    return checkpoint


# -- a file that only says that it is done -------------------------------------------------------------


def test_a_file_that_claims_the_new_recipients_is_not_passed_over(local: Path) -> None:
    """Else whoever put it there brings the old one back afterwards, under the old key."""
    parts = split((local / "__1.metadata").read_bytes())
    manifest = index_of(local, "__1.metadata")
    envelope = Envelope.parse(Descriptor.parse(manifest.key).fragment)
    fake = replace(envelope, recipients=(Wrapped(PRIVATE.kind, PRIVATE.public.id, b"x" * 80),))
    key = str(Descriptor("streamxf.encrypt", 1, (), fake.fragment))
    forged = append_trailer(bytes(parts.pickled), replace(manifest, key=key), None)
    (local / "__1.metadata").write_bytes(forged)
    for new in (PRIVATE.public, [PRIVATE.public]):
        untouched(
            lambda new=new: streamxf.rekey(local, KEY, new, allow_unsigned=True),
            local,
            KeyMissingError,
            "no key shows that",
            "__1.metadata",
        )
    for new in (PRIVATE, OTHER_KEY):
        with pytest.raises(streamxf.StreamxfError):
            streamxf.rekey(local, KEY, new, allow_unsigned=True, vouch=True)
    assert (local / "__1.metadata").read_bytes() == forged


# -- who signed ------------------------------------------------------------------------------------------


def test_a_signer_is_verified_only_by_his_verify_key(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=SIGNER)])
    for found in (streamxf.recipients(checkpoint), streamxf.recipients(checkpoint, KEY)):
        assert (found.signers, found.verified) == ((SIGNER.id,), ())
        assert f"claims to be signed by {SIGNER.id}" in str(found).splitlines()
    found = streamxf.recipients(checkpoint, KEY, trust=[STRANGER.verify_key, SIGNER.verify_key])
    assert (found.signers, found.verified) == ((SIGNER.id,), (SIGNER.id,))
    assert f"signed by {SIGNER.id}" in str(found).splitlines()


def test_a_signature_of_zeros_is_reported_as_a_claim(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt(KEY)])
    resign(checkpoint, (SIGNER.id, bytes(64)))
    found = streamxf.recipients(checkpoint, KEY)
    assert found.authenticated
    assert found.verified == ()
    assert f"claims to be signed by {SIGNER.id}" in str(found).splitlines()
    with pytest.raises(streamxf.StreamxfError):
        streamxf.recipients(checkpoint, KEY, trust=SIGNER.verify_key)


def test_a_signer_counts_only_if_all_his_signatures_were_verified() -> None:
    good, bad = (rekey_module._Read((), SIGNER.id, verified) for verified in (True, False))
    assert streamxf.Recipients._of([good, good], True).verified == (SIGNER.id,)
    assert streamxf.Recipients._of([good, bad], True).verified == ()


@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_a_signature_that_nobody_verified_moves_nothing_to_private_keys(
    checkpoint: Path, state: dict[str, Any], change: Any
) -> None:
    save(state, checkpoint, [Encrypt(KEY, signer=SIGNER)])
    untouched(lambda: change(checkpoint, KEY, PRIVATE.public), checkpoint, PolicyError, "as it says", "trust=")
    change(checkpoint, KEY, PRIVATE.public, trust=SIGNER.verify_key)
    assert_same(load(state, checkpoint, PRIVATE, trust=SIGNER.verify_key), state)


@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_a_signature_of_zeros_moves_nothing_to_private_keys(
    checkpoint: Path, state: dict[str, Any], change: Any
) -> None:
    save(state, checkpoint, [Encrypt(KEY)])
    resign(checkpoint, (SIGNER.id, bytes(64)))
    untouched(lambda: change(checkpoint, KEY, PRIVATE.public), checkpoint, PolicyError)
    with pytest.raises(streamxf.StreamxfError):
        change(checkpoint, KEY, PRIVATE.public, trust=SIGNER.verify_key)
    change(checkpoint, KEY, PRIVATE.public, signer=STRANGER)
    assert_same(load(state, checkpoint, PRIVATE, trust=STRANGER.verify_key), state)


# -- who wrote it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("signer", [None, SIGNER], ids=["unsigned", "signed anew"])
@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_what_anybody_can_have_written_does_not_become_authentic_for_a_key(
    unsigned: Path, state: dict[str, Any], change: Any, signer: SigningKey | None
) -> None:
    options: dict[str, Any] = {"allow_unsigned": True, "signer": signer}
    untouched(lambda: change(unsigned, PRIVATE, KEY, **options), unsigned, PolicyError, "vouch=True", KEY.id)
    both = [PRIVATE, OTHER_KEY]  # it is not wrapped for the second one
    untouched(lambda: change(unsigned, both, KEY, **options), unsigned, PolicyError, "vouch=True", KEY.id)
    change(unsigned, PRIVATE, KEY, vouch=True, **options)
    assert_same(load(state, unsigned, KEY), state)


def test_what_a_key_opens_needs_no_word_of_its_own(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt([KEY, PRIVATE.public])])
    streamxf.add_recipient(checkpoint, [PRIVATE, KEY], OTHER_KEY, allow_unsigned=True)
    assert_same(load(state, checkpoint, OTHER_KEY), state)


def test_a_trusted_signature_needs_no_word_of_its_own(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [Encrypt(PRIVATE.public, signer=SIGNER)])
    streamxf.rekey(checkpoint, PRIVATE, KEY, trust=SIGNER.verify_key)
    assert_same(load(state, checkpoint, KEY), state)


def test_a_service_that_does_not_answer_shows_nothing(checkpoint: Path, state: dict[str, Any]) -> None:
    class Service(KeyProvider):
        kind = "acme-service"
        id = "c" * 16
        authenticates_writer = True

        def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
            return KEY.wrap(data_key, dek_id)

        def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
            raise KeyServiceError("no answer")

    save(state, checkpoint, [Encrypt([Service(), PRIVATE.public])])
    keys = [Service(), PRIVATE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was passed over
        untouched(
            lambda: streamxf.add_recipient(checkpoint, keys, OTHER_KEY, allow_unsigned=True),
            checkpoint,
            PolicyError,
            "vouch=True",
        )


# -- files that nobody vouched for -------------------------------------------------------------------------


def plant_sparse(path: Path, count: int, size: int) -> None:
    """Files that take no room, and end as the checkpoint's metadata does."""
    tail = append_trailer(b"", index_of(path), None)
    for number in range(count):
        with open(path / f"__{number}.metadata", "wb") as file:
            file.truncate(size)
            file.seek(0, 2)
            file.write(tail)


def test_metadata_files_are_in_memory_one_at_a_time(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    plant_sparse(checkpoint, 24, 16 << 20)
    (checkpoint / ".metadata").unlink()  # beside which no metadata of ranks may stand
    tracemalloc.start()
    try:
        streamxf.recipients(checkpoint)
        with refused(streamxf.errors.AuthenticationError, "__0.metadata"):
            streamxf.recipients(checkpoint, KEY)
        with refused(streamxf.errors.AuthenticationError, "__0.metadata"):
            streamxf.rekey(checkpoint, KEY, OTHER_KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 16 << 20 < peak < 4 * 16 << 20


def test_metadata_files_are_limited_in_number_and_in_total(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((folder_module, "MAX_METADATA_FILES"), (rekey_module, "MAX_ALL_METADATA")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 1)
            untouched(lambda: streamxf.rekey(local, KEY, OTHER_KEY), local, MetadataError, "metadata files")
            untouched(lambda: streamxf.recipients(local), local, MetadataError, "metadata files")


def test_metadata_that_was_replaced_before_it_is_read_again_is_left_alone(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite = rekey_module._rewrite

    def late(folder: Any, planned: Any) -> None:
        (local / planned.name).write_bytes(b"another")
        rewrite(folder, planned)

    monkeypatch.setattr(rekey_module, "_rewrite", late)
    with refused(MetadataError, "replaced meanwhile", "__0.metadata"):
        streamxf.rekey(local, KEY, OTHER_KEY)
    assert (local / "__0.metadata").read_bytes() == b"another"


def test_data_keys_are_unwrapped_once_though_files_are_read_twice(checkpoint: Path) -> None:
    asked: list[bytes] = []

    class Counting(KeyProvider):
        kind = "acme-counting"
        id = "d" * 16
        authenticates_writer = True

        def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
            return KEY.wrap(data_key, dek_id)

        def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
            asked.append(dek_id)
            return KEY.unwrap(wrapped, dek_id)

    save_as_ranks(2, checkpoint, lambda: [Encrypt(Counting())], items=1, use_collectives=False)
    streamxf.rekey(checkpoint, Counting(), Key(bytes(range(7, 39))))
    assert len(asked) == len(set(asked)) == 2
