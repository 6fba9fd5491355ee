"""A block of FloatZip and the checksum behind it, undone in one call; and what that call leaves to the codecs."""

import struct
from typing import Any

import pytest

from streamxf import Checksum, Encrypt, FloatZip
from streamxf.buffers import Scratch
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import BlockInfo, StreamInfo
from streamxf.codecs.floatzip import kernel
from streamxf.errors import ChecksumError, CodecError
from streamxf.report import Meter
from tests.altered import flipped
from tests.codecs.implementations import IMPLEMENTATIONS, using
from tests.samples import BLOCK, KEY, data_of, floats

BLOCKS = {
    "floats": floats(BLOCK // 4, "f"),
    "noise": data_of(BLOCK)[: BLOCK // 2],
    "few": floats(10, "f"),
    "zeros": bytes(BLOCK),
    "empty": b"",
}
CHAINS = {
    "bare": [FloatZip()],
    "checked": [FloatZip(), Checksum()],
    "hashed": [FloatZip(), Checksum("sha256")],
    "twice": [FloatZip(), Checksum(), Checksum()],
    "full": [FloatZip(), Checksum(), Encrypt(KEY)],
}
COUNTED = ("streamxf.floatzip", "streamxf.checksum")


def coder_of(codecs: list[Any], meter: Meter | None = None) -> StreamCoder:
    return StreamCoder(Chain(codecs), StreamInfo(BLOCK, bytes(16), bytes(32), None, "float32"), meter=meter)


def decoded(coder: StreamCoder, stored: bytes, size: int) -> bytes:
    out = bytearray(size)
    assert bytes(coder.decode(memoryview(stored), 0, True, Scratch(), memoryview(out))) == out
    return bytes(out)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", BLOCKS)
def test_any_block_comes_back(name: str, chain: str, implementation: str) -> None:
    block, coder = BLOCKS[name], coder_of(CHAINS[chain])
    with using(implementation):
        stored = bytes(coder.encode(memoryview(block), 0, True, Scratch()))
        assert decoded(coder, stored, len(block)) == block
        assert bytes(coder.decode(memoryview(stored), 0, True, Scratch())) == block


@pytest.mark.skipif(kernel.compiled is None, reason="there is no kernel")
def test_one_call_undoes_both_and_counts_for_the_first() -> None:
    block, meter = BLOCKS["floats"], Meter()
    stored = bytes(coder_of(CHAINS["checked"]).encode(memoryview(block), 0, True, Scratch()))
    assert decoded(coder_of(CHAINS["checked"], meter), stored, len(block)) == block
    assert [meter.total().busy.get(name, 0) > 0 for name in COUNTED] == [True, False]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_each_codec_names_what_is_wrong_with_its_part(implementation: str) -> None:
    block, coder = BLOCKS["floats"], coder_of(CHAINS["checked"])
    with using(implementation):
        stored = bytes(coder.encode(memoryview(block), 0, True, Scratch()))
        for at in (0, 5, 30, len(stored) // 2, len(stored) - 1):
            with pytest.raises(ChecksumError):
                decoded(coder, flipped(stored, at, 0x40), len(block))
        payload = flipped(stored[:-4], 0, 0x80)
        right = bytes(Checksum().encode(memoryview(payload), info_of(coder)))
        with pytest.raises(CodecError, match="FloatZip"):
            decoded(coder, right, len(block))
        with pytest.raises(CodecError):  # a whole block of another size than is wanted
            decoded(coder, stored, len(block) - 4)


def info_of(coder: StreamCoder) -> BlockInfo:
    return BlockInfo(0, True, coder.stage_limit, None, coder.stream, lambda size: memoryview(bytearray(size)))


def test_a_codec_derived_from_floatzip_decodes_by_itself() -> None:
    class Other(FloatZip):
        def decode(self, block: memoryview, info: BlockInfo) -> memoryview:
            return memoryview(struct.pack("<I", 7))

    stored = bytes(coder_of([FloatZip()]).encode(memoryview(BLOCKS["floats"]), 0, True, Scratch()))
    assert decoded(coder_of([Other()]), stored, 4) == struct.pack("<I", 7)
