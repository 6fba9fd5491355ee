"""Keys go to the processes that multiprocessing starts, and nowhere else; an Encrypt without its key says so."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
from samples import KEY

import streamxf
from streamxf import Chain, Encrypt, KeyRing, ZStandard
from streamxf.descriptor import Descriptor
from streamxf.errors import KeyMissingError
from streamxf.keys.b64url import encode_b64url


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
    opened = Encrypt.open(Descriptor.parse(str(codec.descriptor())), KeyRing.of(KEY))
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
    assert "did not travel" in lost_says
    assert "cannot write" in opened_says
    # the child drew a data key of its own
    assert codec.data_key.id == own_data_key
    assert encode_b64url(own_data_key).encode() not in one


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
        lambda: lost.descriptor(),
        lambda: lost.renew().descriptor(),
        lambda: streamxf.encode(b"", [lost]),
    ):
        with pytest.raises(KeyMissingError, match=KEY.id):
            use()
    assert pickle.loads(pickle.dumps(lost)) == lost


def test_an_encrypt_that_was_opened_to_read_does_not_write():
    opened = Encrypt.open(Encrypt(KEY).descriptor(), KeyRing.of(KEY))
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
