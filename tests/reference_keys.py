"""What docs/format/keys.md specifies. A part of reference_decoder.py, whose head says how rules are named."""

import hmac
from collections import namedtuple
from collections.abc import Sequence
from contextlib import suppress
from hashlib import shake_256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

from tests.reference_codecs import Refused, check, matched, refusing, unbase64

B64, KEY_ID = "[A-Za-z0-9_-]+", "[0-9a-f]{16}"
ENTRY = rf"[a-z0-9-]{{1,32}}:{KEY_ID}:{B64}"
SIGNATURE = rf"[a-z0-9+-]{{1,32}}:{KEY_ID}:{B64}"


def hkdf(secret: bytes, info: bytes, size: int = 32, salt: bytes = b"") -> bytes:
    return HKDF(SHA256(), size, salt, info).derive(secret)


def public_id(kind: str, public: bytes) -> str:
    return hkdf(public, b"streamxf/1 key id " + kind.encode(), 8).hex()


def statement(digest: bytes) -> bytes:
    return b"streamxf/1 contents\0" + digest  # V


# -- Kinds of keys


# `unwrap(wrapped key, dek)` gives the data key, or raises; `vouched(voucher, D)` says whether a voucher is right. It is
# None if the kind does not vouch.
Key = namedtuple("Key", "kind key_id unwrap vouched")


def aes_key(secret: bytes) -> Key:
    wrapping, vouching = hkdf(secret, b"streamxf/1 wrap"), hkdf(secret, b"streamxf/1 vouch")
    return Key(
        "aeskw",
        hkdf(secret, b"streamxf/1 key id", 8).hex(),
        lambda wrapped, dek: aes_key_unwrap(wrapping, wrapped),
        lambda voucher, digest: hmac.compare_digest(voucher, hmac.digest(vouching, statement(digest), "sha256")),
    )


def hpke_key(kind: str, secret: bytes) -> Key:
    hybrid = kind == "hpke-mlkem768-x25519"
    seed = shake_256(secret).digest(96) if hybrid else secret
    private = curve = X25519PrivateKey.from_private_bytes(seed[-32:])
    public, kem = curve.public_key().public_bytes_raw(), hpke.KEM.X25519
    if hybrid:
        lattice = MLKEM768PrivateKey.from_seed_bytes(seed[:64])
        private = hpke.MLKEM768X25519PrivateKey(lattice, curve)
        public, kem = lattice.public_key().public_bytes_raw() + public, hpke.KEM.MLKEM768_X25519
    suite = hpke.Suite(kem, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
    open_ = lambda wrapped, dek: suite.decrypt(wrapped, private, b"streamxf/1 hpke" + dek)  # noqa: E731
    return Key(kind, public_id(kind, public), open_, None)


# What the caller of a reader gives and requires; `trust` are public keys, of Ed25519 alone or with ML-DSA behind it.
Reader = namedtuple("Reader", "keys trust allow_unsigned", defaults=((), (), False))

# -- Wrapped data keys and vouchers; an entry is a kind, a key_id and bytes

Wrapped = namedtuple("Wrapped", "text dek entries")
Vouchers = namedtuple("Vouchers", "mac entries signatures")  # the MAC is empty where nothing is encrypted


def parse_entries(text: str) -> list[tuple[str, str, bytes]]:
    parts = [entry.partition("=")[2].split(":") for entry in text.split("&") if entry]
    entries = [(kind, key_id, unbase64(data, "K1")) for kind, key_id, data in parts]
    check(len({entry[:2] for entry in entries}) == len(entries), "K1: a pair of kind and key_id stands twice")
    check(all(1 <= len(data) <= 16384 for _, _, data in entries), "K1: more than 16384 bytes")
    return entries


def parse_wrapped(text: str) -> Wrapped:
    check(len(text) <= 65536, "K1: the length of a wrapped data key")
    dek, entries = matched(rf"dek=([0-9a-f]{{64}})((?:&w={ENTRY}){{1,16}})", text, "K1: the form of a wrapped data key")
    return Wrapped(text, bytes.fromhex(dek), parse_entries(entries))


def parse_vouchers(text: str) -> Vouchers:
    check(len(text) <= 65536, "K4: the length of the vouchers")
    said = "&" + text.partition("&_")[0]
    form = rf"(?:&mac=([0-9a-f]{{64}})((?:&v={ENTRY})*)|(?=&sig))((?:&sig={SIGNATURE}){{0,4}})"
    tag, entries, signatures = matched(form, said, "K4: the form of vouchers")
    vouchers = Vouchers(bytes.fromhex(tag or ""), parse_entries(entries or ""), parse_entries(signatures))
    sizes = {"ed25519": 64, "ed25519+mldsa65": 64 + 3309}
    check(all(len(data) == sizes.get(kind, len(data)) for kind, _, data in vouchers.signatures), "K4: a signature")
    check(not any(kind.startswith("hpke-") for kind, _, _ in vouchers.entries), "K4: hpke- does not vouch")
    return vouchers


def unwrap(wrapped: Wrapped, keys: Sequence[Key]) -> tuple[bytes, Key]:
    """The data key, and the key that opened it."""
    pairs = [(key, data) for *name, data in wrapped.entries for key in keys if [key.kind, key.key_id] == name]
    check(pairs, "K3: no matching key was given")
    for key, data in sorted(pairs, key=lambda pair: pair[0].vouched is None):
        with suppress(InvalidUnwrap, InvalidTag, ValueError):
            data_key = key.unwrap(data, wrapped.dek)
            if data_key is not None and len(data_key) == 32 and hkdf(data_key, b"streamxf/1 dek id") == wrapped.dek:
                return data_key, key
    raise Refused("K3: there are matching keys, and none opens")


def check_vouchers(vouchers: Vouchers, wrapped: Wrapped, digest: bytes, reader: Reader) -> bytes:
    """What a reader requires of the vouchers for a digest D. Gives the data key."""
    data_key, opener = unwrap(wrapped, reader.keys)
    expected = hmac.digest(hkdf(data_key, b"streamxf/1 mac"), statement(digest) + wrapped.text.encode(), "sha256")
    check(hmac.compare_digest(vouchers.mac, expected), "K4: mac")
    if opener.vouched:
        own = [data for *name, data in vouchers.entries if name == [opener.kind, opener.key_id]]
        check(own and opener.vouched(own[0], digest), "K5")
    if reader.trust or not opener.vouched:
        check(not (reader.allow_unsigned and reader.trust), "K6: signers, and unsigned data")
        if not reader.allow_unsigned:
            check_signatures(vouchers, digest, reader.trust)
    return data_key


def check_signatures(vouchers: Vouchers, digest: bytes, trust: Sequence[bytes]) -> None:
    """One of those whom the caller trusts signed, and all signatures in their names are right."""
    kinds = [("ed25519" if len(public) == 32 else "ed25519+mldsa65", public) for public in trust]
    known = {(kind, public_id(kind, public)): public for kind, public in kinds}
    own = [(kind, known[kind, key_id], data) for kind, key_id, data in vouchers.signatures if (kind, key_id) in known]
    check(own, "K6: no signature by one whom the caller trusts")
    for kind, public, data in own:
        stated = statement(digest) + (b"" if kind == "ed25519" else kind.encode())
        with refusing("K6: the signature", InvalidSignature):
            Ed25519PublicKey.from_public_bytes(public[:32]).verify(data[:64], stated)
            if kind != "ed25519":
                MLDSA65PublicKey.from_public_bytes(public[32:]).verify(data[64:], stated)
