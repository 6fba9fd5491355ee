"""What docs/format/keys.md specifies. A part of reference_decoder.py, whose head says how rules are named."""

import base64
import hmac
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import shake_256
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap
from reference_codecs import Refused, check, matched, refusing, unbase64

B64, KEY_ID = "[A-Za-z0-9_-]+", "[0-9a-f]{16}"
ENTRY = rf"[a-z0-9-]{{1,32}}:{KEY_ID}:{B64}"


def hkdf(secret: bytes, info: bytes, size: int = 32, salt: bytes = b"") -> bytes:
    return HKDF(SHA256(), size, salt, info).derive(secret)


def public_id(kind: str, public: bytes) -> str:
    return hkdf(public, b"streamxf/1 key id " + kind.encode(), 8).hex()


def mac(key: bytes, digest: bytes) -> bytes:
    return hmac.digest(key, statement(digest), "sha256")


def statement(digest: bytes) -> bytes:
    return b"streamxf/1 contents\0" + digest  # V


# -- Kinds of keys


class Key(NamedTuple):
    kind: str
    key_id: str
    unwrap: Callable[[bytes, bytes], bytes | None]  # from a wrapped key and the id `dek`; may raise
    vouched: Callable[[bytes, bytes], bool] | None  # whether a voucher is right for a digest D, if the kind vouches


def aes_key(secret: bytes) -> Key:
    wrapping, vouching = hkdf(secret, b"streamxf/1 wrap"), hkdf(secret, b"streamxf/1 vouch")
    return Key(
        "aeskw",
        hkdf(secret, b"streamxf/1 key id", 8).hex(),
        lambda wrapped, dek: aes_key_unwrap(wrapping, wrapped),
        lambda voucher, digest: hmac.compare_digest(voucher, mac(vouching, digest)),
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


def kms_key(arn: str, decrypt: Callable[[str, bytes, dict[str, str]], bytes | None]) -> Key:
    """A key inside AWS KMS. `decrypt(arn, ciphertext, context)` gives None where the service refuses."""
    return Key(
        "aws-kms",
        public_id("aws-kms", arn.encode("ascii")),
        lambda wrapped, dek: decrypt(arn, wrapped, {"streamxf:dek": dek.hex()}),
        lambda voucher, digest: decrypt(arn, voucher, {"streamxf:contents": digest.hex()}) == digest,
    )


class Reader(NamedTuple):
    """What the caller of a reader gives and requires; `trust` are Ed25519 public keys."""

    keys: Sequence[Key] = ()
    trust: Sequence[bytes] = ()
    allow_unsigned: bool = False


# -- Wrapped data keys and vouchers


class Wrapped(NamedTuple):
    dek: bytes
    entries: list[tuple[str, str, bytes]]  # kind, key_id, the wrapped key


class Vouchers(NamedTuple):
    mac: bytes
    entries: list[tuple[str, str, bytes]]  # kind, key_id, the voucher
    signer: str
    signature: bytes  # empty if there is none


def parse_entries(text: str) -> list[tuple[str, str, bytes]]:
    parts = [entry.partition("=")[2].split(":") for entry in text.split("&") if entry]
    entries = [(kind, key_id, unbase64(data, "K1")) for kind, key_id, data in parts]
    check(len({entry[:2] for entry in entries}) == len(entries), "K1: a pair of kind and key_id stands twice")
    check(all(1 <= len(data) <= 6144 for _, _, data in entries), "K1: more than 6144 bytes")
    return entries


def parse_wrapped(text: str) -> Wrapped:
    check(len(text) <= 32768, "K1: the length of a wrapped data key")
    dek, entries = matched(rf"dek=([0-9a-f]{{64}})((?:&w={ENTRY}){{1,16}})", text, "K1: the form of a wrapped data key")
    return Wrapped(bytes.fromhex(dek), parse_entries(entries))


def parse_vouchers(text: str) -> Vouchers:
    check(len(text) <= 32768, "K4: the length of the vouchers")
    form = rf"mac=([0-9a-f]{{64}})((?:&v={ENTRY})*)(?:&sig=({KEY_ID}):({B64}))?"
    tag, entries, signer, signed = matched(form, text, "K4: the form of vouchers")
    vouchers = Vouchers(bytes.fromhex(tag), parse_entries(entries), signer, unbase64(signed, "K4") if signed else b"")
    check(len(vouchers.signature) in (0, 64), "K4: the size of the signature")
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
    check(hmac.compare_digest(vouchers.mac, mac(hkdf(data_key, b"streamxf/1 mac"), digest)), "K4: mac")
    if opener.vouched:
        own = [data for *name, data in vouchers.entries if name == [opener.kind, opener.key_id]]
        check(own and opener.vouched(own[0], digest), "K5")
    if reader.trust or not opener.vouched:
        signers = [public for public in reader.trust if public_id("ed25519", public) == vouchers.signer]
        if not vouchers.signature:
            check(reader.allow_unsigned, "K6: there is no signature")
        elif not signers:
            check(reader.allow_unsigned and not reader.trust, "K6: the signer is not one whom the caller trusts")
        for public in signers if vouchers.signature else []:
            with refusing("K6: the signature", InvalidSignature):
                Ed25519PublicKey.from_public_bytes(public).verify(vouchers.signature, statement(digest))
    return data_key


# -- Key files


def read_key_file(data: bytes, passphrase: str | None = None) -> tuple[str, str, bytes]:
    """Whether the key is `secret` or `public`, its kind, and its bytes."""
    check(len(data) <= 65536, "key file: more than 64 KiB")
    with refusing("key file", UnicodeDecodeError):
        lines = [line.strip(" \t\r") for line in data.decode("utf-8").split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    check(len(lines) == 1, "K9: one key")
    [line] = lines
    if re.fullmatch("[0-9a-fA-F]{64}", line):
        return "secret", "aeskw", bytes.fromhex(line)
    if re.fullmatch("[A-Za-z0-9+/]{43}=", line):
        check(base64.b64encode(base64.b64decode(line)).decode() == line, "key file: base64")
        return "secret", "aeskw", base64.b64decode(line)
    form = rf"streamxf-(secret|public|protected):([a-z0-9-]{{1,32}}):({KEY_ID}):([A-Za-z0-9_:.-]+)"
    what, kind, key_id, rest = matched(form, line, "key file: the form of a line")
    key = unbase64(rest, "key file") if what != "protected" else unprotect(line, rest, passphrase)
    sizes = {"ed25519": 32, "hpke-x25519": 32, "hpke-mlkem768-x25519": 1184 + 32} if what == "public" else {}
    check(len(key) == sizes.get(kind, 32) and (what != "public" or kind in sizes), "key file: kind or size")
    if what == "public":
        found = public_id(kind, key)
    elif kind == "ed25519":
        found = public_id(kind, Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw())
    else:
        check(kind in ("aeskw", "hpke-x25519", "hpke-mlkem768-x25519"), "key file: no such kind")
        found = (aes_key(key) if kind == "aeskw" else hpke_key(kind, key)).key_id
    check(found == key_id, "K9: key_id")
    return "public" if what == "public" else "secret", kind, key


def unprotect(line: str, data: str, passphrase: str | None) -> bytes:
    """The secret of a protected line."""
    number = "(0|[1-9][0-9]{0,6})"
    form = rf"argon2id:{number}\.{number}\.{number}:({B64}):({B64})"
    m, t, p, salt_text, sealed = matched(form, data, "K10: the form of a protected line")
    memory, passes, lanes, salt = int(m), int(t), int(p), unbase64(salt_text, "K10")
    check(1 <= passes <= 16 and 1 <= lanes <= 16 and 8 * lanes <= memory <= 1048576, "K10: m, t or p")
    check(len(salt) == 16, "K10: the salt")
    if passphrase is None:
        raise Refused("K10: the line needs a passphrase")
    argon = Argon2id(salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory)
    key = argon.derive(unicodedata.normalize("NFC", passphrase).encode())  # K11
    with refusing("K10: another passphrase, or a damaged line", InvalidTag, ValueError):
        return AESGCM(key).decrypt(bytes(12), unbase64(sealed, "K10"), line[: line.rindex(":") + 1].encode())
