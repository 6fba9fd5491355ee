"""Rings: empty lists are no rings, policies stay with their keys, nothing secret goes into pickles."""

import copy
import dataclasses
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest

import streamxf
from streamxf import Encrypt, Key, PrivateKey, SigningKey
from streamxf.errors import AuthenticationError, ParameterError, PolicyError
from streamxf.keys import KeyProvider, KeyRing
from tests.keys.sealed import DEK, Sealed

KEY = Key(bytes(range(32)))
A, B = (PrivateKey(bytes(range(number, number + 32)), "hpke-x25519") for number in (1, 2))
SIGN_A, SIGN_B = (SigningKey(bytes(range(number, number + 32))) for number in (3, 4))


def opened(ring: KeyRing, *keys: KeyProvider, signer: SigningKey | None = None) -> bool:
    """Whether it opens what was saved for `keys`."""
    return Sealed.make(keys, signer).open_with(ring) == DEK


EMPTY = pytest.mark.parametrize("empty", [[], (), {}, iter([])], ids=["list", "tuple", "dict", "iterator"])


def refuses_the_empty(use, empty) -> None:
    with pytest.raises(ParameterError, match="an empty list"):
        use(empty)


@EMPTY
def test_a_list_of_keys_that_came_out_empty_is_refused(empty):
    for use in (
        KeyRing,
        KeyRing.of,
        lambda keys: streamxf.decode(b"", keys=keys),
        lambda keys: streamxf.encode(b"", "encrypt", keys=keys),
        lambda keys: KeyRing(KEY, trust=keys),
        Encrypt,
    ):
        refuses_the_empty(use, empty)
    assert len(KeyRing()) == len(KeyRing(None)) == len(KeyRing.of(None)) == 0
    assert KeyRing(KEY, trust=None).trust == ()


@EMPTY
def test_what_reads_checkpoints_refuses_it_too(empty, tmp_path):
    for use in (
        lambda keys: streamxf.Registry(keys=keys),
        lambda keys: streamxf.FileSystemReader(tmp_path, keys=keys),
        lambda keys: streamxf.FileSystemReader(tmp_path, keys=KEY, trust=keys),
    ):
        refuses_the_empty(use, empty)


def test_policies_do_not_change():
    ring = KeyRing([A], allow_unsigned=True)
    for name, value in (("trust", (SIGN_A.verify_key,)), ("allow_unsigned", False)):
        with pytest.raises(AttributeError):
            setattr(ring, name, value)


def test_keys_are_given_in_one_place():
    with pytest.raises(ParameterError, match="in one place"):
        streamxf.FileSystemReader("x", _extension_registry=streamxf.Registry(keys=A), keys=B)


def test_what_was_opened_for_one_purpose_is_not_opened_for_another():
    ring, sealed = KeyRing([A], trust=SIGN_A.verify_key), Sealed.make([A.public])
    text = str(sealed.envelope)
    assert ring.unwrap(text) == DEK
    for use in (
        lambda: sealed.open_with(ring),
        lambda: ring.unwrap_unvouched(sealed.fragment),
        lambda: ring.open_pipe(text),
    ):
        with pytest.raises(PolicyError):
            use()
    signed = Sealed.make([A.public], SIGN_A)
    assert signed.open_with(ring) == DEK
    with pytest.raises(AuthenticationError):
        dataclasses.replace(signed, digest=bytes(32)).open_with(ring)


def test_encrypt_takes_no_ring_that_trusts():
    with pytest.raises(ParameterError, match="trust="):
        Encrypt(KeyRing([KEY], trust=SIGN_A.verify_key))


class Held(KeyProvider):
    kind = "test-held"
    id = "a" * 16
    secret = None

    def __init__(self):
        self.secret = bytes(range(150, 182))

    def wrap(self, data_key, dek_id):
        return data_key[::-1]


def test_no_reader_with_a_secret_goes_into_a_pickle(tmp_path):
    reader = streamxf.FileSystemReader(tmp_path, keys=KeyRing([Held()]))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(reader)


def test_no_provider_with_a_secret_goes_into_a_pickle():
    ring = KeyRing([Held()])
    for thing in (ring, KeyRing([A.public, Held()]), [ring]):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing)
    assert copy.deepcopy(ring) is ring
    own = ForkingPickler.loads(ForkingPickler.dumps(ring))
    assert next(iter(own)).secret == bytes(range(150, 182))
    again = pickle.load(io.BytesIO(pickle.dumps(KeyRing([A.public], trust=SIGN_A.verify_key))))
    assert tuple(again) == (A.public,)
    assert again.trust == (SIGN_A.verify_key,)
