"""Points of low order. Everybody knows what is shared with an X25519 public key of such an order: zeros; and it makes a
signature that only some verify.

It is HPKE (RFC 9180) and Ed25519 by hand, since libraries make nothing of the kind.
"""

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.sealing import DEK, HYBRID, READER, X25519, dek_id

LOW = b"\1" + bytes(31)
_KEMS = {X25519: b"\x00\x20", HYBRID: b"\x64\x7a"}


def hpke_with(kind: str, point: bytes = LOW, secret: bytes = bytes(32)) -> bytes:
    """The wrapped data key for `READER`, with this X25519 public key of the sender, and what is shared by it."""
    seed = hashlib.shake_256(READER).digest(96)
    curve = X25519PrivateKey.from_private_bytes(seed[64:] if kind == HYBRID else READER)
    public = curve.public_key().public_bytes_raw()
    if kind == HYBRID:
        lattice, ciphertext = MLKEM768PrivateKey.from_seed_bytes(seed[:64]).public_key().encapsulate()
        enc = ciphertext + point
        shared = hashlib.sha3_256(lattice + secret + point + public + bytes.fromhex("5C2E2F2F5E5C")).digest()
    else:
        suite, enc = b"KEM" + _KEMS[kind], point
        shared = _expand(suite, _extract(suite, b"", b"eae_prk", secret), b"shared_secret", enc + public, 32)
    suite = b"HPKE" + _KEMS[kind] + b"\x00\x01\x00\x02"
    info = _extract(suite, b"", b"info_hash", b"streamxf/1 hpke" + dek_id())
    context = b"\0" + _extract(suite, b"", b"psk_id_hash", b"") + info
    made = _extract(suite, shared, b"secret", b"")
    key, nonce = (_expand(suite, made, label, context, size) for label, size in ((b"key", 32), (b"base_nonce", 12)))
    return enc + AESGCM(key).encrypt(nonce, DEK, b"")


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, size: int) -> bytes:
    return HKDFExpand(SHA256(), size, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info).derive(secret)


# -- Ed25519 by hand: signatures that some verify, and that the page does not take -----------------------------------

_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME
_BASE = b"\x58" + b"\x66" * 31
_TORSION = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")  # of order 8

Point = tuple[int, int]


def sign_twisted(seed: bytes, message: bytes, point: bytes = b"", more: int = 0) -> bytes:
    """As Ed25519 signs, but with a point of order 8 added to R, or with this `point`, of order 1, for R; and with a
    multiple of the order added to S.
    """
    digest = hashlib.sha512(seed).digest()
    secret = int.from_bytes(digest[:32], "little") & (2**254 - 8) | 2**254
    drawn = int.from_bytes(hashlib.sha512(digest[32:] + message).digest(), "little") % _ORDER
    nonce = 0 if point else drawn
    public = _encode(_times(secret, _decode(_BASE)))
    point = point or _encode(_add(_times(nonce, _decode(_BASE)), _decode(_TORSION)))
    challenge = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little")
    return point + ((nonce + challenge * secret) % _ORDER + more * _ORDER).to_bytes(32, "little")


ONE, ONE_ABOVE = (number.to_bytes(32, "little") for number in (1, 1 + _PRIME))  # both are the point of order 1


def _add(one: Point, other: Point) -> Point:
    (a, b), (c, d) = one, other
    product = _D * a * b * c * d % _PRIME
    x, y = (a * d + c * b) * pow(1 + product, -1, _PRIME), (b * d + a * c) * pow(1 - product, -1, _PRIME)
    return x % _PRIME, y % _PRIME


def _times(factor: int, point: Point) -> Point:
    made = (0, 1)
    for bit in bin(factor)[2:]:
        made = _add(made, made)
        made = _add(made, point) if bit == "1" else made
    return made


def _decode(data: bytes) -> Point:
    number = int.from_bytes(data, "little")
    y = number % 2**255
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _PRIME) % _PRIME
    x = pow(square, (_PRIME + 3) // 8, _PRIME)
    if (x * x - square) % _PRIME:
        x = x * pow(2, (_PRIME - 1) // 4, _PRIME) % _PRIME
    return (x if x % 2 == number >> 255 else _PRIME - x), y


def _encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")
