"""Several recipients, who is asked first, whose signature counts, and the limits of size."""

from __future__ import annotations

import itertools

import pytest

from streamxf.descriptor import MAX_FRAGMENT, format_parameters, parse_parameters
from streamxf.errors import (
    AuthenticationError,
    DescriptorError,
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    PolicyError,
    WrongKeyError,
)
from streamxf.keys import Key, KeyProvider, KeyRing, PrivateKey, PublicKey, SigningKey, VerifyKey
from streamxf.keys.b64url import encode_b64url
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import MAX_WRAPPED, Envelope

DEK = DataKey(bytes(range(60, 92)))
KEY = Key(bytes(range(107, 139)))
PAIR = PrivateKey(bytes(range(112, 144)), "hpke-x25519")
HYBRID = PrivateKey(bytes(range(104, 136)))
SIGNER = SigningKey(bytes(range(115, 147)))
STRANGER = SigningKey(bytes(range(116, 148)))
TRUSTED = SIGNER.verify_key


class Fake(KeyProvider):
    """A provider that does as it is told, and notes that it was asked."""

    def __init__(self, name="a", kind="fake", wrapped=b"wrapped", unwrapped=DEK.secret, vouches=False, log=None):
        self.kind = kind
        self.id = name * 16
        self.wrapped = wrapped
        self.unwrapped = unwrapped
        self.authenticates_writer = vouches
        self.log = log if log is not None else []

    def wrap(self, data_key, dek_id):
        return self.wrapped

    def unwrap(self, wrapped, dek_id):
        self.log.append(self.id[0])
        if isinstance(self.unwrapped, Exception):
            raise self.unwrapped
        return self.unwrapped


def without_signature(envelope: Envelope) -> Envelope:
    return Envelope(envelope.dek_id, envelope.recipients)


# -- recipients ------------------------------------------------------------------------------------


def test_every_recipient_opens_it_in_any_order():
    for order in itertools.permutations([KEY, PAIR.public, HYBRID.public]):
        envelope = Envelope.parse(Envelope.seal(DEK, order, SIGNER).fragment)
        assert [wrapped.kind for wrapped in envelope.recipients] == [key.kind for key in order]
        for key in (KEY, PAIR, HYBRID):
            assert envelope.open([key], [TRUSTED]) == DEK


def test_sixteen_hybrid_recipients_fit():
    public = [PrivateKey(bytes(range(number, number + 32))).public for number in range(17)]
    envelope = Envelope.seal(DEK, public[:16], SIGNER)
    text = format_parameters(envelope.fragment)
    assert len(text) <= MAX_FRAGMENT
    assert Envelope.parse(parse_parameters(text, repeatable=("w",))) == envelope
    with pytest.raises(ParameterError, match="16 recipients, not 17"):
        Envelope.seal(DEK, public)
    with pytest.raises(ParameterError, match="not 0"):
        Envelope.seal(DEK, [])


def test_limits_of_size():
    assert Envelope.seal(DEK, [Fake(wrapped=bytes(MAX_WRAPPED))]).recipients[0].data == bytes(MAX_WRAPPED)
    for size in (0, MAX_WRAPPED + 1):
        with pytest.raises(ParameterError, match=f"{size} bytes"):
            Envelope.seal(DEK, [Fake(wrapped=bytes(size))])
    with pytest.raises(ParameterError, match=f"of which {MAX_FRAGMENT} are allowed"):
        Envelope.seal(DEK, [Fake(name, wrapped=bytes(MAX_WRAPPED)) for name in "abcd"])


def test_unknown_kinds_are_passed_over():
    envelope = Envelope.seal(DEK, [Fake("e", "of-the-future"), KEY])
    assert Envelope.parse(envelope.fragment).open([KEY]) == DEK
    with pytest.raises(KeyMissingError, match=r"e{16} \(of-the-future\), .* \(aeskw\); keys given: .*hpke"):
        envelope.open([HYBRID])


def test_a_public_key_opens_nothing_and_the_error_says_so():
    envelope = Envelope.seal(DEK, [PAIR.public])
    with pytest.raises(KeyMissingError, match="which only wraps"):
        envelope.open([PAIR.public], allow_unsigned=True)
    with pytest.raises(KeyMissingError, match="not unwrap"):
        PAIR.public.unwrap(envelope.recipients[0].data, DEK.id)


def test_keys_that_vouch_for_the_writer_are_asked_first():
    log: list[str] = []
    fakes = [Fake(name, vouches=name in "bd", unwrapped=WrongKeyError("no"), log=log) for name in "abcd"]
    with pytest.raises(WrongKeyError):
        Envelope.seal(DEK, fakes).open(fakes)
    assert log == ["b", "d", "a", "c"]


def test_a_key_that_vouches_needs_no_signature_although_a_private_key_is_there_too():
    envelope = Envelope.seal(DEK, [PAIR.public, KEY])
    assert envelope.open([PAIR, KEY]) == DEK
    with pytest.raises(PolicyError, match="not signed"):
        envelope.open([PAIR])


def test_one_wrap_that_does_not_open_does_not_spoil_another():
    broken = Fake("a", vouches=True, unwrapped=WrongKeyError("no"))
    other = Fake("b", vouches=True, unwrapped=bytes(32))
    envelope = Envelope.seal(DEK, [broken, other, KEY])
    assert envelope.open([broken, other, KEY]) == DEK
    with pytest.raises(WrongKeyError, match=r"a{16}, b{16}"):
        envelope.open([broken, other])


def test_a_service_that_is_down_is_passed_over():
    down = Fake("a", vouches=True, unwrapped=KeyServiceError("down"))
    envelope = Envelope.seal(DEK, [down, KEY, PAIR.public])
    assert envelope.open([down, KEY]) == DEK
    with pytest.raises(KeyServiceError, match="down"):
        envelope.open([down])
    with pytest.raises(PolicyError) as caught:
        envelope.open([down, PAIR])
    assert caught.value.__cause__ is down.unwrapped


@pytest.mark.parametrize("secret", [bytes(31), bytes(33), b"", bytes(32)])
def test_another_data_key_does_not_count(secret):
    fake = Fake(unwrapped=secret, vouches=True)
    with pytest.raises(WrongKeyError):
        Envelope.seal(DEK, [fake]).open([fake])


@pytest.mark.parametrize(
    "fake",
    [
        Fake(wrapped="text"),
        Fake(wrapped=None),
        Fake(wrapped=b"x" + DEK.secret),
        Fake(kind="Fake"),
        Fake(kind="f" * 33),
        Fake(kind=None),
        Fake("g"),
        Fake("aa"),
    ],
    ids=range(8),
)
def test_providers_that_wrap_against_the_protocol(fake):
    with pytest.raises(ParameterError, match="Fake does not keep to the protocol"):
        Envelope.seal(DEK, [fake])


@pytest.mark.parametrize("answer", [None, "text", bytearray(DEK.secret)])
def test_providers_that_unwrap_against_the_protocol(answer):
    fake = Fake(unwrapped=answer)
    with pytest.raises(ParameterError, match="unwrap returned"):
        Envelope.seal(DEK, [fake]).open([fake])


# -- signatures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [PAIR, HYBRID], ids=["x25519", "hybrid"])
class TestPrivateKeys:
    """Anybody may have the public key, so a data key counts only with a signature that is trusted."""

    def test_signed_by_one_who_is_trusted(self, key):
        envelope = Envelope.seal(DEK, [key.public], SIGNER)
        assert envelope.open([key], [TRUSTED]) == DEK
        assert envelope.open([key], [STRANGER.verify_key, TRUSTED]) == DEK

    def test_signed_by_a_stranger(self, key):
        envelope = Envelope.seal(DEK, [key.public], STRANGER)
        for trust in ([], [TRUSTED]):
            with pytest.raises(PolicyError, match=f"signed by {STRANGER.id}, whom trust= does not name"):
                envelope.open([key], trust)
        with pytest.raises(PolicyError, match="whom trust= does not name"):
            envelope.open([key], [TRUSTED], allow_unsigned=True)
        assert envelope.open([key], allow_unsigned=True) == DEK

    def test_not_signed(self, key):
        envelope = Envelope.seal(DEK, [key.public])
        for trust in ([], [TRUSTED]):
            with pytest.raises(PolicyError, match="not signed"):
                envelope.open([key], trust)
        assert envelope.open([key], allow_unsigned=True) == DEK

    def test_the_signature_was_stripped(self, key):
        with pytest.raises(PolicyError):
            without_signature(Envelope.seal(DEK, [key.public], SIGNER)).open([key], [TRUSTED])

    def test_the_signature_of_another_data_key(self, key):
        other = Envelope.seal(DataKey(bytes(32)), [key.public], SIGNER)
        forged = Envelope(DEK.id, Envelope.seal(DEK, [key.public]).recipients, other.signature)
        for allow in (False, True):
            with pytest.raises(AuthenticationError, match="not one of this data key"):
                forged.open([key], [TRUSTED], allow_unsigned=allow)

    def test_a_strangers_signature_under_a_trusted_id(self, key):
        envelope = Envelope.seal(DEK, [key.public], STRANGER)
        forged = Envelope(DEK.id, envelope.recipients, (TRUSTED.id, envelope.signature[1]))
        with pytest.raises(AuthenticationError):
            forged.open([key], [TRUSTED])

    def test_every_altered_bit_of_a_signature(self, key):
        envelope = Envelope.seal(DEK, [key.public], SIGNER)
        signature = envelope.signature[1]
        for bit in range(0, 512, 7):
            changed = (int.from_bytes(signature, "big") ^ (1 << bit)).to_bytes(64, "big")
            with pytest.raises(AuthenticationError):
                Envelope(DEK.id, envelope.recipients, (SIGNER.id, changed)).open([key], [TRUSTED])


def test_trust_holds_for_symmetric_keys_too():
    assert Envelope.seal(DEK, [KEY]).open([KEY]) == DEK
    assert Envelope.seal(DEK, [KEY], STRANGER).open([KEY]) == DEK
    assert Envelope.seal(DEK, [KEY], SIGNER).open([KEY], [TRUSTED]) == DEK
    for signer in (None, STRANGER):
        with pytest.raises(PolicyError, match="trust= asks for a signature"):
            Envelope.seal(DEK, [KEY], signer).open([KEY], [TRUSTED])
    assert Envelope.seal(DEK, [KEY]).open([KEY], [TRUSTED], allow_unsigned=True) == DEK
    with pytest.raises(PolicyError, match="whom trust= does not name"):
        Envelope.seal(DEK, [KEY], STRANGER).open([KEY], [TRUSTED], allow_unsigned=True)


def test_a_ring_remembers_what_it_opened_and_asks_once():
    log: list[str] = []
    fake = Fake(vouches=True, log=log)
    ring = KeyRing([fake])
    fragment = Envelope.seal(DEK, [fake]).fragment
    assert ring.unwrap(fragment) == ring.unwrap(fragment) == DEK
    assert log == ["a"]


def test_a_ring_has_each_key_once_also_those_without_a_hash():
    class Unhashable(Fake):
        def __eq__(self, other):
            return type(other) is type(self) and other.id == self.id

        __hash__ = None

    ring = KeyRing([Unhashable("a"), KEY, Unhashable("b"), Key(KEY.reveal()), Unhashable("a")])
    assert [key.id for key in ring] == ["a" * 16, KEY.id, "b" * 16]


def test_rings_and_trust():
    ring = KeyRing([KEY], trust=TRUSTED)
    assert ring.trust == (TRUSTED,)
    assert KeyRing.of(KEY, trust=[TRUSTED]).trust == (TRUSTED,)
    assert KeyRing([KEY], allow_unsigned=True).union(KeyRing([PAIR], trust=TRUSTED)).allow_unsigned is False
    assert KeyRing([KEY]).union(ring).trust == (TRUSTED,)
    for make in (
        lambda: KeyRing(trust=TRUSTED),
        lambda: KeyRing.of(None, allow_unsigned=True),
        lambda: KeyRing.of(ring, trust=TRUSTED),
        lambda: KeyRing([KEY], trust=[SIGNER]),
        lambda: KeyRing([KEY], trust=TRUSTED.data),
    ):
        with pytest.raises(ParameterError):
            make()


# -- as it stands in a descriptor ------------------------------------------------------------------

DEK_PART = ("dek", encode_b64url(DEK.id))
WRAP_PART = ("w", str(Envelope.seal(DEK, [KEY]).recipients[0]))
SIG_PART = Envelope.seal(DEK, [KEY], SIGNER).fragment[-1]


@pytest.mark.parametrize(
    "fragment",
    [
        (DEK_PART, SIG_PART, WRAP_PART),
        (WRAP_PART, DEK_PART, SIG_PART),
        (DEK_PART, WRAP_PART, SIG_PART, SIG_PART),
        (DEK_PART, SIG_PART),
        (DEK_PART, WRAP_PART, ("sig", "")),
        (DEK_PART, WRAP_PART, ("sig", SIG_PART[1][:-1])),
        (DEK_PART, WRAP_PART, ("sig", SIG_PART[1].upper())),
        (DEK_PART, WRAP_PART, ("sig", f"{SIGNER.id}:{encode_b64url(bytes(63))}")),
        (DEK_PART, WRAP_PART, ("sig", SIG_PART[1].partition(":")[2])),
        (("dek", encode_b64url(bytes(31))), WRAP_PART),
        (DEK_PART, ("w", f"{'k' * 33}:{KEY.id}:AAAA")),
        (DEK_PART, ("w", f"aeskw:{KEY.id[:-1]}:AAAA")),
        (DEK_PART, ("w", f"aeskw:{KEY.id}:")),
        (DEK_PART, ("w", f"aeskw:{KEY.id}:{encode_b64url(bytes(MAX_WRAPPED + 1))}")),
    ],
    ids=range(14),
)
def test_fragments_that_are_refused(fragment):
    with pytest.raises(DescriptorError):
        Envelope.parse(fragment)


def test_what_verify_and_public_keys_are_made_of():
    """Neither takes a number, of which bytes() makes zeros, nor a key for which anybody can sign or unwrap."""
    for make in (VerifyKey, lambda data: PublicKey(data, "hpke-x25519")):
        for wrong in (32, "a" * 32, None, b"", bytes(31), bytes(33), [0] * 32):
            with pytest.raises(ParameterError):
                make(wrong)
        assert make(bytearray(TRUSTED.data)).data == TRUSTED.data
    with pytest.raises(ParameterError, match="computing shared key"):
        PublicKey(bytes(32), "hpke-x25519")
    with pytest.raises(ParameterError):
        PublicKey(HYBRID.public.data[:-32] + bytes(32))
    with pytest.raises(ParameterError):
        PublicKey(b"\xff" * 1184 + PAIR.public.data)
    prime = 2**255 - 19
    for y in (0, 1, prime - 1, prime, prime + 1):
        for sign in (0, 1 << 255):
            with pytest.raises(ParameterError, match=r"anybody can make signatures|32 bytes"):
                VerifyKey((y | sign).to_bytes(32, "little"))
