"""Whole files by people who once had a data key: none of them loads, for any kind of key, in front of any reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import streamxf
from streamxf import Encrypt, Key, PrivateKey, SigningKey
from streamxf.errors import AuthenticationError, ContainerError, KeyMissingError, PolicyError, StreamxfError
from streamxf.format.plain import pack_prefix, pack_seal, parse_prefix, parse_seal, prefix_size, seal_size
from streamxf.keys import AwsKms, KeyProvider, KeyRing
from streamxf.keys.envelope import DataKey, Entry, Envelope, Vouchers
from tests.keys.endpoints import Kms
from tests.keys.sealed import Forger, Vault, mac
from tests.samples import BLOCK, OneWay, data_of, encode

REAL = data_of(2 * BLOCK + 5)
FORGED = data_of(2 * BLOCK + 5, seed=1)
SIGNER = SigningKey(bytes(range(115, 147)))
STRANGER = SigningKey(bytes(range(116, 148)))
PAIR = PrivateKey(bytes(range(112, 144)), "hpke-x25519")


class Victim(NamedTuple):
    """Whom someone wants to deceive: what is encrypted for, what reads, and who signs."""

    recipient: KeyProvider
    reader: KeyRing
    signer: SigningKey | None


@pytest.fixture(params=["aeskw", "aws-kms", "third party", "signed, private key", "signed, secret key"])
def victim(request: pytest.FixtureRequest) -> Victim:
    if request.param == "aws-kms":
        kms: Kms = request.getfixturevalue("kms")
        key: KeyProvider = AwsKms(kms.new_key())
        return Victim(key, KeyRing(key), None)
    if request.param == "signed, private key":
        return Victim(PAIR.public, KeyRing(PAIR, trust=SIGNER.verify_key), SIGNER)
    key = Vault() if request.param == "third party" else Key(bytes(range(32)))
    signed = request.param == "signed, secret key"
    return Victim(key, KeyRing(key, trust=SIGNER.verify_key if signed else None), SIGNER if signed else None)


class Parts(NamedTuple):
    """A plain file in pieces."""

    wrapped: str
    container: bytes
    vouchers: str
    digests: bytes

    @classmethod
    def of(cls, file: bytes) -> Parts:
        start, end = prefix_size(file[:16]), len(file) - seal_size(file[-20:])
        return cls(parse_prefix(file[:start])[0], file[start:end], *parse_seal(file[end:]))


def readings(file: bytes, ring: KeyRing) -> list[Callable[[], bytes]]:
    return [lambda: streamxf.decode(file, keys=ring), lambda: streamxf.open(OneWay(file), keys=ring).read()]


def refuse(file: bytes, victim: Victim, *kinds: type[StreamxfError]) -> None:
    """Check that no reader gives anything back that is not in the real file, and says so with one of `kinds`."""
    for read in readings(file, victim.reader):
        with pytest.raises(kinds or (AuthenticationError, PolicyError)):
            read()


def holder(victim: Victim) -> tuple[DataKey, Parts]:
    """What someone has who may read one real file: its data key, and all of its bytes."""
    file = encode(REAL, [Encrypt(victim.recipient, signer=victim.signer)])
    assert streamxf.decode(file, keys=victim.reader) == REAL
    parts = Parts.of(file)
    return victim.reader.unwrap(parts.wrapped), parts


ANY = AuthenticationError, PolicyError, ContainerError
FORGERIES: dict[str, Callable[[DataKey, str, Vouchers, Victim], Callable[[bytes], Vouchers]]] = {
    "the MAC alone": lambda dek, wrapped, old, who: lambda digest: Vouchers(mac(dek, digest, wrapped)),
    "everything as it was": lambda dek, wrapped, old, who: lambda digest: old,
    "the MAC, and the rest as it was": lambda dek, wrapped, old, who: (
        lambda digest: Vouchers(mac(dek, digest, wrapped), old.entries, old.signatures)
    ),
    "the signature as it was": lambda dek, wrapped, old, who: (
        lambda digest: Vouchers(
            mac(dek, digest, wrapped), old.entries, (by_signer(SIGNER.sign(b"streamxf/1 dek\0" + dek.id)),)
        )
    ),
    "a stranger's signature": lambda dek, wrapped, old, who: (
        lambda digest: Vouchers.make(digest, wrapped, dek, [], STRANGER)
    ),
    "a stranger's signature under a trusted name": lambda dek, wrapped, old, who: (
        lambda digest: Vouchers(mac(dek, digest, wrapped), (), (by_signer(STRANGER.sign(STRANGER.statement(digest))),))
    ),
    "a voucher by the data key": lambda dek, wrapped, old, who: (
        lambda digest: Vouchers(mac(dek, digest, wrapped), named(who, mac(dek, digest, wrapped)))
    ),
    "a voucher by a key of their own": lambda dek, wrapped, old, who: (
        lambda digest: Vouchers(mac(dek, digest, wrapped), named(who, Key.generate().vouch(digest)))
    ),
}


def by_signer(data: bytes) -> Entry:
    """A signature in the name of a trusted signer."""
    return Entry(SIGNER.kind, SIGNER.id, data)


def named(victim: Victim, data: bytes) -> tuple[Entry, ...]:
    return (Entry(victim.recipient.kind, victim.recipient.id, data),) if victim.recipient.vouches else ()


@pytest.mark.parametrize("signed", [False, True], ids=["without digests", "with digests"])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_who_has_the_data_key_alone_makes_no_file_that_loads(forgery: str, signed: bool, victim: Victim):
    data_key, parts = holder(victim)
    vouch = FORGERIES[forgery](data_key, parts.wrapped, Vouchers.parse(parts.vouchers), victim)
    file = encode(FORGED, [Forger(data_key, parts.wrapped, vouch, signed)])
    # whether a file has digests must agree with whether it is signed, which a reader may look at first
    refuse(file, victim, *ANY)


def test_the_tool_makes_files_that_load_where_the_key_is_at_hand(victim: Victim):
    """So that the tests above do not pass because what they make is broken otherwise."""
    data_key, parts = holder(victim)

    def vouch(digest: bytes) -> Vouchers:
        return Vouchers.make(digest, parts.wrapped, data_key, [victim.recipient], victim.signer)

    file = encode(FORGED, [Forger(data_key, parts.wrapped, vouch, signed=victim.signer is not None)])
    assert streamxf.decode(file, keys=victim.reader) == FORGED


def test_vouchers_of_another_file(victim: Victim):
    """Two real files, under the same keys: neither vouches for the other."""
    one, other = (Parts.of(encode(data, [Encrypt(victim.recipient, signer=victim.signer)])) for data in (REAL, FORGED))
    for wrapped, container, vouchers in (
        (one.wrapped, one.container, other.vouchers),
        (one.wrapped, other.container, one.vouchers),
        (one.wrapped, other.container, other.vouchers),
        (other.wrapped, one.container, one.vouchers),
    ):
        for digests in (one.digests, other.digests):
            refuse(pack_prefix(wrapped) + container + pack_seal(vouchers, digests), victim, *ANY)


def test_vouchers_that_were_stripped(victim: Victim):
    _, parts = holder(victim)
    real = Vouchers.parse(parts.vouchers)
    entries = [(), real.entries[:-1], named(victim, b"\0")] if victim.recipient.vouches else []
    for stripped in [*(Vouchers(real.mac, found, real.signatures) for found in entries)]:
        refuse(pack_prefix(parts.wrapped) + parts.container + pack_seal(str(stripped), parts.digests), victim)
    if victim.signer is not None:
        stripped = Vouchers(real.mac, real.entries)
        for digests in (b"", parts.digests):
            refuse(pack_prefix(parts.wrapped) + parts.container + pack_seal(str(stripped), digests), victim, *ANY)


def test_a_former_recipient(victim: Victim):
    """He read the file before its recipients were changed, and has all that is public now."""
    former = Key(bytes(range(140, 172)))
    file = encode(REAL, [Encrypt([former, victim.recipient], signer=victim.signer)])
    parts = Parts.of(file)
    data_key = KeyRing(former).unwrap(parts.wrapped)
    rewrapped = str(Envelope.seal(data_key, [victim.recipient]))
    with pytest.raises(KeyMissingError):
        KeyRing(former).unwrap(rewrapped)

    # nor with both as recipients, where his own voucher is right
    for wrapped in (rewrapped, parts.wrapped):

        def vouch(digest: bytes, wrapped: str = wrapped) -> Vouchers:
            theirs = Entry(former.kind, former.id, former.vouch(digest))
            return Vouchers(mac(data_key, digest, wrapped), (theirs, *named(victim, former.vouch(digest))))

        refuse(encode(FORGED, [Forger(data_key, wrapped, vouch)]), victim)


def test_who_has_public_keys_alone(victim: Victim):
    """Anyone can wrap for a public key. For the others, that takes the key itself."""
    data_key = DataKey.draw()
    wrapped = str(Envelope.seal(data_key, [PAIR.public]))
    vouch: Any = lambda digest: Vouchers.make(digest, wrapped, data_key, [])  # noqa: E731
    file = encode(FORGED, [Forger(data_key, wrapped, vouch)])
    refuse(file, victim, PolicyError, KeyMissingError)
    assert streamxf.decode(file, keys=KeyRing(PAIR, allow_unsigned=True)) == FORGED


def test_a_pipe_takes_no_file_that_must_be_signed():
    file = encode(REAL, [Encrypt(PAIR.public, signer=SIGNER)])
    ring = KeyRing(PAIR, trust=SIGNER.verify_key)
    assert streamxf.decode(file, keys=ring) == REAL
    with pytest.raises(PolicyError, match=r"in a pipe.*open a file that can seek"):
        streamxf.open(OneWay(file), keys=ring).read()
    assert streamxf.open(OneWay(file), keys=KeyRing(PAIR, allow_unsigned=True)).read() == REAL
