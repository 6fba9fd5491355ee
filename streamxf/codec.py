"""`Codec`, the base class of every codec, and the facts about block and stream that it is given.

A codec is one reversible transform of a block of bytes. It is a frozen dataclass: its fields are its parameters, it
holds no state of any stream, and one object is shared by all threads. `Codec.start` makes a stream's state (a derived
key, a table) once, and it comes back with every block.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_type_hints

from typing_extensions import Buffer

from streamxf.buffers import Scratch
from streamxf.descriptor import Descriptor
from streamxf.errors import DescriptorError, shorten
from streamxf.extension import TorchExtension

if TYPE_CHECKING:
    from streamxf.keys import KeyRing
    from streamxf.keys.envelope import DataKey

Role = Literal["transform", "compression", "checksum", "encryption"]
"""What a codec is for, which decides its place in a chain."""

WholeDecoder = Callable[[memoryview, memoryview], bool]
"""Decodes a block into memory of exactly its size. False leaves the block to the codecs, one after the other, which say
what is wrong with it; the memory's contents are undefined then.
"""

_COPIED = 16 * 1024  # bytes; a block of no more is copied sooner than it is found out where it lies


@dataclass(slots=True)
class StreamInfo:
    """Facts about a stream, the same for all of its blocks.

    - `block_size`: bytes in every block but the last.
    - `salt`: 16 random bytes, fresh for this stream.
    - `header_digest`: SHA-256 of the container's header (H in docs/format.md): it binds chain, block size and identity.
    - `item`: the item's name in the state dict, when known.
    - `dtype`, `row`: when known, and on encoding only: the name of the item's torch dtype (``"bfloat16"``), and how
      many elements a row of it has, if it is a matrix.
    """

    block_size: int
    salt: bytes
    header_digest: bytes
    item: str | None = None
    dtype: str | None = None
    row: int | None = None


@dataclass(slots=True)
class BlockInfo:
    """Facts about one block on its way through one codec.

    - `index`, `last`: the block's number in its stream, from 0, and whether it is the last one.
    - `limit`: the most bytes that the codec may return; on decoding it must refuse more *before* it allocates them.
    - `state`: the result of the codec's own `Codec.start` for this stream.
    - `scratch`: ``scratch(size)`` returns `size` bytes of reused writable memory, valid until the block has left the
      chain. Returning (a part of) it, which is optional, saves an allocation. A second call may return it again.
    - `memory`: all scratch memory of the block; `extend` uses it.
    - `beneath`: for the first codec of a chain, gives the block at the same place in an earlier save, where there is
      one, decoded: what is encoded may be its difference from that. The memory stays as it is meanwhile.
    """

    index: int
    last: bool
    limit: int
    state: Any
    stream: StreamInfo
    scratch: Callable[[int], memoryview]
    memory: Scratch | None = dataclasses.field(default=None, repr=False)
    beneath: Callable[[], memoryview] | None = dataclasses.field(default=None, repr=False)

    def extend(self, block: memoryview, size: int) -> memoryview:
        """Return writable memory that begins with `block` and has `size` more bytes of undefined contents.

        A block above 16 KiB is not copied if the codec before left it at the start of the chain's own scratch memory,
        as most codecs do; otherwise it is copied into `scratch` memory. For `encode`; use it instead of `scratch` to
        append something to a block.
        """
        out = self.memory.extended(block, size) if self.memory is not None and len(block) > _COPIED else None
        if out is None:
            out = self.scratch(len(block) + size)
            out[: len(block)] = block
        return out


class Codec(TorchExtension, abc.ABC):
    """One reversible transform of a block: the class that a codec's author derives from.

    A subclass is a frozen dataclass with a `name`, and it implements `encode` and `decode`. Its fields are its
    parameters, of type int, str or bool; a field made with ``field(metadata={"encode_only": True})`` affects encoding
    only and is never bound to the data. Check parameters in ``__post_init__`` and raise
    `streamxf.errors.ParameterError` with the allowed range.

    ``streamxf.testing`` holds the suite that every codec must pass; docs/writing-a-codec.md walks through an example.

    - `name`: the name in descriptors and of the entry point, such as ``acme.delta``.
    - `version`: increased whenever the meaning of the encoded bytes changes.
    - `role`: ``"transform"``, ``"compression"``, ``"checksum"`` or ``"encryption"``; it determines the codec's place in
      a chain. Only a checksum may follow encryption.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    role: ClassVar[Role] = "transform"

    @classmethod
    def implementation(cls) -> str | None:
        """The name, for reports, of the implementation that runs in this process; None if there is only one."""
        return None

    @abc.abstractmethod
    def encode(self, block: memoryview, info: BlockInfo) -> Buffer:
        """Transform one block on save. The result may be longer than the block, up to ``info.limit``."""

    @abc.abstractmethod
    def decode(self, block: memoryview, info: BlockInfo) -> Buffer:
        """Undo `encode`.

        `block` comes from storage and may contain anything. Raise `streamxf.errors.CodecError` (or any exception) for
        bytes that `encode` cannot have made, including trailing ones, and never produce more than ``info.limit`` bytes.
        """

    def whole_decoder(self, checksum: Codec | None) -> WholeDecoder | None:
        """What undoes this codec as the first of a chain, and the `checksum` behind it, in one step; None if nothing
        does. For codecs whose blocks are decoded without the interpreter's lock: each time that it is taken again, a
        thread may have to wait.
        """
        return None

    def start(self, stream: StreamInfo) -> Any:
        """Make ``info.state``, which all blocks of one stream and all threads share, so it must not change."""
        return None

    def renew(self) -> Self:
        """Return the codec for one save: a new object only if it draws random values for each save."""
        return self

    def descriptor(self) -> Descriptor:
        """Describe the codec so that a reader can `rebuild` it."""
        bound: list[tuple[str, str]] = []
        fragment: list[tuple[str, str]] = []
        for field in self.parameter_fields():
            value = getattr(self, field.name)
            if field.metadata.get("encode_only"):
                fragment.append((field.name, _to_text(value)))
            elif value != field.default:
                bound.append((field.name, _to_text(value)))
        return Descriptor(self.name, self.version, tuple(sorted(bound)), tuple(sorted(fragment)))

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """Make the codec from parameters in their text form. Raises DescriptorError if a parameter is unknown or its
        text is not of its type, and ParameterError if a value is out of range.
        """
        hints = _hints(cls)
        known = {field.name: hints[field.name] for field in cls.parameter_fields()}
        values: dict[str, Any] = {}
        for key, text in parameters.items():
            if key not in known:
                takes = ", ".join(sorted(known)) or "none"
                raise DescriptorError(f"codec {cls.name} has no parameter {shorten(key)!r}; it takes: {takes}")
            values[key] = _from_text(cls.name, key, text, known[key])
        return cls(**values)

    @classmethod
    def rebuild(cls, descriptor: Descriptor, keys: KeyRing | DataKey | None = None) -> Self:
        """Make the codec that a descriptor describes; `keys` are, for a codec that encrypts, keys that may open its
        data key, or that data key. Raises as `from_parameters`; also if the codec does not write such a descriptor.
        """
        codec = cls.from_parameters(dict(descriptor.parameters + descriptor.fragment))
        own = codec.descriptor()
        # nothing binds a fragment to the data, so it must not say how to decode it
        free = {key for key, _ in own.fragment}
        if own.parameters != descriptor.parameters or not all(key in free for key, _ in descriptor.fragment):
            raise DescriptorError(
                f"descriptor {shorten(str(descriptor))!r}: a parameter has its default before '#', or is on the wrong "
                f"side of '#'; {cls.name} itself writes {shorten(str(own))!r}"
            )
        return codec

    @classmethod
    def from_text(cls, parameters: Mapping[str, str], keys: KeyRing) -> Self:
        """Make the codec for a chain's text, ``zstd:level=3``, as `from_parameters`; `keys` for one that encrypts."""
        return cls.from_parameters(parameters)

    @classmethod
    def parameter_fields(cls) -> list[dataclasses.Field[Any]]:
        """The dataclass fields that are its parameters."""
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"codec {cls.__qualname__} must be a frozen dataclass")
        return [field for field in dataclasses.fields(cls) if field.init]


_hints = cache(get_type_hints)  # which compiles each one anew


def _to_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    raise TypeError(f"a codec's parameters are int, str or bool, not {type(value).__name__}")


def _from_text(name: str, key: str, text: str, kind: object) -> int | str | bool:
    if kind is str:
        return text
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and len(text) <= 20:
        with suppress(ValueError):
            if str(value := int(text)) == text:
                return value
    raise DescriptorError(f"codec {name}: {key}={shorten(text)!r} is not {getattr(kind, '__name__', kind)}")
