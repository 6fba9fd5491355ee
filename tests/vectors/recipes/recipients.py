"""Plain files for other kinds of recipients than a shared key, and signatures.

HPKE draws at random, so these files differ each time that they are made.
"""

import base64
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.forge import Parts, prefix_of, seal_of
from tests.sealing import (
    ENCRYPT,
    HYBRID,
    HYBRID_SIGNER,
    KEY,
    KMS,
    OTHER_DEK,
    OTHER_SIGNER,
    SIGNER,
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
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    digest = plain_digest(made, signed=True)
    right, twice = signature(digest), signature(digest, HYBRID_SIGNER)
    head, sig = right[: right.rindex(":") + 1], right[right.rindex(":") + 1 :]
    hybrid, both = twice[: twice.rindex(":") + 1], base64.urlsafe_b64decode(twice[twice.rindex(":") + 1 :] + "==")

    def of(kind: str, *sigs: str, made: Parts = made) -> bytes:
        text = to(kind)
        found = plain_digest(made, signed=True)
        vouchers = [mac_of(found, text), *([voucher(found)] if kind == "aeskw" else []), *sigs]
        return made.change(prefix=prefix_of(text), tail=seal_of("&".join(vouchers), digests=made.digests)).pack()

    broken = f"{head}{'B' if sig[0] == 'A' else 'A'}{sig[1:]}"

    def halves(one: bytes, two: bytes) -> str:
        """`sig=...` of the hybrid kind, of these halves."""
        return hybrid + b64url(one + two)

    def future(name: str, size: int, kind: str = "future") -> str:
        """`sig=...` of a kind that no reader knows."""
        return "sig=" + entry(f"{kind}:{secret(name).hex()[:16]}", bytes(size))

    own = [half.sign(statement(digest)) for half in HYBRID_SIGNER]
    return locals()


def hashes() -> dict[str, Any]:
    """What readers of a signed file can do, who have the data key: blocks that they encrypt themselves."""
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    forged = encrypted(container([ENCRYPT], [SMALL[::-1]], len(SMALL)))
    by = Vouching(signer=SIGNER)
    signed = by.vouchers(plain_digest(made, signed=True))
    assert made.digests[0] == forged.digests[0]

    def of(*digests: bytes) -> bytes:
        return forged.change(prefix=prefix_of(by.wrapped), tail=seal_of(signed, digests=digests)).pack()

    return locals()


def wraps() -> dict[str, Any]:
    def altered(kind: str, at: int) -> str:
        head, blob = hpke_wrap(kind)
        at %= len(blob)
        return entry(head, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])

    x25519, hybrid = hpke_wrap(X25519), hpke_wrap(HYBRID)
    another = {kind: entry(*hpke_wrap(kind, named=dek_id(OTHER_DEK))) for kind in (X25519, HYBRID)}
    return locals()
