"""An encrypted plain file, changed by someone without the key: whatever can be read was written by a holder of it."""

from collections.abc import Iterable

from streamxf import Checksum, Encrypt, ZStandard
from tests.fuzz import containers
from tests.fuzz.oracle import agree
from tests.fuzz.target import Target
from tests.fuzz.target_plain import flags_of, read
from tests.samples import BLOCK, KEY, data_of, encode

_WRITTEN = (b"", data_of(70), bytes(2 * BLOCK + 5))


def run(data: bytes) -> None:
    found = read(data)
    if flags_of(data) & 1:
        agree(found is None or found in _WRITTEN, "something is read that no holder of the key has written")


def seeds() -> Iterable[bytes]:
    for data in _WRITTEN:
        yield encode(data, [ZStandard(), Encrypt(KEY)])
        yield encode(data, [ZStandard(), Encrypt(KEY), Checksum()])


TARGET = Target(run, seeds, containers.keyless)
