"""Notes: what is sealed is read again by whom it is for, and whatever else stands there is refused."""

import hashlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import Note
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import AuthenticationError, KeyMissingError, MetadataError, PolicyError, StreamxfError
from streamxf.format.limits import MAX_NOTE
from streamxf.keys import Key, PrivateKey, SigningKey
from tests.altered import flipped
from tests.forge import MetadataParts, count_marks, frame_of
from tests.traced import memory_below

RECORD = {"save_id": "0" * 32, "files": [{"path": "größe", "size": 7}]}
KEY, PRIVATE, SIGNER = Key(bytes(range(32))), PrivateKey.generate(), SigningKey.generate()
STRANGER = SigningKey.generate()
CHAINS = {
    "key": Encrypt(KEY),
    "signed": Encrypt(KEY, signer=SIGNER),
    "public key": Encrypt(PRIVATE.public, signer=SIGNER),
}
ACCESSES = {
    "key": Access.of(KEY),
    "signed": Access.of(KEY, trust=SIGNER.verify_key),
    "public key": Access.of(PRIVATE, trust=SIGNER.verify_key),
}
texts = st.text(st.characters(exclude_categories=["Cs"]))
contents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**53 - 1) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(content=contents)
def test_what_is_sealed_is_read(content: Any) -> None:
    note = Note.parse(Note.seal(content))
    note.check(Access.of())
    assert note.content == content
    assert not note.keyed


@pytest.mark.parametrize("kind", CHAINS)
def test_keys_vouch_for_a_note(kind: str) -> None:
    note = Note.parse(Note.seal(RECORD, CHAINS[kind]))
    note.check(ACCESSES[kind])
    assert note.keyed
    assert note.content == RECORD


def test_what_keys_do_not_vouch_for_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.checkpoint.notes.parse_json", lambda *_: pytest.fail("it was parsed"))
    for data in (packed(b"["), Note.seal(RECORD, Encrypt(Key.generate()))):
        with pytest.raises((PolicyError, KeyMissingError)):
            Note.parse(data).check(ACCESSES["key"])


def test_each_note_has_a_data_key_of_its_own() -> None:
    first, second = (Note.seal(RECORD, CHAINS["key"]) for _ in range(2))
    assert first[-200:] != second[-200:]


@pytest.mark.parametrize("kind", ["signed", "public key"])
def test_a_signature_needs_no_key_that_opens(kind: str) -> None:
    note = Note.parse(Note.seal(RECORD, CHAINS[kind]))
    assert note.signed_by([STRANGER.verify_key, SIGNER.verify_key])
    assert not note.signed_by([STRANGER.verify_key])
    assert not note.signed_by([])


def test_without_a_signature_no_one_signed() -> None:
    for note in (Note.seal(RECORD), Note.seal(RECORD, CHAINS["key"])):
        assert not Note.parse(note).signed_by([SIGNER.verify_key])


def test_a_signature_of_other_contents_is_an_error() -> None:
    """The keys of one note under the contents of another."""
    ours, theirs = (Note.parse(Note.seal(content, CHAINS["signed"])) for content in (RECORD, {}))
    forged = Note(theirs.sections, ours._lines)
    with pytest.raises(AuthenticationError):
        forged.signed_by([SIGNER.verify_key])
    with pytest.raises(AuthenticationError):
        forged.check(ACCESSES["signed"])


def test_a_job_that_encrypts_refuses_it_without_a_reading_key() -> None:
    with pytest.raises(PolicyError, match="not encrypted"):
        Note.parse(Note.seal(RECORD)).check(Access(require="published"))


def test_without_the_key_a_note_is_not_checked() -> None:
    note = Note.parse(Note.seal(RECORD, CHAINS["key"]))
    for access in (Access.of(), Access.of(Key.generate())):
        with pytest.raises(KeyMissingError):
            note.check(access)


@pytest.mark.parametrize("kind", ["none", *CHAINS])
def test_a_changed_byte_is_an_error(kind: str) -> None:
    data = Note.seal(RECORD, CHAINS.get(kind))
    for at in range(len(data)):
        with pytest.raises(StreamxfError):
            Note.parse(flipped(data, at, 0x41)).check(ACCESSES.get(kind, Access()))


def test_a_cut_note_is_an_error() -> None:
    data = Note.seal(RECORD, CHAINS["key"])
    for size in range(len(data)):
        for part in (data[:size], data[len(data) - size :]):
            with pytest.raises(MetadataError):
                Note.parse(part)


def content_of(data: bytes) -> Any:
    return Note.parse(data).content


def packed(text: bytes) -> bytes:
    return MetadataParts(b"", frame_of(text.ljust(3 * count_marks(text)))).pack()


@pytest.mark.parametrize("content", [1.5, -1, 2**53, "\ud800", {"a": [float("nan")]}, [[]] * 3 + [object()]])
def test_what_readers_would_refuse_is_not_sealed(content: Any) -> None:
    with pytest.raises(MetadataError):
        Note.seal(content)


def test_a_huge_frame_is_refused_by_what_it_declares() -> None:
    """In the frame's header: 2^60 bytes, of which there are none."""
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + (2**60).to_bytes(8, "little") + b"\x01\0\0"
    with pytest.raises(MetadataError):
        content_of(MetadataParts(b"", frame).pack())


DIGESTS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2**17)]


@pytest.mark.parametrize("more", [DIGESTS[4000:], [0] * 2**19], ids=["bytes", "commas"])
def test_there_is_a_limit_to_a_note(more: list[Any]) -> None:
    most = [*DIGESTS[:4000], *more[: 2**16], *([0] * (2**19 - 2**16 - 4000) if more[0] == 0 else [])]
    assert content_of(Note.seal(most)) == most
    with pytest.raises(MetadataError, match="too many files"):
        Note.seal(DIGESTS[:4000] + more)
    with pytest.raises(MetadataError, match="are allowed" if more[0] else "commas"):
        content_of(packed(json.dumps(DIGESTS[:4000] + more).encode()))
    with pytest.raises(MetadataError, match="are allowed"):
        Note.parse(bytes(MAX_NOTE + 1))


@pytest.mark.parametrize("value", [b"{}", b"[]", b"0", b'"\\ud83d\\ude00"'], ids=repr)
def test_what_a_note_may_hold_takes_little_to_parse(value: bytes) -> None:
    """Before anyone has said who wrote it: of each kind as much as fits."""
    noise = "".join(DIGESTS[:4000]).encode()
    room = (2**23 - len(noise) - 100) // (len(value) + 1)
    text = (
        b'["'
        + noise
        + b'",'
        + b",".join([value] * min(room, 2**19 // (2 if value in (b"{}", b"[]") else 1) - 9))
        + b"]"
    )
    note = Note.parse(packed(text))
    began = time.process_time()
    with memory_below(64 * 2**20):
        assert len(note.content) > 2**17
    assert time.process_time() - began < 5, "with tracemalloc, which takes most of it"
