"""`streamxf.rekey` and its kin: who may read a checkpoint changes, and nothing else does."""

import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem

import streamxf
from streamxf import Encrypt, Key, ZStandard
from streamxf.errors import (
    AuthenticationError,
    KeyMissingError,
    MetadataError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
)
from streamxf.format.sections import pack
from streamxf.keys import KeyRing
from streamxf.keys.envelope import MAX_RECIPIENTS, Entry, Envelope
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage
from streamxf.tools.rekey import holders
from streamxf.tools.rekey.recipients import Recipient
from tests.dcp.fsspec_checks import load_from, save_to
from tests.dcp.helpers import assert_same, full_chain, index_of, load, load_with, refused, save, sections_of
from tests.dcp.shards import save_as_ranks
from tests.failing import fails_with
from tests.polling import at_once
from tests.tools.rekey.rekeying import (
    KEY,
    OTHER_KEY,
    PRIVATE,
    SHORT,
    SIGNER,
    STRANGER,
    THIRD,
    apart,
    contents,
    envelopes,
    forge,
    lines,
    opens,
    reforge,
    untouched,
    vouchers,
)


@pytest.fixture
def saved(checkpoint: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint)
    return checkpoint


@pytest.fixture
def signed(checkpoint: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint, [Encrypt([PRIVATE.public, KEY], signer=SIGNER)])
    return checkpoint


def kept(
    path: Any,
    error: Any,
    *words: str,
    change: Any = streamxf.rekey,
    keys: Any = KEY,
    to: Any = OTHER_KEY,
    **options: Any,
) -> None:
    """Another recipient, or no more one, is refused, and nothing is written."""
    who = {"recipient" if change is streamxf.remove_recipient else "recipients": to}
    untouched(lambda: change(path, keys=keys, **who, **options), path, error, *words)


def all_refused(path: Any, error: Any, *words: str, keys: Any = KEY, listing: Any = KEY) -> None:
    """Each function refuses it."""
    for change in (streamxf.rekey, streamxf.add_recipient):
        kept(path, error, *words, change=change, keys=keys)
    kept(path, error, *words, change=streamxf.remove_recipient, keys=keys, to=KEY.id)
    untouched(lambda: streamxf.recipients(path, keys=listing), path, error, *words)


# -- what changes, and what does not -----------------------------------------------------------------


def test_the_new_key_reads_and_the_old_one_does_not(saved: Path, state: dict[str, Any]) -> None:
    before = contents(saved)
    assert streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    after = contents(saved)
    assert_same(load(state, saved, OTHER_KEY), state)
    with refused(KeyMissingError, KEY.id, OTHER_KEY.id):
        load(state, saved, KEY)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {".metadata"}


def test_nothing_else_of_the_metadata_changes(signed: Path) -> None:
    before, data = apart(signed), (signed / ".metadata").read_bytes()
    streamxf.rekey(signed, keys=KEY, recipients=[OTHER_KEY, PRIVATE.public], signer=STRANGER)
    assert (signed / ".metadata").read_bytes() != data
    index, deks, content = apart(signed)
    assert (index, deks) == before[:2]
    content.storage_meta.checkpoint_id = before[2].storage_meta.checkpoint_id  # as the path was given
    assert vars(content) == vars(before[2])


def test_torchs_own_reader_reads_it_too(saved: Path, state: dict[str, Any]) -> None:
    """It takes the wrapped keys from the pickle."""

    def stock(key: Key) -> Any:
        return filesystem.FileSystemReader(saved, _extension_registry=streamxf.Registry(keys=key))

    streamxf.rekey(saved, keys=KEY, recipients=[OTHER_KEY, THIRD])
    for key in (OTHER_KEY, THIRD):
        assert_same(load_with(state, stock(key)), state)
    with refused(KeyMissingError):
        load_with(state, stock(KEY))


def test_the_descriptors_stay_one_object_for_all_items(checkpoint: Path) -> None:
    state = {f"weight.{number}": torch.full((2,), number) for number in range(300)}
    save(state, checkpoint)
    streamxf.rekey(checkpoint, keys=KEY, recipients=[PRIVATE.public, OTHER_KEY], allow_unsigned=True)
    content = pickle.loads((checkpoint / ".metadata").read_bytes())
    assert len({id(info.transform_descriptors) for info in content.storage_data.values()}) == 1
    # once in the pickle, and once in the keys
    assert (checkpoint / ".metadata").read_bytes().count(b"dek=") == 2


@pytest.mark.parametrize("count", [2, 5])
def test_ranks_have_a_data_key_each(checkpoint: Path, count: int) -> None:
    state = save_as_ranks(count, checkpoint, lambda: [ZStandard(), Encrypt(KEY, signer=SIGNER)])
    before, metadata = contents(checkpoint), apart(checkpoint)
    found = [envelope.dek_id for envelope in envelopes(checkpoint)]
    assert len(set(found)) == len(found) == count
    streamxf.rekey(checkpoint, keys=KEY, recipients=[OTHER_KEY, SHORT.public], signer=STRANGER)
    assert [envelope.dek_id for envelope in envelopes(checkpoint)] == found
    assert apart(checkpoint)[:2] == metadata[:2]
    assert_same(load(state, checkpoint, OTHER_KEY), state)
    assert_same(load(state, checkpoint, KeyRing([SHORT], trust=STRANGER.verify_key)), state)
    with refused(KeyMissingError):
        load(state, checkpoint, KEY)
    after = contents(checkpoint)
    assert {name for name in after if after[name] != before[name]} == {".metadata"}


def test_a_copy_of_the_metadata_from_before_still_opens(saved: Path, state: dict[str, Any]) -> None:
    """As docs/security.md says: data keys stay what they are."""
    backup = (saved / ".metadata").read_bytes()
    streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)
    (saved / ".metadata").write_bytes(backup)
    assert_same(load(state, saved, KEY), state)


# -- who vouches -------------------------------------------------------------------------------------


def test_public_keys_need_a_signature(saved: Path, state: dict[str, Any]) -> None:
    for change in (streamxf.rekey, streamxf.add_recipient):
        kept(saved, PolicyError, "a signer, who then", PRIVATE.id, change=change, to=PRIVATE.public)


def test_unsigned_on_request(saved: Path, state: dict[str, Any]) -> None:
    streamxf.rekey(saved, keys=KEY, recipients=PRIVATE.public, allow_unsigned=True)
    kept(saved, PolicyError, "not signed", keys=PRIVATE, to=KEY)
    assert_same(load(state, saved, KeyRing([PRIVATE], allow_unsigned=True)), state)
    streamxf.rekey(saved, keys=PRIVATE, recipients=KEY, allow_unsigned=True, vouch=True)
    assert_same(load(state, saved, KEY), state)


@pytest.mark.parametrize("change", [streamxf.rekey, streamxf.add_recipient])
def test_what_was_saved_without_a_signer_cannot_be_signed(saved: Path, change: Any) -> None:
    """There are no hashes of blocks that a signature could cover."""
    for new in (PRIVATE.public, OTHER_KEY):
        words = ("no digests", "`streamxf sign`")
        kept(saved, UnsupportedError, *words, change=change, to=new, signer=SIGNER)


def test_a_checkpoint_without_items_can_be_signed(checkpoint: Path) -> None:
    save({}, checkpoint, [Encrypt(KEY)])
    kept(checkpoint, UnsupportedError, "streamxf sign", keys=KEY, to=PRIVATE.public, signer=SIGNER)
    streamxf.sign(checkpoint, keys=KEY, signer=SIGNER)
    streamxf.rekey(checkpoint, keys=KEY, recipients=PRIVATE.public, trust=SIGNER.verify_key)
    assert load({}, checkpoint, KeyRing([PRIVATE], trust=SIGNER.verify_key)) == {}


def test_signatures_stay_unless_somebody_signs_again(signed: Path, state: dict[str, Any]) -> None:
    before = vouchers(signed)
    streamxf.rekey(signed, keys=KEY, recipients=SHORT.public, trust=SIGNER.verify_key)
    assert vouchers(signed).signatures == before.signatures
    assert_same(load(state, signed, KeyRing([SHORT], trust=SIGNER.verify_key)), state)
    streamxf.rekey(signed, keys=SHORT, recipients=PRIVATE.public, trust=SIGNER.verify_key, signer=STRANGER)
    assert streamxf.recipients(signed).signers == (SIGNER.id, STRANGER.id)
    for signer in (SIGNER, STRANGER):
        assert_same(load(state, signed, KeyRing([PRIVATE], trust=signer.verify_key)), state)


def test_who_is_not_trusted_is_not_rekeyed(signed: Path) -> None:
    kept(signed, PolicyError, SIGNER.id, keys=PRIVATE, to=KEY)
    stranger = STRANGER.verify_key
    for keys in (PRIVATE, KEY):
        kept(signed, PolicyError, SIGNER.id, keys=keys, to=KEY, trust=stranger)
    ring = KeyRing([PRIVATE], trust=SIGNER.verify_key)
    kept(signed, ParameterError, "KeyRing", keys=ring, to=KEY, trust=stranger)
    assert streamxf.rekey(signed, keys=ring, recipients=KEY) == (".metadata",)


def test_vouchers_of_recipients_that_stay_are_kept(checkpoint: Path, state: dict[str, Any]) -> None:
    """They are for the contents, which stay; a kind that is not known here cannot make another."""
    save(state, checkpoint, [Encrypt([KEY, OTHER_KEY])])
    strange = Entry("acme-vault", "0" * 16, b"voucher")
    reforge(checkpoint, lambda envelope: envelope, entries=(*vouchers(checkpoint).entries, strange))
    before = vouchers(checkpoint).entries
    streamxf.add_recipient(checkpoint, keys=KEY, recipients=THIRD)
    assert vouchers(checkpoint).entries[:3] == before
    assert [entry.key_id for entry in vouchers(checkpoint).entries] == [KEY.id, OTHER_KEY.id, "0" * 16, THIRD.id]
    streamxf.remove_recipient(checkpoint, keys=THIRD, recipient=KEY.id)
    assert vouchers(checkpoint).entries[:2] == before[1:]
    assert_same(load(state, checkpoint, THIRD), state)
    assert_same(load(state, checkpoint, OTHER_KEY), state)


@pytest.mark.parametrize("voucher", [None, b"x" * 32], ids=["missing", "wrong"])
def test_a_recipient_whose_voucher_was_spoiled_is_helped_by_a_key_that_vouches(
    checkpoint: Path, state: dict[str, Any], voucher: bytes | None
) -> None:
    save(state, checkpoint, [Encrypt([KEY, OTHER_KEY])])
    first, second = vouchers(checkpoint).entries
    spoiled = (first,) if voucher is None else (first, replace(second, data=voucher))
    reforge(checkpoint, lambda envelope: envelope, entries=spoiled)
    with refused(AuthenticationError, OTHER_KEY.id):
        load(state, checkpoint, OTHER_KEY)
    if voucher is None:
        assert streamxf.add_recipient(checkpoint, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    else:
        assert streamxf.rekey(checkpoint, keys=KEY, recipients=[KEY, OTHER_KEY]) == (".metadata",)
    assert_same(load(state, checkpoint, OTHER_KEY), state)


def test_data_keys_of_other_checkpoints_are_not_handed_on(checkpoint: Path, tmp_path: Path) -> None:
    """Beside those of other writers, which torch's readers find at the head, or in the place of one."""
    state = save_as_ranks(2, checkpoint, lambda: [Encrypt(KEY)])
    save_as_ranks(1, tmp_path / "other", lambda: [Encrypt(KEY)])
    wrapped, made, (other,) = lines(checkpoint)
    strange, _, _ = lines(tmp_path / "other")
    forge(checkpoint, [wrapped, f"{strange}\n{other}"], made)
    streamxf.rekey(checkpoint, keys=KEY, recipients=OTHER_KEY)
    assert len(envelopes(checkpoint)) == 2
    assert Envelope.parse(strange).dek_id not in [envelope.dek_id for envelope in envelopes(checkpoint)]
    assert_same(load(state, checkpoint, OTHER_KEY), state)
    wrapped, made, _ = lines(checkpoint)
    forge(checkpoint, [wrapped, strange], made)
    all_refused(checkpoint, MetadataError, "lacks a wrapped data key", keys=OTHER_KEY, listing=OTHER_KEY)


def test_the_data_key_that_is_handed_on_is_the_one_of_the_index(checkpoint: Path) -> None:
    """One that was damaged where torch's readers find it is there again."""
    state = save_as_ranks(2, checkpoint, lambda: [Encrypt(KEY)])
    wrapped, made, (other,) = lines(checkpoint)
    at = other.index("aeskw:") + 30
    forge(checkpoint, [wrapped, other[:at] + ("A" if other[at] != "A" else "B") + other[at + 1 :]], made)
    streamxf.rekey(checkpoint, keys=KEY, recipients=OTHER_KEY)
    assert_same(load(state, checkpoint, OTHER_KEY), state)
    ids = {KeyRing.of(OTHER_KEY).unwrap(str(envelope)).id for envelope in envelopes(checkpoint)}
    assert ids == {Envelope.parse(text).dek_id for text in (wrapped, other)}


# -- what is refused ---------------------------------------------------------------------------------


def test_a_key_that_does_not_open_it(saved: Path) -> None:
    for wrong in (OTHER_KEY, [OTHER_KEY, PRIVATE], PRIVATE):
        for change in (streamxf.rekey, streamxf.add_recipient):
            kept(saved, KeyMissingError, KEY.id, change=change, keys=wrong, to=THIRD)
        kept(saved, KeyMissingError, KEY.id, change=streamxf.remove_recipient, keys=wrong, to=KEY.id)
    for none, error in ((None, KeyMissingError), ([], ParameterError)):
        for change in (streamxf.rekey, streamxf.add_recipient):
            kept(saved, error, change=change, keys=none, to=THIRD)


def test_arguments_that_no_checkpoint_takes(saved: Path) -> None:
    many = [Key.generate() for _ in range(MAX_RECIPIENTS + 1)]
    for new in ([], None, b"short", many):
        kept(saved, ParameterError, to=new)
    kept(saved, ParameterError, "signer", signer=b"x" * 32)
    kept(saved, ParameterError, "16", "17", change=streamxf.add_recipient, to=many[1:])
    assert len(streamxf.recipients(saved).whole) == 1
    streamxf.add_recipient(saved, keys=KEY, recipients=many[2:])
    assert len(streamxf.recipients(saved).whole) == MAX_RECIPIENTS


@pytest.mark.parametrize(
    "place", ["index", "recipients", "vouchers", "wrapped key", "digest", "cut", "no trailer", "empty"]
)
def test_altered_metadata(saved: Path, place: str) -> None:
    """By someone who makes the digest right again, where there is anything to be right."""
    file = saved / ".metadata"
    data = file.read_bytes()
    pickled, sections = sections_of(saved)
    wrapped, made, _ = lines(saved)
    kind: type[StreamxfError] = AuthenticationError
    if place == "index":
        root, parts = replace(index_of(saved), modules=("acme",)).pack()
        file.write_bytes(pack(pickled, parts, root, bytes(sections.keys)))
    elif place == "recipients":
        forge(saved, [f"{wrapped}&w=acme:{'0' * 16}:AAAA"], made)
    elif place == "vouchers":
        forge(saved, [wrapped], made[:4] + ("1" if made[4] != "1" else "2") + made[5:])
    elif place == "wrapped key":
        at = wrapped.index("aeskw:") + 30
        forge(saved, [wrapped[:at] + ("A" if wrapped[at] != "A" else "B") + wrapped[at + 1 :]], made)
        kind = WrongKeyError
    elif place == "digest":
        file.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        kind = MetadataError
    else:
        size = {"cut": len(data) - 1, "no trailer": len(pickled), "empty": 0}[place]
        file.write_bytes(data[:size])
        kind = MetadataError if place == "empty" else UnsupportedError
    all_refused(saved, kind, ".metadata")


def test_what_nobody_vouched_for(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [ZStandard()])
    all_refused(checkpoint, PolicyError, "not encrypted", listing=None)


def test_checkpoints_of_other_writers(tmp_path: Path, state: dict[str, Any]) -> None:
    stock, attached = tmp_path / "stock", tmp_path / "attached"
    dcp.save(state, storage_writer=filesystem.FileSystemWriter(stock, _extensions=[Encrypt(KEY)]))
    writer = streamxf.attach(filesystem.FileSystemWriter(attached), [Encrypt(KEY)])
    dcp.save(state, storage_writer=writer)
    for path in (stock, attached):
        kept(path, UnsupportedError, "no index")
        untouched(lambda path=path: streamxf.recipients(path), path, UnsupportedError, "no index")


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "tensors.safetensors"
    file.write_bytes(bytes(100))
    for path in (file, f"file://{file}"):
        untouched(
            lambda path=path: streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY),
            tmp_path,
            UnsupportedError,
            "this file is",
        )
    with refused(MetadataError, "files of other formats: tensors.safetensors"):
        streamxf.rekey(tmp_path, keys=KEY, recipients=OTHER_KEY)
    for path in (tmp_path / "missing", f"memory://{uuid.uuid4().hex}"):
        with refused(MetadataError, "no checkpoint"):
            streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY)


def test_files_that_stand_in_for_metadata(saved: Path, tmp_path: Path) -> None:
    (saved / ".metadata").rename(tmp_path / "elsewhere")
    (saved / ".metadata").symlink_to(tmp_path / "elsewhere")
    kept(saved, MetadataError, "link")
    untouched(lambda: streamxf.rekey(f"file://{saved}", keys=KEY, recipients=OTHER_KEY), saved, MetadataError, "link")
    (saved / ".metadata").unlink()
    os.mkfifo(saved / ".metadata")
    with refused(MetadataError, "not a regular file"):
        streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)


def test_metadata_under_another_name(saved: Path) -> None:
    (saved / ".metadata").rename(saved / "__0.metadata")
    kept(saved, MetadataError, "renamed")


def test_metadata_of_a_rank_beside_the_global_one(saved: Path, state: dict[str, Any], tmp_path: Path) -> None:
    """Readers never look at it, so nobody would notice whose data key it hands on."""
    local = tmp_path / "local"
    dcp.save(
        state, storage_writer=streamxf.FileSystemWriter(local, _extensions=full_chain(OTHER_KEY)), use_collectives=False
    )
    (saved / "__0.metadata").write_bytes((local / "__0.metadata").read_bytes())
    both = [KEY, OTHER_KEY]
    kept(saved, MetadataError, "__0.metadata", "Move it away", keys=both, to=THIRD)
    (saved / "__0.metadata").unlink()
    assert streamxf.rekey(saved, keys=both, recipients=THIRD) == (".metadata",)


def test_once_more_when_all_is_done(saved: Path, state: dict[str, Any]) -> None:
    streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)
    assert streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY) == ()  # AES key wrap gives the same again
    assert_same(load(state, saved, OTHER_KEY), state)
    streamxf.rekey(saved, keys=OTHER_KEY, recipients=PRIVATE.public, allow_unsigned=True)
    # a public key cannot show that it is the one
    kept(saved, KeyMissingError, PRIVATE.id, keys=OTHER_KEY, to=PRIVATE.public, allow_unsigned=True)


# -- adding and removing -------------------------------------------------------------------------------


def test_a_recipient_more(signed: Path, state: dict[str, Any]) -> None:
    (before,) = envelopes(signed)
    assert streamxf.add_recipient(signed, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    (after,) = envelopes(signed)
    assert after.recipients[:2] == before.recipients
    for key in (KEY, OTHER_KEY):
        assert_same(load(state, signed, key), state)
    whole = contents(signed)
    assert streamxf.add_recipient(signed, keys=KEY, recipients=[OTHER_KEY, KEY]) == ()
    assert contents(signed) == whole
    trust = SIGNER.verify_key
    assert streamxf.add_recipient(signed, keys=OTHER_KEY, recipients=[KEY, SHORT.public], trust=trust) == (".metadata",)
    assert [entry.key_id for entry in envelopes(signed)[0].recipients] == [PRIVATE.id, KEY.id, OTHER_KEY.id, SHORT.id]
    assert_same(load(state, signed, KeyRing([SHORT], trust=trust)), state)


def test_somebody_who_signs_and_adds_nobody(signed: Path) -> None:
    before = envelopes(signed)
    assert streamxf.add_recipient(signed, keys=KEY, recipients=KEY, signer=STRANGER) == (".metadata",)
    assert envelopes(signed) == before
    digest = sections_of(signed)[1].digest
    assert vouchers(signed).signed_by([STRANGER.verify_key], digest)
    assert vouchers(signed).signed_by([SIGNER.verify_key], digest), "signatures by others stay"


def test_a_recipient_less(signed: Path, state: dict[str, Any]) -> None:
    (before,) = envelopes(signed)
    assert streamxf.remove_recipient(signed, keys=KEY, recipient=KEY.id) == (".metadata",)  # the one that opens it, too
    assert envelopes(signed) == [replace(before, recipients=before.recipients[:1])]
    assert vouchers(signed).entries == ()
    with refused(KeyMissingError, PRIVATE.id):
        load(state, signed, KEY)
    ring = KeyRing([PRIVATE], trust=SIGNER.verify_key)
    assert_same(load(state, signed, ring), state)
    for gone, words in ((PRIVATE.id, ["last"]), (KEY.id, [KEY.id, PRIVATE.id])):
        kept(signed, ParameterError, *words, change=streamxf.remove_recipient, keys=ring, to=gone)


def test_kinds_that_are_not_known_here(saved: Path, state: dict[str, Any]) -> None:
    stranger = Entry("acme-vault", "0123456789abcdef", b"whatever it is")
    reforge(saved, lambda envelope: replace(envelope, recipients=(stranger, *envelope.recipients)))
    streamxf.add_recipient(saved, keys=KEY, recipients=OTHER_KEY)
    streamxf.remove_recipient(saved, keys=OTHER_KEY, recipient=KEY.id)
    assert envelopes(saved)[0].recipients[0] == stranger
    assert streamxf.recipients(saved).whole == (
        Recipient("acme-vault", stranger.key_id),
        Recipient("aeskw", OTHER_KEY.id),
    )
    assert_same(load(state, saved, OTHER_KEY), state)
    streamxf.remove_recipient(saved, keys=OTHER_KEY, recipient=stranger.key_id)
    assert [entry.key_id for entry in envelopes(saved)[0].recipients] == [OTHER_KEY.id]


# -- listing -------------------------------------------------------------------------------------------


def test_a_list_needs_no_key_and_says_so(signed: Path) -> None:
    found = streamxf.recipients(signed)
    assert found.whole == (Recipient(PRIVATE.kind, PRIVATE.id), Recipient("aeskw", KEY.id))
    assert (found.part, found.signers, found.authenticated) == ((), (SIGNER.id,), False)
    assert "not authenticated" in str(found)
    checked = streamxf.recipients(signed, keys=KEY)
    assert checked == replace(found, authenticated=True, save_ids=(index_of(signed).save_id,))
    assert index_of(signed).save_id in str(checked)
    assert "not authenticated" not in str(checked)
    for words in (KEY.id, PRIVATE.id, SIGNER.id, "aeskw", PRIVATE.kind):
        assert words in str(checked)


@pytest.mark.parametrize("altered", ["added", "left out", "signer"])
def test_a_list_that_storage_made_up(signed: Path, altered: str) -> None:
    """Without a key it shows what was altered; with one it is found out."""
    wrapped, made, _ = lines(signed)
    (envelope,) = envelopes(signed)
    if altered == "added":
        forge(signed, [f"{wrapped}&w=acme:{'0' * 16}:AAAA"], made)
        assert "0" * 16 in [one.id for one in streamxf.recipients(signed).whole]
    elif altered == "left out":
        forge(signed, [str(replace(envelope, recipients=envelope.recipients[1:]))], made)
        assert [one.id for one in streamxf.recipients(signed).whole] == [KEY.id]
    else:
        forge(signed, [wrapped], made.replace(SIGNER.id, STRANGER.id))
        assert streamxf.recipients(signed).signers == (STRANGER.id,)
        assert streamxf.recipients(signed, keys=KEY).verified == ()
    trust = [SIGNER.verify_key, STRANGER.verify_key]
    untouched(lambda: streamxf.recipients(signed, keys=KEY, trust=trust), signed, AuthenticationError)


def test_lists_of_writers_that_did_not_publish_are_not_authenticated(checkpoint: Path) -> None:
    """What is added there is shown, and never as one who can read it all; it is gone after a rekey."""
    state = save_as_ranks(2, checkpoint, lambda: [Encrypt(KEY)])
    wrapped, made, (other,) = lines(checkpoint)
    forge(checkpoint, [wrapped, f"{other}&w=acme:{'0' * 16}:AAAA"], made)
    found = streamxf.recipients(checkpoint, keys=KEY)
    assert (found.whole, found.part) == ((Recipient("aeskw", KEY.id),), (Recipient("acme", "0" * 16),))
    streamxf.rekey(checkpoint, keys=KEY, recipients=OTHER_KEY)
    assert streamxf.recipients(checkpoint, keys=OTHER_KEY).part == ()
    assert_same(load(state, checkpoint, OTHER_KEY), state)


def test_nothing_is_unpickled(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, fails_with(AssertionError, "unpickled"))
    streamxf.recipients(signed)
    streamxf.recipients(signed, keys=KEY)
    streamxf.rekey(signed, keys=KEY, recipients=OTHER_KEY)


def test_a_list_needs_no_torch(signed: Path) -> None:
    code = (
        "import sys, streamxf\n"
        f"found = streamxf.recipients({str(signed)!r}, keys=bytes(range(32)))\n"
        "assert found.authenticated and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_trust_needs_no_keys(signed: Path) -> None:
    found = streamxf.recipients(signed, trust=SIGNER.verify_key)
    assert (found.verified, found.authenticated) == ((SIGNER.id,), False)
    with refused(PolicyError, SIGNER.id):
        streamxf.recipients(signed, trust=STRANGER.verify_key)


# -- metadata of each rank -------------------------------------------------------------------------------


@pytest.fixture
def local(checkpoint: Path) -> Path:
    save_as_ranks(3, checkpoint, lambda: full_chain(), use_collectives=False)
    assert sorted(path.name for path in checkpoint.glob("*.metadata")) == [f"__{n}.metadata" for n in range(3)]
    return checkpoint


def test_rank_local_metadata(local: Path) -> None:
    names = tuple(f"__{rank}.metadata" for rank in range(3))
    before, indexes = contents(local), [apart(local, name)[:2] for name in names]
    assert streamxf.rekey(local, keys=KEY, recipients=OTHER_KEY) == names
    assert [apart(local, name)[:2] for name in names] == indexes
    for name in names:
        assert opens(local, OTHER_KEY, name)
        assert not opens(local, KEY, name)
    assert {name: data for name, data in contents(local).items() if name not in names} == {
        name: data for name, data in before.items() if name not in names
    }
    assert streamxf.add_recipient(local, keys=OTHER_KEY, recipients=KEY) == names
    assert streamxf.remove_recipient(local, keys=KEY, recipient=OTHER_KEY.id) == names
    assert streamxf.recipients(local, keys=KEY).whole == (Recipient("aeskw", KEY.id),)


def test_one_rank_that_does_not_open_stops_all(local: Path) -> None:
    wrapped, made, _ = lines(local, "__2.metadata")
    forge(local, [wrapped], made[:4] + ("1" if made[4] != "1" else "2") + made[5:], "__2.metadata")
    kept(local, AuthenticationError, "__2.metadata")


def test_one_rank_whose_metadata_cannot_be_made_stops_all(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written."""
    made = []

    def fail(*arguments: Any) -> bytes:
        made.append(arguments)
        if len(made) == 3:
            raise MetadataError("injected")
        return pack(*arguments)

    monkeypatch.setattr("streamxf.format.sections.pack", fail)
    kept(local, MetadataError, "__2.metadata")


@pytest.mark.parametrize("new", [OTHER_KEY, PRIVATE, PRIVATE.public], ids=["key", "private key", "public key"])
def test_once_more_after_a_crash(local: Path, new: Any) -> None:
    def rekey(keys: Any) -> tuple[str, ...]:
        return streamxf.rekey(local, keys=KEY, recipients=keys, allow_unsigned=True)

    _crashes(lambda: rekey(new))
    found = streamxf.recipients(local)
    assert (found.whole, {recipient.id for recipient in found.part}) == ((), {KEY.id, new.id})
    assert "of a part only" in str(found)
    if new == PRIVATE.public:  # which cannot show that the first file was written by the first call
        untouched(lambda: rekey(new), local, KeyMissingError, "no key shows that", PRIVATE.id, "__0.metadata")
    rekey(PRIVATE if new == PRIVATE.public else new)
    assert [recipient.id for recipient in streamxf.recipients(local).whole] == [new.id]
    assert streamxf.recipients(local).part == ()


def test_adding_and_removing_once_more_after_a_crash(local: Path) -> None:
    _crashes(lambda: streamxf.add_recipient(local, keys=KEY, recipients=OTHER_KEY))
    assert streamxf.add_recipient(local, keys=KEY, recipients=OTHER_KEY) == ("__1.metadata", "__2.metadata")
    _crashes(lambda: streamxf.remove_recipient(local, keys=OTHER_KEY, recipient=KEY.id))
    assert streamxf.remove_recipient(local, keys=OTHER_KEY, recipient=KEY.id) == ("__1.metadata", "__2.metadata")
    assert streamxf.recipients(local, keys=OTHER_KEY).whole == (Recipient("aeskw", OTHER_KEY.id),)


def _crashes(action: Callable[[], object]) -> None:
    """At the second of the ranks."""
    put = LocalStorage.put

    def fail(self: Storage, target: str, *rest: Any, **options: Any) -> None:
        if target == "__1.metadata":
            raise OSError("injected")
        put(self, target, *rest, **options)

    with mock.patch.object(LocalStorage, "put", fail), pytest.raises(OSError, match="injected"):
        action()


# -- others at the same time -----------------------------------------------------------------------------


@pytest.fixture(params=["folder", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        folder = f"/{uuid.uuid4().hex}"  # the memory file system is one for the whole process
        yield f"memory:/{folder}/checkpoint"
        if fsspec.filesystem("memory").exists(folder):
            fsspec.filesystem("memory").rm(folder, recursive=True)
    else:
        yield f"file://{tmp_path}/checkpoint" if request.param == "file" else str(tmp_path / "checkpoint")


def stored(url: str) -> dict[str, bytes]:
    filesystem, path = fsspec.core.url_to_fs(url)
    return {name.rpartition("/")[2]: filesystem.cat_file(name) for name in filesystem.find(path)}


def test_every_file_system(url: str, state: dict[str, Any]) -> None:
    save_to(url, state)
    before = stored(url)
    assert streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    assert streamxf.add_recipient(url, keys=OTHER_KEY, recipients=PRIVATE.public, allow_unsigned=True) == (".metadata",)
    assert streamxf.remove_recipient(url, keys=OTHER_KEY, recipient=OTHER_KEY.id) == (".metadata",)
    assert_same(load_from(url, state, keys=KeyRing([PRIVATE], allow_unsigned=True)), state)
    with refused(KeyMissingError):
        load_from(url, state, keys=KEY)
    after = stored(url)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {".metadata"}


def test_a_save_at_the_same_time_is_not_undone(
    url: str, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to(url, state)
    locked = holders.locked
    later = {**state, "step": 18}

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        save_to(url, later)
        return locked(*arguments)

    monkeypatch.setattr(holders, "locked", late)
    with refused(MetadataError, "replaced meanwhile"):
        streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY)
    assert_same(load_from(url, later), later)
    assert not [name for name in stored(url) if name.endswith(".tmp")]


def test_a_checkpoint_that_goes_at_the_same_time(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStorage.put

    def late(*arguments: Any, **options: Any) -> None:
        (saved / ".metadata").unlink()
        put(*arguments, **options)

    monkeypatch.setattr(LocalStorage, "put", late)
    with pytest.raises((MetadataError, FileNotFoundError)):
        streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)
    assert not list(saved.glob("*metadata*"))


def test_two_at_once(saved: Path, state: dict[str, Any]) -> None:
    """Whichever comes first counts, or both one after the other; the checkpoint stays whole."""
    keys = [Key.generate() for _ in range(4)]
    errors: list[BaseException] = []

    def work(key: Key) -> None:
        try:
            streamxf.add_recipient(saved, keys=KEY, recipients=key)
        except MetadataError as error:
            errors.append(error)

    at_once(work, keys)
    assert_same(load(state, saved, KEY), state)
    assert all("meanwhile" in str(error) for error in errors)
    assert not list(saved.glob("*.tmp"))


# -- owner and permissions -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o4755])
def test_permissions_stay(saved: Path, mode: int) -> None:
    """But for bits that lend rights to a file."""
    (saved / ".metadata").chmod(mode)
    streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)
    assert (saved / ".metadata").stat().st_mode & 0o7777 == mode & 0o777


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(saved: Path) -> None:
    os.chown(saved / ".metadata", 12345, 23456)
    (saved / ".metadata").chmod(0o640)
    streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)
    facts = (saved / ".metadata").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (12345, 23456, 0o640)


def test_another_group_gets_no_more_than_everybody(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither owner nor group can be kept."""
    found = os.stat_result((0o100640, 0, 0, 1, os.getuid() + 1, os.getgid() + 1, 0, 0, 0, 0))
    original = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: found if path == ".metadata" else original(path, **how))
    monkeypatch.setattr(os, "fchown", fails_with(PermissionError, "injected"))
    streamxf.rekey(saved, keys=KEY, recipients=OTHER_KEY)
    monkeypatch.undo()
    assert (saved / ".metadata").stat().st_mode & 0o777 == 0o600
