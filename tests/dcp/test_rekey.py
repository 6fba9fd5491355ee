"""`streamxf.rekey` and its kin: who may read a checkpoint changes, and nothing else does."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import TensorProperties

import streamxf
from streamxf import Encrypt, Key, KeyRing, PrivateKey, Recipient, SigningKey, ZStandard
from streamxf.dcp import folder as folder_module
from streamxf.dcp.metadata.manifest import append_trailer, split
from streamxf.dcp.rekey.sealed import Sealed
from streamxf.dcp.rekey.texts import Outline
from streamxf.descriptor import Descriptor
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
from streamxf.keys.envelope import MAX_RECIPIENTS, Envelope, Wrapped

from .fsspec_checks import load_from, save_to
from .helpers import KEY, OTHER_KEY, assert_same, full_chain, load, index_of, refused, rewrite_metadata, save
from .writers import save_as_ranks

PRIVATE = PrivateKey(bytes(range(2, 34)))
SHORT = PrivateKey(bytes(range(3, 35)), "hpke-x25519")
SIGNER = SigningKey(bytes(range(4, 36)))
STRANGER = SigningKey(bytes(range(5, 37)))
DEK = "streamxf.encrypt/1#dek="


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def descriptors(path: Path, name: str = ".metadata") -> list[str]:
    """All Encrypt descriptors of a metadata file, each as often as the pickle has it."""
    pickled = bytes(split((path / name).read_bytes()).pickled)
    return [text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str) and text.startswith(DEK)]


def fragments(path: Path, name: str = ".metadata") -> list[Envelope]:
    return [Envelope.parse(Descriptor.parse(text).fragment) for text in descriptors(path, name)]


def reads(path: Path, key: Any, name: str = ".metadata", **policy: Any) -> bool:
    """Whether a key opens every data key."""
    try:
        Sealed.parse(name, (path / name).read_bytes()).open(KeyRing([key], **policy))
    except KeyMissingError:
        return False
    return True


def apart(data: bytes) -> tuple[list[Any], Any]:
    """A metadata file without what is meant to change: fragments, and what depends on how long they are."""
    parts = split(data)
    assert parts.manifest is not None
    pickled = [
        ("text" if isinstance(argument, str) and "UNI" in opcode.name else opcode.name, _without(argument))
        for opcode, argument, _ in pickletools.genops(bytes(parts.pickled))
        if opcode.name != "FRAME"
    ]
    return pickled, replace(parts.manifest, key=_without(parts.manifest.key))


def _without(argument: Any) -> Any:
    return DEK if isinstance(argument, str) and argument.startswith(DEK) else argument


@pytest.fixture
def saved(checkpoint: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint)
    return checkpoint


@pytest.fixture
def signed(checkpoint: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint, [Encrypt([PRIVATE.public, KEY], signer=SIGNER)])
    return checkpoint


def untouched(action: Callable[[], Any], path: Path, kind: type[BaseException], *words: str) -> None:
    """Expect a refusal that leaves every file as it was, and none beside them."""
    before = contents(path)
    with refused(kind, *words):
        action()
    assert contents(path) == before


# -- what changes, and what does not -----------------------------------------------------------------


def test_the_new_key_reads_and_the_old_one_does_not(saved: Path, state: dict[str, Any]) -> None:
    before = contents(saved)
    assert streamxf.rekey(saved, KEY, OTHER_KEY) == (".metadata",)
    after = contents(saved)
    assert_same(load(state, saved, OTHER_KEY), state)
    with refused(KeyMissingError, KEY.id, OTHER_KEY.id):
        load(state, saved, KEY)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {".metadata"}


def test_nothing_else_of_the_metadata_changes(saved: Path) -> None:
    before = (saved / ".metadata").read_bytes()
    keys = [envelope.dek_id for envelope in fragments(saved)]
    streamxf.rekey(saved, KEY, [OTHER_KEY, PRIVATE.public], signer=SIGNER)
    after = (saved / ".metadata").read_bytes()
    assert after != before
    assert apart(after) == apart(before)
    assert [envelope.dek_id for envelope in fragments(saved)] == keys
    assert descriptors(saved) == [index_of(saved).key]


def test_attributes_that_a_newer_torch_added_stay(saved: Path, state: dict[str, Any]) -> None:
    def change(content: Any) -> None:
        content.from_the_future = {"unheard": [1, "of"]}
        content.storage_meta.later = "x"
        for info in content.storage_data.values():
            info.checksum = 7

    rewrite_metadata(saved, change)
    before = (saved / ".metadata").read_bytes()
    streamxf.rekey(saved, KEY, OTHER_KEY)
    assert apart((saved / ".metadata").read_bytes()) == apart(before)
    content = pickle.loads((saved / ".metadata").read_bytes())
    assert content.from_the_future == {"unheard": [1, "of"]}
    assert content.storage_meta.later == "x"
    assert all(info.checksum == 7 for info in content.storage_data.values())
    assert_same(load(state, saved, OTHER_KEY), state)


def test_properties_that_this_torch_does_not_know_stay(saved: Path, state: dict[str, Any]) -> None:
    """Read and written again by this torch, they would be lost."""
    content = pickle.loads((saved / ".metadata").read_bytes())
    for item in content.state_dict_metadata.values():
        if hasattr(item, "properties"):
            item.properties.__class__ = NewerProperties
    pickled = pickle.dumps(content)
    names = {NewerProperties.__module__: TensorProperties.__module__, "NewerProperties": "TensorProperties"}
    outline = Outline.of(pickled, b"")
    texts = {text.data: names.get(text.data.decode(), text.data.decode()).encode() for text in outline.texts}
    opened = Sealed.parse(".metadata", (saved / ".metadata").read_bytes()).open(KeyRing.of(KEY))
    data = append_trailer(outline.exchange(pickled, texts), index_of(saved), opened._data_key)
    assert b"of.the.future" in data
    assert b"NewerProperties" not in data
    (saved / ".metadata").write_bytes(data)
    streamxf.rekey(saved, KEY, OTHER_KEY)
    assert apart((saved / ".metadata").read_bytes()) == apart(data)
    assert_same(load(state, saved, OTHER_KEY), state)


class NewerProperties(TensorProperties):
    def __getstate__(self) -> Any:
        return (*super().__getstate__(), "of.the.future")


def test_the_descriptor_stays_one_object_for_all_items(checkpoint: Path) -> None:
    state = {f"weight.{number}": torch.full((2,), number) for number in range(300)}
    save(state, checkpoint)
    size = (checkpoint / ".metadata").stat().st_size
    streamxf.rekey(checkpoint, KEY, [PRIVATE.public, OTHER_KEY], signer=SIGNER)
    content = pickle.loads((checkpoint / ".metadata").read_bytes())
    assert len({id(info.transform_descriptors) for info in content.storage_data.values()}) == 1
    assert len(descriptors(checkpoint)) == 1
    assert (checkpoint / ".metadata").stat().st_size < size + 2 * 1800  # once in the pickle, once in the manifest


@pytest.mark.parametrize("count", [2, 5])
def test_ranks_have_a_data_key_each(checkpoint: Path, count: int) -> None:
    state = save_as_ranks(count, checkpoint, lambda: full_chain())
    before = contents(checkpoint)
    envelopes = fragments(checkpoint)
    assert len({envelope.dek_id for envelope in envelopes}) == len(envelopes) == count
    streamxf.rekey(checkpoint, KEY, [OTHER_KEY, SHORT.public], signer=SIGNER)
    assert [envelope.dek_id for envelope in fragments(checkpoint)] == [envelope.dek_id for envelope in envelopes]
    assert apart((checkpoint / ".metadata").read_bytes()) == apart(before[".metadata"])
    assert_same(load(state, checkpoint, OTHER_KEY), state)
    assert_same(load(state, checkpoint, KeyRing([SHORT], trust=SIGNER.verify_key)), state)
    with refused(KeyMissingError):
        load(state, checkpoint, KEY)
    after = contents(checkpoint)
    assert {name for name in after if after[name] != before[name]} == {".metadata"}


def test_a_copy_of_the_metadata_from_before_still_opens(saved: Path, state: dict[str, Any]) -> None:
    """As docs/security.md says: data keys stay what they are."""
    backup = (saved / ".metadata").read_bytes()
    streamxf.rekey(saved, KEY, OTHER_KEY)
    (saved / ".metadata").write_bytes(backup)
    assert_same(load(state, saved, KEY), state)


# -- who vouches -------------------------------------------------------------------------------------


def test_public_keys_need_somebody_who_vouches(saved: Path, state: dict[str, Any]) -> None:
    untouched(lambda: streamxf.rekey(saved, KEY, PRIVATE.public), saved, PolicyError, "signer=", PRIVATE.id)
    untouched(lambda: streamxf.add_recipient(saved, KEY, PRIVATE.public), saved, PolicyError, "signer=", PRIVATE.id)
    streamxf.rekey(saved, KEY, PRIVATE.public, signer=SIGNER)
    assert_same(load(state, saved, KeyRing([PRIVATE], trust=SIGNER.verify_key)), state)
    with refused(PolicyError, "trust"):
        load(state, saved, PRIVATE)
    with refused(PolicyError, SIGNER.id):
        load(state, saved, KeyRing([PRIVATE], trust=STRANGER.verify_key))


def test_unsigned_on_request(saved: Path, state: dict[str, Any]) -> None:
    streamxf.rekey(saved, KEY, PRIVATE.public, allow_unsigned=True)
    untouched(lambda: streamxf.rekey(saved, PRIVATE, KEY), saved, PolicyError, "not signed")
    assert_same(load(state, saved, KeyRing([PRIVATE], allow_unsigned=True)), state)
    streamxf.rekey(saved, PRIVATE, KEY, allow_unsigned=True, vouch=True)
    assert_same(load(state, saved, KEY), state)


def test_signatures_stay_unless_somebody_signs_anew(signed: Path, state: dict[str, Any]) -> None:
    (before,) = fragments(signed)
    streamxf.rekey(signed, KEY, SHORT.public, trust=SIGNER.verify_key)
    (after,) = fragments(signed)
    assert after.signature == before.signature
    assert_same(load(state, signed, KeyRing([SHORT], trust=SIGNER.verify_key)), state)
    streamxf.rekey(signed, SHORT, PRIVATE.public, trust=SIGNER.verify_key, signer=STRANGER)
    assert streamxf.recipients(signed).signers == (STRANGER.id,)
    assert_same(load(state, signed, KeyRing([PRIVATE], trust=STRANGER.verify_key)), state)
    with refused(PolicyError, STRANGER.id):
        load(state, signed, KeyRing([PRIVATE], trust=SIGNER.verify_key))


def test_who_is_not_trusted_is_not_rekeyed(signed: Path) -> None:
    untouched(lambda: streamxf.rekey(signed, PRIVATE, KEY), signed, PolicyError, SIGNER.id)
    stranger = STRANGER.verify_key
    untouched(lambda: streamxf.rekey(signed, PRIVATE, KEY, trust=stranger), signed, PolicyError, SIGNER.id)
    untouched(lambda: streamxf.rekey(signed, KEY, KEY, trust=stranger), signed, PolicyError, SIGNER.id)
    ring = KeyRing([PRIVATE], trust=SIGNER.verify_key)
    untouched(lambda: streamxf.rekey(signed, ring, KEY, trust=stranger), signed, ParameterError, "KeyRing")
    assert streamxf.rekey(signed, ring, KEY) == (".metadata",)


def test_every_data_key_is_checked(checkpoint: Path) -> None:
    """Not only the one of the process that wrote the metadata."""

    def chain(rank: int) -> list[Any]:
        return [Encrypt(PRIVATE.public, signer=SIGNER)]

    save_as_ranks(2, checkpoint, lambda: chain(0))
    sealed = Sealed.parse(".metadata", (checkpoint / ".metadata").read_bytes())
    opened = sealed.open(KeyRing([PRIVATE], trust=SIGNER.verify_key))
    first = sealed.envelope.dek_id

    def swap(envelope: Envelope) -> Envelope:
        if envelope.dek_id == first:
            return envelope
        return replace(envelope, signature=(STRANGER.id, STRANGER.sign(envelope.dek_id)))

    made = {envelope: swap(envelope) for envelope in opened.envelopes}
    (checkpoint / ".metadata").write_bytes(opened.changed(made))
    ring = KeyRing([PRIVATE], trust=SIGNER.verify_key)
    for action in (
        lambda: streamxf.rekey(checkpoint, ring, KEY),
        lambda: streamxf.add_recipient(checkpoint, ring, KEY),
        lambda: streamxf.remove_recipient(checkpoint, ring, PRIVATE.id),
        lambda: streamxf.recipients(checkpoint, ring),
    ):
        untouched(action, checkpoint, PolicyError, STRANGER.id)


# -- what is refused ---------------------------------------------------------------------------------


def test_a_key_that_does_not_open_it(saved: Path) -> None:
    third = Key(bytes(range(9, 41)))
    for wrong in (OTHER_KEY, [OTHER_KEY, PRIVATE], PRIVATE):
        untouched(lambda wrong=wrong: streamxf.rekey(saved, wrong, third), saved, KeyMissingError, KEY.id)
        untouched(lambda wrong=wrong: streamxf.add_recipient(saved, wrong, third), saved, KeyMissingError, KEY.id)
        untouched(lambda wrong=wrong: streamxf.remove_recipient(saved, wrong, KEY.id), saved, KeyMissingError, KEY.id)
    for none, error in ((None, KeyMissingError), ([], ParameterError)):
        untouched(lambda none=none: streamxf.rekey(saved, none, third), saved, error)
        untouched(lambda none=none: streamxf.add_recipient(saved, none, third), saved, error)


def test_arguments_that_no_checkpoint_takes(saved: Path) -> None:
    many = [Key.generate() for _ in range(MAX_RECIPIENTS + 1)]
    for new in ([], None, b"short", many):
        untouched(lambda new=new: streamxf.rekey(saved, KEY, new), saved, ParameterError)
    untouched(lambda: streamxf.rekey(saved, KEY, OTHER_KEY, signer=b"x" * 32), saved, ParameterError, "signer")
    untouched(lambda: streamxf.add_recipient(saved, KEY, many[1:]), saved, ParameterError, "16", "17")
    assert len(streamxf.recipients(saved).whole) == 1
    streamxf.add_recipient(saved, KEY, many[2:])
    assert len(streamxf.recipients(saved).whole) == MAX_RECIPIENTS


@pytest.mark.parametrize("place", ["pickle", "manifest", "tag", "wrapped key", "cut", "no trailer", "empty"])
def test_altered_metadata(saved: Path, place: str) -> None:
    file = saved / ".metadata"
    data = bytearray(file.read_bytes())
    parts = split(bytes(data))
    kinds: tuple[type[StreamxfError], ...] = (AuthenticationError,)
    if place == "pickle":
        data[len(parts.pickled) // 2] ^= 1
    elif place == "manifest":
        at = data.index(b'"size":', len(parts.pickled)) + len('"size":')
        data[at] = ord("9") if data[at] != ord("9") else ord("8")
    elif place == "tag":
        data[-20] ^= 1
    elif place == "wrapped key":
        at = data.index(b"aeskw:", len(parts.pickled)) + 30
        data[at] = ord("A") if data[at] != ord("A") else ord("B")
        kinds = (WrongKeyError,)
    else:
        size = {"cut": len(data) - 1, "no trailer": len(parts.pickled), "empty": 0}[place]
        del data[size:]
        kinds = (UnsupportedError,)
    file.write_bytes(data)
    for action in (
        lambda: streamxf.rekey(saved, KEY, OTHER_KEY),
        lambda: streamxf.add_recipient(saved, KEY, OTHER_KEY),
        lambda: streamxf.remove_recipient(saved, KEY, KEY.id),
        lambda: streamxf.recipients(saved, KEY),
    ):
        untouched(action, saved, kinds[0], ".metadata")


def test_every_bit_of_small_metadata(checkpoint: Path) -> None:
    """Whichever bit was flipped: an error of ours, and nothing is written."""
    save({"w": torch.zeros(1)}, checkpoint, [Encrypt(KEY)])
    whole = (checkpoint / ".metadata").read_bytes()
    for position in range(0, 8 * len(whole), 5):
        data = bytearray(whole)
        data[position // 8] ^= 1 << position % 8
        with pytest.raises(StreamxfError):
            Sealed.parse(".metadata", bytes(data)).open(KeyRing.of(KEY))


def test_what_nobody_vouched_for(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint, [ZStandard()])
    for action in (
        lambda: streamxf.rekey(checkpoint, KEY, OTHER_KEY),
        lambda: streamxf.add_recipient(checkpoint, KEY, OTHER_KEY),
        lambda: streamxf.remove_recipient(checkpoint, KEY, KEY.id),
        lambda: streamxf.recipients(checkpoint),
    ):
        untouched(action, checkpoint, PolicyError, "not encrypted")


def test_checkpoints_of_other_writers(tmp_path: Path, state: dict[str, Any]) -> None:
    stock, attached = tmp_path / "stock", tmp_path / "attached"
    dcp.save(state, storage_writer=filesystem.FileSystemWriter(stock, _extensions=[Encrypt(KEY)]))
    writer = streamxf.attach(filesystem.FileSystemWriter(attached), [Encrypt(KEY)])
    dcp.save(state, storage_writer=writer)
    for path in (stock, attached):
        untouched(lambda path=path: streamxf.rekey(path, KEY, OTHER_KEY), path, UnsupportedError, "manifest")
        untouched(lambda path=path: streamxf.recipients(path), path, UnsupportedError, "manifest")


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "plain"
    with streamxf.open(file, "wb", chain=[Encrypt(KEY)]) as stream:
        stream.write(b"data")
    (tmp_path / "text").write_text("no checkpoint")
    for path in (tmp_path / "text", f"file://{file}"):
        untouched(lambda path=path: streamxf.rekey(path, KEY, OTHER_KEY), tmp_path, UnsupportedError, "this is a file")
    for path in (tmp_path, tmp_path / "missing", f"memory://{uuid.uuid4().hex}"):
        with refused(MetadataError, "no checkpoint"):
            streamxf.rekey(path, KEY, OTHER_KEY)


def test_files_that_stand_in_for_metadata(saved: Path, tmp_path: Path) -> None:
    (saved / ".metadata").rename(tmp_path / "elsewhere")
    (saved / ".metadata").symlink_to(tmp_path / "elsewhere")
    untouched(lambda: streamxf.rekey(saved, KEY, OTHER_KEY), saved, MetadataError, "link")
    untouched(lambda: streamxf.rekey(f"file://{saved}", KEY, OTHER_KEY), saved, MetadataError, "link")
    (saved / ".metadata").unlink()
    os.mkfifo(saved / ".metadata")
    with refused(MetadataError, "no regular file"):
        streamxf.rekey(saved, KEY, OTHER_KEY)


def test_metadata_under_another_name(saved: Path) -> None:
    (saved / ".metadata").rename(saved / "__0.metadata")
    untouched(lambda: streamxf.rekey(saved, KEY, OTHER_KEY), saved, MetadataError, "renamed")


def test_metadata_of_a_rank_beside_the_global_one(saved: Path, state: dict[str, Any], tmp_path: Path) -> None:
    """Readers never look at it, so nobody would notice whose data key it hands on."""
    local = tmp_path / "local"
    dcp.save(
        state,
        storage_writer=streamxf.FileSystemWriter(local, _extensions=full_chain(OTHER_KEY)),
        use_collectives=False,
    )
    (saved / "__0.metadata").write_bytes((local / "__0.metadata").read_bytes())
    third = Key(bytes(range(9, 41)))
    both = [KEY, OTHER_KEY]
    untouched(lambda: streamxf.rekey(saved, both, third), saved, MetadataError, "__0.metadata", "Move it away")
    (saved / "__0.metadata").unlink()
    assert streamxf.rekey(saved, both, third) == (".metadata",)


def test_once_more_when_all_is_done(saved: Path, state: dict[str, Any]) -> None:
    streamxf.rekey(saved, KEY, OTHER_KEY)
    assert streamxf.rekey(saved, KEY, OTHER_KEY) == ()  # AES key wrap gives the same again
    assert_same(load(state, saved, OTHER_KEY), state)
    streamxf.rekey(saved, OTHER_KEY, PRIVATE.public, signer=SIGNER)
    # a public key cannot show that it is the one
    untouched(
        lambda: streamxf.rekey(saved, OTHER_KEY, PRIVATE.public, signer=SIGNER), saved, KeyMissingError, PRIVATE.id
    )


# -- adding and removing -------------------------------------------------------------------------------


def test_a_recipient_more(saved: Path, state: dict[str, Any]) -> None:
    (before,) = fragments(saved)
    assert streamxf.add_recipient(saved, KEY, OTHER_KEY) == (".metadata",)
    (after,) = fragments(saved)
    assert after.recipients[:1] == before.recipients
    for key in (KEY, OTHER_KEY):
        assert_same(load(state, saved, key), state)
    whole = contents(saved)
    assert streamxf.add_recipient(saved, KEY, [OTHER_KEY, KEY]) == ()
    assert contents(saved) == whole
    assert streamxf.add_recipient(saved, OTHER_KEY, [KEY, SHORT.public], signer=SIGNER) == (".metadata",)
    assert [wrapped.key_id for wrapped in fragments(saved)[0].recipients] == [KEY.id, OTHER_KEY.id, SHORT.id]
    assert_same(load(state, saved, KeyRing([SHORT], trust=SIGNER.verify_key)), state)


def test_somebody_who_signs_and_adds_nobody(saved: Path) -> None:
    (before,) = fragments(saved)
    assert streamxf.add_recipient(saved, KEY, KEY, signer=SIGNER) == (".metadata",)
    (after,) = fragments(saved)
    assert after.recipients == before.recipients
    SIGNER.verify_key.verify(after.signature[1], after.dek_id)


def test_a_recipient_less(signed: Path, state: dict[str, Any]) -> None:
    (before,) = fragments(signed)
    assert streamxf.remove_recipient(signed, KEY, KEY.id) == (".metadata",)  # the one that opens it, too
    (after,) = fragments(signed)
    assert after == replace(before, recipients=before.recipients[:1])
    with refused(KeyMissingError, PRIVATE.id):
        load(state, signed, KEY)
    ring = KeyRing([PRIVATE], trust=SIGNER.verify_key)
    assert_same(load(state, signed, ring), state)
    untouched(lambda: streamxf.remove_recipient(signed, ring, PRIVATE.id), signed, ParameterError, "last")
    untouched(lambda: streamxf.remove_recipient(signed, ring, KEY.id), signed, ParameterError, KEY.id, PRIVATE.id)


def test_kinds_that_are_not_known_here(saved: Path, state: dict[str, Any]) -> None:
    stranger = Wrapped("acme-vault", "0123456789abcdef", b"whatever it is")
    opened = Sealed.parse(".metadata", (saved / ".metadata").read_bytes()).open(KeyRing.of(KEY))
    (saved / ".metadata").write_bytes(
        opened.changed({one: replace(one, recipients=(stranger, *one.recipients)) for one in opened.envelopes})
    )
    streamxf.add_recipient(saved, KEY, OTHER_KEY)
    streamxf.remove_recipient(saved, OTHER_KEY, KEY.id)
    assert fragments(saved)[0].recipients[0] == stranger
    assert streamxf.recipients(saved).whole == (
        Recipient("acme-vault", stranger.key_id),
        Recipient("aeskw", OTHER_KEY.id),
    )
    assert_same(load(state, saved, OTHER_KEY), state)
    streamxf.remove_recipient(saved, OTHER_KEY, stranger.key_id)
    assert [wrapped.key_id for wrapped in fragments(saved)[0].recipients] == [OTHER_KEY.id]


# -- listing -------------------------------------------------------------------------------------------


def test_a_list_needs_no_key_and_says_so(signed: Path) -> None:
    found = streamxf.recipients(signed)
    assert found.whole == (Recipient(PRIVATE.kind, PRIVATE.id), Recipient("aeskw", KEY.id))
    assert (found.part, found.signers, found.authenticated) == ((), (SIGNER.id,), False)
    assert "not authenticated" in str(found)
    checked = streamxf.recipients(signed, KEY)
    assert checked == replace(found, authenticated=True, save_ids=(index_of(signed).save_id,))
    assert index_of(signed).save_id in str(checked)
    assert "not authenticated" not in str(checked)
    for words in (KEY.id, PRIVATE.id, SIGNER.id, "aeskw", PRIVATE.kind):
        assert words in str(checked)


def test_a_list_that_storage_made_up(signed: Path) -> None:
    """Without a key it shows what was altered; with one it is found out."""
    data = (signed / ".metadata").read_bytes()
    (signed / ".metadata").write_bytes(data.replace(SIGNER.id.encode(), STRANGER.id.encode()))
    assert streamxf.recipients(signed).signers == (STRANGER.id,)
    untouched(lambda: streamxf.recipients(signed, KEY), signed, AuthenticationError)


def test_a_list_unpickles_nothing(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr("streamxf.dcp.metadata.file.load_metadata", never)
    monkeypatch.setattr(pickle, "Unpickler", never)
    streamxf.recipients(signed)
    streamxf.recipients(signed, KEY)
    streamxf.rekey(signed, KEY, OTHER_KEY)


def test_trust_needs_keys(signed: Path) -> None:
    with refused(ParameterError, "keys"):
        streamxf.recipients(signed, trust=SIGNER.verify_key)


# -- metadata of each rank -------------------------------------------------------------------------------


@pytest.fixture
def local(checkpoint: Path) -> Path:
    save_as_ranks(3, checkpoint, lambda: full_chain(), use_collectives=False)
    assert sorted(path.name for path in checkpoint.glob("*.metadata")) == [f"__{n}.metadata" for n in range(3)]
    return checkpoint


def test_rank_local_metadata(local: Path) -> None:
    names = tuple(f"__{rank}.metadata" for rank in range(3))
    before = contents(local)
    assert streamxf.rekey(local, KEY, OTHER_KEY) == names
    for name in names:
        assert apart((local / name).read_bytes()) == apart(before[name])
        assert reads(local, OTHER_KEY, name)
        assert not reads(local, KEY, name)
    assert {name: data for name, data in contents(local).items() if name not in names} == {
        name: data for name, data in before.items() if name not in names
    }
    assert streamxf.add_recipient(local, OTHER_KEY, KEY) == names
    assert streamxf.remove_recipient(local, KEY, OTHER_KEY.id) == names
    assert streamxf.recipients(local, KEY).whole == (Recipient("aeskw", KEY.id),)


def test_one_rank_that_does_not_open_stops_all(local: Path) -> None:
    data = bytearray((local / "__2.metadata").read_bytes())
    data[50] ^= 1
    (local / "__2.metadata").write_bytes(data)
    untouched(lambda: streamxf.rekey(local, KEY, OTHER_KEY), local, AuthenticationError, "__2.metadata")


@pytest.mark.parametrize("new", [OTHER_KEY, PRIVATE, PRIVATE.public], ids=["key", "private key", "public key"])
def test_once_more_after_a_crash(local: Path, new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def rekey(keys: Any) -> tuple[str, ...]:
        return streamxf.rekey(local, KEY, keys, signer=SIGNER)

    _fail_at("__1.metadata", monkeypatch)
    with pytest.raises(OSError, match="injected"):
        rekey(new)
    monkeypatch.undo()
    found = streamxf.recipients(local)
    assert (found.whole, {recipient.id for recipient in found.part}) == ((), {KEY.id, new.id})
    assert "of a part only" in str(found)
    if new == PRIVATE.public:  # which cannot show that the first file was written by the first call
        untouched(lambda: rekey(new), local, KeyMissingError, "no key shows that", PRIVATE.id, "__0.metadata")
    rekey(PRIVATE if new == PRIVATE.public else new)
    assert [recipient.id for recipient in streamxf.recipients(local).whole] == [new.id]
    assert streamxf.recipients(local).part == ()


def test_adding_and_removing_once_more_after_a_crash(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_at("__1.metadata", monkeypatch)
    with pytest.raises(OSError, match="injected"):
        streamxf.add_recipient(local, KEY, OTHER_KEY)
    monkeypatch.undo()
    assert streamxf.add_recipient(local, KEY, OTHER_KEY) == ("__1.metadata", "__2.metadata")
    _fail_at("__1.metadata", monkeypatch)
    with pytest.raises(OSError, match="injected"):
        streamxf.remove_recipient(local, OTHER_KEY, KEY.id)
    monkeypatch.undo()
    assert streamxf.remove_recipient(local, OTHER_KEY, KEY.id) == ("__1.metadata", "__2.metadata")
    assert streamxf.recipients(local, OTHER_KEY).whole == (Recipient("aeskw", OTHER_KEY.id),)


def _fail_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = folder_module.publish

    def fail(filesystem: Any, folder: Any, target: str, *rest: Any, **options: Any) -> None:
        if target == name:
            raise OSError("injected")
        publish(filesystem, folder, target, *rest, **options)

    monkeypatch.setattr(folder_module, "publish", fail)


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
    assert streamxf.rekey(url, KEY, OTHER_KEY) == (".metadata",)
    assert streamxf.add_recipient(url, OTHER_KEY, PRIVATE.public, signer=SIGNER) == (".metadata",)
    assert streamxf.remove_recipient(url, OTHER_KEY, OTHER_KEY.id) == (".metadata",)
    assert_same(load_from(url, state, keys=KeyRing([PRIVATE], trust=SIGNER.verify_key)), state)
    with refused(KeyMissingError):
        load_from(url, state, keys=KEY)
    after = stored(url)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {".metadata"}


def test_a_save_at_the_same_time_is_not_undone(
    url: str, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to(url, state)
    locked = folder_module.locked
    later = {**state, "step": 18}

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        save_to(url, later)
        return locked(*arguments)

    monkeypatch.setattr(folder_module, "locked", late)
    with refused(MetadataError, "replaced meanwhile"):
        streamxf.rekey(url, KEY, OTHER_KEY)
    assert_same(load_from(url, later), later)
    assert not [name for name in stored(url) if name.endswith(".tmp")]


def test_a_checkpoint_that_goes_at_the_same_time(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = folder_module.publish

    def late(*arguments: Any, **options: Any) -> None:
        (saved / ".metadata").unlink()
        publish(*arguments, **options)

    monkeypatch.setattr(folder_module, "publish", late)
    with pytest.raises((MetadataError, FileNotFoundError)):
        streamxf.rekey(saved, KEY, OTHER_KEY)
    assert not list(saved.glob("*metadata*"))


def test_two_at_once(saved: Path, state: dict[str, Any]) -> None:
    """Whichever comes first counts, or both one after the other; the checkpoint stays whole."""
    keys = [Key.generate() for _ in range(4)]
    errors: list[BaseException] = []

    def work(key: Key) -> None:
        try:
            streamxf.add_recipient(saved, KEY, key)
        except MetadataError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(load(state, saved, KEY), state)
    assert all("meanwhile" in str(error) for error in errors)
    assert not list(saved.glob("*.tmp"))


# -- owner and permissions -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_permissions_stay(saved: Path, mode: int) -> None:
    (saved / ".metadata").chmod(mode)
    streamxf.rekey(saved, KEY, OTHER_KEY)
    assert (saved / ".metadata").stat().st_mode & 0o7777 == mode


def test_no_bits_that_lend_rights_to_a_file(saved: Path) -> None:
    (saved / ".metadata").chmod(0o4755)
    streamxf.rekey(saved, KEY, OTHER_KEY)
    assert (saved / ".metadata").stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(saved: Path) -> None:
    os.chown(saved / ".metadata", 12345, 23456)
    (saved / ".metadata").chmod(0o640)
    streamxf.rekey(saved, KEY, OTHER_KEY)
    facts = (saved / ".metadata").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (12345, 23456, 0o640)


def test_another_group_gets_no_more_than_everybody(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither owner nor group can be kept."""
    found = os.stat_result((0o100640, 0, 0, 1, os.getuid() + 1, os.getgid() + 1, 0, 0, 0, 0))
    original = Path.stat
    monkeypatch.setattr(
        Path,
        "stat",
        lambda self, **options: found if self.name == ".metadata" else original(self, **options),
    )

    def fail(*_: Any) -> None:
        raise PermissionError("injected")

    monkeypatch.setattr(os, "fchown", fail)
    streamxf.rekey(saved, KEY, OTHER_KEY)
    monkeypatch.undo()
    assert (saved / ".metadata").stat().st_mode & 0o777 == 0o600


# -- the documentation -----------------------------------------------------------------------------------


def test_the_page_on_security_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = page.partition("\n## Rotation\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__page__"}
    exec(compile(block, "docs/security.md", "exec"), names)
    assert [reader.id for reader in streamxf.recipients("checkpoint").whole] == [names["new"].id]
