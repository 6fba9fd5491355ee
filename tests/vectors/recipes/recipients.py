"""Plain files for other kinds of recipients than a shared key, and signatures.

HPKE draws at random, so these files differ each time that they are made.
"""

from __future__ import annotations

from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.forge import HASHED, Parts, prefix_of, seal_of
from tests.sealing import (
    ENCRYPT,
    HYBRID,
    KEY,
    KMS,
    OTHER_DEK,
    OTHER_KEY,
    OTHER_SIGNER,
    OTHER_TRUSTED,
    SIGNER,
    STRANGER,
    TRUSTED,
    X25519,
    Vouching,
    aes_wrap,
    b64url,
    container,
    dek_id,
    encrypted,
    entry,
    hpke_wrap,
    keyed,
    mac_of,
    plain_digest,
    secret,
    signature,
    statement,
    voucher,
    wrapped,
)
from tests.vectors.recipes.data import payload
from tests.vectors.recipes.low_order import hpke_with, sign_twisted
from tests.vectors.recipes.vector import Reader, Vector, breaks, holding, holds

_SMALL = payload(100)


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_unsigned(), *_signatures(), *_hashes(), *_wraps()]


def _to(*kinds: str) -> str:
    """A data key that is wrapped for these kinds."""
    kms = entry(f"{KMS}:{secret('key service').hex()[:16]}", b"what only the service can read")
    usual = {"aeskw": aes_wrap, KMS: lambda: kms}
    return wrapped([usual[kind]() if kind in usual else entry(*hpke_wrap(kind)) for kind in kinds])


def _file(text: str, signer: Ed25519PrivateKey | None = SIGNER) -> bytes:
    keys = (KEY,) if "aeskw" in text else ()
    return keyed([ENCRYPT], [_SMALL], len(_SMALL), Vouching(text, keys, signer)).pack()


def _shared() -> Reader:
    return holding("aeskw", trust=())


def _right() -> list[Vector]:
    everybody = ("aeskw", X25519, HYBRID, KMS)
    anyone = partial(holding, trust=(), allow_unsigned=True)
    cases = [
        ("x25519-signed", "for an X25519 key, signed", _file(_to(X25519)), holding(X25519)),
        ("hybrid-signed", "for an X-Wing key, signed", _file(_to(HYBRID)), holding(HYBRID)),
        (
            "x25519-unsigned-allowed",
            "not signed, and the reader accepts that",
            _file(_to(X25519), None),
            anyone(X25519),
        ),
        (
            "hybrid-stranger-allowed",
            "signed by a stranger, and the reader accepts that",
            _by_stranger(HYBRID),
            anyone(HYBRID),
        ),
        ("aeskw-signed", "a shared key, and signed", _file(_to("aeskw")), holding("aeskw")),
        ("aeskw-signed-no-trust", "a reader that does not ask who signed", _file(_to("aeskw")), _shared()),
        ("aeskw-by-a-stranger-no-trust", "the same, signed by a stranger", _by_stranger("aeskw"), _shared()),
        (
            "two-trusted",
            "two may sign, and one did",
            _file(_to(HYBRID)),
            holding(HYBRID, trust=(OTHER_TRUSTED, TRUSTED)),
        ),
        ("kms-beside", "a key of a service beside a shared key", _file(_to(KMS, "aeskw"), None), _shared()),
        ("all-kinds-by-hybrid", "four kinds of recipients", _file(_to(*everybody)), holding(HYBRID)),
        ("all-kinds-by-x25519", "four kinds of recipients", _file(_to(*everybody)), holding(X25519)),
        ("all-kinds-by-aeskw", "four kinds of recipients", _file(_to(*everybody), None), _shared()),
        (
            "vouching-first",
            "what a key opens that vouches needs no signature, although a private key would open it too",
            _file(_to(HYBRID, "aeskw"), None),
            holding(HYBRID, "aeskw", trust=()),
        ),
    ]
    return [
        holds(f"recipient-{name}", about, partial(bytes, file), _SMALL, reader) for name, about, file, reader in cases
    ]


def _by_stranger(kind: str) -> bytes:
    return _file(_to(kind), OTHER_SIGNER)


def _unsigned() -> list[Vector]:
    cases = [
        ("x25519-unsigned", "not signed", _file(_to(X25519), None), holding(X25519)),
        (
            "hybrid-unsigned-no-trust",
            "not signed, and nobody is trusted",
            _file(_to(HYBRID), None),
            holding(HYBRID, trust=()),
        ),
        ("x25519-of-a-stranger", "signed by a stranger", _by_stranger(X25519), holding(X25519)),
        ("hybrid-signed-no-trust", "signed, and nobody is trusted", _file(_to(HYBRID)), holding(HYBRID, trust=())),
        (
            "of-a-stranger-unsigned-allowed",
            "signed by a stranger, where a signature may be missing, but not be a stranger's",
            _by_stranger(X25519),
            holding(X25519, allow_unsigned=True),
        ),
        ("aeskw-unsigned", "a shared key, and a signature is required", _file(_to("aeskw"), None), holding("aeskw")),
        ("aeskw-of-a-stranger", "signed by a stranger", _by_stranger("aeskw"), holding("aeskw")),
    ]
    return [breaks("K6", name, about, file, reader) for name, about, file, reader in cases]


def _signatures() -> list[Vector]:
    made = encrypted(container([ENCRYPT], [_SMALL], len(_SMALL)).change(flags=1 | HASHED))
    digest = plain_digest(made)
    right = signature(digest)
    head, sig = right[:21], right[21:]

    def of(kind: str, sig: str, made: Parts = made) -> bytes:
        text = _to(kind)
        found = plain_digest(made)
        vouchers = [mac_of(found, text), *([voucher(found)] if kind == "aeskw" else []), sig]
        return made.change(prefix=prefix_of(text), tail=seal_of("&".join(vouchers))).pack()

    broken = f"{head}{'B' if sig[0] == 'A' else 'A'}{sig[1:]}"
    bare = f"{head}{b64url(SIGNER.sign(digest))}"
    twisted = head + b64url(sign_twisted(SIGNER.private_bytes_raw(), statement(digest)))
    cases = [
        ("bit", "a bit of the signature", of(HYBRID, broken), holding(HYBRID)),
        ("cofactor", "a signature for those who multiply by the cofactor", of(HYBRID, twisted), holding(HYBRID)),
        ("zeros", "a signature of zeros", of(HYBRID, head + b64url(bytes(64))), holding(HYBRID)),
        (
            "of-other-contents",
            "a signature of other contents",
            of(HYBRID, signature(secret("digest"))),
            holding(HYBRID),
        ),
        ("of-the-digest-alone", "a signature of D and not of V", of(HYBRID, bare), holding(HYBRID)),
        (
            "of-a-stranger-renamed",
            "a stranger's signature under the signer's id",
            of(HYBRID, head + signature(digest, OTHER_SIGNER)[21:]),
            holding(HYBRID),
        ),
        (
            "wrong-unsigned-allowed",
            "a wrong one is worse than none",
            of(HYBRID, broken),
            holding(HYBRID, allow_unsigned=True),
        ),
        ("wrong-aeskw", "a shared key, and a wrong signature", of("aeskw", broken), holding("aeskw")),
    ]
    return [
        *(breaks("K6", f"signature-{name}", about, file, reader) for name, about, file, reader in cases),
        holds(
            "recipient-aeskw-wrong-signature-no-trust",
            "a wrong signature by a signer whom nobody named",
            partial(bytes, of("aeskw", broken)),
            _SMALL,
            _shared(),
        ),
    ]


def _hashes() -> list[Vector]:
    """What readers of a signed file can do, who have the data key: blocks that they encrypt themselves."""
    made = encrypted(container([ENCRYPT], [_SMALL], len(_SMALL)).change(flags=1 | HASHED))
    forged = encrypted(container([ENCRYPT], [_SMALL[::-1]], len(_SMALL)).change(flags=1 | HASHED))
    by = Vouching(signer=SIGNER)
    signed = Vouching(signer=SIGNER).vouchers(plain_digest(made))
    around = {"prefix": prefix_of(by.wrapped), "tail": seal_of(signed)}
    kept = made.container()[-20 - 36 + 4 :][:32]
    return [
        breaks(
            "K4", "forged-by-a-reader", "another block, with its hash", forged.change(**around).pack(), holding("aeskw")
        ),
        breaks(
            "C13",
            "forged-by-a-reader",
            "another block, with the hash of the one that was signed",
            forged.change(**around, hashes=(kept,)).pack(),
            holding("aeskw"),
        ),
    ]


def _wraps() -> list[Vector]:
    def altered(kind: str, at: int) -> str:
        head, blob = hpke_wrap(kind)
        at %= len(blob)
        return entry(head, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])

    x25519, hybrid = hpke_wrap(X25519), hpke_wrap(HYBRID)
    another = {kind: entry(*hpke_wrap(kind, named=dek_id(OTHER_DEK))) for kind in (X25519, HYBRID)}
    wrong = [
        ("x25519-enc", "a bit of enc", altered(X25519, 0), X25519),
        ("x25519-tag", "a bit of the tag", altered(X25519, -1), X25519),
        ("x25519-low-order", "a point of low order", entry(x25519[0], hpke_with(X25519)), X25519),
        ("hybrid-low-order", "a point of low order", entry(hybrid[0], hpke_with(HYBRID)), HYBRID),
        ("x25519-for-another", "for another's key", entry(x25519[0], hpke_wrap(X25519, STRANGER)[1]), X25519),
        ("hybrid-lattice", "a bit of the ML-KEM ciphertext", altered(HYBRID, 0), HYBRID),
        ("hybrid-curve", "a bit of the X25519 share", altered(HYBRID, 1088), HYBRID),
        ("hybrid-other-dek", "another data key", entry(*hpke_wrap(HYBRID, dek=OTHER_DEK, named=dek_id())), HYBRID),
        ("hybrid-cut", "a byte less", entry(hybrid[0], hybrid[1][:-1]), HYBRID),
        ("hybrid-longer", "a byte more", entry(hybrid[0], hybrid[1] + b"x"), HYBRID),
        ("hybrid-no-enc", "48 bytes, as if there were no enc", entry(hybrid[0], hybrid[1][-48:]), HYBRID),
    ]
    missing = [
        ("hybrid-another", "another's private key", _to(HYBRID), Reader(((HYBRID, STRANGER),), (TRUSTED,))),
        ("x25519-for-hybrid", "the same secret under another kind", _to(X25519), holding(HYBRID)),
        ("hybrid-no-key", "a shared key that it is not wrapped for", _to(HYBRID), Reader((("aeskw", OTHER_KEY),))),
        ("kms-alone", "wrapped by a service that the reader does not have", _to(KMS), _shared()),
    ]
    infos = [(X25519, another[X25519]), (HYBRID, another[HYBRID])]
    return [
        *(breaks("K3", name, about, _file(wrapped([wrap])), holding(kind)) for name, about, wrap, kind in wrong),
        *(breaks("K3", name, about, _file(text), reader) for name, about, text, reader in missing),
        *(
            breaks("K3", f"{kind[5:]}-other-info", "K2: sealed for another dek", _file(wrapped([wrap])), holding(kind))
            for kind, wrap in infos
        ),
    ]
