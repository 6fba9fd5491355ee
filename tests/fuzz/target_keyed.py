"""An encrypted plain file, changed by someone who has the key: seals, tags and vouchers are right."""

from collections.abc import Iterable

from streamxf import LZ4, Checksum, Encrypt, FloatZip
from streamxf.keys import SigningKey
from tests.fuzz import containers
from tests.fuzz.target import Target
from tests.fuzz.target_plain import run
from tests.samples import BLOCK, FULL, KEY, data_of, encode, floats
from tests.sealing import SIGNER


def seeds() -> Iterable[bytes]:
    signed = Encrypt(KEY, signer=SigningKey(SIGNER.private_bytes_raw()))
    yield encode(b"", [Encrypt(KEY)])
    yield encode(data_of(300), [Encrypt(KEY)])
    yield encode(data_of(300), [signed])
    yield encode(data_of(300))
    yield encode(bytes(2 * BLOCK + 5), FULL)
    yield encode(bytes(BLOCK), [LZ4(), signed, Checksum("sha256")])
    yield encode(floats(300, "e"), [FloatZip(), Checksum(), Encrypt(KEY)])


TARGET = Target(run, seeds, containers.mutate)
