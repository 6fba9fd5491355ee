"""What stands around the container in a plain file: prefix and seal, wrapped data key and vouchers."""

import random
from collections.abc import Iterable

from streamxf.format import plain
from streamxf.keys import KeyRing
from streamxf.keys.envelope import Envelope, Vouchers
from tests.forge import prefix_of, seal_of
from tests.fuzz import second
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.target import Havoc, Target
from tests.reference_keys import parse_vouchers, parse_wrapped
from tests.samples import KEY
from tests.sealing import DEK, HYBRID_SIGNER, OTHER_KEY, SIGNER, Vouching, aes_wrap, entry, key_id, signature, wrapped
from tests.sealing import KEY as SECRET

_PREFIX_START = prefix_of()[:8]
_RING = KeyRing.of(KEY)


def run(data: bytes) -> None:
    if data.startswith(_PREFIX_START):
        size, refused = attempt(lambda: plain.prefix_size(data[: plain.PREFIX_START_BYTES]))
        text, error = attempt(lambda: plain.parse_prefix(data)[0])
    else:
        size, refused = attempt(lambda: plain.seal_size(data[-plain.SEAL_END_BYTES :]))
        text, error = attempt(lambda: plain.parse_seal(data)[0])
    agree(refused is None or error is not None, "one is read whose size is refused")
    if text is None:
        return
    agree(size == len(data), "one is read that has another size than it says")
    envelope, error = attempt(lambda: Envelope.parse(text))
    second.compare(envelope and str(envelope), error, lambda: parse_wrapped(text).text)
    if envelope is not None:
        attempt(lambda: _RING.unwrap(text))
    vouchers, error = attempt(lambda: Vouchers.parse(text))
    second.compare(vouchers and vouchers.mac, error, lambda: parse_vouchers(text).mac)
    agree(vouchers is None or text.startswith(str(vouchers)), "vouchers do not survive being packed")


def seeds() -> Iterable[bytes]:
    yield prefix_of()
    yield prefix_of(wrapped())
    yield prefix_of(wrapped([aes_wrap(OTHER_KEY), entry(f"aws-kms:{key_id(DEK)}", b"opaque"), aes_wrap()]))
    yield seal_of(Vouching().vouchers(DEK))
    yield seal_of(Vouching(keys=(SECRET, OTHER_KEY), signer=SIGNER).vouchers(DEK), digests=[DEK] * 3)
    yield seal_of(f"{signature(DEK, HYBRID_SIGNER)}&sig=future:{key_id(DEK)}:AA")


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change the text and make length and CRC right, or change anything."""
    if choose.random() < 0.1:
        return havoc(data)
    if data.startswith(_PREFIX_START):
        return prefix_of(_changed(data[plain.PREFIX_START_BYTES : -4], choose, havoc))
    return seal_of(_changed(data[: -plain.SEAL_END_BYTES], choose, havoc))


def _changed(text: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    parts = text.split(b"&")
    at = choose.randrange(len(parts))
    match choose.randrange(5):
        case 0:
            parts.insert(at, choose.choice(parts))
        case 1:
            del parts[at]
        case 2:
            choose.shuffle(parts)
        case 3:
            parts[at] = havoc(parts[at])
        case _:
            return havoc(text)
    return b"&".join(parts)


TARGET = Target(run, seeds, mutate)
