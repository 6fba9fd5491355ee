"""Key pairs: HPKE with both KEMs, signatures, and data keys that were wrapped and signed once and for all."""

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from streamxf.errors import AuthenticationError, ParameterError, UnsupportedError, WrongKeyError
from streamxf.keys import Key, KeyRing, PrivateKey, PublicKey, SigningKey, VerifyKey
from streamxf.keys.envelope import DataKey, Entry, Envelope
from streamxf.keys.key import HYBRID, X25519, decode_b64url
from tests import sealing
from tests.altered import flipped
from tests.keys.frozen import HYBRID_WRAPPED, SIGNATURE, X25519_WRAPPED
from tests.vectors.recipes.low_order import hpke_with

SECRET = bytes(range(32))
DEK = bytes(range(100, 132))
DEK_ID = bytes(range(200, 232))

both = pytest.mark.parametrize("kind", [X25519, HYBRID])


@both
def test_round_trip(kind):
    key = PrivateKey.generate(kind)
    wrapped = key.public.wrap(DEK, DEK_ID)
    assert len(wrapped) == {X25519: 80, HYBRID: 1168}[kind]
    assert wrapped != key.public.wrap(DEK, DEK_ID)
    assert key.unwrap(wrapped, DEK_ID) == DEK
    assert PrivateKey(key.reveal(), kind) == key
    assert key.public == PublicKey(key.public.data, kind)
    assert (key.id, key.kind) == (key.public.id, kind)


@both
def test_what_does_not_open(kind):
    key = PrivateKey(SECRET, kind)
    wrapped = key.public.wrap(DEK, DEK_ID)
    altered = [flipped(wrapped, at) for at in range(0, len(wrapped), 11)]
    for bad in (*altered, b"", wrapped[:-1], wrapped + b"x", wrapped[:32], bytes(len(wrapped)), bytes(6144)):
        with pytest.raises(WrongKeyError, match=key.id):
            key.unwrap(bad, DEK_ID)
    with pytest.raises(WrongKeyError):
        key.unwrap(wrapped, bytes(32))
    with pytest.raises(WrongKeyError):
        PrivateKey.generate(kind).unwrap(wrapped, DEK_ID)


# of order 1, 2, 4 and 8, as RFC 7748 writes them, and 1 with another spelling
LOW = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


@pytest.mark.parametrize("point", LOW, ids=bytes.hex)
@both
def test_points_of_low_order_open_nothing(kind: str, point: bytes):
    """What X25519 gives then everybody knows: 32 zeros. Another recipient's wrapped key still opens."""
    key = PrivateKey(sealing.READER, kind)
    wrapped = hpke_with(kind, point)
    with pytest.raises(WrongKeyError, match=key.id):
        key.unwrap(wrapped, sealing.dek_id())
    other = Key(SECRET)
    sealed = Envelope.seal(DataKey(sealing.DEK), [other])
    both_recipients = Envelope(sealed.dek_id, (Entry(kind, key.id, wrapped), *sealed.recipients))
    assert KeyRing([key, other], allow_unsigned=True).unwrap(str(both_recipients)) == DataKey(sealing.DEK)
    with pytest.raises(WrongKeyError, match=key.id):
        KeyRing(key, allow_unsigned=True).unwrap(str(both_recipients))


def test_the_kinds_do_not_mix():
    pairs = [PrivateKey(SECRET, kind) for kind in (X25519, HYBRID)]
    for key, other in (pairs, pairs[::-1]):
        with pytest.raises(WrongKeyError):
            key.unwrap(other.public.wrap(DEK, DEK_ID), DEK_ID)
        assert key != other
    assert len({key.id for key in (*pairs, SigningKey(SECRET), Key(SECRET))}) == 4
    for make in (PrivateKey, PublicKey):
        for kind in ("hpke-none", "aeskw", "", None):
            with pytest.raises(ParameterError, match="no key pair of kind"):
                make(SECRET, kind)
    with pytest.raises(ParameterError, match="1216 bytes"):
        PublicKey(SECRET)


def test_what_was_wrapped_once_opens_for_ever():
    """Recorded with the first version; files that exist depend on it."""
    assert PrivateKey(SECRET, X25519).id == "948f1608a52fd128"
    assert PrivateKey(SECRET).id == "7df4a79d949888a6"
    assert SigningKey(SECRET).id == "fdf804b620a25ecc"
    assert PrivateKey(SECRET, X25519).unwrap(decode_b64url(X25519_WRAPPED), DEK_ID) == DEK
    assert PrivateKey(SECRET).unwrap(decode_b64url(HYBRID_WRAPPED), DEK_ID) == DEK
    SigningKey(SECRET).verify_key.verify(decode_b64url(SIGNATURE), DEK_ID)
    assert SigningKey(SECRET).sign(DEK_ID) == decode_b64url(SIGNATURE)


def test_public_keys_are_those_of_other_implementations():
    """RFC 8032, 7.1, test 1; draft-connolly-cfrg-xwing-kem, the first vector: how its public key begins."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert SigningKey(seed).verify_key == VerifyKey(bytes.fromhex(public))
    seed = bytes.fromhex("7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26")
    assert PrivateKey(seed).public.data.startswith(bytes.fromhex("e2236b35a8c24b39b10aa1323a96a919"))


def test_where_ml_kem_is_missing(monkeypatch):
    public = PrivateKey(SECRET).public.data

    class Missing:
        def fail(data):
            raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend.")

        from_seed_bytes = from_public_bytes = staticmethod(fail)

    for name in ("MLKEM768PrivateKey", "MLKEM768PublicKey"):
        monkeypatch.setattr(f"streamxf.lazy.mlkem.{name}", Missing)
    for make in (lambda: PrivateKey(SECRET), lambda: PublicKey(public), PrivateKey.generate):
        with pytest.raises(UnsupportedError, match=r"no ML-KEM.*use the kind hpke-x25519"):
            make()
    assert PrivateKey(SECRET, X25519).public.wrap(DEK, DEK_ID)


def test_signatures_are_of_one_statement_by_one_key():
    signer = SigningKey.generate()
    signature = signer.sign(DEK_ID)
    signer.verify_key.verify(signature, DEK_ID)
    for verify_key, signed, statement in (
        (SigningKey.generate().verify_key, signature, DEK_ID),
        (signer.verify_key, signature, bytes(32)),
        (signer.verify_key, signature[:-1], DEK_ID),
        (signer.verify_key, b"", DEK_ID),
        (signer.verify_key, bytes(64), DEK_ID),
    ):
        with pytest.raises(AuthenticationError):
            verify_key.verify(signed, statement)


def test_equality_and_hashes():
    key = PrivateKey(SECRET)
    assert key != key.public
    assert len({key, PrivateKey(SECRET), key.public, PrivateKey(SECRET).public}) == 2
    assert SigningKey(SECRET).verify_key == SigningKey(SECRET).verify_key
    assert hash(SigningKey(SECRET)) == hash(SigningKey(SECRET))


# the y of all points of order 1, 2, 4 and 8, with either sign, and those that can be spelled otherwise
PRIME = 2**255 - 19
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7


@pytest.mark.parametrize("sign", [0, 2**255])
@pytest.mark.parametrize("y", [0, 1, PRIME - 1, ORDER_8, PRIME - ORDER_8, PRIME, PRIME + 1])
def test_points_of_low_order_verify_nothing(y: int, sign: int) -> None:
    with pytest.raises(ParameterError, match="low order"):
        VerifyKey((y + sign).to_bytes(32, "little"))
