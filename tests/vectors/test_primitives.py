"""Known test cases of the primitives, run through the code that uses them here; the READMEs beside them say whose."""

import hmac
import json
from functools import partial
from hashlib import sha3_256, shake_256
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

from streamxf.chain import stage_limit
from streamxf.codec import BlockInfo, StreamInfo
from streamxf.codecs import encrypt
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import AuthenticationError, ParameterError, WrongKeyError
from streamxf.keys import Key, PrivateKey, PublicKey, VerifyKey
from streamxf.keys.key import HYBRID, X25519, derive
from streamxf.keys.pair import kems
from tests.lots import in_lots
from tests.reference_keys import hkdf, hpke_key

FOLDER = Path(__file__).parent
BLOCK = 1 << 16


def cases(name: str, count: int) -> Any:
    """Run a test with each of the `count` cases of a file, and the fields of its group."""
    groups = json.loads((FOLDER / "wycheproof" / f"{name}.json").read_text())["testGroups"]
    found = [{**group, **case} for group in groups for case in group["tests"]]
    assert len(found) == count
    return in_lots("case", found)


def raw(case: dict[str, Any], *names: str) -> list[bytes]:
    return [bytes.fromhex(case[name]) for name in names]


# -- AES-256-GCM -----------------------------------------------------------------------------------------------------


@pytest.fixture
def nonce(monkeypatch):
    """Gives `Encrypt` the nonces of the cases; its own are made of a block's number."""
    return lambda wanted: monkeypatch.setattr(encrypt, "_nonce", lambda info: wanted)


@cases("aes_gcm_test", 66)
def test_aes_gcm(case, nonce):
    key, iv, aad, message, ciphertext, tag = raw(case, "key", "iv", "aad", "msg", "ct", "tag")
    stored = ciphertext + tag
    cipher = AESGCM(key)
    if aad:  # streamxf has none; the calls are those of `Encrypt`
        out, back = bytearray(len(stored)), bytearray(len(message))
        seal = partial(cipher.encrypt_into, iv, message, aad, out)
        unseal = partial(cipher.decrypt_into, iv, stored, aad, back)
        error: type[Exception] = InvalidTag
    else:
        nonce(iv)
        out, back = bytearray(len(stored)), bytearray(b"\xff" * len(message))
        codec = Encrypt(Key(bytes(range(200, 232))))
        state = encrypt._StreamState(cipher, b"")
        seal = partial(codec.encode, memoryview(message), _info(state, out))
        unseal = partial(codec.decode, memoryview(stored), _info(state, back))
        error = AuthenticationError
    if case["result"] == "valid":
        seal()
        assert bytes(out) == stored
        unseal()
        assert bytes(back) == message
    else:
        with pytest.raises(error):
            unseal()
        if not aad:
            assert not any(back)  # nothing that was not authentic is left behind


def _info(state: Any, memory: bytearray) -> BlockInfo:
    stream = StreamInfo(BLOCK, bytes(32), bytes(32))
    return BlockInfo(0, True, stage_limit(BLOCK), state, stream, lambda size: memoryview(memory)[:size])


# -- HKDF-SHA256 -----------------------------------------------------------------------------------------------------


@cases("hkdf_sha256_test", 86)
def test_hkdf(case):
    secret, salt, info, expected = raw(case, "ikm", "salt", "info", "okm")
    if case["result"] == "valid":
        assert derive(secret, info, case["size"], salt) == expected
        assert hkdf(secret, info, case["size"], salt) == expected
        if not salt:
            assert derive(secret, info, case["size"]) == expected
    else:
        with pytest.raises(ValueError):
            derive(secret, info, case["size"], salt)


# -- AES key wrap ----------------------------------------------------------------------------------------------------


class Kek(Key):
    """A key whose wrapping key is given, not derived."""

    __slots__ = ()

    def wrapping_key(self) -> bytes:
        return self._material


@cases("aes_wrap_test", 68)
def test_aes_key_wrap(case):
    key, message, wrapped = raw(case, "key", "msg", "ct")
    kek = Kek(key)
    if case["result"] == "valid":
        assert kek.wrap(message, b"") == wrapped
        assert kek.unwrap(wrapped, b"") == message
    elif case["result"] == "acceptable":  # keys of 8 bytes; a data key has 32
        with pytest.raises(WrongKeyError):
            kek.unwrap(wrapped, b"")
    else:
        with pytest.raises(WrongKeyError):
            kek.unwrap(wrapped, b"")


# -- X25519 and ML-KEM-768 -------------------------------------------------------------------------------------------


@cases("x25519_test", 141)
def test_x25519(case):
    public, private, shared = raw(case, "public", "private", "shared")
    key = X25519PrivateKey.from_private_bytes(private)
    if any(shared):
        assert key.exchange(X25519PublicKey.from_public_bytes(public)) == shared
        return
    with pytest.raises(ValueError):
        key.exchange(X25519PublicKey.from_public_bytes(public))
    with pytest.raises(WrongKeyError):  # as the share that came with a wrapped key
        PrivateKey(private, X25519).unwrap(public + bytes(48), bytes(32))
    with pytest.raises(ParameterError):  # as the key of a recipient
        PublicKey(public, X25519)


@cases("mlkem_768_test", 48)
def test_ml_kem_decapsulation(case):
    seed, ciphertext, shared = raw(case, "seed", "c", "K")
    if case["result"] == "valid":
        assert MLKEM768PrivateKey.from_seed_bytes(seed).decapsulate(ciphertext) == shared
    else:
        with pytest.raises(ValueError):
            MLKEM768PrivateKey.from_seed_bytes(seed).decapsulate(ciphertext)


@cases("mlkem_768_encaps_test", 37)
def test_ml_kem_public_keys_that_are_none(case):
    (public,) = raw(case, "ek")
    assert case["result"] == "invalid"
    share = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    with pytest.raises(ParameterError):
        PublicKey(public + share)


# -- HPKE ------------------------------------------------------------------------------------------------------------


def hpke_vector(name: str) -> dict[str, Any]:
    (vector,) = json.loads((FOLDER / "hpke" / f"{name}.json").read_text())
    return vector


@pytest.mark.parametrize(
    ("name", "kind", "kem", "aead"),
    [
        ("rfc9180", X25519, KEM.X25519, AEAD.AES_256_GCM),
        ("hpke-pq", HYBRID, KEM.MLKEM768_X25519, AEAD.CHACHA20_POLY1305),
    ],
)
def test_hpke(name, kind, kem, aead):
    """The suite of streamxf's keys, but for the AEAD of the second; its keys are made as streamxf makes them."""
    from cryptography.hazmat.bindings._rust import openssl

    vector = hpke_vector(name)
    secret, public, enc, info = raw(vector, "skRm", "pkRm", "enc", "info")
    key = PrivateKey(secret, kind)
    assert key.public.data == public
    suite = Suite(kem, KDF.HKDF_SHA256, aead)
    (first,) = vector["encryptions"]
    aad, message, ciphertext = raw(first, "aad", "pt", "ct")
    private = kems()[kind].private(secret)
    # Suite.decrypt has no additional data, which every published vector has
    assert openssl.hpke._decrypt_with_aad(suite, enc + ciphertext, private, info, aad) == message


@pytest.mark.parametrize(("name", "kind"), [("rfc9180", X25519), ("hpke-pq", HYBRID)])
def test_key_pairs_of_the_reference_decoder(name, kind):
    secret, public = raw(hpke_vector(name), "skRm", "pkRm")
    assert hpke_key(kind, secret).key_id == PublicKey(public, kind).id
    sealed = PublicKey(public, kind).wrap(bytes(range(32)), b"id")
    assert hpke_key(kind, secret).unwrap(sealed, b"id") == bytes(range(32))


@pytest.mark.parametrize("vector", json.loads((FOLDER / "hpke" / "x-wing.json").read_text()))
def test_x_wing(vector):
    seed, public = raw(vector, "sk", "pk")
    assert PrivateKey(seed).public.data == public
    assert isinstance(kems()[HYBRID].private(seed), MLKEM768X25519PrivateKey)


def open_by_hand(secret: bytes, wrapped: bytes, info: bytes) -> bytes:
    """What was wrapped for a hybrid key, by the words of docs/format/keys.md and RFC 9180 alone."""
    seed = shake_256(secret).digest(96)
    lattice, curve = MLKEM768PrivateKey.from_seed_bytes(seed[:64]), X25519PrivateKey.from_private_bytes(seed[64:])
    ct_m, ct_x, ciphertext = wrapped[:1088], wrapped[1088:1120], wrapped[1120:]
    ss_m, ss_x = lattice.decapsulate(ct_m), curve.exchange(X25519PublicKey.from_public_bytes(ct_x))
    pk_x = curve.public_key().public_bytes_raw()
    shared = sha3_256(ss_m + ss_x + ct_x + pk_x + bytes.fromhex("5C2E2F2F5E5C")).digest()
    suite = b"HPKE" + bytes.fromhex("647a00010002")

    def extract(salt: bytes, label: bytes, material: bytes) -> bytes:
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")

    def expand(label: bytes, size: int) -> bytes:
        labelled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + context
        return hmac.digest(key_secret, labelled + b"\1", "sha256")[:size]

    context = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    key_secret = extract(shared, b"secret", b"")
    return AESGCM(expand(b"key", 32)).decrypt(expand(b"base_nonce", 12), ciphertext, b"")


def test_the_hybrid_kem_is_what_the_page_says():
    secret, data_key, dek = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
    wrapped = PrivateKey(secret, HYBRID).public.wrap(data_key, dek)
    assert open_by_hand(secret, wrapped, b"streamxf/1 hpke" + dek) == data_key


# -- Ed25519 ---------------------------------------------------------------------------------------------------------


@cases("ed25519_test", 151)
def test_ed25519(case):
    message, signature = raw(case, "msg", "sig")
    key = VerifyKey(bytes.fromhex(case["publicKey"]["pk"]))
    if case["result"] == "valid":
        key.verify(signature, message)
    else:
        with pytest.raises(AuthenticationError):
            key.verify(signature, message)
