"""What stands for contents: MAC, vouchers, signatures; who is believed, and what no holder of a data key can make."""

import hashlib
import hmac
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from streamxf import errors
from streamxf.format.limits import MAX_KEY_LINE
from streamxf.keys import Key, KeyProvider, KeyRing, PrivateKey, SigningKey
from streamxf.keys.envelope import MAX_ENTRY, DataKey, Entry, Envelope, Vouchers
from streamxf.keys.key import encode_b64url
from tests.altered import bit_flips
from tests.keys.frozen import VOUCHERS
from tests.keys.sealed import DEK, DIGEST, Fake, Sealed, Vault, fragment_of, mac

KEY = Key(bytes(range(107, 139)))
PAIR = PrivateKey(bytes(range(112, 144)), "hpke-x25519")
HYBRID = PrivateKey(bytes(range(104, 136)))
VAULT = Vault()
SIGNER = SigningKey(bytes(range(115, 147)))
STRANGER = SigningKey(bytes(range(116, 148)))
TRUSTED = SIGNER.verify_key
WRAPPED = f"dek={DEK.id.hex()}&w=acme:{'0' * 16}:AAAA"
V = b"streamxf/1 contents\0" + DIGEST
OTHER_DIGEST = hashlib.sha256(b"other contents").digest()

both_pairs = pytest.mark.parametrize("key", [PAIR, HYBRID], ids=["x25519", "hybrid"])
vouching = pytest.mark.parametrize("key", [KEY, VAULT], ids=["aeskw", "third party"])


def by_signer(data: bytes) -> Entry:
    """A signature in the name of a trusted signer."""
    return Entry("ed25519", SIGNER.id, data)


def derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


# -- as the format says ----------------------------------------------------------------------------


def test_derivations_are_those_of_the_format():
    made = Vouchers.make(DIGEST, WRAPPED, DEK, [PAIR.public, KEY], SIGNER)
    assert made.mac == mac(DEK, DIGEST, WRAPPED)
    assert DEK.mac_key() == derived(DEK.secret, b"streamxf/1 mac")
    voucher = hmac.new(derived(KEY.reveal(), b"streamxf/1 vouch"), V, hashlib.sha256).digest()
    assert made.entries == (Entry("aeskw", KEY.id, voucher),)
    assert made.signatures == (Entry("ed25519", SIGNER.id, SIGNER.sign(V)),)
    TRUSTED.verify(made.signatures[0].data, V)
    assert str(made) == "&".join(
        (
            f"mac={made.mac.hex()}",
            f"v=aeskw:{KEY.id}:{encode_b64url(voucher)}",
            f"sig=ed25519:{SIGNER.id}:{encode_b64url(made.signatures[0].data)}",
        )
    )


def test_they_were_the_same_in_the_first_version():
    """Recorded once; files that exist depend on it."""
    secret = bytes(range(32))
    key, data_key = Key(secret), DataKey(secret)
    wrapped = str(Envelope.seal(data_key, [key]))
    assert str(Vouchers.make(bytes(32), wrapped, data_key, [key], SigningKey(secret))) == VOUCHERS


def test_every_kind_that_vouches_has_a_voucher_in_the_order_of_the_recipients():
    recipients = [VAULT, PAIR.public, KEY, HYBRID.public, Key.generate()]
    made = Vouchers.make(DIGEST, WRAPPED, DEK, recipients)
    assert [entry.key for entry in made.entries] == [(key.kind, key.id) for key in recipients if key.vouches]
    assert made.signatures == ()
    assert Vouchers.parse(str(made)) == made
    assert str(Vouchers.make(DIGEST, WRAPPED, DEK, [PAIR.public])) == f"mac={mac(DEK, DIGEST, WRAPPED).hex()}"


MAC_PART = f"mac={'0a' * 32}"
V_PART = f"v=aeskw:{KEY.id}:{encode_b64url(bytes(32))}"
SIG_PART = f"sig=ed25519:{SIGNER.id}:{encode_b64url(bytes(64))}"


@pytest.mark.parametrize(
    "parts",
    [
        *([], [""], [V_PART, SIG_PART], [MAC_PART, SIG_PART, V_PART]),
        [MAC_PART, V_PART, f"v=aeskw:{KEY.id}:{encode_b64url(bytes(33))}"],
        [MAC_PART, *(f"v={Entry('acme', f'{number:016x}', bytes(MAX_ENTRY))}" for number in range(4))],
        *([MAC_PART, V_PART, f"v={Entry('hpke-', KEY.id, b'x')}"], [MAC_PART, ""], [f"mac={bytes(33).hex()}"]),
        *([f"mac={encode_b64url(bytes(32))}"], ["mac="], [MAC_PART, "v=aeskw"], [MAC_PART, f"v=aeskw:{KEY.id}:"]),
        *([MAC_PART, f"v=aeskw:{KEY.id.upper()}:AAAA"], [MAC_PART, f"v=aeskw:{KEY.id}:AB"]),
        *([MAC_PART, f"v=aeskw:{KEY.id}:{encode_b64url(bytes(MAX_ENTRY + 1))}"], [MAC_PART, "sig="]),
        *([MAC_PART, f"sig=ed25519:{SIGNER.id}:"], [MAC_PART, f"sig=ed25519:{SIGNER.id}:{encode_b64url(bytes(65))}"]),
        [MAC_PART, f"sig=ed25519:{SIGNER.id[1:]}:{encode_b64url(bytes(64))}"],
        [MAC_PART, f"sig=ed25519:{SIGNER.id.upper()}:{encode_b64url(bytes(64))}"],
        [MAC_PART, f"sig={SIGNER.id}:{encode_b64url(bytes(64))}"],
    ],
    ids=range(22),
)
def test_texts_that_are_refused(parts):
    """More of them are among the vectors."""
    assert Vouchers.parse("&".join([MAC_PART, V_PART, SIG_PART])).mac == b"\n" * 32
    with pytest.raises(errors.DescriptorError):
        Vouchers.parse("&".join(parts))
    with pytest.raises(errors.DescriptorError):
        KeyRing(KEY).open(str(Sealed.make([KEY]).envelope), "&".join(parts), DIGEST)


def test_limits_of_size():
    fakes = [Fake(f"{number:x}", vouches=True, wrapped=b"x", voucher=bytes(MAX_ENTRY)) for number in range(4)]
    assert len(str(Vouchers.make(DIGEST, WRAPPED, DEK, fakes[:2]))) <= MAX_KEY_LINE
    with pytest.raises(errors.ParameterError, match=f"at most {MAX_KEY_LINE}"):
        Vouchers.make(DIGEST, WRAPPED, DEK, fakes)
    for size in (0, MAX_ENTRY + 1):
        with pytest.raises(errors.ParameterError, match=f"{size} bytes"):
            Vouchers.make(DIGEST, WRAPPED, DEK, [Fake(vouches=True, voucher=bytes(size))])


# -- keys that vouch -------------------------------------------------------------------------------


@vouching
class TestKeysThatVouch:
    def test_it_opens(self, key):
        assert Sealed.make([key]).open([key]) == DEK
        assert Sealed.make([PAIR.public, key], STRANGER).open([key]) == DEK

    def test_every_altered_bit_of_the_mac(self, key):
        sealed = Sealed.make([key])
        for altered in bit_flips(sealed.vouchers.mac, step=5):
            with pytest.raises(errors.AuthenticationError, match="MAC"):
                sealed.change(mac=altered).open([key])

    def test_every_altered_bit_of_the_voucher(self, key):
        sealed = Sealed.make([key])
        (entry,) = sealed.vouchers.entries
        for data in bit_flips(entry.data, step=5):
            with pytest.raises(errors.AuthenticationError, match=f"voucher of key {key.id}"):
                sealed.change(entries=(replace(entry, data=data),)).open([key])
        for data in (b"\0", entry.data[:-1], entry.data + b"\0", entry.data * 2, bytes(MAX_ENTRY)):
            with pytest.raises(errors.AuthenticationError):
                sealed.change(entries=(replace(entry, data=data),)).open([key])

    def test_the_voucher_was_removed(self, key):
        other = Key.generate()
        sealed = Sealed.make([other, key], SIGNER)
        for entries in ((), sealed.vouchers.entries[:1]):
            for trust in (None, TRUSTED):
                with pytest.raises(errors.AuthenticationError, match=f"key {key.id} does not vouch"):
                    sealed.change(entries=entries).open([key], trust, allow_unsigned=trust is None)

    def test_other_contents(self, key):
        """All of it belongs together, but the contents are others."""
        sealed = replace(Sealed.make([key], SIGNER), digest=OTHER_DIGEST)
        for trust in (None, TRUSTED):
            with pytest.raises(errors.AuthenticationError):
                sealed.open([key], trust)

    def test_the_voucher_for_other_contents_and_the_mac_for_these(self, key):
        """What someone who has the data key can make: the MAC is right."""
        other = Sealed.make([key], digest=OTHER_DIGEST)
        with pytest.raises(errors.AuthenticationError, match=f"voucher of key {key.id}"):
            Sealed.make([key]).change(entries=other.vouchers.entries).open([key])

    def test_a_strangers_voucher_under_this_keys_name(self, key):
        stranger = Vouchers.make(DIGEST, WRAPPED, DEK, [Key.generate(), Vault(bytes(range(32)), "6")]).entries
        for entry in stranger:
            named = Entry(key.kind, key.id, entry.data)
            with pytest.raises(errors.AuthenticationError):
                Sealed.make([key]).change(entries=(named,)).open([key])

    def test_a_wrapped_data_key_is_no_voucher_and_a_voucher_no_wrapped_data_key(self, key):
        sealed = Sealed.make([key])
        (wrapped,) = sealed.envelope.recipients
        with pytest.raises(errors.AuthenticationError):
            sealed.change(entries=(wrapped,)).open([key])
        # were it one, its data key would be known to everyone: the digest
        (voucher,) = sealed.vouchers.entries
        known = DataKey(DIGEST)
        forged = replace(sealed.envelope, dek_id=known.id, recipients=(voucher,))
        with pytest.raises(errors.WrongKeyError):
            KeyRing(key).unwrap_unvouched(fragment_of(forged))

    def test_the_mac_of_another_data_key(self, key):
        other = DataKey.draw()
        with pytest.raises(errors.AuthenticationError, match="MAC"):
            sealed = Sealed.make([key])
            sealed.change(mac=mac(other, DIGEST, sealed.envelope)).open([key])

    def test_the_list_of_recipients_was_altered(self, key):
        """By someone who has no data key: names added, left out, in another order, or taken from elsewhere."""
        other = Key.generate()
        sealed = Sealed.make([other, key], SIGNER)
        entries = sealed.envelope.recipients
        stranger = Entry("acme", "0" * 16, b"x")
        again = Envelope.seal(DEK, [PAIR.public]).recipients[0]
        for altered in ((*entries, stranger), entries[1:], entries[::-1], (again, *entries)):
            assert KeyRing(key).unwrap(str(replace(sealed.envelope, recipients=altered))) == DEK
            for trust in (None, TRUSTED):
                with pytest.raises(errors.AuthenticationError, match="list of recipients"):
                    replace(sealed, envelope=replace(sealed.envelope, recipients=altered)).open([key], trust)

    def test_trust_holds_for_them_too(self, key):
        assert Sealed.make([key], SIGNER).open([key], [TRUSTED]) == DEK
        for signer, words in ((None, "not signed"), (STRANGER, f"signed by {STRANGER.id} .*, who is not trusted")):
            with pytest.raises(errors.PolicyError, match=f"{words}.*one of them has to sign.*trust no signer"):
                Sealed.make([key], signer).open([key], [TRUSTED])
        with pytest.raises(errors.ParameterError, match="trust= names who has to sign"):
            Sealed.make([key]).open([key], [TRUSTED], allow_unsigned=True)

    def test_without_trust_signatures_are_not_looked_at(self, key):
        broken = Sealed.make([key], SIGNER).change(signatures=(by_signer(bytes(64)),))
        assert broken.open([key]) == DEK
        with pytest.raises(errors.AuthenticationError):
            broken.open([key], TRUSTED)


@pytest.mark.parametrize("forged", ["data key", "mac key", "digest", "wrap key of the data key", "nothing"])
def test_vouchers_that_a_holder_of_the_data_key_may_try(forged):
    keys = {
        "data key": DEK.secret,
        "mac key": DEK.mac_key(),
        "digest": DIGEST,
        "wrap key of the data key": derived(DEK.secret, b"streamxf/1 vouch"),
        "nothing": b"",
    }
    voucher = hmac.new(keys[forged], V, hashlib.sha256).digest()
    with pytest.raises(errors.AuthenticationError, match="voucher"):
        Sealed.make([KEY]).change(entries=(Entry("aeskw", KEY.id, voucher),)).open([KEY])


def test_a_former_recipient_cannot_vouch_after_a_rekey():
    """He had the data key, and his own key; what was public stays public."""
    former, new = Key.generate(), Key.generate()
    before, after = Sealed.make([former]), Sealed.make([new])
    assert after.open([new]) == DEK
    theirs = former.vouch(OTHER_DIGEST)
    for entries in (
        before.vouchers.entries,
        after.vouchers.entries,
        (Entry(former.kind, former.id, theirs),),
        (Entry(new.kind, new.id, theirs),),
        (Entry(former.kind, former.id, theirs), *after.vouchers.entries),
    ):
        forged = Sealed(after.envelope, Vouchers(mac(DEK, OTHER_DIGEST, after.envelope), entries), OTHER_DIGEST)
        with pytest.raises(errors.AuthenticationError, match=new.id):
            forged.open([former, new])
    with pytest.raises(errors.KeyMissingError):
        after.open([former])


# -- private keys ----------------------------------------------------------------------------------


@both_pairs
class TestPrivateKeys:
    """Anyone may have the public key, so contents count only with a signature that is trusted."""

    def test_signed_by_one_who_is_trusted(self, key):
        sealed = Sealed.make([key.public], SIGNER)
        assert sealed.open([key], [TRUSTED]) == DEK
        assert sealed.open([key], [STRANGER.verify_key, TRUSTED]) == DEK

    def test_signed_by_a_stranger(self, key):
        sealed = Sealed.make([key.public], STRANGER)
        for trust in (None, [TRUSTED]):
            with pytest.raises(errors.PolicyError, match=f"signed by {STRANGER.id} .*, who is not trusted"):
                sealed.open([key], trust)
        assert sealed.open([key], allow_unsigned=True) == DEK

    def test_not_signed(self, key):
        sealed = Sealed.make([key.public])
        for trust in (None, [TRUSTED]):
            with pytest.raises(errors.PolicyError, match=r"not signed.*anyone who has the public key"):
                sealed.open([key], trust)
        assert sealed.open([key], allow_unsigned=True) == DEK

    def test_the_signature_was_stripped(self, key):
        with pytest.raises(errors.PolicyError):
            Sealed.make([key.public], SIGNER).change(signatures=()).open([key], [TRUSTED])

    def test_the_signature_of_other_contents(self, key):
        other = Sealed.make([key.public], SIGNER, digest=OTHER_DIGEST)
        forged = Sealed.make([key.public]).change(signatures=other.vouchers.signatures)
        with pytest.raises(errors.AuthenticationError, match="not for these contents"):
            forged.open([key], [TRUSTED])

    def test_a_signature_of_the_data_keys_id_alone(self, key):
        """It would bind a data key, and every reader has that."""
        for stated in (DEK.id, DIGEST, b"streamxf/1 dek\0" + DEK.id, V[:-1]):
            forged = Sealed.make([key.public]).change(signatures=(by_signer(SIGNER.sign(stated)),))
            with pytest.raises(errors.AuthenticationError):
                forged.open([key], [TRUSTED])

    def test_a_strangers_signature_under_a_trusted_id(self, key):
        sealed = Sealed.make([key.public], STRANGER)
        with pytest.raises(errors.AuthenticationError):
            sealed.change(signatures=(by_signer(sealed.vouchers.signatures[0].data),)).open([key], [TRUSTED])

    def test_every_altered_bit_of_a_signature(self, key):
        sealed = Sealed.make([key.public], SIGNER)
        for signature in bit_flips(sealed.vouchers.signatures[0].data, step=7):
            with pytest.raises(errors.AuthenticationError):
                sealed.change(signatures=(by_signer(signature),)).open([key], [TRUSTED])

    def test_the_mac_counts_also_for_unsigned_data(self, key):
        """Without it, anyone who can write could put an index of his own beside data that he cannot read."""
        sealed = Sealed.make([key.public])
        with pytest.raises(errors.AuthenticationError, match="MAC"):
            sealed.change(mac=bytes(32)).open([key], allow_unsigned=True)
        with pytest.raises(errors.AuthenticationError, match="MAC"):
            replace(sealed, digest=OTHER_DIGEST).open([key], allow_unsigned=True)

    def test_vouchers_of_other_recipients_do_not_help(self, key):
        sealed = Sealed.make([key.public, KEY])
        with pytest.raises(errors.PolicyError, match="not signed"):
            sealed.open([key])
        named = replace(sealed.vouchers.entries[0], kind=key.kind, key_id=key.id)
        with pytest.raises(errors.DescriptorError):
            sealed.change(entries=(named,)).open([key])


# -- nothing vouches, or not yet -------------------------------------------------------------------


def test_data_keys_whose_id_an_index_vouches_for_are_only_unwrapped():
    for recipients, keys, options in (
        ([KEY], KEY, {"trust": TRUSTED}),
        ([PAIR.public], PAIR, {}),
        ([PAIR.public], PAIR, {"trust": TRUSTED}),
    ):
        assert KeyRing(keys, **options).unwrap(str(Sealed.make(recipients).envelope)) == DEK


@pytest.mark.parametrize(
    ("method", "words"), [("unwrap_unvouched", "without an index cannot be signed"), ("open_pipe", "in a pipe")]
)
def test_contents_that_cannot_be_signed(method, words):
    def opened(recipients: list[KeyProvider], keys: KeyProvider, **options: object) -> DataKey:
        ring, sealed = KeyRing(keys, **options), Sealed.make(recipients, SIGNER)
        return ring.open_pipe(str(sealed.envelope)) if method == "open_pipe" else ring.unwrap_unvouched(sealed.fragment)

    assert opened([KEY], KEY) == opened([PAIR.public, VAULT], VAULT) == DEK
    for recipients, keys, options in (
        ([KEY], KEY, {"trust": TRUSTED}),
        ([PAIR.public], PAIR, {}),
        ([PAIR.public], PAIR, {"trust": TRUSTED}),
        ([KEY, PAIR.public], PAIR, {}),
    ):
        with pytest.raises(errors.PolicyError, match=words if options else f"{words}.*allow_unsigned"):
            opened(recipients, keys, **options)
        assert opened(recipients, keys, allow_unsigned=True) == DEK
    with pytest.raises(errors.KeyMissingError):
        opened([KEY], PAIR)


# -- providers of third parties --------------------------------------------------------------------


def test_the_default_voucher_wraps_the_digest_under_its_own_name():
    voucher = VAULT.vouch(DIGEST)
    assert VAULT.unwrap(voucher, DIGEST) == DIGEST + DIGEST
    assert VAULT.check_voucher(voucher, DIGEST) is None
    for other in (VAULT.wrap(DIGEST, DIGEST), VAULT.wrap(DEK.secret, DIGEST), VAULT.vouch(OTHER_DIGEST), b"x"):
        with pytest.raises(errors.AuthenticationError, match=VAULT.id):
            VAULT.check_voucher(other, DIGEST)


class Unbound(Vault):
    """A careless one: what it wraps counts beside every id."""

    def wrap(self, data_key, dek_id):
        return super().wrap(data_key, b"")

    def unwrap(self, wrapped, dek_id):
        return super().unwrap(wrapped, b"")


def test_a_provider_that_binds_nothing_still_gives_nobody_a_data_key_that_is_known():
    key = Unbound()
    sealed = Sealed.make([key])
    assert sealed.open([key]) == DEK
    with pytest.raises(errors.AuthenticationError):
        replace(sealed, digest=OTHER_DIGEST).change(mac=mac(DEK, OTHER_DIGEST, sealed.envelope)).open([key])
    known = DataKey(DIGEST)
    forged = replace(sealed.envelope, dek_id=known.id, recipients=sealed.vouchers.entries)
    with pytest.raises(errors.WrongKeyError):
        KeyRing(key).unwrap_unvouched(fragment_of(forged))


def test_a_half_that_only_wraps_cannot_check():
    class WriteOnly(Vault):
        unwraps = False
        unwrap = KeyProvider.unwrap

    half = WriteOnly()
    assert Sealed.make([half]).open([VAULT]) == DEK
    with pytest.raises(errors.KeyMissingError, match="not unwrap"):
        half.check_voucher(half.vouch(DIGEST), DIGEST)


@pytest.mark.parametrize("answer", [False, True, b"", DIGEST])
def test_providers_that_answer_where_they_should_raise(answer):
    """`return hmac.compare_digest(...)` must not pass for a check."""
    fake = Fake(vouches=True, checked=answer)
    with pytest.raises(errors.ParameterError, match="check_voucher returned"):
        Sealed.make([fake]).open([fake])


@pytest.mark.parametrize("answer", [None, "text", bytearray(32), True])
def test_providers_that_vouch_against_the_protocol(answer):
    with pytest.raises(errors.ParameterError, match="vouch returned"):
        Vouchers.make(DIGEST, WRAPPED, DEK, [Fake(vouches=True, voucher=answer)])


@pytest.mark.parametrize("error", [errors.AuthenticationError("no"), errors.WrongKeyError("no")])
def test_vouchers_that_a_provider_refuses(error):
    fake = Fake(vouches=True, checked=error)
    with pytest.raises(errors.AuthenticationError):
        Sealed.make([fake, KEY]).open([fake, KEY])


@pytest.mark.parametrize("error", [errors.KeyServiceError("down"), RuntimeError("down"), TimeoutError()])
def test_a_service_that_fails_at_the_voucher_is_passed_over(error):
    """A policy may allow it to unwrap, and not to check."""
    fake = Fake(vouches=True, checked=error)
    sealed = Sealed.make([fake, KEY, PAIR.public])
    with pytest.warns(UserWarning, match="did not answer"):
        assert sealed.open([fake, KEY]) == DEK
    with pytest.raises(errors.KeyServiceError):
        sealed.open([fake])
    with pytest.raises(errors.PolicyError) as caught:
        sealed.open([fake, PAIR])
    assert isinstance(caught.value.__cause__, errors.KeyServiceError)


def test_a_service_that_fails_to_vouch():
    for error in (errors.KeyServiceError("down"), RuntimeError("down")):
        with pytest.raises(errors.KeyServiceError):
            Vouchers.make(DIGEST, WRAPPED, DEK, [Fake(vouches=True, voucher=error)])


def test_a_key_that_does_not_vouch_is_not_asked_to():
    fake = Fake(vouches=False, voucher=RuntimeError("asked"), checked=RuntimeError("asked"))
    sealed = Sealed.make([fake], SIGNER)
    assert sealed.vouchers.entries == ()
    assert sealed.open([fake], TRUSTED) == DEK
