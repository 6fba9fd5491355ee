"""Wrapped data keys: which key opens them, what errors name, and every way in which a fragment can be wrong."""

from __future__ import annotations

import io

import pytest
from cryptography.hazmat.primitives.keywrap import aes_key_wrap
from forge import prefix_of, take_apart
from hypothesis import given
from hypothesis import strategies as st
from samples import KEY, encode

import streamxf
from streamxf import Encrypt, Key, KeyRing
from streamxf.descriptor import format_parameters
from streamxf.errors import DescriptorError, KeyMissingError, ParameterError, WrongKeyError
from streamxf.keys.b64url import decode_b64url, encode_b64url
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope

DEK = DataKey(bytes(range(100, 132)))
OTHER = Key(bytes(range(111, 143)))
DEK_ID = ("dek", encode_b64url(DEK.id))
WRAPPED = str(Envelope.seal(DEK, [KEY]).recipients[0])


def fragment(*wrapped: str) -> tuple[tuple[str, str], ...]:
    return (DEK_ID, *(("w", value) for value in wrapped))


def test_derivations_are_those_of_the_format():
    """Recorded once; files that exist depend on them."""
    assert KEY.id == "f8c9dc1d0a56854c"
    assert Envelope.seal(DEK, [KEY]).fragment == (DEK_ID, ("w", WRAPPED))
    assert Envelope.seal(DEK, [KEY]).open([KEY]) == DEK


def test_any_recipient_opens_it():
    keys = [Key.generate() for _ in range(16)]
    wrapped = Envelope.seal(DEK, keys).fragment
    for key in keys:
        assert Envelope.parse(wrapped).open([OTHER, key]) == DEK
    with pytest.raises(ParameterError, match="1 to 16 recipients, not 17"):
        Envelope.seal(DEK, [*keys, KEY])
    with pytest.raises(DescriptorError, match="17 wrapped keys"):
        Envelope.parse((*wrapped, ("w", WRAPPED)))


def test_errors_name_the_key_ids():
    with pytest.raises(KeyMissingError, match=rf"key id {KEY.id} \(aeskw\); keys given: none"):
        Envelope.parse(fragment(WRAPPED)).open([])
    with pytest.raises(KeyMissingError, match=rf"key id {KEY.id} \(aeskw\); keys given: {OTHER.id}"):
        Envelope.parse(fragment(WRAPPED)).open([OTHER])


def test_plain_files_name_them_too():
    file = encode(b"data", [Encrypt(KEY)])
    for keys, given_ids in ((None, "none"), (OTHER, OTHER.id), ([OTHER, Key(bytes(range(112, 144)))], OTHER.id)):
        with pytest.raises(KeyMissingError, match=f"{KEY.id}.*{given_ids}"):
            streamxf.open(io.BytesIO(file), keys=keys)
    assert streamxf.decode(file, keys=[OTHER, KEY]) == b"data"
    assert streamxf.decode(file, keys=KeyRing([KEY.reveal()])) == b"data"
    assert streamxf.decode(file, keys=bytearray(KEY.reveal())) == b"data"


def test_unknown_kinds_are_skipped():
    future = f"hpke:{KEY.id}:{encode_b64url(b'whatever')}"
    assert Envelope.parse(fragment(future, WRAPPED)).open([KEY]) == DEK
    with pytest.raises(KeyMissingError):
        Envelope.parse(fragment(future)).open([KEY])


def test_an_altered_wrap_is_a_wrong_key():
    kind, key_id, data = WRAPPED.split(":")
    raw = decode_b64url(data)
    for place in range(len(raw)):
        changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        with pytest.raises(WrongKeyError, match=KEY.id):
            Envelope.parse(fragment(f"{kind}:{key_id}:{encode_b64url(changed)}")).open([KEY])
    for size in (8, 24, 32, 39, 48):
        with pytest.raises(WrongKeyError):
            Envelope.parse(fragment(f"{kind}:{key_id}:{encode_b64url((raw * 2)[:size])}")).open([KEY])


def test_another_data_key_under_the_right_key():
    """Somebody who can wrap (and only they) could swap the data key; the id beside it must agree."""
    swapped = encode_b64url(aes_key_wrap(KEY.wrapping_key(), bytes(32)))
    with pytest.raises(WrongKeyError):
        Envelope.parse(fragment(f"aeskw:{KEY.id}:{swapped}")).open([KEY])
    short = encode_b64url(aes_key_wrap(KEY.wrapping_key(), bytes(16)))
    with pytest.raises(WrongKeyError):
        Envelope.parse(fragment(f"aeskw:{KEY.id}:{short}")).open([KEY])


def test_another_keys_wrap_under_this_keys_id():
    foreign = str(Envelope.seal(DEK, [OTHER]).recipients[0])
    with pytest.raises(WrongKeyError, match=KEY.id):
        Envelope.parse(fragment(foreign.replace(OTHER.id, KEY.id))).open([KEY])


@pytest.mark.parametrize(
    "broken",
    [
        (),
        (DEK_ID,),
        (("w", WRAPPED),),
        (DEK_ID, DEK_ID, ("w", WRAPPED)),
        (DEK_ID, ("w", WRAPPED), ("level", "3")),
        (("dek", "!"), ("w", WRAPPED)),
        fragment("aeskw"),
        fragment(f"aeskw:{KEY.id}"),
        fragment(WRAPPED + ":x"),
        fragment(WRAPPED + "="),
        fragment(WRAPPED[:-1] + "+"),
        fragment(f"aeskw:{KEY.id}:A"),
        fragment(f"aeskw:{KEY.id}:AB"),  # the bits beyond the byte are not zero
        fragment(*[WRAPPED] * 17),
    ],
    ids=range(14),
)
def test_fragments_that_are_refused(broken):
    with pytest.raises(DescriptorError):
        Envelope.parse(broken).open([KEY])


@given(data=st.binary(max_size=50))
def test_base64url_round_trip(data):
    text = encode_b64url(data)
    assert "=" not in text
    assert decode_b64url(text) == data


@given(text=st.text(alphabet="ABab01-_+/=\n ", max_size=12))
def test_base64url_has_one_spelling(text):
    try:
        data = decode_b64url(text)
    except DescriptorError:
        return
    assert encode_b64url(data) == text


def test_a_recipient_can_be_added_in_place():
    """What the 512 bytes of the prefix are for."""
    file = encode(b"data", [codec := Encrypt(KEY)])
    parts = take_apart(file)
    old = parts.prefix[12:-4].rstrip(b"\0").decode()
    data_key = Envelope.parse(streamxf.descriptor.parse_parameters(old, repeatable=("w",))).open([KEY])
    assert data_key != codec.data_key  # streamxf.open renews the chain
    both = format_parameters(Envelope.seal(data_key, [KEY, OTHER]).fragment).encode()
    changed = parts.change(prefix=prefix_of(both)).pack()
    assert len(changed) == len(file)
    for key in (KEY, OTHER):
        assert streamxf.decode(changed, keys=key) == b"data"


@pytest.mark.parametrize("keys", ["0" * 32, 5, [b"short"], b"short", ["0" * 32], object()])
def test_things_that_are_no_keys(keys):
    with pytest.raises(ParameterError):
        KeyRing.of(keys)


def test_keys_are_equal_by_id():
    assert Key(KEY.reveal()) == KEY
    assert len({Key(KEY.reveal()), KEY, OTHER}) == 2
    assert Key.generate() != Key.generate()
    assert len(KeyRing([KEY, KEY.reveal(), OTHER])) == 2
    assert KEY.reveal() != KEY
