"""Several recipients, which key is tried first, the limits of size, and how a wrapped data key is spelled."""

import itertools

import pytest

from streamxf import errors
from streamxf.format.limits import MAX_KEY_LINE
from streamxf.keys import Key, KeyRing, PrivateKey, PublicKey, SigningKey, VerifyKey
from streamxf.keys.envelope import MAX_ENTRY, Entry, Envelope
from streamxf.keys.key import encode_b64url
from tests.keys.sealed import DEK, DIGEST, Fake, Sealed, fragment_of, mac

KEY = Key(bytes(range(107, 139)))
PAIR = PrivateKey(bytes(range(112, 144)), "hpke-x25519")
HYBRID = PrivateKey(bytes(range(104, 136)))
SIGNER = SigningKey(bytes(range(115, 147)))
TRUSTED = SIGNER.verify_key


# -- recipients ------------------------------------------------------------------------------------


def test_every_recipient_opens_it_in_any_order():
    for order in itertools.permutations([KEY, PAIR.public, HYBRID.public]):
        sealed = Sealed.make(order, SIGNER)
        assert Envelope.parse(str(sealed.envelope)) == sealed.envelope
        assert [entry.kind for entry in sealed.envelope.recipients] == [key.kind for key in order]
        for key in (KEY, PAIR, HYBRID):
            assert sealed.open([key], [TRUSTED]) == DEK


def test_sixteen_hybrid_recipients_fit():
    public = [PrivateKey(bytes(range(number, number + 32))).public for number in range(17)]
    envelope = Envelope.seal(DEK, public[:16])
    assert len(str(envelope)) <= MAX_KEY_LINE
    assert Envelope.parse(str(envelope)) == envelope
    with pytest.raises(errors.ParameterError, match="17 recipients; 1 to 16"):
        Envelope.seal(DEK, public)
    with pytest.raises(errors.ParameterError, match="0 recipients; 1 to 16"):
        Envelope.seal(DEK, [])


def test_limits_of_size():
    assert Envelope.seal(DEK, [Fake(wrapped=bytes(MAX_ENTRY))]).recipients[0].data == bytes(MAX_ENTRY)
    for size in (0, MAX_ENTRY + 1):
        with pytest.raises(errors.ParameterError, match=f"{size} bytes"):
            Envelope.seal(DEK, [Fake(wrapped=bytes(size))])
    with pytest.raises(errors.ParameterError, match=f"at most {MAX_KEY_LINE} are allowed"):
        Envelope.seal(DEK, [Fake(name, wrapped=bytes(MAX_ENTRY)) for name in "abcd"])


def test_unknown_kinds_are_passed_over():
    sealed = Sealed.make([Fake("e", "of-the-future"), KEY])
    assert sealed.open([KEY]) == DEK
    with pytest.raises(errors.KeyMissingError, match=r"e{16} \(of-the-future\), .* \(aeskw\); keys given: .*hpke"):
        sealed.open([HYBRID])


@pytest.mark.parametrize("kind", ["aeskw", "hpke-x25519", "hpke-mlkem768-x25519", "aws-kms", "acme"])
@pytest.mark.parametrize("size", [1, 32, 40, 41, MAX_ENTRY])
def test_what_others_find_is_not_judged(kind, size):
    """Neither its size nor its bytes: their kinds may mean something else one day."""
    sealed = Sealed.make([KEY])
    other = Entry(kind, "ab" * 8, b"\xff" * size)
    for recipients in ((other, *sealed.envelope.recipients), (*sealed.envelope.recipients, other)):
        changed = Sealed(Envelope(DEK.id, recipients), sealed.vouchers)
        assert changed.change(mac=mac(DEK, DIGEST, changed.envelope)).open([KEY]) == DEK


def test_a_public_key_opens_nothing_and_the_error_says_so():
    sealed = Sealed.make([PAIR.public])
    with pytest.raises(errors.KeyMissingError, match="which can only wrap"):
        sealed.open([PAIR.public], allow_unsigned=True)
    with pytest.raises(errors.KeyMissingError, match="not unwrap"):
        PAIR.public.unwrap(sealed.envelope.recipients[0].data, DEK.id)


def test_keys_that_vouch_are_tried_first_and_else_in_the_order_of_the_wrapped_keys():
    log: list[str] = []
    fakes = [Fake(name, vouches=name in "bd", unwrapped=errors.WrongKeyError("no"), log=log) for name in "abcd"]
    with pytest.raises(errors.WrongKeyError):
        Sealed.make(fakes[::-1]).open(fakes)
    assert log == ["d", "b", "c", "a"]


def test_a_key_that_vouches_needs_no_signature_even_with_a_private_key_beside_it():
    sealed = Sealed.make([PAIR.public, KEY])
    assert sealed.open([PAIR, KEY]) == DEK
    with pytest.raises(errors.PolicyError, match="not signed"):
        sealed.open([PAIR])


def test_one_wrapped_key_that_does_not_open_does_not_spoil_another():
    broken = Fake("a", vouches=True, unwrapped=errors.WrongKeyError("no"))
    other = Fake("b", vouches=True, unwrapped=bytes(32))
    sealed = Sealed.make([broken, other, KEY])
    assert sealed.open([broken, other, KEY]) == DEK
    with pytest.raises(errors.WrongKeyError, match=r"a{16}, b{16}"):
        sealed.open([broken, other])


def test_a_service_that_is_down_is_passed_over():
    down = Fake("a", vouches=True, unwrapped=errors.KeyServiceError("down"))
    sealed = Sealed.make([down, KEY, PAIR.public])
    with pytest.warns(UserWarning, match="did not answer"):
        assert sealed.open([down, KEY]) == DEK
    with pytest.raises(errors.KeyServiceError, match="down"):
        sealed.open([down])
    with pytest.raises(errors.PolicyError) as caught:
        sealed.open([down, PAIR])
    assert isinstance(caught.value.__cause__, errors.KeyServiceError)
    assert str(caught.value.__cause__) == "down"


@pytest.mark.parametrize("secret", [bytes(31), bytes(33), b"", bytes(32), DEK.secret * 2])
def test_another_data_key_does_not_count(secret):
    fake = Fake(unwrapped=secret, vouches=True)
    with pytest.raises(errors.WrongKeyError):
        Sealed.make([fake]).open([fake])


@pytest.mark.parametrize(
    "fake",
    [
        *[Fake(wrapped="text"), Fake(wrapped=None), Fake(wrapped=b"x" + DEK.secret), Fake(kind="Fake")],
        *[Fake(kind="f" * 33), Fake(kind=None), Fake(kind="a:b"), Fake("g"), Fake("aa")],
    ],
    ids=range(9),
)
def test_providers_that_wrap_against_the_protocol(fake):
    with pytest.raises(errors.ParameterError, match="Fake breaks the KeyProvider protocol"):
        Envelope.seal(DEK, [fake])


@pytest.mark.parametrize("answer", [None, "text", bytearray(DEK.secret)])
def test_providers_that_unwrap_against_the_protocol(answer):
    fake = Fake(unwrapped=answer)
    with pytest.raises(errors.ParameterError, match="unwrap returned"):
        Sealed.make([fake]).open([fake])


def test_a_ring_remembers_what_it_opened_and_asks_once():
    log: list[str] = []
    fake = Fake(vouches=True, log=log)
    ring, sealed = KeyRing([fake]), Sealed.make([fake])
    for _ in range(2):
        for use in (
            lambda: sealed.open_with(ring),
            lambda: ring.unwrap(str(sealed.envelope)),
            lambda: ring.unwrap_unvouched(sealed.fragment),
            lambda: ring.open_pipe(str(sealed.envelope)),
        ):
            assert use() == DEK
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
    assert KeyRing.of(KEY, trust=[TRUSTED]).trust == KeyRing(trust=TRUSTED).trust == (TRUSTED,)
    for make in (
        lambda: KeyRing(KEY, trust=TRUSTED, allow_unsigned=True),
        lambda: KeyRing.of(None, allow_unsigned=True),
        lambda: KeyRing.of(ring, trust=TRUSTED),
        lambda: KeyRing([KEY], trust=[SIGNER]),
        lambda: KeyRing([KEY], trust=TRUSTED.data),
    ):
        with pytest.raises(errors.ParameterError):
            make()


# -- as text ---------------------------------------------------------------------------------------

DEK_PART = f"dek={DEK.id.hex()}"
ENTRY = f"w={Envelope.seal(DEK, [KEY]).recipients[0]}"
OTHER = f"w={Entry('aeskw', 'ab' * 8, bytes(40))}"


@pytest.mark.parametrize(
    "parts",
    [
        *([], [DEK_PART, ENTRY, DEK_PART], [DEK_PART, ENTRY, "sig=x"], ["", DEK_PART, ENTRY]),
        [DEK_PART, ENTRY, OTHER, f"w={Entry('aeskw', 'ab' * 8, bytes(41))}"],
        [f"dek={encode_b64url(DEK.id)}", ENTRY],
        [DEK_PART, *(f"w={Entry('acme', f'{number:016x}', bytes(MAX_ENTRY))}" for number in range(4))],
        *([DEK_PART, "w="], [DEK_PART, "w=aeskw"], [DEK_PART, f"w=aeskw:{KEY.id}:A"]),
        *([DEK_PART, f"w=aeskw:{KEY.id}:A+A"], [DEK_PART, f"w=aeskw:{KEY.id.upper()}:AAAA"]),
    ],
    ids=range(12),
)
def test_texts_that_are_refused(parts):
    """By every way in. More of them are among the vectors."""
    ring = KeyRing(KEY)
    text, vouchers = "&".join(parts), str(Sealed.make([KEY]).vouchers)
    assert Envelope.parse(f"{DEK_PART}&{ENTRY}&{OTHER}").recipients[0].kind == "aeskw"
    for use in (
        lambda: Envelope.parse(text),
        lambda: ring.open(text, vouchers, bytes(32)),
        lambda: ring.unwrap(text),
        lambda: ring.unwrap_unvouched(fragment_of(text)),
        lambda: ring.open_pipe(text),
    ):
        with pytest.raises(errors.DescriptorError):
            use()


def test_what_verify_and_public_keys_are_made_of():
    """Neither takes a number, of which bytes() makes zeros, nor a key for which anyone can sign or unwrap."""
    for make in (VerifyKey, lambda data: PublicKey(data, "hpke-x25519")):
        for wrong in (32, "a" * 32, None, b"", bytes(31), bytes(33), [0] * 32):
            with pytest.raises(errors.ParameterError):
                make(wrong)
        assert make(bytearray(TRUSTED.data)).data == TRUSTED.data
    with pytest.raises(errors.ParameterError, match="computing shared key"):
        PublicKey(bytes(32), "hpke-x25519")
    with pytest.raises(errors.ParameterError):
        PublicKey(HYBRID.public.data[:-32] + bytes(32))
    with pytest.raises(errors.ParameterError):
        PublicKey(b"\xff" * 1184 + PAIR.public.data)
    prime = 2**255 - 19
    for y in (0, 1, prime - 1, prime, prime + 1):
        for sign in (0, 1 << 255):
            with pytest.raises(errors.ParameterError, match=r"anyone can make signatures|32 bytes"):
                VerifyKey((y | sign).to_bytes(32, "little"))
