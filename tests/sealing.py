"""What holders of keys can make, from docs/format/keys.md and without streamxf: wrapped data keys, vouchers, seals.

Data keys and salts are made of names, so that a file is the same each time; no writer of real files may do that.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

from tests.forge import FORMAT, KEYED, Parts, frame_of, prefix_of, seal_of

ENCRYPT = "streamxf.encrypt/1"
KEY, OTHER_KEY = bytes(range(32)), bytes(range(32, 64))
X25519, HYBRID, KMS = "hpke-x25519", "hpke-mlkem768-x25519", "aws-kms"


def secret(name: str) -> bytes:
    """32 bytes that stand for random ones."""
    return hashlib.sha256(b"vectors of streamxf: " + name.encode()).digest()


Signer = Ed25519PrivateKey | tuple[Any, ...]
"""One key, or those of Ed25519 and ML-DSA."""


def hkdf(material: bytes, info: bytes, length: int = 32, salt: bytes = b"") -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(material)


def signers_of(material: bytes) -> tuple[Any, ...]:
    """The halves of a hybrid signer."""
    seeds = hkdf(material, b"streamxf/1 ed25519+mldsa65", 64)
    return Ed25519PrivateKey.from_private_bytes(seeds[:32]), MLDSA65PrivateKey.from_seed_bytes(seeds[32:])


DEK, OTHER_DEK, SALT = secret("data key"), secret("another data key"), secret("salt")[:16]
READER, STRANGER = secret("private key"), secret("private key of another")
SIGNER = Ed25519PrivateKey.from_private_bytes(secret("signer"))
OTHER_SIGNER = Ed25519PrivateKey.from_private_bytes(secret("another signer"))
HYBRID_SIGNER, OTHER_HYBRID = (signers_of(secret(name)) for name in ("hybrid signer", "another hybrid signer"))
HYBRID_TRUSTED = b"".join(half.public_key().public_bytes_raw() for half in HYBRID_SIGNER)
TRUSTED, OTHER_TRUSTED = (signer.public_key().public_bytes_raw() for signer in (SIGNER, OTHER_SIGNER))


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def dek_id(dek: bytes = DEK) -> bytes:
    return hkdf(dek, b"streamxf/1 dek id")


def key_id(key: bytes, kind: str = "") -> str:
    """The id of a secret of 32 bytes; with a kind, that of a public key."""
    return hkdf(key, b"streamxf/1 key id" + (b" " + kind.encode() if kind else b""), 8).hex()


# -- wrapped data keys -----------------------------------------------------------------------------------------------


def entry(name: str, data: bytes) -> str:
    """`kind:key_id:b64url`, of which `name` is all before the last colon."""
    return f"{name}:{b64url(data)}"


def aes_wrap(key: bytes = KEY, dek: bytes = DEK) -> str:
    """The entry for a secret of 32 bytes."""
    return entry(f"aeskw:{key_id(key)}", aes_key_wrap(hkdf(key, b"streamxf/1 wrap"), dek))


def hpke_wrap(kind: str, to: bytes = READER, dek: bytes = DEK, named: bytes | None = None) -> tuple[str, bytes]:
    """What stands before the last colon of an entry by HPKE, and the bytes. `named` is another id in its `info`."""
    if kind == X25519:
        private: X25519PrivateKey | MLKEM768X25519PrivateKey = X25519PrivateKey.from_private_bytes(to)
        raw = private.public_key().public_bytes_raw()
    else:
        expanded = hashlib.shake_256(to).digest(96)
        lattice = MLKEM768PrivateKey.from_seed_bytes(expanded[:64])
        curve = X25519PrivateKey.from_private_bytes(expanded[64:])
        private = MLKEM768X25519PrivateKey(lattice, curve)
        raw = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
    suite = Suite({X25519: KEM.X25519, HYBRID: KEM.MLKEM768_X25519}[kind], KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    info = b"streamxf/1 hpke" + (dek_id(dek) if named is None else named)
    return f"{kind}:{key_id(raw, kind)}", suite.encrypt(dek, private.public_key(), info)


def wrapped(entries: Sequence[str] = (), dek: bytes = DEK) -> str:
    """A wrapped data key, by default for `KEY` alone."""
    return "&".join([f"dek={dek_id(dek).hex()}", *(f"w={one}" for one in entries or [aes_wrap(KEY, dek)])])


# -- vouchers --------------------------------------------------------------------------------------------------------


def statement(digest: bytes) -> bytes:
    """V."""
    return b"streamxf/1 contents\0" + digest


def mac_of(digest: bytes, text: str, dek: bytes = DEK) -> str:
    """`mac=...`, of the data key that is wrapped as `text`."""
    return "mac=" + hmac.digest(hkdf(dek, b"streamxf/1 mac"), statement(digest) + text.encode(), "sha256").hex()


def voucher(digest: bytes, key: bytes = KEY) -> str:
    """`v=...` of a secret of 32 bytes."""
    tag = hmac.digest(hkdf(key, b"streamxf/1 vouch"), statement(digest), "sha256")
    return "v=" + entry(f"aeskw:{key_id(key)}", tag)


def signature(digest: bytes, signer: Signer = SIGNER) -> str:
    """`sig=...`."""
    halves = signer if isinstance(signer, tuple) else (signer,)
    kind = "ed25519+mldsa65" if len(halves) > 1 else "ed25519"
    stated = statement(digest) + kind.encode() * (len(halves) > 1)
    public = b"".join(half.public_key().public_bytes_raw() for half in halves)
    return "sig=" + entry(f"{kind}:{key_id(public, kind)}", b"".join(half.sign(stated) for half in halves))


@dataclass(frozen=True)
class Vouching:
    """Who may read, and who stands for the contents.

    Attributes
    ----------
    text : str
        The wrapped data key.
    keys : tuple of bytes
        Secrets of 32 bytes that vouch.
    signer : Signer or None
    dek : bytes
    """

    text: str = ""
    keys: tuple[bytes, ...] = (KEY,)
    signer: Signer | None = None
    dek: bytes = DEK

    @property
    def wrapped(self) -> str:
        return self.text or wrapped(dek=self.dek)

    def vouchers(self, digest: bytes) -> str:
        """Vouchers for a digest D."""
        parts = [mac_of(digest, self.wrapped, self.dek), *(voucher(digest, key) for key in self.keys)]
        return "&".join([*parts, signature(digest, self.signer)] if self.signer else parts)


# -- containers and plain files --------------------------------------------------------------------------------------


def container(chain: Sequence[str], payloads: Iterable[bytes], raw_size: int, /, **changes: object) -> Parts:
    """A container whose blocks store `payloads`, before its encryption. Not yet sealed."""
    keyed = any(item.startswith("streamxf.encrypt/") for item in chain)
    stored = list(payloads)
    made = Parts(
        flags=KEYED if keyed else 0,
        chain="\n".join(chain).encode("latin-1"),
        salt=SALT,
        seal=bytes(32) if keyed else b"",
        blocks=tuple((number == len(stored) - 1, payload) for number, payload in enumerate(stored)),
        raw_size=raw_size,
    )
    return made.change(**changes)


def encrypted(made: Parts, dek: bytes = DEK) -> Parts:
    """Encrypt the blocks, and seal the header."""
    derived = hkdf(dek, b"streamxf/1 stream" + made.digest, 64, made.salt)
    cipher = AESGCM(derived[:32])
    blocks = tuple(
        (last, cipher.encrypt(number.to_bytes(11, "big") + bytes([last]), payload, None))
        for number, (last, payload) in enumerate(made.blocks)
    )
    return made.change(seal=derived[32:], blocks=blocks)


def plain_digest(made: Parts, *, signed: bool = False) -> bytes:
    """D of a plain file."""
    covered = b"".join(made.digests if signed else made.digests[:1])
    return hashlib.sha256(b"streamxf/1 plain" + (made.prefix[8:12] or FORMAT) + covered).digest()


def index_digest(packed: bytes, format_bytes: bytes = FORMAT) -> bytes:
    """D of a metadata file."""
    return hashlib.sha256(b"streamxf/1 index" + format_bytes + packed).digest()


def note_digest(packed: bytes) -> bytes:
    """D of a note."""
    return hashlib.sha256(b"streamxf/1 note" + FORMAT + packed).digest()


def plain(made: Parts, vouching: Vouching | None = None) -> Parts:
    """A plain file around a container that is sealed already."""
    if vouching is None:
        return made.change(prefix=prefix_of())
    signed = vouching.signer is not None
    vouchers = vouching.vouchers(plain_digest(made, signed=signed))
    return made.change(prefix=prefix_of(vouching.wrapped), tail=seal_of(vouchers, None, made.digests * signed))


def keyed(chain: Sequence[str], payloads: Iterable[bytes], raw_size: int, vouching: Vouching | None = None) -> Parts:
    """An encrypted plain file."""
    by = vouching or Vouching()
    return plain(encrypted(container(chain, payloads, raw_size), by.dek), by)


def zstd(data: bytes) -> bytes:
    """A payload of `streamxf.zstd`."""
    return frame_of(data)
