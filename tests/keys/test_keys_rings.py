"""Rings: empty lists are no rings, policies stay with their keys, nothing secret goes into pickles."""

from __future__ import annotations

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest

import streamxf
from streamxf import Encrypt, FileSystemReader, Key, KeyProvider, KeyRing, PrivateKey, SigningKey
from streamxf.errors import ParameterError, PolicyError
from streamxf.keys import ring as rings
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope

DEK = DataKey(bytes(range(60, 92)))
KEY = Key(bytes(range(32)))
A, B = (PrivateKey(bytes(range(number, number + 32)), "hpke-x25519") for number in (1, 2))
SIGN_A, SIGN_B = (SigningKey(bytes(range(number, number + 32))) for number in (3, 4))


def fragment(*keys: KeyProvider, signer: SigningKey | None = None):
    return Envelope.seal(DEK, keys, signer).fragment


def test_a_list_of_keys_that_came_out_empty_is_refused(tmp_path):
    for empty in ([], (), {}, iter([])):
        for use in (
            KeyRing,
            KeyRing.of,
            streamxf.Registry,
            lambda keys: FileSystemReader(tmp_path, keys=keys),
            lambda keys: FileSystemReader(tmp_path, keys=KEY, trust=keys),
            lambda keys: streamxf.decode(b"", keys=keys),
            lambda keys: streamxf.tune({}, bandwidth=1e9, keys=keys),
            lambda keys: KeyRing(KEY, trust=keys),
            Encrypt,
        ):
            with pytest.raises(ParameterError, match="came out empty"):
                use(empty)
    assert len(KeyRing()) == len(KeyRing(None)) == len(KeyRing.of(None)) == 0
    assert KeyRing(KEY, trust=None).trust == ()


def test_policies_do_not_change():
    ring = KeyRing([A], allow_unsigned=True)
    for name, value in (("trust", (SIGN_A.verify_key,)), ("allow_unsigned", False)):
        with pytest.raises(AttributeError):
            setattr(ring, name, value)


def test_a_union_judges_each_key_by_its_own_ring():
    both = KeyRing([A], trust=SIGN_A.verify_key).union(KeyRing([B], trust=SIGN_B.verify_key))
    for ring in (both, KeyRing([B], trust=SIGN_B.verify_key).union(KeyRing([A], trust=SIGN_A.verify_key))):
        assert ring.unwrap(fragment(A.public, signer=SIGN_A)) == DEK
        assert ring.unwrap(fragment(B.public, signer=SIGN_B)) == DEK
        assert ring.unwrap(fragment(A.public, B.public, signer=SIGN_B)) == DEK
        for key, signer in ((A, SIGN_B), (B, SIGN_A), (A, None)):
            with pytest.raises(PolicyError):
                ring.unwrap(fragment(key.public, signer=signer))
    lax = KeyRing([A], allow_unsigned=True).union(KeyRing([B]))
    assert lax.unwrap(fragment(A.public)) == DEK
    with pytest.raises(PolicyError):
        lax.unwrap(fragment(B.public))


def test_a_key_in_both_rings_is_judged_by_both():
    asking = KeyRing([KEY], trust=SIGN_A.verify_key)
    for ring in (KeyRing([KEY]).union(asking), asking.union(KeyRing([KEY]))):
        assert ring.unwrap(fragment(KEY, signer=SIGN_A)) == DEK
        for signer in (None, SIGN_B):
            with pytest.raises(PolicyError):
                ring.unwrap(fragment(KEY, signer=signer))


def test_what_one_ring_opened_is_not_opened_for_a_union():
    lax = KeyRing([A], allow_unsigned=True)
    unsigned = fragment(A.public)
    assert lax.unwrap(unsigned) == DEK
    with pytest.raises(PolicyError):
        lax.union(KeyRing([A], trust=SIGN_A.verify_key)).unwrap(unsigned)


def test_a_ring_remembers_only_so_many(monkeypatch):
    monkeypatch.setattr(rings, "MAX_OPENED", 4)
    ring = KeyRing([KEY])
    for _ in range(9):
        streamxf.decode(streamxf.encode(b"", [Encrypt(KEY)]), keys=ring)
    assert ring._opened.cache_info().currsize == 4


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


def test_no_provider_with_a_secret_goes_into_a_pickle(tmp_path):
    ring = KeyRing([Held()])
    for thing in (ring, ring.union(KeyRing([A.public])), FileSystemReader(tmp_path, keys=ring), [ring]):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing)
    assert copy.deepcopy(ring) is ring
    own = ForkingPickler.loads(ForkingPickler.dumps(ring))
    assert next(iter(own)).secret == bytes(range(150, 182))
    again = pickle.load(io.BytesIO(pickle.dumps(KeyRing([A.public], trust=SIGN_A.verify_key))))
    assert tuple(again) == (A.public,)
    assert again.trust == (SIGN_A.verify_key,)
