"""Keys in AWS KMS, against moto's server; what moto does not refuse, a small server on loopback does."""

import base64
import dataclasses
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator

import pytest

import streamxf
from streamxf.errors import AuthenticationError, KeyServiceError, ParameterError, WrongKeyError
from streamxf.keys import AwsKms, PrivateKey, aws, public_id
from streamxf.keys.envelope import DataKey, Entry
from tests.keys.endpoints import CREDENTIALS, REGION, Answers, Kms, answering
from tests.keys.sealed import DEK as SEALED_DEK
from tests.keys.sealed import Sealed
from tests.polling import at_once

DEK = DataKey(bytes(range(50, 82)))
DIGEST = bytes(range(32))
ARN = f"arn:aws:kms:{REGION}:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    with answering() as found:
        yield found


@pytest.fixture(scope="module")
def answered(answers: Answers) -> AwsKms:
    """A key behind that server, which asks once; its client is made only once, since that takes its time."""
    pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aws, "ATTEMPTS", 1)
        for name, value in CREDENTIALS.items():
            patch.setenv(name.upper(), value)
        key = AwsKms(ARN, endpoint_url=answers.url, allow_http=True)
        key._connected()
        return key


def test_round_trip(kms: Kms):
    key = AwsKms(kms.new_key())
    assert key.kind == "aws-kms"
    assert key.id == public_id(key.arn.encode(), "aws-kms")
    assert key.vouches
    wrapped = key.wrap(DEK.secret, DEK.id)
    assert DEK.secret not in wrapped
    assert AwsKms(key.arn).unwrap(wrapped, DEK.id) == DEK.secret
    file = streamxf.encode(b"data", [streamxf.Encrypt(f"aws-kms:{key.arn}")])
    assert streamxf.decode(file, keys=f"aws-kms:{key.arn}") == b"data"


def test_the_endpoint_can_be_given(kms: Kms, monkeypatch):
    arn = kms.new_key()
    monkeypatch.delenv("AWS_ENDPOINT_URL_KMS")
    key = AwsKms(arn, endpoint_url=kms.url)
    assert key.unwrap(key.wrap(DEK.secret, DEK.id), DEK.id) == DEK.secret


def test_what_was_wrapped_counts_beside_its_own_id_only(kms: Kms):
    key = AwsKms(kms.new_key())
    wrapped = key.wrap(DEK.secret, DEK.id)
    with pytest.raises(WrongKeyError, match=key.arn):
        key.unwrap(wrapped, bytes(32))
    with pytest.raises(WrongKeyError):
        key.unwrap(wrapped[:-1] + bytes([wrapped[-1] ^ 1]), DEK.id)


def test_a_voucher_counts_for_its_own_contents_only(kms: Kms):
    key, other = AwsKms(kms.new_key()), AwsKms(kms.new_key())
    voucher = key.vouch(DIGEST)
    assert AwsKms(key.arn).check_voucher(voucher, DIGEST) is None
    wrapped = key.wrap(DIGEST, DIGEST)
    for wrong, digest in (
        (voucher, bytes(32)),
        (voucher[:-1] + bytes([voucher[-1] ^ 1]), DIGEST),
        (voucher[:-1], DIGEST),
        (wrapped, DIGEST),
    ):
        with pytest.raises(AuthenticationError, match=key.id):
            key.check_voucher(wrong, digest)
    with pytest.raises(WrongKeyError):
        key.unwrap(voucher, DIGEST)
    with pytest.raises(KeyServiceError):  # AWS itself says IncorrectKeyException, where moto denies access
        key.check_voucher(other.vouch(DIGEST), DIGEST)


def test_contents_under_a_key_in_the_service(kms: Kms):
    key, pair = AwsKms(kms.new_key()), PrivateKey.generate()
    sealed = Sealed.make([pair.public, key])
    assert sealed.open([pair, key]) == SEALED_DEK
    (entry,) = sealed.vouchers.entries
    assert entry.key == ("aws-kms", key.id)
    for entries in (
        (),
        Sealed.make([key], digest=bytes(32)).vouchers.entries,
        (Entry(key.kind, key.id, b"voucher"),),
        (sealed.envelope.recipients[1],),
    ):
        with pytest.raises(AuthenticationError, match=key.id):
            sealed.change(entries=entries).open([pair, key])
    with pytest.raises(AuthenticationError, match="MAC"):
        dataclasses.replace(sealed, digest=bytes(32)).open(key)


def test_a_service_that_gives_another_digest_does_not_vouch(answers: Answers, answered: AwsKms):
    for digest in (bytes(32), DIGEST[:-1], DIGEST * 2, b"x"):
        answers.set(200, {"KeyId": ARN, "Plaintext": base64.b64encode(digest).decode()})
        with pytest.raises(AuthenticationError):
            answered.check_voucher(b"vouched", DIGEST)


def test_the_service_sees_the_context_of_the_format(answers: Answers, answered: AwsKms):
    answers.set(200, {"KeyId": ARN, "CiphertextBlob": base64.b64encode(b"wrapped").decode()})
    assert answered.wrap(DEK.secret, DEK.id) == b"wrapped"
    (request,) = answers.asked
    assert f'"EncryptionContext": {{"streamxf:dek": "{DEK.id.hex()}"}}'.encode() in request
    assert f'"KeyId": "{ARN}"'.encode() in request
    answers.set(200, {"KeyId": ARN, "CiphertextBlob": base64.b64encode(b"vouched").decode()})
    assert answered.vouch(DIGEST) == b"vouched"
    (request,) = answers.asked
    assert f'"EncryptionContext": {{"streamxf:contents": "{DIGEST.hex()}"}}'.encode() in request
    assert f'"Plaintext": "{base64.b64encode(DIGEST).decode()}"'.encode() in request
    answers.set(200, {"KeyId": ARN, "Plaintext": base64.b64encode(DIGEST).decode()})
    answered.check_voucher(b"vouched", DIGEST)
    (request,) = answers.asked
    assert f'"EncryptionContext": {{"streamxf:contents": "{DIGEST.hex()}"}}'.encode() in request
    assert f'"KeyId": "{ARN}"'.encode() in request


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        ("AccessDeniedException", KeyServiceError, "not allowed"),
        ("NotFoundException", KeyServiceError, "no such key"),
        ("DisabledException", KeyServiceError, "disabled"),
        ("KMSInvalidStateException", KeyServiceError, "state"),
        ("InvalidKeyUsageException", KeyServiceError, "symmetric"),
        ("KeyUnavailableException", KeyServiceError, "not available"),
        ("ThrottlingException", KeyServiceError, "too many requests"),
        ("LimitExceededException", KeyServiceError, "too many requests"),
        ("UnrecognizedClientException", KeyServiceError, "credentials"),
        ("ExpiredTokenException", KeyServiceError, "credentials"),
        ("KMSInternalException", KeyServiceError, "no other reason"),
        ("something unheard of", KeyServiceError, "an error without a name"),
        ("InvalidCiphertextException", WrongKeyError, "does not open"),
        ("IncorrectKeyException", WrongKeyError, "does not open"),
    ],
)
def test_refusals_say_why(code, expected, words, answers: Answers, answered: AwsKms):
    answers.set(400, {"__type": code, "message": "words of the service"})
    for use in (answered.wrap, answered.unwrap):
        with pytest.raises(expected, match=words) as caught:
            use(DEK.secret, DEK.id)
        assert ARN in str(caught.value)
        assert "words of the service" not in str(caught.value)
        assert caught.value.__context__ is None
    with pytest.raises(expected, match=words):
        answered.vouch(DIGEST)
    with pytest.raises(KeyServiceError if expected is KeyServiceError else AuthenticationError):
        answered.check_voucher(b"voucher", DIGEST)
    assert len(answers.asked) == 4


def test_a_service_in_trouble_is_asked_again(answers: Answers, kms, monkeypatch):
    monkeypatch.setattr(aws, "ATTEMPTS", 2)
    answers.set(500, {"__type": "KMSInternalException"})
    with pytest.raises(KeyServiceError, match="KMSInternalException"):
        AwsKms(ARN, endpoint_url=answers.url, allow_http=True).wrap(DEK.secret, DEK.id)
    assert len(answers.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"KeyId": ARN},
        {"KeyId": ARN[:-1] + "c", "CiphertextBlob": "AAAA", "Plaintext": "AAAA"},
        {"CiphertextBlob": "AAAA", "Plaintext": "AAAA"},
    ],
)
def test_an_answer_about_something_else(answer, answers: Answers, answered: AwsKms):
    answers.set(200, answer)
    for use in (
        lambda: answered.wrap(DEK.secret, DEK.id),
        lambda: answered.unwrap(b"x", DEK.id),
        lambda: answered.vouch(DIGEST),
        lambda: answered.check_voucher(b"x", DIGEST),
    ):
        with pytest.raises(KeyServiceError, match="sent a wrong response"):
            use()


def test_nobody_listens(kms, silent, monkeypatch):
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    with pytest.raises(KeyServiceError, match="Could not connect") as caught:
        AwsKms(ARN, endpoint_url=f"http://{silent}", allow_http=True).wrap(DEK.secret, DEK.id)
    assert caught.value.__context__ is None


def test_no_credentials(kms, monkeypatch):
    for name in map(str.upper, CREDENTIALS):
        monkeypatch.delenv(name)
    with pytest.raises(KeyServiceError, match="credentials"):
        AwsKms(ARN).wrap(DEK.secret, DEK.id)
    with pytest.raises(KeyServiceError, match="no-such-profile"):
        AwsKms(ARN, profile="no-such-profile").wrap(DEK.secret, DEK.id)


@pytest.mark.parametrize("allow_http", [False, True])
@pytest.mark.parametrize(
    "url", ["http://192.0.2.1", "http://127.0.0.1.example.com", "http://127.0.0.1", "http://[::1]"]
)
def test_data_keys_do_not_travel_in_the_open(url, allow_http, kms, monkeypatch):
    if allow_http and url in ("http://127.0.0.1", "http://[::1]"):
        return
    with pytest.raises(KeyServiceError, match="https"):
        AwsKms(ARN, endpoint_url=url, allow_http=allow_http).wrap(DEK.secret, DEK.id)
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", url)
    with pytest.raises(KeyServiceError, match="https"):
        AwsKms(ARN, allow_http=allow_http).wrap(DEK.secret, DEK.id)


@pytest.mark.parametrize("url", ["https://kms.example.com", "http://[::1]:1", "http://localhost:1"])
def test_addresses_that_are_fine(url, kms):
    assert AwsKms(ARN, endpoint_url=url, allow_http=True)._connected().meta.endpoint_url == url


def test_http_goes_through_no_proxy(answers: Answers, kms, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    answers.set(200, {"KeyId": ARN, "CiphertextBlob": base64.b64encode(b"wrapped").decode()})
    with answering() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        assert AwsKms(ARN, endpoint_url=answers.url, allow_http=True).wrap(DEK.secret, DEK.id) == b"wrapped"
        assert (len(answers.asked), proxy.asked) == (1, [])


@pytest.mark.parametrize(
    "arn",
    [
        *("", "alias/checkpoints", "1234abcd-12ab-34cd-56ef-1234567890ab"),
        *(f"arn:aws:kms:{REGION}:111122223333:alias/checkpoints", ARN + "\n", ARN.replace(":kms:", ":s3:")),
        *(ARN.replace("111122223333", "1"), ARN + "/x", 7),
    ],
)
def test_only_whole_arns_of_keys(arn):
    with pytest.raises(ParameterError, match="full ARN"):
        AwsKms(arn)


def test_where_boto3_is_missing(monkeypatch):
    monkeypatch.setattr(aws, "find_spec", lambda name: None)
    with pytest.raises(KeyServiceError, match=r"pip install 'streamxf\[kms\]'"):
        AwsKms(ARN)


def test_pickles_hold_no_client(kms: Kms):
    key = AwsKms(kms.new_key(), profile=None, endpoint_url=kms.url, allow_http=True)
    wrapped = key.wrap(DEK.secret, DEK.id)
    again = pickle.loads(pickle.dumps(key))
    assert (again, again.id, again._client) == (key, key.id, None)
    assert (again.endpoint_url, again.allow_http) == (kms.url, True)
    assert again.unwrap(wrapped, DEK.id) == DEK.secret
    codec = pickle.loads(pickle.dumps(streamxf.Encrypt(key)))
    assert streamxf.decode(streamxf.encode(b"data", [codec]), keys=key) == b"data"


def test_a_forked_child_asks_with_a_client_of_its_own(kms: Kms):
    key = AwsKms(kms.new_key())
    wrapped = key.wrap(DEK.secret, DEK.id)
    before = key._client

    def in_child(pipe) -> None:
        pipe.send((key.unwrap(wrapped, DEK.id) == DEK.secret, key._client[0] == os.getpid()))
        pipe.close()

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=in_child, args=(there,))
    child.start()
    there.close()
    assert here.recv() == (True, True)
    child.join(60)
    assert child.exitcode == 0
    assert key._client is before


def test_many_threads_ask_at_once(kms: Kms):
    key = AwsKms(kms.new_key())
    gate = threading.Barrier(8)
    opened = []

    def ask() -> None:
        gate.wait(60)
        opened.append(key.unwrap(key.wrap(DEK.secret, DEK.id), DEK.id))

    at_once(ask, 8)
    assert opened == [DEK.secret] * 8


def test_another_key_steps_in_for_a_service_that_is_down(answers: Answers, answered: AwsKms):
    """And must then show who wrote."""
    private = PrivateKey.generate()
    signer = streamxf.SigningKey.generate()
    down = answered
    answers.set(200, {"KeyId": ARN, "CiphertextBlob": "AAAA"})
    sealed = Sealed.make([down, private], signer)
    answers.set(400, {"__type": "DisabledException"})
    with pytest.warns(UserWarning, match="did not answer"):
        assert sealed.open([down, private], signer.verify_key) == SEALED_DEK
    with pytest.raises(streamxf.errors.PolicyError) as caught:
        sealed.open([down, private])
    assert isinstance(caught.value.__cause__, KeyServiceError)
    with pytest.raises(KeyServiceError, match="disabled"):
        sealed.open([down])
