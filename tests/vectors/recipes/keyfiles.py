"""Key files: one line of text each, which the JSON holds."""

from __future__ import annotations

import base64
import unicodedata

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from tests.sealing import HYBRID, READER, SIGNER, TRUSTED, X25519, b64url, hpke_wrap, key_id, secret
from tests.vectors.recipes.vector import Vector

KEY = secret("a key in a file")
ID = key_id(KEY)
PUBLIC = X25519PrivateKey.from_private_bytes(READER).public_key().public_bytes_raw()


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_wrong(), *_protected()]


def _holds(name: str, about: str, text: str, what: str, kind: str, key: bytes, passphrase: str | None = None) -> Vector:
    facts = {"text": text} | ({"passphrase": passphrase} if passphrase is not None else {})
    return Vector(name, about, dict, {"holds": {"what": what, "kind": kind, "key": key.hex()}}, facts=facts)


def _breaks(rule: str, name: str, about: str, text: str, passphrase: str | None = None) -> Vector:
    facts = {"text": text} | ({"passphrase": passphrase} if passphrase is not None else {})
    return Vector(f"{rule.replace(' ', '-')}-{name}", about, dict, {"breaks": rule}, facts=facts)


def line(kind: str, key_id: str, key: bytes, what: str = "secret") -> str:
    return f"streamxf-{what}:{kind}:{key_id}:{b64url(key)}"


def _right() -> list[Vector]:
    own = line("aeskw", ID, KEY)
    hybrid_id = hpke_wrap(HYBRID)[0].partition(":")[2]
    commented = f"# a comment, größer\n\n  {own}\t\r\n#{own}\n"
    return [
        _holds("aeskw", "a shared key", own + "\n", "secret", "aeskw", KEY),
        _holds("no-newline", "the same without a newline at the end", own, "secret", "aeskw", KEY),
        _holds("comments", "comments, empty lines and blanks around it", commented, "secret", "aeskw", KEY),
        _holds("hex", "64 hexadecimal digits", KEY.hex() + "\n", "secret", "aeskw", KEY),
        _holds("hex-mixed", "digits of either case", KEY.hex()[:32] + KEY.hex()[32:].upper(), "secret", "aeskw", KEY),
        _holds("base64", "44 characters of base64", base64.b64encode(KEY).decode(), "secret", "aeskw", KEY),
        _holds("x25519", "a private key", line(X25519, key_id(PUBLIC, X25519), READER), "secret", X25519, READER),
        _holds("hybrid", "a private key", line(HYBRID, hybrid_id, READER), "secret", HYBRID, READER),
        _holds(
            "x25519-public",
            "a public key",
            line(X25519, key_id(PUBLIC, X25519), PUBLIC, "public"),
            "public",
            X25519,
            PUBLIC,
        ),
        _holds(
            "ed25519-public",
            "a signer's public key",
            line("ed25519", key_id(TRUSTED, "ed25519"), TRUSTED, "public"),
            "public",
            "ed25519",
            TRUSTED,
        ),
        _holds(
            "ed25519",
            "a signing key",
            line("ed25519", key_id(TRUSTED, "ed25519"), SIGNER.private_bytes_raw()),
            "secret",
            "ed25519",
            SIGNER.private_bytes_raw(),
        ),
    ]


def _wrong() -> list[Vector]:
    own = line("aeskw", ID, KEY)
    other = key_id(secret("another"))
    text = base64.b64encode(KEY).decode()
    stray = text[:-2] + chr(ord(text[-2]) + 1) + "="
    assert base64.b64decode(stray) == KEY
    public = line(X25519, key_id(PUBLIC, X25519), PUBLIC, "public")
    cases = [
        ("nothing", "an empty file", "", "K9"),
        ("comments-alone", "comments alone", "# nothing\n", "K9"),
        ("two-keys", "two keys", own + "\n" + own + "\n", "K9"),
        ("key-id", "the id of another key", line("aeskw", other, KEY), "K9"),
        ("public-key-id", "the id of another key", line("ed25519", ID, TRUSTED, "public"), "K9"),
        ("shared-as-private", "a shared key under another kind", line(X25519, ID, KEY), "K9"),
        ("words", "a line of words", "not a key at all", "key file"),
        ("label", "another label", own.replace("secret", "private"), "key file"),
        ("three-parts", "a part less", own.rpartition(":")[0], "key file"),
        ("key-id-capitals", "an id in capitals", line("aeskw", ID.upper(), KEY), "key file"),
        ("kind-unknown", "an unknown kind", line("rot13", ID, KEY), "key file"),
        ("public-aeskw", "a kind that has no public keys", line("aeskw", ID, KEY, "public"), "key file"),
        ("31-bytes", "31 bytes", line("aeskw", ID, KEY[:-1]), "key file"),
        ("33-bytes", "33 bytes", line("aeskw", ID, KEY + b"x"), "key file"),
        ("padding", "base64url with its padding", own + "=", "key file"),
        ("stray-bits", "bits at the end that mean nothing", own[:-1] + chr(ord(own[-1]) + 1), "key file"),
        ("hex-63", "63 digits", KEY.hex()[:-1], "key file"),
        ("base64-stray-bits", "bits at the end of base64 that mean nothing", stray, "key file"),
        ("too-long", "more than 64 KiB", own + "\n#" + "x" * 65536, "key file"),
        ("surplus-field", "a field more", own + ":a", "key file"),
        ("surplus-empty", "an empty field more", own + ":", "key file"),
        ("public-surplus", "a field more of a public key", public + ":a", "key file"),
        ("inside-blank", "a blank inside of the line", own.replace(":", ": ", 1), "key file"),
    ]
    return [_breaks(rule, name, about, text) for name, about, text, rule in cases]


def protected(
    passphrase: bytes,
    m: int | str = 64,
    t: int | str = 1,
    p: int | str = 1,
    *,
    key: bytes = KEY,
    salt: bytes = bytes(16),
) -> str:
    """A protected line; what it says of m, t and p is taken as it is where it is text."""
    numbers = [int(number) for number in (m, t, p)]
    argon = Argon2id(salt=salt, length=32, iterations=numbers[1], lanes=numbers[2], memory_cost=numbers[0])
    start = f"streamxf-protected:aeskw:{ID}:argon2id:{m}.{t}.{p}:{b64url(salt)}:"
    return start + b64url(AESGCM(argon.derive(passphrase)).encrypt(bytes(12), key, start.encode()))


def _protected() -> list[Vector]:
    word = "correct horse"
    own = protected(word.encode())
    composed, parted = unicodedata.normalize("NFC", "größe"), unicodedata.normalize("NFD", "größe")
    start, _, sealed = own.rpartition(":")
    numbers = [
        ("m-too-small", "8p is more than m", "7.1.1"),
        ("m-too-large", "m is 1048577", "1048577.1.1"),
        ("t-0", "t is 0", "64.0.1"),
        ("t-17", "t is 17", "64.17.1"),
        ("p-0", "p is 0", "64.1.0"),
        ("p-17", "p is 17", "136.1.17"),
        ("leading-zero", "a leading zero", "064.1.1"),
    ]
    salt = start.rpartition(":")
    cases = [
        ("passphrase", "another passphrase", own, "wrong horse"),
        ("no-passphrase", "no passphrase", own, None),
        ("sealed-bit", "a bit of what is sealed", f"{start}:{'B' if sealed[0] == 'A' else 'A'}{sealed[1:]}", word),
        ("sealed-stray-bits", "bits at the end that mean nothing", _stray(own), word),
        ("salt-15", "a salt of 15 bytes", f"{salt[0]}:{b64url(bytes(15))}:{sealed}", word),
        ("key-id-changed", "the id is part of what is authenticated", own.replace(ID, "0" * 16), word),
        ("kind-changed", "the kind is, too", own.replace("aeskw", X25519), word),
        ("surplus-field", "a field more", own + ":AAAA", word),
        ("not-argon2id", "another derivation", own.replace("argon2id", "scrypt"), word),
        ("protected-31-bytes", "31 secret bytes", protected(word.encode(), key=KEY[:-1]), word),
        *((name, about, own.replace("64.1.1", text), word) for name, about, text in numbers),
    ]
    rules = {"protected-31-bytes": "key file"}
    return [
        _holds("protected", "a key under a passphrase", own, "secret", "aeskw", KEY, word),
        _holds(
            "protected-costly", "other m, t and p", protected(word.encode(), 256, 3, 4), "secret", "aeskw", KEY, word
        ),
        _holds(
            "protected-nfc", "K11: letters with marks", protected(composed.encode()), "secret", "aeskw", KEY, parted
        ),
        _holds(
            "protected-4096", "K11: 4,096 bytes", protected(("é" * 2048).encode()), "secret", "aeskw", KEY, "é" * 2048
        ),
        _holds("protected-1", "K11: one byte", protected(b" "), "secret", "aeskw", KEY, " "),
        _breaks("K10", "nfd", "K11: a passphrase that was not composed", protected(parted.encode()), parted),
        *(_breaks(rules.get(name, "K10"), name, about, text, phrase) for name, about, text, phrase in cases),
    ]


def _stray(text: str) -> str:
    """48 bytes leave no bits unused, so a letter more is what there can be."""
    return text + "A"
