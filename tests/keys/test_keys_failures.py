"""Providers and services that fail in a way of their own: a typed error, and nothing secret in it."""

import base64
import traceback
from collections.abc import Callable

import pytest

from streamxf import Encrypt, Key
from streamxf.errors import DescriptorError, KeyServiceError, ParameterError, StreamxfError
from streamxf.keys import AwsKms, KeyProvider, KeyRing, aws
from streamxf.keys.envelope import DataKey, Entry, Envelope, Vouchers
from tests.keys.endpoints import CREDENTIALS, answering
from tests.keys.sealed import fragment_of

DEK = DataKey(bytes(range(100, 132)))
KEY = Key(bytes(range(32)))
ARN = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
TEXT = base64.b64encode(DEK.secret).decode()


class Failing(KeyProvider):
    kind = "test-failing"
    id = "f" * 16
    vouches = True

    def wrap(self, data_key, dek_id):
        raise RuntimeError(f"cannot wrap {data_key!r}")

    def unwrap(self, wrapped, dek_id):
        held = DEK.secret
        raise FileNotFoundError(f"cannot unwrap {held!r}")

    def vouch(self, digest):
        held = DEK.secret
        raise TimeoutError(f"cannot vouch {held!r}")

    def check_voucher(self, voucher, digest):
        held = DEK.secret
        raise ZeroDivisionError(f"cannot check {held!r}")


def secret_free(error: BaseException) -> bool:
    """Whether the data key is in no text of the error, of what led to it, and of the frames of either."""
    texts, chain = [], [error]
    for one in chain:
        texts += [repr(one), repr(vars(one))]
        texts += [repr(frame.f_locals) for frame, _ in traceback.walk_tb(one.__traceback__)]
        chain += [other for other in (one.__context__, one.__cause__) if other is not None]
    inside = repr(DEK.secret)[2:-1]
    return not any(inside in text or TEXT in text for text in texts)


def failure(use: Callable[[], object]) -> StreamxfError:
    with pytest.raises(KeyServiceError) as caught:
        use()
    return caught.value


ENTRY = Entry(Failing.kind, Failing.id, b"x")
WRAPPED = str(Envelope(DEK.id, (ENTRY,)))
DIGEST = bytes(range(32))


class Checking(Failing):
    """Fails only when it checks."""

    def unwrap(self, wrapped, dek_id):
        return DEK.secret


class Refusing(KeyProvider):
    """Raises what it may, out of frames that hold the data key."""

    kind = "test-refusing"
    id = "e" * 16

    def wrap(self, data_key, dek_id):
        held = data_key
        raise KeyServiceError("down" if held else "")


def test_frames_of_a_provider_do_not_travel_with_its_errors():
    error = failure(lambda: Envelope.seal(DEK, [Refusing()]))
    assert str(error) == "down"
    assert secret_free(error)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("RuntimeError", lambda: Envelope.seal(DEK, [Failing()])),
        ("FileNotFoundError", lambda: KeyRing([Failing()]).unwrap(WRAPPED)),
        ("FileNotFoundError", lambda: KeyRing([Failing()]).unwrap_unvouched(fragment_of(WRAPPED))),
        ("TimeoutError", lambda: Vouchers.make(DIGEST, WRAPPED, DEK, [Failing()])),
        (
            "ZeroDivisionError",
            lambda: KeyRing([Checking()]).open(WRAPPED, f"{Vouchers.make(DIGEST, WRAPPED, DEK, [])}&v={ENTRY}", DIGEST),
        ),
    ],
    ids=["wrap", "unwrap", "unwrap unvouched", "vouch", "check"],
)
def test_a_providers_own_exceptions_become_typed_and_take_nothing_along(name, use):
    error = failure(use)
    assert f"{Failing.id}: " in str(error)
    assert name in str(error)
    assert error.__context__ is None
    assert error.__cause__ is None
    assert secret_free(error)


def test_a_provider_that_fails_is_passed_over_where_another_key_opens():
    envelope = Envelope.seal(DEK, [KEY])
    both = Envelope(DEK.id, (ENTRY, *envelope.recipients))
    with pytest.warns(UserWarning, match="did not answer"):
        assert KeyRing([Failing(), KEY]).unwrap(str(both)) == DEK


@pytest.fixture
def credentials(monkeypatch):
    pytest.importorskip("boto3")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setattr(aws, "ATTEMPTS", 1)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, {"KeyId": ARN, "Plaintext": "!!!", "CiphertextBlob": "!!!"}),
        (200, {"KeyId": ARN, "Plaintext": 5, "CiphertextBlob": ["a"]}),
        *[(200, {"KeyId": ARN, "Plaintext": {"a": TEXT}, "CiphertextBlob": {"a": TEXT}}), (200, [1, 2]), (200, "x")],
        *[(400, [1]), (400, {"__type": 5}), (400, {"Error": "x", "__type": ["q"]})],
    ],
)
def test_odd_answers_of_kms(status, answer, credentials):
    with answering() as server:
        server.status, server.answer = status, answer
        key = AwsKms(ARN, endpoint_url=server.url, allow_http=True)
        for use in (
            lambda: key.wrap(DEK.secret, DEK.id),
            lambda: key.unwrap(b"x", DEK.id),
            lambda: key.vouch(DIGEST),
            lambda: key.check_voucher(b"x", DIGEST),
        ):
            error = failure(use)
            assert ARN in str(error)
            assert error.__context__ is None


def test_an_endpoint_without_a_scheme(credentials):
    error = failure(lambda: AwsKms(ARN, endpoint_url="kms.example:443").wrap(DEK.secret, DEK.id))
    assert "ValueError" in str(error)


def test_a_key_stands_once_in_an_envelope():
    entry = Entry("aws-kms", "a" * 16, b"x")
    twice = Envelope(DEK.id, (entry, Entry("aws-kms", "a" * 16, b"y")))
    with pytest.raises(ParameterError, match="twice"):
        twice.checked()
    with pytest.raises(DescriptorError, match="twice"):
        Envelope.parse(str(twice))
    both = Envelope(DEK.id, (entry, Entry("acme", "a" * 16, b"x")))
    assert Envelope.parse(str(both)) == both


def test_locations_and_keys_of_one_service_are_one_recipient(credentials):
    with pytest.raises(ParameterError, match="twice"):
        Envelope.seal(DEK, [KEY, Key(KEY.reveal())])
    assert len(Encrypt(KeyRing([KEY, Key(KEY.reveal())])).recipients) == 1
