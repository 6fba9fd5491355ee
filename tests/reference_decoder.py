"""A second decoder for the format of streamxf, written from docs/format.md and from nothing else.

It is slow, holds everything in memory and shares no code with the package. It is there to show that the page is
enough, and to be read next to the page by somebody who writes a decoder in another language. In order: descriptors,
keys, header, codecs, index and footer with the container as a whole, plain file, metadata.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import hmac
import io
import itertools
import json
import pickletools
import re
import struct
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import lz4.block
import zstandard
from crc32c import crc32c
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

CONTAINER_MAGIC = bytes.fromhex("d35358460d0a1a0a")
FOOTER_MAGIC = bytes.fromhex("0a1a0d0a465853d3")
PLAIN_MAGIC = bytes.fromhex("d353584b0d0a1a0a")
METADATA_MAGIC = bytes.fromhex("0a1a0d0a4d5853d3")
ZSTD_MAGIC = bytes.fromhex("28b52ffd")

KEYED, BOUND, PUBLISHED = 1, 2, 4
BYTES_OBJECT, TENSOR_SHARD = 1, 2

HEADER_FIXED = struct.Struct("<8sBBBBHH32s")
BLOCK_HEAD = struct.Struct("<II")
FOOTER = struct.Struct("<QQII8s")
METADATA_TAIL = struct.Struct("<I32s8s")
U32 = struct.Struct("<I")

MAX_CHAIN_LEN = 1024
MAX_CHAIN_ITEMS = 8
MAX_IDENT_LEN = 4096
MAX_NDIM = 64
MAX_RAW_SIZE = 1 << 48
MAX_NAME = 64
MAX_DESCRIPTOR = 4096
MAX_FRAGMENT = 32768
MAX_WRAPPED_KEYS = 16
MAX_PREFIX_LEN = 65536
MAX_METADATA_LEN = 1 << 30
MAX_PATH = 4096
MAX_MANIFEST_LEN = 64 << 20
MAX_WINDOW = 1 << 27
MAX_PERIOD = 65536

ENCRYPT = "streamxf.encrypt"
CHECKSUM = "streamxf.checksum"
FLOATZIP = "streamxf.floatzip"
LEVELS = {"streamxf.zstd": (-7, 22), "streamxf.lz4": (-64, 12)}
CODECS = {*LEVELS, FLOATZIP, CHECKSUM, ENCRYPT}


class FormatError(Exception):
    """The bytes break a rule of the page; `layer` names the part of the format to which the rule belongs.

    tests/vectors/README.md lists the layers.
    """

    def __init__(self, layer: str, message: str) -> None:
        super().__init__(f"{layer}: {message}")
        self.layer = layer
        self.message = message


def _refuse(layer: str, message: str) -> NoReturn:
    raise FormatError(layer, message)


def _require(condition: bool, layer: str, message: str) -> None:
    if not condition:
        raise FormatError(layer, message)


@dataclasses.dataclass(frozen=True)
class Identity:
    """Which item of a checkpoint a container holds."""

    writer_id: bytes
    kind: int
    offsets: tuple[int, ...]
    name: str


@dataclasses.dataclass(frozen=True)
class Keys:
    """What a reader is given.

    `held` has pairs of a kind of wrapped key and the 32 bytes that open it, `trust` the public keys of signers.
    `plain_too` says that what is not encrypted may be read, although there are keys.
    """

    held: tuple[tuple[str, bytes], ...] = ()
    trust: tuple[bytes, ...] = ()
    allow_unsigned: bool = False
    plain_too: bool = False


AnyKey = Keys | bytes | None


def _keys(key: AnyKey) -> Keys:
    """A key alone is one of the kind `aeskw`, and makes no demands."""
    if isinstance(key, Keys):
        return key
    return Keys() if key is None else Keys(held=(("aeskw", key),), plain_too=True)


@dataclasses.dataclass
class Container:
    """What a container holds. `payload` is the stream with all block codecs undone, but no foreign stream transform."""

    payload: bytes
    chain: list[str]
    flags: int
    block_log2: int
    identity: Identity | None


# --- Descriptors ----------------------------------------------------------------------------------------------------

_PART = r"[a-z][a-z0-9_-]*"
_HEAD = re.compile(rf"({_PART}(?:\.{_PART})+)/([1-9][0-9]{{0,4}})")
_PAIR = re.compile(r"([a-z][a-z0-9_]*)=([A-Za-z0-9._~:-]*)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,3}")

Pairs = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """One transform of a chain. `text` has no fragment in it; `fragment` is None where there is no `#`."""

    text: str
    name: str
    version: str
    params: Pairs
    fragment: str | None

    @property
    def foreign(self) -> bool:
        """True for a stream transform from elsewhere, which is no block codec."""
        return self.name not in CODECS


def _parse_pairs(text: str, layer: str, repeatable: str | None = None) -> Pairs:
    """Split `a=1&b=2`. No key may come twice, except `repeatable`."""
    pairs: Pairs = []
    seen: set[str] = set()
    for item in text.split("&"):
        match = _PAIR.fullmatch(item)
        if match is None:
            _refuse(layer, f"{item!r} is not key=value")
        key, value = match.groups()
        _require(key not in seen or key == repeatable, layer, f"{key!r} comes twice")
        seen.add(key)
        pairs.append((key, value))
    return pairs


def _parse_descriptor(text: str, layer: str = "descriptor") -> Descriptor:
    """Take one descriptor apart by the grammar."""
    before, hash_sign, fragment = text.partition("#")
    _require(len(before) <= MAX_DESCRIPTOR, layer, "a descriptor is too long")
    _require(len(fragment) <= MAX_FRAGMENT, layer, "a fragment is too long")
    head, question_mark, query = before.partition("?")
    match = _HEAD.fullmatch(head)
    if match is None:
        _refuse(layer, f"{head!r} is not name/version")
    name, version = match.groups()
    _require(len(name) <= MAX_NAME, layer, f"the name {name!r} is too long")
    _require(int(version) <= 65535, layer, f"{head!r}: the version is above 65535")
    params = _parse_pairs(query, layer) if question_mark else []
    _require(params == sorted(params), layer, f"the parameters of {before!r} are not sorted")
    return Descriptor(before, name, version, params, fragment if hash_sign else None)


def _check_codec(item: Descriptor) -> None:
    """Check version and parameters of a codec. A name under `streamxf.` that is no codec is unknown, not foreign."""
    if item.foreign:
        _require(not item.name.startswith("streamxf."), "unknown-codec", f"unknown codec {item.name!r}")
        return
    _require(item.version == "1", "unknown-codec", f"{item.name!r}: unknown version {item.version}")
    if item.name in LEVELS:
        _check_levels(item, item.params)  # matters to encoding only, and may stand here, too
        return
    allowed: list[Pairs] = [[]]
    if item.name == CHECKSUM:
        allowed.append([("algorithm", "sha256")])  # the default, crc32c, is never spelt out
    _require(item.params in allowed, "descriptor", f"{item.text!r}: unknown parameter, or one that is the default")


def _check_fragment(item: Descriptor) -> None:
    """Check what stands after `#`, wrapped keys aside."""
    if item.fragment is None or item.name == ENCRYPT:
        return
    pairs = _parse_pairs(item.fragment, "descriptor")
    if not item.foreign:
        _check_levels(item, pairs)
        both = {key for key, _ in pairs} & {key for key, _ in item.params}
        _require(not both, "descriptor", f"{item.text!r}: {both} stand on both sides of '#'")


def _check_levels(item: Descriptor, pairs: Pairs) -> None:
    """The one parameter that codecs have for encoding only."""
    low, high = LEVELS.get(item.name, (0, -1))
    for key, value in pairs:
        known = key == "level" and item.name in LEVELS
        _require(known, "descriptor", f"{item.name!r}: unknown parameter {key!r}, or on the wrong side of '#'")
        _require(_INTEGER.fullmatch(value) is not None, "descriptor", f"level {value!r} is no integer")
        _require(low <= int(value) <= high, "descriptor", f"level {value} is out of range")


def _split_chain(raw: bytes) -> tuple[str, ...]:
    """Split the header's chain, which stands in the order of saving; nothing is known of its descriptors yet."""
    _require(re.fullmatch(rb"[\x20-\x7e\n]*", raw) is not None, "chain", "the chain is not printable ASCII")
    _require(b"#" not in raw, "chain", "a fragment stands in a header")
    if not raw:
        return ()
    texts = tuple(raw.decode("ascii").split("\n"))
    _require(all(texts), "chain", "an empty descriptor")
    _require(len(texts) <= MAX_CHAIN_ITEMS, "chain", f"{len(texts)} descriptors are too many")
    return texts


def _check_chain(chain: Sequence[Descriptor]) -> None:
    """Check every codec, and the rules between them; in a keyed stream only after the seal."""
    for item in chain:
        _check_codec(item)
    _check_order(chain)


def _check_order(chain: Sequence[Descriptor]) -> None:
    """Foreign transforms come first; there is one `streamxf.encrypt` at most, and only checksums come after it."""
    codec_seen = encrypt_seen = False
    for item in chain:
        _require(not (item.foreign and codec_seen), "chain", f"{item.text!r} stands after a codec")
        _require(not encrypt_seen or item.name == CHECKSUM, "chain", f"{item.text!r} stands after {ENCRYPT}")
        codec_seen = codec_seen or not item.foreign
        encrypt_seen = encrypt_seen or item.name == ENCRYPT


def _match_descriptors(descriptors: Sequence[str], chain: Sequence[Descriptor]) -> str | None:
    """Compare the metadata's list (order of reading, with fragments) with the chain; give the keys' fragment."""
    listed = [_parse_descriptor(text) for text in descriptors]
    same = [item.text for item in reversed(listed)] == [item.text for item in chain]
    _require(same, "mismatch", "the metadata lists another chain than the header")
    for item in listed:
        _check_fragment(item)
    return next((item.fragment for item in listed if item.name == ENCRYPT), None)


# --- Keys -----------------------------------------------------------------------------------------------------------

_WRAPPED = re.compile(r"([a-z0-9-]+):([0-9a-f]{16}):([A-Za-z0-9_-]+)")
_SIGNATURE = re.compile(r"([0-9a-f]{16}):([A-Za-z0-9_-]+)")

HPKE_X25519 = "hpke-x25519"
HPKE_HYBRID = "hpke-mlkem768-x25519"
KMS = "aws-kms"
# which sizes a wrapped key of a kind may have; a DEK of 32 bytes becomes 48 by AES-GCM
WRAPPED_SIZES = {
    "aeskw": range(40, 41),
    HPKE_X25519: range(32 + 48, 32 + 48 + 1),
    HPKE_HYBRID: range(1120 + 48, 1120 + 48 + 1),
    KMS: range(1, 6145),
}


@dataclasses.dataclass(frozen=True)
class KeyFragment:
    """The fragment of `streamxf.encrypt`.

    `wrapped` has (kind, key_id, wrapped key) of the kinds that are known; `signature` is (key_id, 64 bytes).
    """

    dek_id: bytes
    wrapped: list[tuple[str, bytes, bytes]]
    signature: tuple[bytes, bytes] | None


def _hkdf(secret: bytes, info: bytes, length: int, salt: bytes = b"") -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


def _b64url(text: str) -> bytes:
    """Decode base64url without padding; only the one canonical spelling of the bytes is taken."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text) or len(text) % 4 == 1:
        _refuse("fragment", "not base64url without padding")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    canonical = base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
    _require(canonical == text, "fragment", "base64url with stray bits at its end")
    return raw


def _parse_key_fragment(text: str) -> KeyFragment:
    """Parse `dek=...&w=...&w=...&sig=...`. Wrappings of unknown kinds are skipped if their form is right."""
    _require(len(text) <= MAX_FRAGMENT, "fragment", "the fragment is too long")
    (first, dek), *rest = _parse_pairs(text, "fragment", repeatable="w")
    _require(first == "dek", "fragment", "the fragment does not begin with dek=")
    dek_id = _b64url(dek)
    _require(len(dek_id) == 32, "fragment", "dek_id is not 32 bytes")
    signature = _parse_signature(rest.pop()[1]) if rest and rest[-1][0] == "sig" else None
    _require(all(key == "w" for key, _ in rest), "fragment", "unknown key in the fragment, or one out of its place")
    _require(1 <= len(rest) <= MAX_WRAPPED_KEYS, "fragment", f"{len(rest)} wrapped keys, not 1 to {MAX_WRAPPED_KEYS}")
    names = [value.rpartition(":")[0] for _, value in rest]
    _require(len(set(names)) == len(names), "fragment", "a key is wrapped for twice")
    parsed = [_parse_wrapped(value) for _, value in rest]
    return KeyFragment(dek_id, [item for item in parsed if item is not None], signature)


def _parse_wrapped(value: str) -> tuple[str, bytes, bytes] | None:
    """Parse `kind:key_id:b64url`; None for a kind that this decoder does not know."""
    match = _WRAPPED.fullmatch(value)
    if match is None:
        _refuse("fragment", f"{value!r} is not kind:key_id:b64url")
    kind, key_id, encoded = match.groups()
    blob = _b64url(encoded)
    return (kind, bytes.fromhex(key_id), blob) if kind in WRAPPED_SIZES else None


def _parse_signature(value: str) -> tuple[bytes, bytes]:
    match = _SIGNATURE.fullmatch(value)
    if match is None:
        _refuse("fragment", f"{value!r} is not key_id:b64url")
    signature = _b64url(match[2])
    _require(len(signature) == 64, "fragment", "a signature is not 64 bytes")
    return bytes.fromhex(match[1]), signature


def _unwrap_dek(fragment: str, key: AnyKey) -> bytes:
    """Find the data key: the wrapping for one of the reader's keys which yields a DEK of the dek_id that was announced.

    The kinds that only a holder of the secret can make are tried first. What only they could not open has to be signed.
    """
    parsed = _parse_key_fragment(fragment)
    keys = _keys(key)
    mine = [
        (kind, secret, blob)
        for kind, secret in sorted(keys.held, key=lambda item: item[0].startswith("hpke-"))
        for wrapped_kind, wrapped_id, blob in parsed.wrapped
        if kind == wrapped_kind and wrapped_id == key_id_of(kind, secret)
    ]
    _require(bool(mine), "key-missing", "the data key is not wrapped for any key that was given")
    for kind, secret, blob in mine:
        dek = _unwrap(kind, secret, blob, parsed.dek_id)
        if dek is not None and hmac.compare_digest(_hkdf(dek, b"streamxf/1 dek id", 32), parsed.dek_id):
            _check_signature(parsed, keys, anybody=kind.startswith("hpke-"))
            return dek
    _refuse("key-wrong", "no wrapped key opens with the key that it names")


def key_id_of(kind: str, secret: bytes) -> bytes:
    """The id under which a key's wrappings stand."""
    _require(len(secret) == 32, "key-missing", "a key is not 32 bytes")
    if kind == "aeskw":
        return _hkdf(secret, b"streamxf/1 key id", 8)
    if kind == HPKE_X25519:
        public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    else:
        kem, own = _xwing(secret)
        public = kem.public_key().public_bytes_raw() + own.public_key().public_bytes_raw()
    return _hkdf(public, b"streamxf/1 key id " + kind.encode("ascii"), 8)


def _unwrap(kind: str, secret: bytes, blob: bytes, dek_id: bytes) -> bytes | None:
    """Open one wrapped key; None if that fails."""
    if len(blob) not in WRAPPED_SIZES[kind]:
        return None
    try:
        if kind == "aeskw":
            return aes_key_unwrap(_hkdf(secret, b"streamxf/1 wrap", 32), blob)
        kem_id, enc_size, decapsulate = KEMS[kind]
        shared = decapsulate(secret, blob[:enc_size])
        return _hpke_open(kem_id, shared, b"streamxf/1 hpke" + dek_id, blob[enc_size:])
    except (InvalidUnwrap, InvalidTag, ValueError):  # ValueError: an X25519 key of low order
        return None


def _check_signature(fragment: KeyFragment, keys: Keys, *, anybody: bool) -> None:
    """Check who signed; `anybody` says that everybody who has the public key could have wrapped this data key."""
    if fragment.signature is not None:
        signer, signature = fragment.signature
        for public in keys.trust:
            if _hkdf(public, b"streamxf/1 key id ed25519", 8) == signer:
                try:
                    signed = b"streamxf/1 dek\0" + fragment.dek_id
                    Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
                except InvalidSignature:
                    _refuse("signature", "the signature of the data key is wrong")
                return
    strange = fragment.signature is not None and bool(keys.trust)
    free = (keys.allow_unsigned and not strange) or not (anybody or keys.trust)
    _require(free, "policy", "the data key is not signed by anybody who is trusted")


def _labeled_extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")


def _labeled_expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labeled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return HKDFExpand(algorithm=SHA256(), length=length, info=labeled).derive(prk)


def _dhkem(secret: bytes, enc: bytes) -> bytes:
    """Decap of DHKEM(X25519, HKDF-SHA256), RFC 9180, section 4.1."""
    private = X25519PrivateKey.from_private_bytes(secret)
    dh = private.exchange(X25519PublicKey.from_public_bytes(enc))
    suite = b"KEM" + KEM_X25519.to_bytes(2, "big")
    prk = _labeled_extract(suite, b"", b"eae_prk", dh)
    context = enc + private.public_key().public_bytes_raw()
    return _labeled_expand(suite, prk, b"shared_secret", context, 32)


def _xwing(seed: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    """The two private keys that a seed of X-Wing stands for."""
    expanded = hashlib.shake_256(seed).digest(96)
    return MLKEM768PrivateKey.from_seed_bytes(expanded[:64]), X25519PrivateKey.from_private_bytes(expanded[64:])


def _xwing_decapsulate(seed: bytes, enc: bytes) -> bytes:
    """Decapsulate of X-Wing: the secrets of both, hashed together with what stands for X25519."""
    kem, own = _xwing(seed)
    lattice = kem.decapsulate(enc[:1088])
    curve = own.exchange(X25519PublicKey.from_public_bytes(enc[1088:]))
    parts = lattice + curve + enc[1088:] + own.public_key().public_bytes_raw() + rb"\.//^" + b"\\"
    return hashlib.sha3_256(parts).digest()


KEM_X25519, KEM_XWING = 0x0020, 0x647A
KEMS = {HPKE_X25519: (KEM_X25519, 32, _dhkem), HPKE_HYBRID: (KEM_XWING, 1120, _xwing_decapsulate)}


def _hpke_open(kem_id: int, shared: bytes, info: bytes, ciphertext: bytes) -> bytes:
    """Open of RFC 9180 in base mode, for the first message, with HKDF-SHA256 and AES-256-GCM."""
    suite = b"HPKE" + kem_id.to_bytes(2, "big") + b"\0\1\0\2"
    context = (
        b"\0" + _labeled_extract(suite, b"", b"psk_id_hash", b"") + _labeled_extract(suite, b"", b"info_hash", info)
    )
    secret = _labeled_extract(suite, shared, b"secret", b"")
    key = _labeled_expand(suite, secret, b"key", context, 32)
    nonce = _labeled_expand(suite, secret, b"base_nonce", context, 12)
    return AESGCM(key).decrypt(nonce, ciphertext, b"")


def _stream_key(dek: bytes, header: Header) -> bytes:
    """Derive the stream's AES key, which is good once the seal has shown the header to be untouched."""
    derived = _hkdf(dek, b"streamxf/1 stream" + header.digest, 64, salt=header.salt)
    _require(hmac.compare_digest(derived[32:], header.seal), "seal", "the header or the key is not the one sealed")
    return derived[:32]


# --- Header ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Header:
    """A container's header. `digest` is the page's H; `size` is the offset of block 0."""

    block_log2: int
    flags: int
    salt: bytes
    chain: tuple[str, ...]
    identity: Identity | None
    seal: bytes
    digest: bytes
    size: int

    @property
    def keyed(self) -> bool:
        return bool(self.flags & KEYED)

    @property
    def block_size(self) -> int:
        """The page's b."""
        return 1 << self.block_log2

    @property
    def limit(self) -> int:
        """The page's E(b): the most that any codec may give or take for one block."""
        return self.block_size + self.block_size // 16 + 1024


def _parse_header(data: bytes) -> Header:
    """Read and check the header: limits, then the CRC, then what the fields say."""
    _require(len(data) >= HEADER_FIXED.size, "header", "too short for a header")
    magic, version, block_log2, flags, zero, chain_len, ident_len, salt = HEADER_FIXED.unpack_from(data)
    _require(magic == CONTAINER_MAGIC, "header", "wrong magic")
    _require(version == 1, "header", f"unknown version {version}")
    _require(16 <= block_log2 <= 24, "header", f"block_log2 {block_log2} is out of range")
    _require(zero == 0, "header", "the reserved byte is not 0")
    _check_flags(flags, chain_len, ident_len)

    chain_end = HEADER_FIXED.size + chain_len
    hashed = chain_end + ident_len
    checked = hashed + (32 if flags & KEYED else 0)
    _require(len(data) >= checked + 4, "header", "the header is cut off")
    _require(U32.unpack_from(data, checked)[0] == crc32c(data[:checked]), "header", "wrong CRC")

    chain = _split_chain(data[HEADER_FIXED.size : chain_end])
    keyed_chain = any(text.partition("/")[0] == ENCRYPT for text in chain)
    _require(keyed_chain == bool(flags & KEYED), "header", "the flag 'keyed' does not agree with the chain")
    identity = _parse_identity(data[chain_end:hashed]) if flags & BOUND else None
    digest = hashlib.sha256(data[:hashed]).digest()
    return Header(block_log2, flags, salt, chain, identity, data[hashed:checked], digest, checked + 4)


def _check_flags(flags: int, chain_len: int, ident_len: int) -> None:
    """Check the flags, and the two lengths, one of which depends on a flag."""
    _require(flags & ~(KEYED | BOUND | PUBLISHED) == 0, "header", f"unknown flags {flags:#04x}")
    _require(bool(flags & BOUND) or not flags & PUBLISHED, "header", "published, but not bound")
    _require(chain_len <= MAX_CHAIN_LEN, "header", f"chain_len {chain_len} is out of range")
    _require(ident_len <= MAX_IDENT_LEN, "header", f"ident_len {ident_len} is out of range")
    _require((ident_len > 0) == bool(flags & BOUND), "header", "ident_len does not agree with the flag 'bound'")


def _parse_identity(raw: bytes) -> Identity:
    """Read writer id, kind, offsets and name."""
    _require(len(raw) >= 18, "identity", "too short")
    writer_id, kind, ndim = raw[:16], raw[16], raw[17]
    _require(kind in (BYTES_OBJECT, TENSOR_SHARD), "identity", f"unknown kind {kind}")
    _require(ndim <= MAX_NDIM, "identity", f"ndim {ndim} is out of range")
    _require(kind == TENSOR_SHARD or ndim == 0, "identity", "a bytes object has no offsets")
    name_at = 18 + 8 * ndim
    _require(len(raw) > name_at, "identity", "no name, or offsets cut off")
    offsets = struct.unpack_from(f"<{ndim}Q", raw, 18)
    try:
        name = raw[name_at:].decode("utf-8")
    except UnicodeDecodeError:
        _refuse("identity", "the name is not UTF-8")
    return Identity(writer_id, kind, offsets, name)


# --- Codecs ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Block:
    """Where a block stands and what it stores. `word` is the first field as it is stored."""

    number: int
    last: bool
    stored: bytes
    end: int


def _undo_chain(header: Header, chain: Sequence[Descriptor], block: Block, key: bytes) -> bytes:
    """Undo all codecs for one block, the last of the chain first, and check the size that comes out."""
    data = block.stored
    codecs = [item for item in chain if not item.foreign]
    for place, item in reversed(list(enumerate(codecs))):
        limit = header.limit if place else header.block_size
        try:
            data = _undo(item, data, block, limit, key)
            _require(len(data) <= limit, "codec", f"{item.text} gave more than the limit")
        except FormatError as error:
            layer = f"codec:{item.name.removeprefix('streamxf.')}" if error.layer == "codec" else error.layer
            raise FormatError(layer, f"block {block.number}: {error.message}") from error
    _check_block_size(header.block_size, block, len(data))
    return data


def _check_block_size(block_size: int, block: Block, size: int) -> None:
    where = f"block {block.number} decodes to {size} bytes"
    if not block.last:
        _require(size == block_size, "size", f"{where} instead of {block_size}")
    else:
        smallest = 0 if block.number == 0 else 1
        _require(smallest <= size <= block_size, "size", f"{where}, which the last block cannot")


def _undo(item: Descriptor, data: bytes, block: Block, limit: int, key: bytes) -> bytes:
    """Undo one codec for one block."""
    if item.name == "streamxf.zstd":
        return _undo_zstd(data, limit)
    if item.name == "streamxf.lz4":
        return _undo_lz4(data, limit)
    if item.name == FLOATZIP:
        return decode_floatzip(data, limit)
    if item.name == CHECKSUM:
        return _undo_checksum(data, dict(item.params).get("algorithm", "crc32c"))
    return _undo_encrypt(data, block, key)


def _undo_zstd(data: bytes, limit: int) -> bytes:
    """Decompress the one frame that `data` is, after looking at its header."""
    _require(data[:4] == ZSTD_MAGIC, "codec", "zstd: not a Zstandard frame")
    try:
        size = zstandard.frame_content_size(data)
        frame = zstandard.get_frame_parameters(data)
        _require(size >= 0, "codec", "zstd: the frame does not declare its size")
        _require(size <= limit, "codec", f"zstd: a frame of {size} bytes is above the limit")
        _require(frame.dict_id == 0, "codec", "zstd: the frame uses a dictionary")
        _require(frame.window_size <= MAX_WINDOW, "codec", f"zstd: a window of {frame.window_size} bytes")
        return _inflate(data, size)
    except zstandard.ZstdError as error:
        raise FormatError("codec", f"zstd: {error}") from error


def _inflate(data: bytes, size: int) -> bytes:
    """Decompress in small steps, so that a frame which holds more than it declares is caught before it has grown."""
    step = 64
    out = bytearray()
    inflater = zstandard.ZstdDecompressor().decompressobj()
    for start in range(0, len(data), step):
        out += inflater.decompress(data[start : start + step])
        _require(len(out) <= size, "codec", "zstd: the frame holds more than it declares")
        if inflater.eof:
            nothing_left = not inflater.unused_data and start + step >= len(data)
            _require(nothing_left, "codec", "zstd: bytes after the frame")
            _require(len(out) == size, "codec", "zstd: the frame holds less than it declares")
            return bytes(out)
    _refuse("codec", "zstd: the frame is cut off")


def _undo_lz4(data: bytes, limit: int) -> bytes:
    """Decompress a raw LZ4 block, whose size is known only by its limit."""
    _require(len(data) > 0, "codec", "lz4: not even a token")
    room = 16  # LZ4 takes the end of the memory for the block's
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=limit + room))
    except lz4.block.LZ4BlockError as error:
        raise FormatError("codec", f"lz4: {error}") from error


@dataclasses.dataclass(frozen=True)
class Plane:
    """A row of a FloatZip payload's table: `lane` is in bytes, and so is `stored`, the size of the plane's data."""

    coding: int
    lane: int
    stored: int


RAW, ZSTD, PACKED, LEVELLED = 0, 1, 2, 3


def decode_floatzip(data: bytes, limit: int) -> bytes:
    """Decode one payload of FloatZip to at most `limit` bytes: put elements together, and the edges around them."""
    _require(len(data) > 0, "codec", "floatzip: no layout")
    layout = data[0]
    if layout == 0:
        _require(len(data) - 1 <= limit, "codec", f"floatzip: {len(data) - 1} bytes are above the limit")
        return data[1:]
    width, rotated, phase = 1 << (layout & 3), bool(layout & 4), layout >> 3 & 7
    _require(layout & 0xC0 == 0x40, "codec", f"floatzip: unknown layout {layout:#04x}")
    _require(not (rotated and width == 1), "codec", "floatzip: elements of one byte are not rotated")
    _require(phase < width, "codec", f"floatzip: phase {phase} with elements of {width} bytes")
    _require(len(data) >= 5, "codec", "floatzip: cut off in raw_size")
    (raw_size,) = U32.unpack_from(data, 1)
    _require(raw_size <= limit, "codec", f"floatzip: raw_size {raw_size} is above the limit")
    _require(raw_size >= phase + width, "codec", f"floatzip: {raw_size} bytes have no element")
    count, tail = divmod(raw_size - phase, width)

    planes, at = _parse_planes(data, width)
    _require(not any(data[at : at + -at % 8]), "codec", "floatzip: filling that is not 0")
    at += -at % 8
    expected = at + sum(plane.stored for plane in planes) + phase + tail
    _require(len(data) == expected, "codec", f"floatzip: {len(data)} bytes instead of {expected}")

    elements = bytearray(count * width)
    for number, plane in sorted(enumerate(planes), key=lambda item: item[1].coding != RAW):
        column = _undo_plane(plane, data[at : at + plane.stored], count)
        first = sum(before.lane for before in planes[:number])
        for byte in range(plane.lane):
            elements[first + byte :: width] = column[byte :: plane.lane]
        at += plane.stored
    body = _rotate_right(elements, width) if rotated else bytes(elements)
    return data[at : at + phase] + body + data[at + phase :]


def _parse_planes(data: bytes, width: int) -> tuple[list[Plane], int]:
    """Read the table: as many rows as it takes for the lanes to add up to the width. Give it and where it ends."""
    planes: list[Plane] = []
    at, left = 5, width
    while left:
        _require(len(data) >= at + 5, "codec", "floatzip: cut off in the table")
        kind, stored = struct.unpack_from("<BI", data, at)
        coding, lane = kind & 3, 1 << (kind >> 2)
        _require(kind >> 2 <= 2, "codec", f"floatzip: unknown plane {kind:#04x}")
        _require(lane <= left, "codec", f"floatzip: the lanes add up to more than {width}")
        _require(coding in (RAW, ZSTD) or lane == 1, "codec", f"floatzip: a lane of {lane} bytes cannot be packed")
        planes.append(Plane(coding, lane, stored))
        at, left = at + 5, left - lane
    return planes, at


def _undo_plane(plane: Plane, stored: bytes, count: int) -> bytes:
    """Give a plane's `count` times `lane` bytes."""
    size = count * plane.lane
    if plane.coding == PACKED:
        return _undo_packed(stored, count)
    if plane.coding == LEVELLED:
        return _undo_levelled(stored, count)
    column = stored if plane.coding == RAW else _undo_zstd(stored, size)
    _require(len(column) == size, "codec", f"floatzip: a plane of {len(column)} bytes instead of {size}")
    return column


def _undo_packed(stored: bytes, count: int) -> bytes:
    """Take the halves of the frame's bytes apart, then put in the values that none of the sixteen halves stands for."""
    _require(len(stored) >= 8, "codec", "floatzip: a packed plane is cut off")
    base, zeros, exceptions = struct.unpack_from("<B3sI", stored)
    _require(zeros == bytes(3), "codec", "floatzip: reserved bytes of a packed plane are not 0")
    frame_at = 8 + 5 * exceptions
    _require(frame_at <= len(stored), "codec", f"floatzip: no room for {exceptions} places and values")
    places = struct.unpack_from(f"<{exceptions}I", stored, 8)
    rising = all(before < after for before, after in itertools.pairwise(places))
    _require(rising and all(place < count for place in places), "codec", "floatzip: places out of order or range")

    halves = (count + 1) // 2
    pairs = _undo_zstd(stored[frame_at:], halves)
    _require(len(pairs) == halves, "codec", f"floatzip: {len(pairs)} pairs instead of {halves}")
    _require(count % 2 == 0 or pairs[-1] < 16, "codec", "floatzip: the half byte that no element needs is not 0")
    column = bytearray(2 * halves)
    column[0::2] = pairs.translate(bytes((base + (pair & 15)) & 255 for pair in range(256)))
    column[1::2] = pairs.translate(bytes((base + (pair >> 4)) & 255 for pair in range(256)))
    for place, value in zip(places, stored[8 + 4 * exceptions : frame_at], strict=True):
        column[place] = value
    return bytes(column[:count])


def _undo_levelled(stored: bytes, count: int) -> bytes:
    """Add to a packed plane the levels of its rows of 64 elements and of its columns."""
    _require(len(stored) >= 12, "codec", "floatzip: a levelled plane is cut off")
    row_log2, zeros, period, size = struct.unpack_from("<B3sII", stored)
    _require(row_log2 == 6 and zeros == bytes(3), "codec", "floatzip: unknown head of a levelled plane")
    _require(1 <= period <= MAX_PERIOD, "codec", f"floatzip: {period} columns")
    _require(12 + size <= len(stored), "codec", f"floatzip: no room for levels of {size} bytes")
    rows = -(-count // 64)
    levels = _undo_zstd(stored[12 : 12 + size], rows + period)
    _require(len(levels) == rows + period, "codec", f"floatzip: {len(levels)} levels instead of {rows + period}")
    column = _undo_packed(stored[12 + size :], count)
    return bytes((value + levels[i // 64] + levels[rows + i % period]) & 255 for i, value in enumerate(column))


def _rotate_right(elements: bytes | bytearray, width: int) -> bytes:
    """Rotate every element of `width` bytes right by one bit, all of them as one long integer."""
    lowest = int.from_bytes((b"\x01" + bytes(width - 1)) * (len(elements) // width), "little")
    every = int.from_bytes(elements, "little")
    bits = every & lowest
    return ((every ^ bits) >> 1 | bits << 8 * width - 1).to_bytes(len(elements), "little")


def _undo_checksum(data: bytes, algorithm: str) -> bytes:
    """Compare the digest at the end with the data before it."""
    size = 32 if algorithm == "sha256" else 4
    _require(len(data) >= size, "codec", "checksum: too short for a digest")
    body, digest = data[: len(data) - size], data[len(data) - size :]
    expected = hashlib.sha256(body).digest() if algorithm == "sha256" else U32.pack(crc32c(body))
    _require(digest == expected, "codec", "checksum: wrong digest")
    return body


def _undo_encrypt(data: bytes, block: Block, key: bytes) -> bytes:
    """Decrypt; the nonce is the block's place in the stream, the only integer of the format that is big-endian."""
    _require(len(data) >= 16, "codec", "encrypt: too short for a tag")
    nonce = block.number.to_bytes(11, "big") + (b"\x01" if block.last else b"\x00")
    try:
        return AESGCM(key).decrypt(nonce, data, None)
    except InvalidTag:
        _refuse("tag", f"encrypt: block {block.number} is not authentic")


# --- Index, footer and the container as a whole ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Footer:
    """What stands behind the blocks. `ends` is the index, `index_at` its offset."""

    raw_size: int
    ends: tuple[int, ...]
    index_at: int


def _parse_footer(data: bytes, header: Header) -> Footer:
    """Read footer and index from the end of the container, without having looked at a block."""
    footer_at = len(data) - FOOTER.size
    _require(footer_at >= header.size, "footer", "too short for a footer")
    raw_size, container_size, count, crc, magic = FOOTER.unpack_from(data, footer_at)
    _require(magic == FOOTER_MAGIC, "footer", "wrong magic; the container is cut off, or something follows it")
    _require(container_size == len(data), "footer", f"container_size {container_size} is not {len(data)}")
    index_at = footer_at - 8 * count
    _require(count >= 1, "footer", "no block")
    _require(index_at >= header.size + BLOCK_HEAD.size * count, "footer", f"no room for {count} blocks")
    expected = crc32c(header.digest[:16] + data[index_at : footer_at + 20])
    _require(crc == expected, "footer", "wrong CRC")
    _check_raw_size(raw_size, count, header.block_size)
    ends = struct.unpack_from(f"<{count}Q", data, index_at)
    _check_index(ends, header, index_at)
    return Footer(raw_size, ends, index_at)


def _check_raw_size(raw_size: int, count: int, block_size: int) -> None:
    """The size must need exactly this number of blocks; an empty stream has one."""
    _require(raw_size <= MAX_RAW_SIZE, "footer", f"raw_size {raw_size} is out of range")
    fits = (count - 1) * block_size < raw_size <= count * block_size
    _require(fits or (count == 1 and raw_size == 0), "footer", f"{raw_size} bytes are not {count} blocks")


def _check_index(ends: Sequence[int], header: Header, index_at: int) -> None:
    """The index rises, leaves room for every block's head and no more than a block can take, and ends at itself."""
    before = header.size
    for number, end in enumerate(ends):
        stored = end - before - BLOCK_HEAD.size
        _require(0 <= stored <= header.limit, "index", f"block {number} would store {stored} bytes")
        before = end
    _require(before == index_at, "index", "the last block does not end where the index begins")


def _read_block(data: bytes, at: int, limit: int, number: int, header: Header) -> Block:
    """Read the block at an offset, with its CRC; what it stores must end before `limit`."""
    where = f"block {number}"
    _require(at + BLOCK_HEAD.size <= limit, "block", f"{where} is cut off")
    word, crc = BLOCK_HEAD.unpack_from(data, at)
    last, stored_len = bool(word >> 31), word & 0x7FFFFFFF
    _require(stored_len <= header.limit, "block", f"{where}: stored_len {stored_len} is above the limit")
    start = at + BLOCK_HEAD.size
    end = start + stored_len
    _require(end <= limit, "block", f"{where} is cut off")
    stored = data[start:end]
    expected = crc32c(header.digest[:16] + U32.pack(number) + U32.pack(word) + stored)
    _require(crc == expected, "block", f"{where}: wrong CRC")
    return Block(number, last, stored, end)


def _decode_blocks(data: bytes, header: Header, chain: Sequence[Descriptor], footer: Footer, key: bytes) -> bytes:
    """Decode block after block; each begins where the one before it ended."""
    out = bytearray()
    at = header.size
    for number, end in enumerate(footer.ends):
        block = _read_block(data, at, footer.index_at, number, header)
        _require(block.end == end, "index", f"block {number} ends at {block.end}, not at {end}")
        last = number == len(footer.ends) - 1
        _require(block.last == last, "block", f"block {number}: 'last' does not agree with the footer")
        out += _undo_chain(header, chain, block, key)
        at = block.end
    _require(len(out) == footer.raw_size, "size", f"the stream is {len(out)} bytes, not {footer.raw_size}")
    return bytes(out)


def _decode_in_order(data: bytes, header: Header, chain: Sequence[Descriptor], key: bytes) -> Iterator[bytes]:
    """Give what a reader that cannot look ahead may hand out, as soon as it may.

    The last block is held back until index, footer and the end have checked out.
    """
    at, size, ends = header.size, 0, []
    while True:
        block = _read_block(data, at, len(data), len(ends), header)
        content = _undo_chain(header, chain, block, key)
        size += len(content)
        at = block.end
        ends.append(at)
        if block.last:
            break
        yield content
    _require(at + 8 * len(ends) <= len(data), "index", "cut off")
    end = at + 8 * len(ends) + FOOTER.size
    _require(end <= len(data), "footer", "cut off")
    footer = _parse_footer(data[:end], header)
    _require(footer.index_at == at, "footer", f"{len(footer.ends)} blocks instead of {len(ends)}")
    _require(list(footer.ends) == ends, "index", "other ends than those of the blocks")
    _require(size == footer.raw_size, "size", f"the stream is {size} bytes, not {footer.raw_size}")
    _require(end == len(data), "trailing", f"{len(data) - end} bytes follow")
    yield content


def _open_chain(header: Header, key: AnyKey, fragment: str | None) -> tuple[list[Descriptor], bytes]:
    """Find the stream's key, check the seal, and only then look at the codecs. The key is empty without encryption."""
    chain = [_parse_descriptor(text) for text in header.chain]
    stream_key = b""
    if header.keyed:
        for item in chain:
            if item.name == ENCRYPT:
                _check_codec(item)
        if not fragment:
            _refuse("fragment", f"the chain is keyed, but there is no fragment of {ENCRYPT}")
        stream_key = _stream_key(_unwrap_dek(fragment, key), header)
    _check_chain(chain)
    return chain, stream_key


def decode_container(
    data: bytes, *, key: AnyKey = None, descriptors: Sequence[str] | None = None, fragment: str | None = None
) -> Container:
    """Decode the container that `data` is, from its first byte to its last.

    A keyed container keeps its wrapped keys elsewhere: give DCP's `descriptors` for it (the order of reading, with
    fragments; they are compared with the header's chain), or the `fragment` of `streamxf.encrypt` alone.
    """
    if descriptors is not None and fragment is not None:
        raise ValueError("give descriptors or fragment, not both")
    header = _parse_header(data)
    _check_policy(header, key)
    if descriptors is not None:
        fragment = _match_descriptors(descriptors, [_parse_descriptor(text) for text in header.chain])
    chain, stream_key = _open_chain(header, key, fragment)
    payload = _decode_blocks(data, header, chain, _parse_footer(data, header), stream_key)
    return Container(payload, list(header.chain), header.flags, header.block_log2, header.identity)


def decode_item(
    data: bytes, *, key: AnyKey, descriptors: Sequence[str], place: Identity, writer_known: bool
) -> Container:
    """Decode a container of a checkpoint, once chain and identity have proved to be those of the metadata.

    `place` says what the metadata says. With a manifest, the writer is known and the container is published.
    """
    header = _parse_header(data)
    _match_descriptors(descriptors, [_parse_descriptor(text) for text in header.chain])
    found = header.identity
    published = bool(header.flags & PUBLISHED)
    _require(published == writer_known, "mismatch", "published, and no manifest, or the other way round")
    if found is not None:
        expected = place if writer_known else dataclasses.replace(place, writer_id=found.writer_id)
        _require(found == expected, "mismatch", f"the container of {found.name!r} at {found.offsets}")
    return decode_container(data, key=key, descriptors=descriptors)


def _check_policy(header: Header, key: AnyKey) -> None:
    """A reader that was given keys refuses what is not encrypted."""
    keys = _keys(key)
    refused = keys.held and not header.keyed and not keys.plain_too
    _require(not refused, "policy", "keys were given, and the stream is not encrypted")


# --- Plain file -----------------------------------------------------------------------------------------------------


def decode_plain_file(data: bytes, *, key: AnyKey = None) -> Container:
    """Decode a file as `streamxf.open` writes it: a prefix with the wrapped keys, then one container."""
    container, header, chain, stream_key = _open_plain_file(data, key)
    payload = _decode_blocks(container, header, chain, _parse_footer(container, header), stream_key)
    return Container(payload, list(header.chain), header.flags, header.block_log2, header.identity)


def decode_plain_file_in_order(data: bytes, *, key: AnyKey = None) -> Iterator[bytes]:
    """Decode a plain file as a pipe's reader does, and give each block as soon as it may be handed out."""
    container, header, chain, stream_key = _open_plain_file(data, key)
    yield from _decode_in_order(container, header, chain, stream_key)


def _open_plain_file(data: bytes, key: AnyKey) -> tuple[bytes, Header, list[Descriptor], bytes]:
    """Check all that stands before the blocks. Give the container, its header, its chain and the stream's key."""
    fragment, container_at = _parse_prefix(data)
    container = data[container_at:]
    header = _parse_header(container)
    _require(not header.flags & (BOUND | PUBLISHED), "header", "bound or published in a plain file")
    _check_policy(header, key)
    _require(header.keyed == (container_at > 16), "prefix", "keys without a keyed chain, or the other way round")
    chain, stream_key = _open_chain(header, key, fragment)
    for item in chain:
        _require(not item.foreign, "unknown-codec", f"{item.text!r} is no block codec")
    return container, header, chain, stream_key


def _parse_prefix(data: bytes) -> tuple[str, int]:
    """Give the fragment in the prefix, without its filling, and the offset of the container."""
    _require(len(data) >= 12, "prefix", "too short")
    _require(data[:8] == PLAIN_MAGIC, "prefix", "wrong magic")
    (length,) = U32.unpack_from(data, 8)
    _require(length <= MAX_PREFIX_LEN, "prefix", f"len {length} is out of range")
    end = 12 + length
    _require(len(data) >= end + 4, "prefix", "cut off")
    _require(U32.unpack_from(data, end)[0] == crc32c(data[:end]), "prefix", "wrong CRC")
    fragment = data[12:end].rstrip(b"\0")
    _require(bool(fragment) == bool(length), "prefix", "filled up without a fragment")
    _require(fragment.isascii(), "prefix", "the fragment is not ASCII")
    return fragment.decode("ascii"), end + 4


# --- Metadata -------------------------------------------------------------------------------------------------------


def split_metadata(data: bytes, *, key: AnyKey = None, rank: int | None = None) -> tuple[bytes, dict[str, Any] | None]:
    """Split a `.metadata` into the pickle's bytes, which are never unpickled here, and its manifest.

    `rank` is given for `__<rank>.metadata`. The metadata of another writer has no trailer, and so no manifest.
    """
    keys = _keys(key)
    _require(0 < len(data) <= MAX_METADATA_LEN, "trailer", "the file is empty or too long")
    if data[-8:] != METADATA_MAGIC:
        _require(not keys.held or keys.plain_too, "policy", "keys were given, and the metadata has no trailer")
        _check_pickle(data)
        return data, None
    tail_at = len(data) - METADATA_TAIL.size
    _require(tail_at >= 0, "trailer", "too short")
    manifest_len, tag, _ = METADATA_TAIL.unpack_from(data, tail_at)
    _require(manifest_len <= MAX_MANIFEST_LEN, "trailer", f"manifest_len {manifest_len} is out of range")
    _require(manifest_len <= tail_at, "trailer", "manifest_len reaches before the file")
    manifest_at = tail_at - manifest_len
    manifest = _parse_manifest(data[manifest_at:tail_at])
    refused = keys.held and manifest["key"] is None and not keys.plain_too
    _require(not refused, "policy", "keys were given, and the checkpoint is not encrypted")
    _check_tag(data[: tail_at + 4], tag, manifest["key"], key)
    _require(manifest["rank"] == rank, "manifest", "the metadata of another rank")
    pickle = data[:manifest_at]
    _check_pickle(pickle)
    return pickle, manifest


def _check_tag(tagged: bytes, tag: bytes, descriptor: str | None, key: AnyKey) -> None:
    """Compare the tag: keyed where the manifest names a key, a plain hash elsewhere."""
    if descriptor is None:
        right = hmac.compare_digest(tag, hashlib.sha256(tagged).digest())
        _require(right, "digest", "pickle or manifest are not those that were hashed")
        return
    fragment = descriptor.partition("#")[2]
    mac = _hkdf(_unwrap_dek(fragment, key), b"streamxf/1 metadata", 32)
    right = hmac.compare_digest(tag, hmac.new(mac, tagged, hashlib.sha256).digest())
    _require(right, "mac", "pickle or manifest are not those that were tagged")


PICKLE_OPCODES = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    BINBYTES SHORT_BINBYTES EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
    GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET
"""


def _check_pickle(pickle: bytes) -> None:
    """Walk over the pickle's opcodes, executing none: which they are, the memo's numbers, and where it ends."""
    stream = io.BytesIO(pickle)
    allowed, memorised = set(PICKLE_OPCODES.split()), 0
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            _require(opcode.name in allowed, "pickle", f"the opcode {opcode.name} does not belong there")
            _require(opcode.name != "PROTO" or 2 <= argument <= 5, "pickle", f"protocol {argument}")
            if opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
                _require(argument in (None, memorised), "pickle", f"object {memorised} is memorised as {argument}")
                memorised += 1
    except FormatError:
        raise
    except Exception as error:  # pickletools raises whatever its readers of arguments happen to raise
        raise FormatError("pickle", f"no pickle before the manifest: {error}") from error
    _require(stream.tell() == len(pickle), "pickle", "bytes between pickle and manifest")


def _parse_manifest(raw: bytes) -> dict[str, Any]:
    """Parse the manifest and check every key and value of it."""
    _require(raw.isascii(), "manifest", "not ASCII")
    opened, commas = raw.count(b"{") + raw.count(b"["), raw.count(b",")
    few = opened <= 16 + len(raw) // 40 and commas <= 1024 + len(raw) // 20
    _require(few, "manifest", f"{opened} objects and arrays, and {commas} commas, in {len(raw)} bytes")
    try:
        parsed = json.loads(raw.decode("ascii"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError("manifest", f"not JSON: {error}") from error
    manifest = _object(parsed, "the manifest", {"version", "save_id", "rank", "key", "packages", "files"})
    _require(type(manifest["version"]) is int and manifest["version"] == 1, "manifest", "unknown version")
    _check_hex(manifest["save_id"], 32, "save_id")
    rank = manifest["rank"]
    _require(rank is None or (type(rank) is int and rank >= 0), "manifest", "rank is neither null nor a number")
    _check_key(manifest["key"])
    _check_packages(manifest["packages"])
    for path, entry in _object(manifest["files"], "files").items():
        _check_path(path)
        _check_file(path, entry)
    return manifest


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    _require(len(found) == len(pairs), "manifest", "a key comes twice in one object")
    return found


def _refuse_constant(text: str) -> NoReturn:
    """`NaN` and `Infinity`, which Python's parser would take, are not JSON."""
    _refuse("manifest", f"{text} is not JSON")


def _object(value: Any, what: str, keys: set[str] | None = None) -> dict[str, Any]:
    """Require an object and, where `keys` is given, exactly these keys in it."""
    if not isinstance(value, dict):
        _refuse("manifest", f"{what} is not an object")
    if keys is not None:
        _require(value.keys() == keys, "manifest", f"{what} has the keys {sorted(value)} instead of {sorted(keys)}")
    return value


def _check_hex(value: Any, digits: int, what: str) -> None:
    right = isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", value) is not None
    _require(right, "manifest", f"{what} is not {digits} hexadecimal digits")


def _check_key(value: Any) -> None:
    """`key` is null, or `streamxf.encrypt` with its wrapped keys."""
    if value is None:
        return
    if not isinstance(value, str):
        _refuse("manifest", "key is not a string")
    descriptor = _parse_descriptor(value, "manifest")
    right = descriptor.text == f"{ENCRYPT}/1" and descriptor.fragment is not None
    _require(right, "manifest", f"key is not {ENCRYPT}/1 with a fragment")


def _check_packages(value: Any) -> None:
    packages = _object(value, "packages")
    _require(all(isinstance(version, str) for version in packages.values()), "manifest", "a version is not a string")
    _require({"streamxf", "torch"} <= packages.keys(), "manifest", "packages lacks streamxf or torch")
    longest = max(len(text) for pair in packages.items() for text in pair)
    _require(len(packages) <= 1024 and longest <= 256, "manifest", "packages are too many, or have too long names")


def _check_path(path: str) -> None:
    """A path must stay below the checkpoint, on every system."""
    strange = any(char in "\\%?#" or unicodedata.category(char) in ("Cc", "Cs") for char in path)
    _require(not strange, "manifest", f"bad character in the path {path!r}")
    parts = path.split("/")
    _require(not {"", ".", ".."} & set(parts), "manifest", f"the path {path!r} has a part that is empty, . or ..")
    _require(":" not in parts[0], "manifest", f"the path {path!r} has a colon in its first part")
    _require(len(path) <= MAX_PATH, "manifest", "a path is too long")


def _check_file(path: str, value: Any) -> None:
    entry = _object(value, f"files[{path!r}]", {"size", "writer", "digest"})
    _require(type(entry["size"]) is int and entry["size"] >= 0, "manifest", f"{path!r}: size is no size")
    _check_hex(entry["writer"], 32, f"writer of {path!r}")
    digest = entry["digest"]
    right = isinstance(digest, str) and re.fullmatch(r"crc32c:[0-9a-f]{8}", digest) is not None
    _require(right, "manifest", f"{path!r}: digest is not crc32c: and 8 hexadecimal digits")


# --- Command line ---------------------------------------------------------------------------------------------------


def _describe(container: Container, what: str) -> dict[str, Any]:
    names = {KEYED: "keyed", BOUND: "bound", PUBLISHED: "published"}
    identity = dataclasses.asdict(container.identity) if container.identity else None
    if identity is not None:
        identity["writer_id"] = identity["writer_id"].hex()
    return {
        "what": what,
        "flags": [name for bit, name in names.items() if container.flags & bit],
        "block_size": 1 << container.block_log2,
        "chain": container.chain,
        "identity": identity,
        "size": len(container.payload),
        "sha256": hashlib.sha256(container.payload).hexdigest(),
    }


def _decode_any(data: bytes, key: bytes | None, fragment: str | None) -> tuple[dict[str, Any], bytes]:
    """Tell by its magic which of the three `data` is; give a description and what it holds."""
    if data.startswith(PLAIN_MAGIC):
        container = decode_plain_file(data, key=key)
        return _describe(container, "plain file"), container.payload
    if data.startswith(CONTAINER_MAGIC):
        container = decode_container(data, key=key, fragment=fragment)
        return _describe(container, "container"), container.payload
    if data.endswith(METADATA_MAGIC):
        pickle, manifest = split_metadata(data, key=key)
        return {"what": "metadata", "pickle_size": len(pickle), "manifest": manifest}, pickle
    _refuse("header", "neither a plain file, nor a container, nor metadata with a trailer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a file holds, as JSON, or write it to `--out`."""
    parser = argparse.ArgumentParser(description="Decode a file of streamxf, with nothing of streamxf.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--key-file", type=Path, help="file with the 32 bytes of the key")
    parser.add_argument("--fragment", help="fragment of streamxf.encrypt, for a container without its metadata")
    parser.add_argument("--out", type=Path, help="write the payload, or the pickle of metadata, here")
    given = parser.parse_args(arguments)
    key = given.key_file.read_bytes() if given.key_file else None
    try:
        description, payload = _decode_any(given.file.read_bytes(), key, given.fragment)
    except FormatError as error:
        print(f"{given.file}: {error}", file=sys.stderr)
        return 1
    if given.out:
        given.out.write_bytes(payload)
    else:
        print(json.dumps(description, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
