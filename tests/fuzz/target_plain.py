"""A plain file, through `streamxf.open`: seekable, as a pipe, and by the reference decoder. Whoever changes an
encrypted one has the key: seals, tags and vouchers are right.
"""

import io
from collections.abc import Iterable

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from streamxf.errors import PolicyError
from streamxf.format.plain import PREFIX_START_BYTES
from streamxf.keys import SigningKey
from tests.fuzz import containers, second
from tests.fuzz.oracle import Finding, agree, attempt
from tests.fuzz.target import Target
from tests.reference_decoder import read_plain
from tests.samples import BLOCK, FULL, KEY, OneWay, data_of, encode, floats
from tests.sealing import SIGNER

_FLAGS_AT = 10


def run(data: bytes) -> None:
    read(data)


def read(data: bytes) -> bytes | None:
    """Read a plain file in every way; return what it holds, or None if it is refused."""
    keyed = bool(flags_of(data) & 1)
    keys = KEY if keyed else None
    found, error = attempt(lambda: streamxf.decode(data, keys=keys))
    for step in (1 << 30, 1 + len(data) // 7):
        piped, _ = attempt(lambda step=step: _through_pipe(data, keys, step))
        agree(piped == found, "a pipe and a seekable file give different streams")
    _seek(data, keys, found)
    if not keyed:
        _, refused = attempt(lambda: streamxf.decode(data, keys=KEY))
        agree(
            isinstance(refused, PolicyError) if found is not None else refused is not None,
            "a plain file passes for an encrypted one",
        )
    header = _header(data)
    if len(header) > 33 and header[12] <= second.MAX_BLOCK_LOG2:
        second.compare(found, error, lambda: read_plain(data, second.HOLDER if keyed else second.ANYONE))
    return found


def flags_of(data: bytes) -> int:
    """The flags in the header; 0 where there is none."""
    return int.from_bytes(_header(data)[_FLAGS_AT : _FLAGS_AT + 1], "little")


def _header(data: bytes) -> bytes:
    return data[PREFIX_START_BYTES + int.from_bytes(data[12:PREFIX_START_BYTES], "little") + 4 :]


def _through_pipe(data: bytes, keys: streamxf.Key | None, step: int) -> bytes:
    with streamxf.open(OneWay(data, step), "rb", keys=keys) as file:
        pieces = []
        while piece := file.read(40_000):
            pieces.append(piece)
        return b"".join(pieces)


def _seek(data: bytes, keys: streamxf.Key | None, whole: bytes | None) -> None:
    """Read here and there. Where the file as a whole is refused, so may be any of these reads."""

    def visit() -> None:
        with streamxf.open(io.BytesIO(data), "rb", keys=keys) as file:
            size = file.seek(0, io.SEEK_END)
            for position in (size - 1, 0, size // 2, size // 3, size, size + 5):
                if position < 0:
                    continue
                file.seek(position)
                part = file.read(97)
                if whole is not None and part != whole[position : position + 97]:
                    raise Finding(f"reading at {position} gives something else than reading everything")

    _, error = attempt(visit)
    agree(whole is None or error is None, "a file that can be read cannot be sought")


def seeds() -> Iterable[bytes]:
    yield from (
        encode(data_of(size), chain)
        for chain in ([], [ZStandard()], [LZ4()], [Checksum()], [ZStandard(1), LZ4(), Checksum("sha256")])
        for size in (0, 1, 300)
    )
    yield encode(bytes(2 * BLOCK + 5), [ZStandard()])
    yield encode(bytes(2 * BLOCK), [LZ4(), Checksum()])
    yield encode(floats(300, "e"), [FloatZip()])
    yield encode(floats(600, "f"), [FloatZip(), Checksum()])
    yield encode(bytes(BLOCK + 9), [FloatZip()])
    yield encode(bytes(1 << 20), [ZStandard()], 1 << 24)
    signed = Encrypt(KEY, signer=SigningKey(SIGNER.private_bytes_raw()))
    yield from (encode(data, [Encrypt(KEY)]) for data in (b"", data_of(300)))
    yield from (encode(data_of(300), chain) for chain in ([signed], FULL))
    yield encode(bytes(2 * BLOCK + 5), FULL)
    yield encode(bytes(BLOCK), [LZ4(), signed, Checksum("sha256")])
    yield encode(floats(300, "e"), [FloatZip(), Checksum(), Encrypt(KEY)])


TARGET = Target(run, seeds, containers.mutate)
