"""Plain files for other kinds of recipients than a shared key, and signatures.

HPKE draws at random, so these files differ each time that they are made.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.forge import HASHED, Parts, prefix_of, seal_of
from tests.sealing import (
    ENCRYPT,
    HYBRID,
    KEY,
    KMS,
    OTHER_DEK,
    OTHER_SIGNER,
    SIGNER,
    STRANGER,
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
from tests.vectors.recipes.vector import Made, under

_SMALL = payload(100)


def vectors() -> Made:
    """All of them."""
    return {**_right(), **_unsigned(), **_signatures(), **_hashes(), **_wraps()}


def _to(*kinds: str) -> str:
    """A data key that is wrapped for these kinds."""
    kms = entry(f"{KMS}:{secret('key service').hex()[:16]}", b"what only the service can read")
    usual = {"aeskw": aes_wrap, KMS: lambda: kms}
    return wrapped([usual[kind]() if kind in usual else entry(*hpke_wrap(kind)) for kind in kinds])


def _file(text: str, signer: Ed25519PrivateKey | None = SIGNER) -> bytes:
    keys = (KEY,) if "aeskw" in text else ()
    return keyed([ENCRYPT], [_SMALL], len(_SMALL), Vouching(text, keys, signer)).pack()


def _right() -> Made:
    everybody = ("aeskw", X25519, HYBRID, KMS)
    cases = {
        "x25519-signed": _file(_to(X25519)),
        "hybrid-signed": _file(_to(HYBRID)),
        "x25519-unsigned-allowed": _file(_to(X25519), None),
        "hybrid-stranger-allowed": _by_stranger(HYBRID),
        "aeskw-signed": _file(_to("aeskw")),
        "aeskw-signed-no-trust": _file(_to("aeskw")),
        "aeskw-by-a-stranger-no-trust": _by_stranger("aeskw"),
        "two-trusted": _file(_to(HYBRID)),
        "kms-beside": _file(_to(KMS, "aeskw"), None),
        "all-kinds-by-hybrid": _file(_to(*everybody)),
        "all-kinds-by-x25519": _file(_to(*everybody)),
        "all-kinds-by-aeskw": _file(_to(*everybody), None),
        "vouching-first": _file(_to(HYBRID, "aeskw"), None),
    }
    return under("recipient", cases)


def _by_stranger(kind: str) -> bytes:
    return _file(_to(kind), OTHER_SIGNER)


def _unsigned() -> Made:
    cases = {
        "x25519-unsigned": _file(_to(X25519), None),
        "hybrid-unsigned-no-trust": _file(_to(HYBRID), None),
        "x25519-of-a-stranger": _by_stranger(X25519),
        "hybrid-signed-no-trust": _file(_to(HYBRID)),
        "of-a-stranger-unsigned-allowed": _by_stranger(X25519),
        "aeskw-unsigned": _file(_to("aeskw"), None),
        "aeskw-of-a-stranger": _by_stranger("aeskw"),
    }
    return under("K6", cases)


def _signatures() -> Made:
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
    cases = {
        "bit": of(HYBRID, broken),
        "cofactor": of(HYBRID, twisted),
        "zeros": of(HYBRID, head + b64url(bytes(64))),
        "of-other-contents": of(HYBRID, signature(secret("digest"))),
        "of-the-digest-alone": of(HYBRID, bare),
        "of-a-stranger-renamed": of(HYBRID, head + signature(digest, OTHER_SIGNER)[21:]),
        "wrong-unsigned-allowed": of(HYBRID, broken),
        "wrong-aeskw": of("aeskw", broken),
    }
    return {**under("K6-signature", cases), "recipient-aeskw-wrong-signature-no-trust": of("aeskw", broken)}


def _hashes() -> Made:
    """What readers of a signed file can do, who have the data key: blocks that they encrypt themselves."""
    made = encrypted(container([ENCRYPT], [_SMALL], len(_SMALL)).change(flags=1 | HASHED))
    forged = encrypted(container([ENCRYPT], [_SMALL[::-1]], len(_SMALL)).change(flags=1 | HASHED))
    by = Vouching(signer=SIGNER)
    signed = Vouching(signer=SIGNER).vouchers(plain_digest(made))
    around = {"prefix": prefix_of(by.wrapped), "tail": seal_of(signed)}
    kept = made.container()[-20 - 36 + 4 :][:32]
    return {
        "K4-forged-by-a-reader": forged.change(**around).pack(),
        "C13-forged-by-a-reader": forged.change(**around, hashes=(kept,)).pack(),
    }


def _wraps() -> Made:
    def altered(kind: str, at: int) -> str:
        head, blob = hpke_wrap(kind)
        at %= len(blob)
        return entry(head, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])

    x25519, hybrid = hpke_wrap(X25519), hpke_wrap(HYBRID)
    another = {kind: entry(*hpke_wrap(kind, named=dek_id(OTHER_DEK))) for kind in (X25519, HYBRID)}
    wrong = {
        "x25519-enc": (altered(X25519, 0), X25519),
        "x25519-tag": (altered(X25519, -1), X25519),
        "x25519-low-order": (entry(x25519[0], hpke_with(X25519)), X25519),
        "hybrid-low-order": (entry(hybrid[0], hpke_with(HYBRID)), HYBRID),
        "x25519-for-another": (entry(x25519[0], hpke_wrap(X25519, STRANGER)[1]), X25519),
        "hybrid-lattice": (altered(HYBRID, 0), HYBRID),
        "hybrid-curve": (altered(HYBRID, 1088), HYBRID),
        "hybrid-other-dek": (entry(*hpke_wrap(HYBRID, dek=OTHER_DEK, named=dek_id())), HYBRID),
        "hybrid-cut": (entry(hybrid[0], hybrid[1][:-1]), HYBRID),
        "hybrid-longer": (entry(hybrid[0], hybrid[1] + b"x"), HYBRID),
        "hybrid-no-enc": (entry(hybrid[0], hybrid[1][-48:]), HYBRID),
    }
    missing = {
        "hybrid-another": _to(HYBRID),
        "x25519-for-hybrid": _to(X25519),
        "hybrid-no-key": _to(HYBRID),
        "kms-alone": _to(KMS),
    }
    return {
        **under("K3", {name: _file(wrapped([wrap])) for name, (wrap, kind) in wrong.items()}),
        **under("K3", {name: _file(text) for name, text in missing.items()}),
        **{f"K3-{kind[5:]}-other-info": _file(wrapped([wrap])) for kind, wrap in another.items()},
    }
