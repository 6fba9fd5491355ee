"""Plain files for other kinds of recipients than a shared key, and signatures.

HPKE draws at random, so these files differ each time that they are made.
"""

from typing import Any

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
    X25519,
    Vouching,
    aes_wrap,
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
    voucher,
    wrapped,
)
from tests.vectors.recipes.data import payload

SMALL = payload(100)


def to(*kinds: str) -> str:
    """A data key that is wrapped for these kinds."""
    kms = entry(f"{KMS}:{secret('key service').hex()[:16]}", b"what only the service can read")
    usual = {"aeskw": aes_wrap, KMS: lambda: kms}
    return wrapped([usual[kind]() if kind in usual else entry(*hpke_wrap(kind)) for kind in kinds])


def file_for(text: str, signer: Ed25519PrivateKey | None = SIGNER) -> bytes:
    keys = (KEY,) if "aeskw" in text else ()
    return keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(text, keys, signer)).pack()


def right() -> dict[str, Any]:
    everybody = ("aeskw", X25519, HYBRID, KMS)
    return locals()


def by_stranger(kind: str) -> bytes:
    return file_for(to(kind), OTHER_SIGNER)


def signatures() -> dict[str, Any]:
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)).change(flags=1 | HASHED))
    digest = plain_digest(made)
    right = signature(digest)
    head, sig = right[:21], right[21:]

    def of(kind: str, sig: str, made: Parts = made) -> bytes:
        text = to(kind)
        found = plain_digest(made)
        vouchers = [mac_of(found, text), *([voucher(found)] if kind == "aeskw" else []), sig]
        return made.change(prefix=prefix_of(text), tail=seal_of("&".join(vouchers))).pack()

    broken = f"{head}{'B' if sig[0] == 'A' else 'A'}{sig[1:]}"
    return locals()


def hashes() -> dict[str, Any]:
    """What readers of a signed file can do, who have the data key: blocks that they encrypt themselves."""
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)).change(flags=1 | HASHED))
    forged = encrypted(container([ENCRYPT], [SMALL[::-1]], len(SMALL)).change(flags=1 | HASHED))
    by = Vouching(signer=SIGNER)
    signed = Vouching(signer=SIGNER).vouchers(plain_digest(made))
    around = {"prefix": prefix_of(by.wrapped), "tail": seal_of(signed)}
    return locals()


def wraps() -> dict[str, Any]:
    def altered(kind: str, at: int) -> str:
        head, blob = hpke_wrap(kind)
        at %= len(blob)
        return entry(head, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])

    x25519, hybrid = hpke_wrap(X25519), hpke_wrap(HYBRID)
    another = {kind: entry(*hpke_wrap(kind, named=dek_id(OTHER_DEK))) for kind in (X25519, HYBRID)}
    return locals()
