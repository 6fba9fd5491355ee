"""Wrapped data keys: which key opens them, what errors name, and how base64url is spelled."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamxf
from streamxf import Encrypt, Key
from streamxf.errors import DescriptorError, KeyMissingError, ParameterError, WrongKeyError
from streamxf.format import plain
from streamxf.keys import KeyRing
from streamxf.keys.envelope import DataKey, Entry, Envelope, Vouchers
from streamxf.keys.key import decode_b64url, encode_b64url
from tests.samples import KEY, encode

DEK = DataKey(bytes(range(100, 132)))
OTHER = Key(bytes(range(111, 143)))
ENVELOPE = Envelope.seal(DEK, [KEY])
(ENTRY,) = ENVELOPE.recipients


def unwrap(*entries: Entry, keys: object = KEY) -> DataKey:
    return KeyRing.of(keys).unwrap(str(Envelope(DEK.id, entries)))


def test_derivations_are_those_of_the_format():
    """Recorded once; files that exist depend on them."""
    assert KEY.id == "f8c9dc1d0a56854c"
    assert ENTRY.data.hex() == "40b2c1436d8407bad7f83984beabb94d622c0d027075be3b152cfb6c6c022e0acd442419615dcc5c"
    assert str(ENVELOPE) == f"dek={DEK.id.hex()}&w=aeskw:{KEY.id}:{encode_b64url(ENTRY.data)}"
    assert unwrap(ENTRY) == DEK


def test_errors_name_the_key_ids():
    with pytest.raises(KeyMissingError, match=rf"key id {KEY.id} \(aeskw\); keys given: none"):
        unwrap(ENTRY, keys=None)
    with pytest.raises(KeyMissingError, match=rf"key id {KEY.id} \(aeskw\); keys given: {OTHER.id}"):
        unwrap(ENTRY, keys=OTHER)


def test_plain_files_name_them_too():
    file = encode(b"data", [Encrypt(KEY)])
    for keys, given_ids in ((None, "none"), (OTHER, OTHER.id), ([OTHER, Key(bytes(range(112, 144)))], OTHER.id)):
        with pytest.raises(KeyMissingError, match=f"{KEY.id}.*{given_ids}"):
            streamxf.open(io.BytesIO(file), keys=keys)
    assert streamxf.decode(file, keys=[OTHER, KEY]) == b"data"
    assert streamxf.decode(file, keys=KeyRing([KEY.reveal()])) == b"data"
    assert streamxf.decode(file, keys=bytearray(KEY.reveal())) == b"data"


def test_an_altered_wrapped_key_is_a_wrong_key():
    for place in range(len(ENTRY.data)):
        changed = ENTRY.data[:place] + bytes([ENTRY.data[place] ^ 1]) + ENTRY.data[place + 1 :]
        with pytest.raises(WrongKeyError, match=KEY.id):
            unwrap(replace(ENTRY, data=changed))
    for size in (1, 8, 24, 32, 39, 41, 48, 80):
        with pytest.raises(WrongKeyError):
            unwrap(replace(ENTRY, data=(ENTRY.data * 2)[:size]))


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


def test_a_recipient_can_be_added_to_a_plain_file():
    """By someone who has a key that opens it, and without touching its container."""
    digests = []

    class Noting(Encrypt):
        def vouch(self, digest):
            digests.append(digest)
            return super().vouch(digest)

    file = encode(b"data", [Noting(KEY)])
    (digest,) = digests
    start, end = plain.prefix_size(file[:16]), len(file) - plain.seal_size(file[-plain.SEAL_END_BYTES :])
    wrapped, vouchers, container = plain.parse_prefix(file[:start])[0], plain.parse_seal(file[end:])[0], file[start:end]
    data_key = KeyRing(KEY).open(wrapped, vouchers, digest)

    both = Envelope.seal(data_key, [KEY, OTHER])
    made = Vouchers.make(digest, str(both), data_key, [KEY, OTHER])
    changed = plain.pack_prefix(str(both)) + container + plain.pack_seal(str(made))
    for key in (KEY, OTHER):
        assert streamxf.decode(changed, keys=key) == b"data"
    # the vouchers that were there are for other recipients
    kept = plain.pack_prefix(str(both)) + container + plain.pack_seal(vouchers)
    for key in (KEY, OTHER):
        with pytest.raises(streamxf.errors.AuthenticationError, match="list of recipients"):
            streamxf.decode(kept, keys=key)
    # and by the first key alone
    made = Vouchers.make(digest, str(both), data_key, [], kept=Vouchers.parse(vouchers).entries)
    kept = plain.pack_prefix(str(both)) + container + plain.pack_seal(str(made))
    assert streamxf.decode(kept, keys=KEY) == b"data"
    with pytest.raises(streamxf.errors.AuthenticationError, match=OTHER.id):
        streamxf.decode(kept, keys=OTHER)


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
