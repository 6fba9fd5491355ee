"""Key services: nothing is asked twice; where one does not answer, another key stands in, and it is left alone."""

import copy
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamxf.errors import AuthenticationError, KeyServiceError, PolicyError, WrongKeyError
from streamxf.keys import Key, KeyProvider, KeyRing, PrivateKey, SigningKey
from streamxf.keys.envelope import DataKey, Entry, Envelope
from streamxf.keys.ring import REST_SECONDS
from tests.keys.sealed import DEK, DIGEST, Fake, Sealed, Service, fragment_of

KEY = Key(bytes(range(100, 132)))
PAIR = PrivateKey(bytes(range(101, 133)), "hpke-x25519")


@pytest.fixture
def clock(monkeypatch):
    """What time it is, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr("streamxf.keys.ring.monotonic", lambda: now[0])
    return now


def wrapped(count: int, *recipients: KeyProvider) -> list[str]:
    """So many data keys: one for each process that wrote."""
    return [str(Envelope.seal(DataKey.draw(), recipients)) for _ in range(count)]


def opened(ring: KeyRing, given: list[str]) -> list[str]:
    """Opens them all; what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len({ring.unwrap(text).id for text in given}) == len(given)
    assert all(one.category is UserWarning for one in caught)
    return [str(one.message) for one in caught]


def test_one_that_is_down_is_asked_once_and_there_is_one_warning():
    service = Service.down()
    (said,) = opened(KeyRing([service, KEY]), wrapped(50, service, KEY))
    assert "a does not answer" in said
    assert f"key {KEY.id} (aeskw) was used instead" in said
    assert len(service.asked) == 1


def test_of_threads_that_have_the_same_question_one_asks():
    """As those have that read files side by side."""

    class Slow(Service):
        def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
            answer = super().unwrap(wrapped, dek_id)
            time.sleep(0.1)
            return answer

    service = Slow()
    with ThreadPoolExecutor(2) as threads:
        assert len({key.id for key in threads.map(KeyRing([service]).unwrap, wrapped(1, service) * 2)}) == 1
    assert len(service.asked) == 1


def test_two_that_are_down():
    services = [Service.down("a"), Service.down("b")]
    said = opened(KeyRing([*services, KEY]), wrapped(5, *services, KEY))
    assert [text.partition(" was used instead: ")[2][0] for text in said] == ["a", "b"]
    assert [len(service.asked) for service in services] == [1, 1]


def test_it_is_asked_again_after_some_minutes(clock):
    service = Service.down()
    ring = KeyRing([service, KEY])
    given = wrapped(3, service, KEY)
    assert len(opened(ring, given[:1])) == 1
    clock[0] += REST_SECONDS - 1
    assert not opened(ring, given[1:2])
    assert len(service.asked) == 1
    clock[0] += 2
    assert not opened(ring, given[2:])  # it was said already
    assert len(service.asked) == 2


def test_what_only_the_service_opens_it_is_asked_for_at_once(clock):
    """One data key may be refused and another one not, by a policy say; and it may be up again."""
    service = Service.down()
    ring = KeyRing([service, KEY])
    opened(ring, wrapped(1, service, KEY))
    with pytest.raises(KeyServiceError, match="a does not answer"):
        ring.unwrap(wrapped(1, service)[0])
    service.errors = iter(())
    assert not opened(ring, wrapped(1, service))
    assert len(service.asked) == 3
    assert not opened(ring, wrapped(1, service, KEY))  # it answered, so it is first again
    assert len(service.asked) == 4


def test_a_policy_error_has_what_the_service_said_also_later():
    """It is asked again for what another key opens that does not vouch: it might."""
    service = Service.down()
    ring = KeyRing([service, PAIR])
    for text in wrapped(3, service, PAIR.public):
        with pytest.raises(PolicyError, match="cannot be signed") as caught:
            ring.unwrap_unvouched(fragment_of(text))
        assert str(caught.value.__cause__) == "a does not answer"
    service.errors = iter(())
    assert ring.unwrap_unvouched(fragment_of(text)).id


def test_another_ring_asks_for_itself():
    service = Service.down()
    ring = KeyRing([service, KEY])
    given = wrapped(3, service, KEY)
    assert copy.copy(ring) is ring
    for number, one in enumerate((ring, KeyRing([service, KEY]))):
        assert len(opened(one, [given[number]])) == 1
    assert len(service.asked) == 2


def test_services_that_answer_are_not_spoken_of():
    service = Service()
    assert not opened(KeyRing([service, KEY]), wrapped(3, service, KEY))
    assert len(service.asked) == 3


def named(name: str, *before: Entry) -> str:
    """A wrapped data key of one service, with names of others around it."""
    return str(Envelope(DEK.id, (*before, Entry("fake", name * 16, b"wrapped"))))


def test_what_was_asked_once_is_known_whatever_is_around_it():
    service = Fake(vouches=True)
    ring = KeyRing([service])
    for number in range(20):
        assert ring.unwrap(named("a", Entry("acme", f"{number:016x}", b"x"))) == DEK
    assert service.log == ["a"]
    assert ring.unwrap_unvouched(fragment_of(named("a"))) == DEK
    assert service.log == ["a"]


@pytest.mark.parametrize("answer", [WrongKeyError("no"), bytes(32), b""])
def test_wrong_answers_are_known_too(answer):
    service = Fake(vouches=True, unwrapped=answer)
    ring = KeyRing([service])
    for number in range(20):
        with pytest.raises(WrongKeyError, match="altered"):
            ring.unwrap(named("a", Entry("acme", f"{number:016x}", b"x")))
    assert service.log == ["a"]


@pytest.mark.parametrize("answer", [None, AuthenticationError("no"), WrongKeyError("no")])
def test_a_voucher_is_checked_once(answer):
    asked = []

    class Checking(Fake):
        def check_voucher(self, voucher, digest):
            asked.append((voucher, digest))
            return super().check_voucher(voucher, digest)

    service = Checking(vouches=True, checked=answer)
    ring = KeyRing([service])
    for signer in (None, SigningKey(bytes(range(3, 35)))):
        for _ in range(3):
            sealed = Sealed.make([service], signer)
            if answer is None:
                assert sealed.open_with(ring) == DEK
            else:
                with pytest.raises(AuthenticationError):
                    sealed.open_with(ring)
    assert asked == [(b"voucher", DIGEST)]


def test_another_wrapped_key_or_id_is_another_question():
    service = Fake(vouches=True)
    ring = KeyRing([service])
    other = DataKey(bytes(range(61, 93)))
    with pytest.raises(WrongKeyError):
        ring.unwrap(str(Envelope(other.id, (Entry("fake", "a" * 16, b"wrapped"),))))
    assert ring.unwrap(named("a")) == DEK
    service.unwrapped = WrongKeyError("no")
    with pytest.raises(WrongKeyError):
        ring.unwrap(str(Envelope(DEK.id, (Entry("fake", "a" * 16, b"wrapped otherwise"),))))
    assert service.log == ["a"] * 3


def test_only_so_much_is_remembered(monkeypatch):
    monkeypatch.setattr("streamxf.keys.ring.MOST_REMEMBERED", 4)
    service = Service()
    ring = KeyRing([service])
    given = wrapped(9, service)
    opened(ring, given)
    assert len(service.asked) == len(given)
    assert len(ring._answers._known) == 4
