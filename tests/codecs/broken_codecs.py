"""A sound toy codec, and copies of it with one fault each: the conformance suite must tell them apart."""

import pickle
import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from streamxf import Codec
from streamxf.codec import BlockInfo
from streamxf.descriptor import Descriptor
from streamxf.errors import CodecError

HEAD = 8


@dataclass(frozen=True)
class Sound(Codec):
    """The block's length in 8 bytes, then its bytes, each XORed with `mask`."""

    name: ClassVar[str] = "toy.sound"

    mask: int = 0x5A

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return len(block).to_bytes(HEAD, "little") + self.flip(block)

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        size = int.from_bytes(block[:HEAD], "little")
        if len(block) != HEAD + size or size > info.limit:
            raise CodecError("not a block of the toy")
        return self.flip(block[HEAD:])

    def flip(self, data: memoryview) -> bytes:
        return bytes(data).translate(bytes(byte ^ self.mask for byte in range(256)))


@dataclass(frozen=True)
class SameLength(Sound):
    """Sound, though it cannot tell that its input was cut: the container can."""

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return self.flip(block)

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        if len(block) > info.limit:
            raise CodecError("too long")
        return self.flip(block)


@dataclass(frozen=True)
class BadName(Sound):
    name: ClassVar[str] = "Nameless"


@dataclass(frozen=True)
class BorrowedName(Sound):
    name: ClassVar[str] = "streamxf.toy"


@dataclass(frozen=True)
class BadVersion(Sound):
    version: ClassVar[int] = 70000


class NotFrozen(Sound):
    """Lacks the decorator: dataclasses freeze their own class, and leave a plain subclass open."""


@dataclass(frozen=True)
class Unpicklable(Sound):
    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError("no pickle today")


@dataclass(frozen=True)
class PickleForgets(Sound):
    def __reduce__(self) -> Any:
        return PickleForgets, ()


@dataclass(frozen=True)
class DescriptorForgets(Sound):
    def descriptor(self) -> Descriptor:
        return Descriptor(self.name, self.version)


@dataclass(frozen=True)
class NeedsItsFragment(Sound):
    """Marks as a matter of encoding what decoding needs too."""

    mask: int = field(default=0x5A, metadata={"encode_only": True})


@dataclass(frozen=True)
class LosesLastByte(Sound):
    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        return super().decode(block, info)[:-1]


@dataclass(frozen=True)
class NeedsDtype(Sound):
    """Leans on a fact that only the writer has."""

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        if info.stream.dtype is None:
            raise CodecError("what dtype?")
        return super().decode(block, info)


@dataclass(frozen=True)
class FailsOnFullBlocks(Sound):
    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return super().encode(block[:-1] if len(block) == 1 << 16 else block, info)


@dataclass(frozen=True)
class FailsOnLongerBlocks(Sound):
    """Believes that a block never has more than the block size."""

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return super().encode(block[: info.stream.block_size], info)


@dataclass(frozen=True)
class FailsOnMebibytes(Sound):
    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return super().encode(block[: (1 << 20) - 1], info)


@dataclass(frozen=True)
class ForgetsMiddleBlocks(Sound):
    """Alters full blocks that are not the last; single blocks of every size pass."""

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        full = len(block) == info.stream.block_size
        return super().encode(memoryview(bytes(len(block))) if full and not info.last else block, info)


@dataclass(frozen=True)
class Expands(Sound):
    """Stores everything twice."""

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return 2 * bytes(super().encode(block, info))

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        half = len(block) // 2
        if block[:half] != block[half:]:
            raise CodecError("the two copies differ")
        return super().decode(block[:half], info)


@dataclass(frozen=True)
class IgnoresLimit(Sound):
    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        if len(block) != HEAD + int.from_bytes(block[:HEAD], "little"):
            raise CodecError("not a block of the toy")
        return self.flip(block[HEAD:])


@dataclass(frozen=True)
class WantsRoom(Sound):
    """Refuses a limit of exactly the block's size."""

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        if len(block) > info.limit:
            raise CodecError("too long")
        return super().decode(block, info)


@dataclass(frozen=True)
class BelievesSizes(Sound):
    """Takes memory for the declared size first, and looks at the block afterwards."""

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        # no more than this, so that the test does not take the whole machine
        bytearray(min(int.from_bytes(block[:HEAD], "little"), 1 << 28))
        return super().decode(block, info)


@dataclass(frozen=True)
class Explodes(Sound):
    """Makes far more of hostile bytes than it may."""

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        try:
            return super().decode(block, info)
        except CodecError:
            return bytes(info.limit + 1)


released = threading.Event()


@dataclass(frozen=True)
class NeverEnds(Sound):
    """Waits for ever for the rest of a damaged block (until the test lets go of it)."""

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        try:
            return super().decode(block, info)
        except CodecError:
            released.wait()
            raise


@dataclass(frozen=True)
class PadsTheMissing(Sound):
    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        size = min(int.from_bytes(block[:HEAD], "little"), info.limit)
        if len(block) > HEAD + size:
            raise CodecError("something follows")
        return self.flip(block[HEAD:]).ljust(size, b"\0")


@dataclass(frozen=True)
class IgnoresTrailingBytes(Sound):
    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        return super().decode(block[: HEAD + int.from_bytes(block[:HEAD], "little")], info)


@dataclass(frozen=True)
class ModifiesInput(Sound):
    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        result = super().encode(block, info)
        if not block.readonly:
            block[:] = bytes(len(block))
        return result


@dataclass(frozen=True)
class ModifiesStored(Sound):
    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        result = super().decode(block, info)
        if not block.readonly:
            block[HEAD:] = result
        return result


@dataclass(frozen=True)
class LeaksScratch(Sound):
    """Pads with whatever the scratch memory held."""

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        return bytes(super().encode(block, info)) + bytes(info.scratch(4))

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        return super().decode(block[:-4], info)


@dataclass(frozen=True)
class AddsToScratch(Sound):
    """Believes that scratch memory is zeroed."""

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        data = super().decode(block, info)
        out = info.scratch(len(data))
        out[:] = bytes(left ^ right for left, right in zip(data, out, strict=True))
        return out


@dataclass(frozen=True)
class ReusesItsMemory(Sound):
    """Gives every block out of the same memory of its own."""

    memory: ClassVar[bytearray] = bytearray(1 << 21)

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        result = super().encode(block, info)
        self.memory[: len(result)] = result
        return memoryview(self.memory)[: len(result)]


@dataclass(frozen=True)
class LeansOnPreviousBlock(Sound):
    """Needs its blocks in order: each is masked by the length of the one before."""

    def start(self, stream: Any) -> dict[str, int]:
        return {"previous": 0}

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        shift, info.state["previous"] = info.state["previous"], len(block) % 256
        return super().encode(memoryview(bytes(byte ^ shift for byte in block)), info)

    def decode(self, block: memoryview, info: BlockInfo) -> Any:
        data = super().decode(block, info)
        shift, info.state["previous"] = info.state["previous"], len(data) % 256
        return bytes(byte ^ shift for byte in data)


@dataclass(frozen=True)
class SharedByThreads(Sound):
    """Keeps the block at hand in a place that all threads share."""

    place: ClassVar[dict[str, bytes]] = {}

    def encode(self, block: memoryview, info: BlockInfo) -> Any:
        self.place["block"] = bytes(block)
        time.sleep(0)  # lets go of the interpreter, as any call into a compressor would
        return super().encode(memoryview(self.place["block"]), info)
