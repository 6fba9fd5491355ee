"""Recipients of other kinds than a shared key, and signatures.

HPKE draws at random, so these files differ each time that they are made.
"""

from __future__ import annotations

import hashlib
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

from recipes.data import payload
from recipes.sealing import (
    DEK,
    ENCRYPT,
    KEY,
    OTHER_KEY,
    b64url,
    dek_id,
    fragment,
    key_id,
    parts,
    seal,
    secret,
    wrapped,
)
from recipes.vector import Keys, Vector, fails, reads

X25519, HYBRID, KMS = "hpke-x25519", "hpke-mlkem768-x25519", "aws-kms"
READER, STRANGER = secret("private key"), secret("private key of another")
SIGNER = Ed25519PrivateKey.from_private_bytes(secret("signer"))
OTHER_SIGNER = Ed25519PrivateKey.from_private_bytes(secret("another signer"))
TRUSTED = SIGNER.public_key().public_bytes_raw()
OTHER_TRUSTED = OTHER_SIGNER.public_key().public_bytes_raw()
_KEMS = {X25519: KEM.X25519, HYBRID: KEM.MLKEM768_X25519}
_SMALL = payload(100)


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_unsigned(), *_signatures(), *_wraps()]


def holding(*kinds: str, trust: tuple[bytes, ...] = (TRUSTED,), allow_unsigned: bool = False) -> Keys:
    """A reader with `READER` as a private key of these kinds, or with `KEY` for the kind `aeskw`."""
    return Keys(tuple((kind, KEY if kind == "aeskw" else READER) for kind in kinds), trust, allow_unsigned)


def hpke(kind: str, *, to: bytes = READER, dek: bytes = DEK, named: bytes | None = None) -> tuple[str, bytes]:
    """A wrap by HPKE: what stands before its last colon, and the bytes. `named` is another dek_id in its `info`."""
    if kind == X25519:
        private = X25519PrivateKey.from_private_bytes(to)
        raw = private.public_key().public_bytes_raw()
    else:
        expanded = hashlib.shake_256(to).digest(96)
        kem = MLKEM768PrivateKey.from_seed_bytes(expanded[:64])
        own = X25519PrivateKey.from_private_bytes(expanded[64:])
        private = MLKEM768X25519PrivateKey(kem, own)
        raw = kem.public_key().public_bytes_raw() + own.public_key().public_bytes_raw()
    suite = Suite(_KEMS[kind], KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    info = b"streamxf/1 hpke" + (dek_id(dek) if named is None else named)
    return f"{kind}:{key_id(raw, b' ' + kind.encode())}", suite.encrypt(dek, private.public_key(), info)


def hybrid_wrap() -> str:
    """The usual data key for the private key `READER`, as it stands in a fragment."""
    return text_of(hpke(HYBRID))


def text_of(wrap: tuple[str, bytes]) -> str:
    """A wrap as it stands in a fragment."""
    return f"{wrap[0]}:{b64url(wrap[1])}"


def signature(signer: Ed25519PrivateKey = SIGNER, message: bytes | None = None) -> str:
    """`&sig=...` of the usual data key."""
    signed = signer.sign(b"streamxf/1 dek\0" + dek_id() if message is None else message)
    return f"&sig={_signer_id(signer)}:{b64url(signed)}"


def _signer_id(signer: Ed25519PrivateKey) -> str:
    return key_id(signer.public_key().public_bytes_raw(), b" ed25519")


def _file(text: str) -> bytes:
    return seal(parts([ENCRYPT], [_SMALL], len(_SMALL), text=text)).pack()


def _to(*kinds: str) -> str:
    """A fragment for these kinds, without a signature."""
    kms = f"{KMS}:{secret('key service').hex()[:16]}:{b64url(b'what only the service can read')}"
    wraps = {"aeskw": lambda: wrapped(KEY), KMS: lambda: kms}
    return fragment([wraps[kind]() if kind in wraps else text_of(hpke(kind)) for kind in kinds])


# -- what is read ----------------------------------------------------------------------------------------------------


def _right() -> list[Vector]:
    everybody = ("aeskw", X25519, HYBRID, KMS)
    cases = [
        ("x25519-signed", "wrapped by X25519, signed", _to(X25519) + signature(), holding(X25519)),
        ("hybrid-signed", "wrapped by X-Wing, signed", _to(HYBRID) + signature(), holding(HYBRID)),
        (
            "x25519-allow-unsigned",
            "not signed, and the reader does not mind",
            _to(X25519),
            holding(X25519, trust=(), allow_unsigned=True),
        ),
        (
            "hybrid-of-a-stranger-allow-unsigned",
            "signed by somebody, and the reader does not mind",
            _to(HYBRID) + signature(OTHER_SIGNER),
            holding(HYBRID, trust=(), allow_unsigned=True),
        ),
        ("aeskw-signed", "a shared key, and signed", _to("aeskw") + signature(), holding("aeskw")),
        ("aeskw-signed-no-trust", "a reader that does not ask who signed", _to("aeskw") + signature(), _shared()),
        (
            "aeskw-wrong-signature-no-trust",
            "a wrong signature by nobody whom the reader knows",
            _to("aeskw") + signature(message=b"something else"),
            _shared(),
        ),
        ("two-trusted", "two may sign, and one did", _to(HYBRID) + signature(), _two()),
        ("kms-beside", "a key of a service beside a shared key", _to(KMS, "aeskw"), _shared()),
        ("all-kinds-by-hybrid", "four kinds of recipients", _to(*everybody) + signature(), holding(HYBRID)),
        ("all-kinds-by-x25519", "four kinds of recipients", _to(*everybody) + signature(), holding(X25519)),
        ("all-kinds-by-aeskw", "four kinds of recipients", _to(*everybody), _shared()),
        (
            "shared-key-first",
            "what a shared key opens needs no signature, although a private key would open it too",
            _to(HYBRID, "aeskw"),
            holding(HYBRID, "aeskw", trust=()),
        ),
    ]
    return [
        reads(f"recipient-{name}", about, [ENCRYPT], partial(_file, text), _SMALL, keys)
        for name, about, text, keys in cases
    ]


def _shared() -> Keys:
    return holding("aeskw", trust=())


def _two() -> Keys:
    return holding(HYBRID, trust=(OTHER_TRUSTED, TRUSTED))


# -- what is not ----------------------------------------------------------------------------------------------------


def _fails(name: str, about: str, text: str, layer: str, keys: Keys) -> Vector:
    return fails(f"recipient-{name}", about, [ENCRYPT], _file(text), layer, keys=keys)


def _unsigned() -> list[Vector]:
    cases = [
        ("x25519-unsigned", "not signed", _to(X25519), holding(X25519)),
        ("hybrid-unsigned", "not signed", _to(HYBRID), holding(HYBRID)),
        ("hybrid-unsigned-no-trust", "not signed, and nobody is trusted", _to(HYBRID), holding(HYBRID, trust=())),
        ("x25519-of-a-stranger", "signed by a stranger", _to(X25519) + signature(OTHER_SIGNER), holding(X25519)),
        (
            "hybrid-signed-no-trust",
            "signed, and nobody is trusted",
            _to(HYBRID) + signature(),
            holding(HYBRID, trust=()),
        ),
        (
            "x25519-of-a-stranger-allow-unsigned",
            "signed by a stranger, where a signature may be missing and not be somebody else's",
            _to(X25519) + signature(OTHER_SIGNER),
            holding(X25519, allow_unsigned=True),
        ),
        ("aeskw-unsigned", "a shared key, and a signature is asked for", _to("aeskw"), holding("aeskw")),
        ("aeskw-of-a-stranger", "signed by a stranger", _to("aeskw") + signature(OTHER_SIGNER), holding("aeskw")),
    ]
    return [_fails(name, about, text, "policy", keys) for name, about, text, keys in cases]


def _signatures() -> list[Vector]:
    signed = signature()
    id_, _, blob = signed.partition("=")[2].partition(":")
    broken = f"&sig={id_}:{'B' if blob[0] == 'A' else 'A'}{blob[1:]}"
    of_another_save = signature(message=b"streamxf/1 dek\0" + dek_id(secret("another data key")))
    anybodys = holding(HYBRID, allow_unsigned=True)
    renamed = f"&sig={id_}{signature(OTHER_SIGNER)[len('&sig=') + 16 :]}"
    wrong = [
        ("bit", "a bit of the signature", _to(HYBRID) + broken, holding(HYBRID)),
        ("zeros", "a signature of zeros", _to(HYBRID) + f"&sig={id_}:{b64url(bytes(64))}", holding(HYBRID)),
        ("of-another-save", "the signature of another data key", _to(HYBRID) + of_another_save, holding(HYBRID)),
        (
            "of-the-id-alone",
            "a signature of the bare dek_id",
            _to(HYBRID) + signature(message=dek_id()),
            holding(HYBRID),
        ),
        (
            "of-a-stranger-renamed",
            "a stranger's signature under the signer's id",
            _to(HYBRID) + renamed,
            holding(HYBRID),
        ),
        ("wrong-allow-unsigned", "a wrong one is worse than none", _to(HYBRID) + broken, anybodys),
        ("wrong-aeskw", "a shared key, and a wrong signature", _to("aeskw") + broken, holding("aeskw")),
    ]
    malformed = [
        ("twice", "two signatures", _to("aeskw") + signed + signature(OTHER_SIGNER)),
        ("same-twice", "the same signature twice", _to("aeskw") + signed + signed),
        ("63-bytes", "a signature of 63 bytes", _to("aeskw") + f"&sig={id_}:{b64url(bytes(63))}"),
        ("65-bytes", "a signature of 65 bytes", _to("aeskw") + f"&sig={id_}:{b64url(bytes(65))}"),
        ("stray-bits", "bits at the end of the signature", _to("aeskw") + f"&sig={id_}:{b64url(bytes(64))[:-1]}B"),
        ("no-id", "a signature without a key_id", _to("aeskw") + f"&sig={blob}"),
        ("id-upper-case", "capitals in the key_id", _to("aeskw") + signed.replace(id_, id_.upper())),
        ("empty", "nothing after sig=", _to("aeskw") + "&sig="),
        ("alone", "a signature and no wrapped key", fragment().partition("&")[0] + signed),
    ]
    return [
        *(
            fails(f"signature-{name}", about, [ENCRYPT], _file(text), "signature", keys=keys)
            for name, about, text, keys in wrong
        ),
        *(
            fails(f"signature-{name}", about, [ENCRYPT], _file(text), "fragment", keys=holding("aeskw"))
            for name, about, text in malformed
        ),
    ]


def _wraps() -> list[Vector]:
    def altered(kind: str, at: int) -> str:
        head, blob = hpke(kind)
        at %= len(blob)
        return text_of((head, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]))

    x25519, hybrid = hpke(X25519), hpke(HYBRID)
    another = {kind: text_of(hpke(kind, named=dek_id(secret("another data key")))) for kind in (X25519, HYBRID)}
    other_dek = text_of(hpke(HYBRID, dek=secret("another data key"), named=dek_id()))
    wrong = [
        ("x25519-enc", "a bit of enc", altered(X25519, 0), X25519),
        ("x25519-ciphertext", "a bit of the ciphertext", altered(X25519, 40), X25519),
        ("x25519-tag", "a bit of the tag", altered(X25519, -1), X25519),
        ("x25519-low-order", "an enc of zeros", text_of((x25519[0], bytes(32) + x25519[1][32:])), X25519),
        ("x25519-other-info", "sealed for another dek_id", another[X25519], X25519),
        ("x25519-for-another", "sealed to another's key", text_of((x25519[0], hpke(X25519, to=STRANGER)[1])), X25519),
        ("hybrid-lattice", "a bit of the ML-KEM ciphertext", altered(HYBRID, 0), HYBRID),
        ("hybrid-curve", "a bit of the X25519 share", altered(HYBRID, 1088), HYBRID),
        ("hybrid-tag", "a bit of the tag", altered(HYBRID, -1), HYBRID),
        ("hybrid-other-info", "sealed for another dek_id", another[HYBRID], HYBRID),
        ("hybrid-other-dek", "another data key", other_dek, HYBRID),
        ("hybrid-cut", "a byte less", text_of((hybrid[0], hybrid[1][:-1])), HYBRID),
        ("hybrid-longer", "a byte more", text_of((hybrid[0], hybrid[1] + b"x")), HYBRID),
        ("hybrid-empty-enc", "48 bytes, as if there were no enc", text_of((hybrid[0], hybrid[1][-48:])), HYBRID),
    ]
    missing = [
        ("hybrid-another", "another's private key", _to(HYBRID), Keys(((HYBRID, STRANGER),), (TRUSTED,))),
        ("x25519-for-hybrid", "the same secret under another kind", _to(X25519), holding(HYBRID)),
        ("aeskw-for-x25519", "the private key's bytes as a shared key", _to(X25519), Keys((("aeskw", READER),))),
        ("hybrid-no-key", "a shared key that it is not wrapped for", _to(HYBRID), Keys((("aeskw", OTHER_KEY),))),
        ("kms-alone", "wrapped by a service that the reader does not have", _to(KMS), _shared()),
    ]
    return [
        *(
            _fails(name, about, fragment([wrap]) + signature(), "key-wrong", holding(kind))
            for name, about, wrap, kind in wrong
        ),
        *(_fails(name, about, text + signature(), "key-missing", keys) for name, about, text, keys in missing),
    ]
