"""A provider may encrypt by itself, and one chain does not wait for the key service of another."""

from __future__ import annotations

import threading

import streamxf
from streamxf import Encrypt, Key, KeyProvider

KEY = Key(bytes(range(32)))


class Nested(KeyProvider):
    kind = "test-nested"
    id = "e" * 16

    def wrap(self, data_key, dek_id):
        done = []
        other = threading.Thread(target=lambda: done.append(streamxf.encode(data_key, [Encrypt(KEY)])), daemon=True)
        other.start()
        other.join(60)
        return done[0] + streamxf.encode(data_key, [Encrypt(KEY)])


def test_a_provider_that_encrypts_by_itself_does_not_hang():
    done = []
    thread = threading.Thread(target=lambda: done.append(Encrypt([Nested(), KEY]).descriptor()), daemon=True)
    thread.start()
    thread.join(60)
    assert done
