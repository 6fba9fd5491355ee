"""Keys go to the processes that multiprocessing starts, and nowhere else; an Encrypt without its key says so."""

import multiprocessing
import os
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest

import streamxf
from streamxf import Encrypt, PrivateKey, SigningKey, ZStandard
from streamxf.chain import Chain
from streamxf.descriptor import Descriptor
from streamxf.errors import KeyMissingError
from streamxf.keys import AwsKms, KeyRing
from tests.keys.endpoints import Kms
from tests.samples import KEY


def in_child(pipe, key, codec, chain, lost, opened) -> None:
    """Runs in a process that was spawned, and so got all of this through a pickle."""
    lost_says = opened_says = ""
    try:
        streamxf.encode(b"x", [lost])
    except KeyMissingError as error:
        lost_says = str(error)
    try:
        streamxf.encode(b"x", [opened])
    except KeyMissingError as error:
        opened_says = str(error)
    pipe.send((key.id, streamxf.encode(b"one", [codec]), streamxf.encode(b"two", chain), lost_says, opened_says))
    pipe.close()


def test_a_spawned_child_gets_the_key():
    codec = Encrypt(KEY)
    own_data_key = codec.data_key.id
    lost = pickle.loads(pickle.dumps(codec))
    opened = Encrypt.rebuild(Descriptor.parse(codec.get_descriptor()), KeyRing.of(KEY))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=in_child, args=(there, KEY, codec, Chain([ZStandard(), codec]), lost, opened))
    child.start()
    there.close()
    key_id, one, two, lost_says, opened_says = here.recv()
    child.join(60)
    assert child.exitcode == 0
    assert key_id == KEY.id
    assert streamxf.decode(one, keys=KEY) == b"one"
    assert streamxf.decode(two, keys=KEY) == b"two"
    assert "was left out when" in lost_says
    assert "cannot write" in opened_says
    # the child drew a data key of its own
    assert codec.data_key.id == own_data_key
    assert own_data_key.hex().encode() not in one


def test_only_multiprocessing_carries_it():
    assert KEY.reveal() in bytes(ForkingPickler.dumps(KEY))
    assert ForkingPickler.loads(ForkingPickler.dumps(KEY)) == KEY
    with pytest.raises(TypeError):
        pickle.dumps(KEY)


def test_an_encrypt_that_lost_its_key():
    lost = pickle.loads(pickle.dumps(Encrypt(KEY)))
    assert lost.key_ids == (KEY.id,)
    assert lost == Encrypt(KEY)
    for use in (
        lambda: lost.data_key,
        lambda: lost.wrapped,
        lambda: lost.vouch(bytes(32)),
        lambda: lost.get_descriptor(),
        lambda: lost.renew().get_descriptor(),
        lambda: streamxf.encode(b"", [lost]),
    ):
        with pytest.raises(KeyMissingError, match=KEY.id):
            use()
    assert pickle.loads(pickle.dumps(lost)) == lost


def test_an_encrypt_that_was_made_to_read_does_not_write():
    opened = Encrypt.reading(Encrypt(KEY).data_key)
    for use in (opened.renew, lambda: streamxf.encode(b"", [opened])):
        with pytest.raises(KeyMissingError, match="cannot write"):
            use()


def test_renew_draws_another_data_key():
    codec = Encrypt(KEY)
    ids = {codec.data_key.id, codec.data_key.id, codec.renew().data_key.id, codec.renew().data_key.id}
    assert len(ids) == 3
    chain = Chain([ZStandard(), codec])
    assert chain.renew().encryption.data_key.id not in ids
    assert chain.renew() == chain


PAIR = PrivateKey(bytes(range(1, 33)))
SIGNER = SigningKey(bytes(range(2, 34)))


def write_and_read(pipe, environment, codec, ring) -> None:
    """Runs in a child: writes with what it got, and reads what the parent wrote."""
    os.environ.update(environment)  # that of a fork server is older, if other tests have started it
    try:
        pipe.send(streamxf.encode(b"by the child", [codec]))
        pipe.send(streamxf.decode(pipe.recv(), keys=ring))
    finally:
        pipe.close()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_every_kind_of_key_reaches_a_child(method, kms: Kms):
    service = AwsKms(kms.new_key())
    codec = Encrypt([PAIR.public, service, KEY], signer=SIGNER)
    ring = KeyRing([PAIR], trust=SIGNER.verify_key)
    by_parent = streamxf.encode(b"by the parent", [codec])
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=write_and_read, args=(there, dict(os.environ), codec, ring))
    child.start()
    there.close()
    by_child = here.recv()
    here.send(by_parent)
    assert here.recv() == b"by the parent"
    child.join(60)
    assert child.exitcode == 0
    for keys in (ring, service, KEY):
        assert streamxf.decode(by_child, keys=keys) == b"by the child"


@pytest.mark.parametrize("key", [PAIR, PrivateKey(bytes(range(1, 33)), "hpke-x25519"), SIGNER], ids=repr)
def test_only_multiprocessing_carries_the_other_secrets(key):
    again = ForkingPickler.loads(ForkingPickler.dumps(key))
    assert (again, type(again), again.id) == (key, type(key), key.id)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_public_halves_and_services_travel_by_ordinary_pickle(kms: Kms):
    service = AwsKms(kms.new_key())
    for key in (PAIR.public, SIGNER.verify_key, service):
        assert pickle.loads(pickle.dumps(key)) == key
    arrived = pickle.loads(pickle.dumps(Encrypt([PAIR.public, service])))
    assert streamxf.decode(streamxf.encode(b"data", [arrived]), keys=service) == b"data"


def test_a_signing_key_that_was_lost_on_the_way():
    """It is missed before anything is written, and not when the checkpoint is published."""
    lost = pickle.loads(pickle.dumps(Encrypt(PAIR.public, signer=SIGNER)))
    assert lost == Encrypt(PAIR.public, signer=SIGNER)
    for use in (lambda: lost.data_key, lambda: streamxf.encode(b"", [lost])):
        with pytest.raises(KeyMissingError, match=f"signing key {SIGNER.id} was left out"):
            use()
