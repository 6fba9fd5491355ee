"""What each codec makes of a stored block, alone and in the middle of a chain, against the reference decoder."""

import random
from collections.abc import Iterable

from streamxf import LZ4, Checksum, FloatZip, ZStandard
from streamxf.buffers import Scratch
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import StreamInfo
from tests.forge import Parts
from tests.fuzz.oracle import Finding, agree, attempt
from tests.fuzz.target import Havoc, Target
from tests.reference_codecs import Refused
from tests.reference_decoder import read_container
from tests.samples import BLOCK, data_of, floats

CHAINS = tuple(
    Chain(codecs)
    for codecs in (
        *([ZStandard()], [LZ4()], [Checksum()], [Checksum("sha256")], [Checksum(), ZStandard()], [Checksum(), LZ4()]),
        *([ZStandard(), LZ4()], [FloatZip()], [Checksum(), FloatZip()]),
    )
)
_SALT = bytes(32)


def run(data: bytes) -> None:
    if data:
        decode(CHAINS[data[0] % len(CHAINS)], data[1:])


def decode(chain: Chain, stored: bytes) -> None:
    """Decode one stored block in all ways."""
    coder = StreamCoder(chain, StreamInfo(BLOCK, _SALT, _SALT))
    found, error = attempt(lambda: bytes(coder.decode(memoryview(stored), 0, True, Scratch())))
    if found is not None:
        out = bytearray(len(found))
        coder.decode(memoryview(stored), 0, True, Scratch(), memoryview(out))
        agree(bytes(out) == found, "decoding into memory that is there gives something else")
    if len(stored) > coder.stage_limit:
        return
    # only the block can be wrong, so a decoder that finds fault with the size has decoded the block
    size = len(found) if found is not None else 1
    parts = Parts(chain="\n".join(chain.bound).encode(), salt=_SALT, blocks=((True, stored),), raw_size=size)
    try:
        second = read_container(parts.container())[1]
    except Refused as refusal:
        if found is not None:
            raise Finding(f"only the reference decoder refuses the block: {refusal}") from refusal
        if refusal.rule == "C9":
            raise Finding("only streamxf refuses the block") from error
        return
    if found is None:
        raise Finding("only streamxf refuses the block") from error
    agree(second == found, "the two decoders read different bytes")


def encoded(chain: Chain, data: bytes) -> bytes:
    """One block, encoded."""
    coder = StreamCoder(chain, StreamInfo(BLOCK, _SALT, _SALT))
    return bytes(coder.encode(memoryview(data), 0, True, Scratch()))


def seeds() -> Iterable[bytes]:
    for number, chain in enumerate(CHAINS):
        for data in (b"", data_of(200), bytes(BLOCK), floats(200, "f")):
            yield bytes([number]) + encoded(chain, data)


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change the block as it is stored, or what an inner codec made of it."""
    if not data or choose.random() < 0.5:
        return havoc(data)
    number, stored = data[0], data[1:]
    chain = CHAINS[number % len(CHAINS)]
    outer = Chain(chain.codecs[choose.randint(0, len(chain) - 1) :])
    coder = StreamCoder(outer, StreamInfo(4 * BLOCK, _SALT, _SALT))
    plain, _ = attempt(lambda: bytes(coder.decode(memoryview(stored), 0, True, Scratch())))
    if plain is None:
        return havoc(data)
    return bytes([number]) + bytes(coder.encode(memoryview(havoc(plain)), 0, True, Scratch()))


TARGET = Target(run, seeds, mutate)
